"""Side effects of a call: what is seen of the user's things, what counts as a difference, and what is left alone."""

import collections
import enum
import functools
import itertools  # noqa: F401
import logging
import random
import textwrap
import threading
import types  # noqa: F401
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import relu

from graphprobe.judge import effect_walk
from graphprobe.judge.effects import Effect, differing, from_record, nearly_equal, snapshot, to_record

N = 0
STATS: dict[str, Any] = {"calls": 0}
HITS: list[int] = []
LOG = logging.getLogger("effects")
X = torch.ones(3)


class Model(nn.Module):
    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.history: list[Any] = []
        self.last: Any = None

    def forward(self, x: Any) -> Any:
        Model.calls += 1
        self.history.append(x.shape)
        return self.linear(x)


class State:
    def __init__(self) -> None:
        self.items: list[Any] = []
        self.total = 0.0


class Slotted:
    __slots__ = ("count", "never")

    def __init__(self) -> None:
        self.count = 0


class Hostile:
    """Whatever is asked of it runs its code."""

    asked: list[str] = []  # noqa: RUF012

    def __init__(self) -> None:
        object.__setattr__(self, "kept", 1)

    def _ask(self, *names: Any) -> Any:
        Hostile.asked.append(str(names))
        raise RuntimeError("a user's code ran")

    __getattr__ = __getattribute__ = __len__ = __iter__ = __repr__ = __str__ = __eq__ = __hash__ = __bool__ = _ask  # type: ignore[assignment]
    __class__ = property(_ask)  # type: ignore[assignment]
    wrong = property(_ask)


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


def reset() -> None:
    global N
    N, Model.calls = 0, 0
    STATS.clear()
    STATS["calls"] = 0
    HITS.clear()
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    reset()


Made = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function and its arguments."""


def effects(make: Callable[[], Made], *, lost: bool = True) -> list[Effect]:
    """What differs where the compiled call does nothing at all, or what the uncompiled one did."""
    afters = []
    before: dict[str, Any] = {}
    for skip in (False, False, lost):
        reset()
        fn, args = make()
        before = snapshot(fn, (args, {}))
        if not skip:
            fn(*args)
        afters.append(from_record(to_record(snapshot(fn, (args, {})))))
    return differing(before, afters[0], afters[2], afters[1:2])


def made(setup: str, statement: str) -> Made:
    """A function that runs the statement; of what is set up, names in capitals are globals, and `it` an argument."""
    takes = "x, it" if "it = " in setup else "x"
    text = f"{setup}\ndef fn({takes}):\n    {statement}\n    return x\nargs = ({takes},)"
    if not setup[0].isupper():
        text = f"def make():\n{textwrap.indent(text, '    ')}\n    return fn, args\nfn, args = make()"
    scope = {**globals(), "x": X}
    exec(text, scope)
    return scope["fn"], scope["args"]


def default_list() -> Any:
    def fn(x: Any, cache: list[int] = []) -> Any:  # noqa: B006
        cache.append(1)
        return x

    fn.__defaults__[0].clear()  # type: ignore[index]
    return fn, (X,)


def function_attribute() -> Any:
    def fn(x: Any) -> Any:
        fn.calls += 1  # type: ignore[attr-defined]
        return x

    fn.calls = 0  # type: ignore[attr-defined]
    return fn, (X,)


def hook() -> Any:
    model, seen = nn.Sequential(nn.Linear(3, 3)), []

    def forward_hook(part: Any, args: Any, out: Any) -> None:
        seen.append(1)
        part.calls = 1

    model[0].register_forward_hook(forward_hook)
    return model, (X,)


STATEMENTS = [
    ("HITS = []", "HITS.append(1)", {"global HITS", "global HITS[0]"}),
    ("N = 0", "global N; N += 1", {"global N"}),
    ("STATS = {'calls': 0}", "STATS['calls'] += 1", {"global STATS['calls']"}),
    ("STATS = {'calls': 0}\ndef count(): STATS['calls'] += 1", "count()", {"global STATS['calls']"}),
    (
        "USERS = types.ModuleType('of_a_user'); USERS.x = []",
        "USERS.x.append(2)",
        {"global USERS.x", "global USERS.x[0]"},
    ),
    ("COUNT = itertools.count()", "x + next(COUNT)", {"global COUNT"}),
    ("hits = []", "hits.append(1)", {"closure hits", "closure hits[0]"}),
    ("n = 0", "nonlocal n; n += 1", {"closure n"}),
    ("class Kind(type):\n    n = 0\nclass Made(metaclass=Kind): pass", "type(Made).n += 1", {"class Kind.n"}),
    ("a = []\nclass Helper:\n    def touch(self): a.append(1)", "Helper().touch()", {"closure a", "closure a[0]"}),
    ("append = [].append", "append(1)", {"closure append.__self__", "closure append.__self__[0]"}),
    ("order = [1, 2, 3]", "order.reverse()", {"closure order[0]", "closure order[2]"}),
    ("kept = {3, 1}", "kept.add(2)", {"closure kept"}),
    ("kept = collections.deque([1], maxlen=1)", "kept.append(2)", {"closure kept[0]"}),
    ("kept = collections.Counter()", "kept['a'] += 1", {"closure kept", "closure kept['a']"}),
    ("state = State()", "state.total = x * 2", {"closure state.total"}),
    ("kept = {'buffer': torch.zeros(3)}", "kept['buffer'].add_(x)", {"closure kept['buffer']"}),
    ("kept = np.zeros(3)", "kept[0] = 1", {"closure kept"}),
    ("hits = list(range(1000))", "hits[900] = -1", {"closure hits"}),
    ("items = iter([1, 2, 3])", "x + next(items)", {"closure items"}),
    ("own = torch.Generator().manual_seed(0)", "torch.rand(3, generator=own)", {"generator closure own"}),
    ("own = random.Random(0)", "own.random()", {"generator closure own"}),
    ("own = np.random.default_rng(0)", "own.random()", {"generator closure own"}),
    ("pass", "random.random() + torch.rand(3)", {"random generator of Python", "random generator of torch"}),
    ("pass", "np.random.rand()", {"random generator of numpy"}),
    ("it = State()", "it.items.append(3)", {"argument 1.items", "argument 1.items[0]"}),
    ("it = Slotted()", "it.count += 1", {"argument 1.count"}),
    ("it = types.SimpleNamespace(x={'a': Colour.RED})", "it.x['a'] = Colour.BLUE", {"argument 1.x['a']"}),
    ("seen = []; it = lambda n: seen.append(n)", "it(1)", {"closure seen", "closure seen[0]"}),
    ("it = collections.OrderedDict(a=1, b=2)", "it.move_to_end('a')", {"argument 1"}),
    ("it = {torch.zeros(3): 0}", "it[x] = 1", {"argument 1", "argument 1[<tensor float32[3]> #2]"}),
]
OF_A_MODEL = {"self.history", "self.history[0]", "class Model.calls"}
LOST: list[tuple[Callable[[], Made], set[str]]] = [
    *((functools.partial(made, *program), labels) for *program, labels in STATEMENTS),
    (default_list, {"default cache", "default cache[0]"}),
    (function_attribute, {"fn.calls"}),
    (hook, {"closure seen", "closure seen[0]", "self.0.calls"}),
    (lambda: (Model(), (X,)), OF_A_MODEL),
    (lambda: (Model().forward, (X,)), OF_A_MODEL),
    (lambda: (functools.partial(Model().forward, X), ()), OF_A_MODEL),
    (
        lambda: (functools.partial(lambda seen, x: seen.append(1), []), (X,)),
        {"partial argument 0", "partial argument 0[0]"},
    ),
]


@pytest.mark.parametrize(("make", "labels"), LOST)
def test_a_lost_effect_is_seen_where_it_is(make: Callable[[], Made], labels: set[str]) -> None:
    found = effects(make)
    assert {effect.where for effect in found} == labels, found
    assert all(effect.expected != effect.got for effect in found)
    assert effects(make, lost=False) == []


def test_what_is_said_of_it() -> None:
    def told(setup: str, statement: str) -> list[Effect]:
        return effects(lambda: made(setup, statement))

    assert told("hits = []", "hits.append(1)") == [
        Effect("closure hits", "list of 1", "list of 0"),
        Effect("closure hits[0]", "1", "nothing"),
    ]
    assert told("it = collections.OrderedDict(a=1, b=2)", "it.move_to_end('a')") == [
        Effect("argument 1", "OrderedDict of 2: 'b', 'a'", "OrderedDict of 2: 'a', 'b'")
    ]
    assert told("state = State()", "state.total = x * 2")[0].expected == "tensor float32[3] [2.0, 2.0, 2.0]"
    assert told("pass", "np.random.rand()") == [Effect("random generator of numpy", "moved", "not moved")]
    state = State()
    state.items.append({"a": (1, None)})
    found = snapshot(lambda state: None, ((), {"state": state}))
    assert found["argument state.items[0]['a'][0]"] == 1 and found["argument state.items[0]['a'][1]"] is None
    assert found["argument state"] == f"<{__name__}.State>" and found["argument state.total"] == 0.0

    def make(n: int) -> Any:
        def inner(x: Any) -> int:
            nonlocal n
            n += 1
            return n

        return inner

    first, second = make(1), make(2)
    found = snapshot(lambda x: first(x) + second(x), ((X,), {}))
    assert sorted(value for label, value in found.items() if label.startswith("closure n")) == [1, 2]


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        (1.0, 1.0 + 1e-6, True),
        (1.0, 1.001, False),
        (float("nan"), float("nan"), True),
        (float("inf"), float("-inf"), False),
        (1j, 1j + 1e-7, True),
        (torch.tensor([1e4, 1.0]), torch.tensor([1e4, 1.01]), True),
        (torch.tensor([1.0, 1.0]), torch.tensor([1.0, 1.01]), False),
        (torch.tensor([1.0, 1.0], dtype=torch.bfloat16), torch.tensor([1.0, 1.0078], dtype=torch.bfloat16), True),
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, 2.0]), False),
        (torch.tensor([1]), torch.tensor([2]), False),
        (torch.ones(2), torch.ones(2, dtype=torch.float64), False),
        (torch.ones(2), "<tensor float32[2]>", True),
        (torch.ones(2), "<tensor float32[3]>", False),
        (torch.ones(0), torch.ones(0), True),
        (0, False, False),
        (1.0, torch.tensor(1.0), False),
    ],
)
def test_rounding_is_no_effect(a: Any, b: Any, equal: bool) -> None:
    assert nearly_equal(a, b) is equal and nearly_equal(b, a) is equal
    assert [effect.where for effect in differing({}, {"a": a}, {"a": b}, [])] == ([] if equal else ["a"])


def test_what_is_left_alone() -> None:
    eager = {"clock": 1, "log": "<list of 2>", "log[0]": 1, "log[1]": 2, "n": 1}
    other = {"clock": 2, "log": "<list of 1>", "log[0]": 1, "n": 1}
    compiled = {"clock": 3, "log": "<list of 3>", "log[0]": 1, "log[1]": 2, "log[2]": 3, "n": 2}
    assert differing({}, eager, compiled, [other]) == [Effect("n", "1", "2")]
    eager = {"a": "<list of 1>", "a[0]": "<tuple of 1>", "a[0][0]": 3, "ab": 1}
    found = differing({}, eager, {"a": "<list of 0>", "ab": 2}, [])
    assert [effect.where for effect in found] == ["a", "a[0]", "ab"]


def test_what_is_described_otherwise_in_another_process_is_left_alone() -> None:
    before, start = {"fn": "<function make.<locals>.f>", "n": 1}, {"fn": "<function f>", "n": 1}
    assert differing(before, before, start, [], compiled_before=start) == []
    found = differing(before, {**before, "n": 2}, {"fn": "None", "n": 1}, [], compiled_before=start)
    assert [effect.where for effect in found] == ["fn", "n"]


def test_generators_may_be_moved_otherwise() -> None:
    def found(kind: str, eager: str, compiled: str, start: str = "") -> list[Effect]:
        before, after, other, compiled_before = (
            {"random generator of torch": f"<torch.Generator {which}>", "generator g": f"<{kind} {which}>"}
            for which in ("a", eager, compiled, start)
        )
        return differing(before, after, other, [], compiled_before=compiled_before if start else None)

    for moves, count in (("bc", 0), ("ba", 2), ("ab", 2), ("bcb", 0), ("bcc", 2)):
        assert len(found("torch.Generator", *moves)) == count
    assert found("random.Random", "b", "c") == [Effect("generator g", "moved", "moved otherwise")]
    names = ("random generator of numpy", "random generator of torch")
    before = dict(zip(names, ("<numpy.random.RandomState a>", "<torch.Generator a>"), strict=True))
    eager = {**before, names[0]: "<numpy.random.RandomState b>"}
    assert differing(before, eager, {**before, names[1]: "<torch.Generator b>"}, []) == []
    assert [effect.where for effect in differing(before, eager, before, [])] == [names[0]]
    otherwise = {names[0]: "<numpy.random.RandomState c>", names[1]: "<torch.Generator b>"}
    assert differing(before, eager, otherwise, []) == []


def test_only_the_users_things_are_looked_at() -> None:
    lock, kind, part = threading.Lock(), Colour, functools.lru_cache(relu)

    def fn(x: Any) -> Any:
        with lock:
            LOG.info("%s %s", kind, part(x))
        return relu(np.asarray(torch.relu(x)))

    found = snapshot(fn, ((X, STATS, "x"), {}))
    generators = {label for label in found if label.startswith("random generator of")}
    assert generators == {f"random generator of {name}" for name in ("Python", "numpy", "torch")}
    rest = {label: value for label, value in found.items() if label not in generators}
    assert rest == {
        "argument 0": "<tensor float32[3]>",
        "argument 1": "<dict of 1: 'calls'>",
        "argument 1['calls']": 0,
        "argument 2": "x",
        "closure lock": "<_thread.lock>",
        "global LOG": "<logging.Logger>",
    }
    names = {"__compiled_fn_1_ab": 1, "__resume_at_4": 2, "_torchdynamo_x": 3, "kept": 4}
    state = State()
    vars(state).update(_dynamo_mark=1, kept=2)
    found = snapshot(lambda x: names, ((state,), {}))
    assert found["closure names"] == "<dict of 1: 'kept'>" and found["argument 0.kept"] == 2
    assert not [label for label in found if "dynamo" in label or "__compiled" in label or "__resume" in label]


def test_no_code_of_the_user_runs() -> None:
    Hostile.asked.clear()
    hostile = Hostile()
    held = [hostile, (hostile,), collections.OrderedDict(a=hostile)]

    def fn(x: Any) -> Any:
        return held, hostile

    found = snapshot(fn, ((held,), {"h": hostile}))
    assert Hostile.asked == []
    assert "argument 0[0].kept" in found or "argument h.kept" in found
    assert not [label for label in found if label.endswith(".wrong")]


UNUSUAL = {
    "text": ["\ud800", "long" * 5000, b"bytes"],
    "numbers": [10**5000, float("nan"), range(3), (n for n in (1, 2))],
    "numpy": [np.array([object()]), np.float32(2), np.array("text")],
    "tensors": [torch.ones(2, device="meta"), torch.ones(2).to_sparse(), torch.ones(2, requires_grad=True) * 2],
    "keys": [{(1, "a"): 1, None: 2, Colour.RED: 3, nn.ReLU: 4, relu: 5, frozenset({1}): 6}],
    "others": [torch.float16, torch.device("cpu"), lambda: LOG],
}


@pytest.mark.parametrize("kind", UNUSUAL)
def test_everything_goes_through_bytes(kind: str) -> None:
    state = State()
    state.items = UNUSUAL[kind] * 2
    found = snapshot(lambda x: x, ((state,), {}))
    assert f"argument 0.items[{len(state.items) - 1}]" in found
    restored = from_record(to_record(found))
    assert differing({}, found, restored, []) == [] and list(restored) == list(found)
    assert differing({}, found, snapshot(lambda x: x, ((state,), {})), []) == []


def test_what_is_another_object() -> None:
    state = State()
    state.items.append(state)
    again = state.items
    found = snapshot(lambda x: again, ((state,), {}))
    assert found["closure again[0]"] == f"<{__name__}.State, also argument 0>"
    assert found["argument 0.items"] == "<list, also closure again>"

    def make(copy: bool) -> dict[str, Any]:
        state = State()
        other = [*state.items] if copy else state.items
        return snapshot(lambda x: other, ((state,), {}))

    assert [effect.where for effect in differing({}, make(False), make(True), [])] == ["argument 0.items"]


def test_much_is_cut_and_stays_comparable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effect_walk, "MOST_LABELS", 50)
    state = State()
    state.items = [[n] for n in range(100)]
    found = snapshot(lambda x: x, ((state,), {}))
    assert 50 <= len(found) <= 53
    chain: Any = None
    for _ in range(100):
        chain = [chain]
    deep = snapshot(lambda x: x, ((chain,), {}))
    assert max(label.count("[0]") for label in deep) == effect_walk.DEPTH


def test_snapshots_draw_nothing_and_describe_parameters() -> None:
    kept = [torch.zeros(3)]
    first, _ = snapshot(lambda x: kept[0], ((X,), {})), kept[0].add_(1)
    assert first["closure kept[0]"].tolist() == [0, 0, 0]
    assert first == {**snapshot(lambda x: kept[0], ((X,), {})), "closure kept[0]": first["closure kept[0]"]}
    model = Model()
    weights = [model.linear.weight]
    found = snapshot(lambda x: (model, weights), ((X,), {}))
    assert found["closure weights[0]"] == "<tensor float32[3, 3]>"
    assert not [value for value in found.values() if isinstance(value, torch.Tensor)]
    assert found["closure model.training"] is True


class Everything(Model):
    def __init__(self) -> None:
        super().__init__()
        self.counter: collections.Counter[str] = collections.Counter()
        self.own = random.Random(0)
        self.norms: list[float] = []
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Any) -> Any:
        global N
        N += 1
        Model.calls += 1
        STATS["calls"] += 1
        self.counter["calls"] += 1
        self.history.append(tuple(x.shape))
        out = self.dropout(self.linear(x)).relu()
        self.last = out.detach()
        HITS.append(len(self.history))
        self.norms.append(float(out.detach().sum()) * 0.0 + random.random())
        return out


def _calls(wrap: Callable[[Any], Any], fn: Callable[..., Any], args: tuple[Any, ...], times: int = 2) -> list[Any]:
    found = [snapshot(fn, (args, {}))]
    called = wrap(fn)
    for _ in range(times):
        called(*args)
        found.append(snapshot(fn, (args, {})))
    return found


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_healthy_compiled_program_has_none(backend: str) -> None:
    runs = []
    for wrap in (lambda fn: fn, lambda fn: fn, torch.compile(backend=backend)):
        reset()
        model = Everything()
        model.linear.load_state_dict({"weight": torch.eye(3), "bias": torch.ones(3)})
        runs.append(_calls(wrap, model, (X,)))
    for i in (1, 2):
        assert runs[0][i]["global N"] == i and runs[0][i]["self.counter['calls']"] == i
        assert differing(runs[0][i - 1], runs[0][i], runs[2][i], [runs[1][i]], compiled_before=runs[2][i - 1]) == []
