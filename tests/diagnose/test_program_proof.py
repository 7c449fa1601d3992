"""A repro made of the program itself fails while compiled and uncompiled differ, and passes when they do not.

The programs here do otherwise when they are compiled where `UNCOMPILED` stands, and the same where it is taken out.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from graphprobe.diagnose.dossier.program_proof import Factory, program_proof, write_program_proof
from graphprobe.diagnose.dossier.writer import run_repro

UNCOMPILED = "not torch.compiler.is_compiling()"
HEAD = "import torch\nfrom torch import nn\nimport numpy as np\nimport functools, collections, dataclasses, enum\n"
ONES = "[((torch.ones(3),), {})]"
_numbers = itertools.count()

PROGRAMS: dict[str, tuple[str, str]] = {
    "a list of the function around it": (
        f"""
def build(log):
    class Helper:
        def touch(self, x):
            return x * 2

    def program(x):
        if UNCOMPILED:
            log.append(1)
        return Helper().touch(x)

    return program

def make():
    return build([]), {ONES}
""",
        "log: uncompiled list [1], compiled list []",
    ),
    "a variable of the function around it": (
        f"""
def build():
    count = 3
    def program(x):
        nonlocal count
        if UNCOMPILED:
            count += 1
        return x + 1
    return program

def make():
    return build(), {ONES}
""",
        "program.count: uncompiled 4, compiled 3",
    ),
    "a global number": (
        f"""
count = 0

def program(x):
    global count
    if UNCOMPILED:
        count += 2
    return x + count

def make():
    return program, {ONES} * 2
""",
        "count: uncompiled 2, compiled 0",
    ),
    "an attribute of a module with parameters": (
        """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.steps = nn.Sequential(nn.Linear(3, 70), nn.BatchNorm1d(70), nn.Dropout(0.0)), 0

    def forward(self, x, *, scale=1.0):
        if UNCOMPILED:
            self.steps += 1
        return self.inner(x) * scale

def make():
    return Model(), [((torch.arange(12.0).reshape(3, 4).t(),), {"scale": 0.5}), ((torch.ones(2, 3),), {})]
""",
        "fn.steps: uncompiled 1, compiled 0",
    ),
    "a gradient": (
        """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 2.0))

    def forward(self, x):
        weight = self.weight if UNCOMPILED else self.weight.detach()
        return x * weight

def make():
    return Model(), [((torch.ones(3, requires_grad=True),), {})]
""",
        "fn.weight.grad: uncompiled torch.float32 (3,), compiled nothing",
    ),
    "an exception that is caught": (
        f"""
def program(x):
    try:
        {{}}["k"]
    except KeyError as e:
        return x * (3 if UNCOMPILED else 1)

def make():
    return program, {ONES}
""",
        "result: 3 of 3 values differ, the first: uncompiled 3.0, compiled 1.0",
    ),
    "an exception that is missing": (
        f"""
def program(x):
    if UNCOMPILED and x.shape[0] == 3:
        raise ValueError("no")
    return x + 1

def make():
    return program, {ONES}
""",
        "uncompiled it raises ValueError: no; compiled it does not raise",
    ),
    "numpy": (
        """
def program(x):
    return np.add(x, 1) if UNCOMPILED else np.add(x, 2)

def make():
    return program, [((np.array([1, 2], dtype=np.int16),), {})]
""",
        "result: 2 of 2 values differ, the first: uncompiled 2, compiled 3",
    ),
    "order of a dict, strides, kind of container": (
        """
Pair = collections.namedtuple("Pair", "a b")

class Kind(enum.Enum):
    FAST = 1

@dataclasses.dataclass
class Config:
    kind: Kind
    sizes: list
    limit: float = 1.5

config = Config(Kind.FAST, [1, 2])
config.limit = 2.5

def program(d):
    if UNCOMPILED:
        d.pop("b")
    return Pair(d["a"] * config.limit, config.sizes[0])

def make():
    return program, [((collections.OrderedDict(a=torch.ones(2), b=torch.ones(2)),), {})]
""",
        "args[0]: uncompiled collections.OrderedDict with ['a'], compiled collections.OrderedDict with ['a'], ['b']",
    ),
    "strides of the result": (
        """
def program(x):
    return x.t().clone() if UNCOMPILED else x.t().contiguous()

def make():
    return program, [((torch.arange(6.0).reshape(2, 3),), {})]
""",
        "strides of tensor 0 of the result: uncompiled [1, 3], compiled [2, 1]",
    ),
    "whose memory the result is": (
        """
def program(x, y):
    return x[1:] if UNCOMPILED else x[1:].clone()

def make():
    base = torch.arange(8.0)
    return program, [((base[2:], base[::2]), {})]
""",
        "memory of tensor 0 of the result: uncompiled args[0], compiled its own",
    ),
    "a class's attribute, and a default": (
        """
class Counter:
    count = 0
    def __init__(self):
        self.own = self

def program(x, seen=[]):
    seen.append(1)
    if UNCOMPILED:
        Counter.count += 1
    return x + Counter.count

def make():
    Counter.count = 5
    program.__defaults__[0].append(7)
    return program, [((torch.ones(3),), {})]
""",
        "Counter.count: uncompiled 6, compiled 5",
    ),
    "a decorated function that calls a method": (
        """
def twice(f):
    @functools.wraps(f)
    def wrapper(*args):
        return f(*args) * 2
    return wrapper

class Scale:
    __slots__ = ("factor",)
    def __init__(self, factor):
        self.factor = factor
    def __call__(self, x):
        if UNCOMPILED:
            self.factor += 1.0
        return x * self.factor

scale = Scale(3.0)

@twice
def program(x):
    return scale(x) + shift(x)

shift = lambda x: x - 1

def make():
    return program, [((torch.ones(3),), {})]
""",
        "scale.factor: 1 of 1 values differ, the first: uncompiled 4.0, compiled 3.0",
    ),
    "an optimizer": (
        """
model = nn.Linear(3, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

def program(x):
    loss = torch.func.vmap(model)(x).sum()
    loss.backward()
    if UNCOMPILED:
        optimizer.step()
    optimizer.zero_grad()
    return loss

def make():
    return program, [((torch.ones(3, 3),), {})]
""",
        "model.weight: 9 of 9 values differ",
    ),
    "what torch made of a function": (
        """
def inner(x):
    return x * (2 if UNCOMPILED else 3)

def make():
    return torch.func.vmap(inner), [((torch.ones(3, 3),), {})]
""",
        "result: 9 of 9 values differ, the first: uncompiled 2.0, compiled 3.0",
    ),
    "a bound method": (
        """
class Net:
    def __init__(self):
        self.table = {"a": torch.ones(2)}
    def run(self, x, k):
        if UNCOMPILED:
            self.table["b"] = x
        return x + self.table["a"] * k

def make():
    return Net().run, [((torch.ones(2),), {"k": 2.0})]
""",
        "table: uncompiled dict with ['a'], ['b'], compiled dict with ['a']",
    ),
}


def load(folder: Path, source: str, name: str = "") -> Any:
    """The module of a text; each has a name of its own."""
    name = name or f"proven_{next(_numbers)}"
    file = folder / f"{name}.py"
    file.write_text(HEAD + source)
    return loaded(file, name)


def loaded(file: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write(folder: Path, fn: Any, calls: Any, **how: Any) -> Path:
    out = folder / "proof"
    assert write_program_proof(out, fn, calls, **{"backend": "eager", "seed": 0, **how}) == []
    return out


def namespace(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The globals of a repro, and its `CHECK`; it is loaded, and not run."""
    space = vars(loaded(folder / "repro.py", "proof"))
    return space, space["CHECK"]


def lines(folder: Path) -> list[str]:
    """What a repro finds; both halves run in this process, each from a build of its own."""
    seen = []
    for compiles in (False, True):
        torch._dynamo.reset()
        space, given = namespace(folder)
        check = space["Check"](**{**given, "modules": ["proof"]})
        seen.append(check.run(torch.compile(check.fn, **check.compiled) if compiles else check.fn))
    pairs = zip(*seen, strict=False)
    return [line for want, have in pairs for line in space["differences"](want, have, check.tolerance)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_differs_is_told_and_nothing_else(tmp_path: Path, name: str) -> None:
    source, expected = PROGRAMS[name]
    grad = True if "requires_grad" in source else None
    for text, faulty in (
        (source.replace("UNCOMPILED", UNCOMPILED), True),
        (source.replace("UNCOMPILED", "True"), False),
    ):
        if name == "an exception that is missing" and not faulty:
            text = source.replace("UNCOMPILED", "False")
        folder = tmp_path / str(faulty)
        folder.mkdir()
        fn, calls = load(folder, text).make()
        out = write(folder, fn, calls, grad=grad)
        found = lines(out)
        assert "graphprobe" not in (out / "repro.py").read_text()
        if faulty:
            assert any(expected in line for line in found), found
        else:
            assert found == []


def test_program_of_two_files_with_a_state_that_runs_between_the_calls_change(tmp_path: Path) -> None:
    text = "level = 1.0\nseen = []\n\ndef scaled(x):\n    seen.append(level)\n    return x * level\n"
    load(tmp_path, text, "beside_state")
    source = """
import beside_state

def program(x):
    if UNCOMPILED:
        beside_state.level += 1.0
    return beside_state.scaled(x)

def between(fn, i):
    beside_state.level = 10.0 * i
"""
    for condition, faulty in ((UNCOMPILED, True), ("True", False)):
        module = load(tmp_path, source.replace("UNCOMPILED", condition))
        folder = tmp_path / str(faulty)
        out = write(folder, module.program, [((torch.ones(2),), {})] * 2, between=module.between)
        assert (out / "beside_state.py").read_text().count("def ") == 1
        assert run_repro(out) == faulty


def test_an_object_of_several_calls_is_one_object(tmp_path: Path) -> None:
    source = f"""
class Counter:
    def __init__(self):
        self.value = 0

def program(x, counter):
    counter.value += 1
    return x * (counter.value if {UNCOMPILED} else min(counter.value, 2))

call = ((torch.ones(3), Counter()), {{}})

def make():
    return program, [call] * 3
"""
    fn, calls = load(tmp_path, source).make()
    out = write(tmp_path, fn, calls)
    assert (out / "repro.py").read_text().count("instance(Counter") == 1
    assert lines(out) == ["result: 3 of 3 values differ, the first: uncompiled 3.0, compiled 2.0"]


def test_an_object_that_two_closures_share_is_one_object(tmp_path: Path) -> None:
    source = f"""
def make():
    held = []

    @torch.compiler.disable
    def note():
        held.append(1)

    def program(x):
        note()
        return x * (len(held) if {UNCOMPILED} else min(len(held), 1))

    return program, [((torch.ones(3),), {{}})] * 2
"""
    fn, calls = load(tmp_path, source).make()
    out = write(tmp_path, fn, calls)
    assert lines(out) == ["result: 3 of 3 values differ, the first: uncompiled 2.0, compiled 1.0"]


def test_a_class_beside_the_function_that_uses_an_object_of_it(tmp_path: Path) -> None:
    source = f"""
def make():
    class Gate:
        open = True

        def __bool__(self):
            return self.open

    gate = Gate()

    @torch.compiler.disable
    def shut():
        Gate.open = False

    def program(x):
        y = x * 2 if gate or not ({UNCOMPILED}) else x * 3
        shut()
        return y

    return program, [((torch.ones(3),), {{}})] * 2
"""
    fn, calls = load(tmp_path, source).make()
    out = write(tmp_path, fn, calls)
    assert lines(out) == ["result: 3 of 3 values differ, the first: uncompiled 3.0, compiled 2.0"]


def test_tensors_come_back_as_they_were(tmp_path: Path) -> None:
    module = load(tmp_path, "def program(*args, **kwargs):\n    return 0\n")
    memory = torch.arange(6, dtype=torch.float64)
    given = [
        torch.randn(100),
        torch.randn(3, 5, dtype=torch.bfloat16).t(),
        torch.tensor([float("nan"), float("inf"), -0.0]),
        torch.empty_strided((2, 3), (1, 4), dtype=torch.int64).copy_(torch.arange(6).reshape(2, 3)),
        torch.zeros(0, 3),
        torch.tensor(1 + 2j),
        torch.tensor([True, False]),
        memory.detach()[1:],
        memory.data,
        torch.nn.Parameter(torch.randn(2), requires_grad=False),
        torch.randn(2, 2, requires_grad=True),
        torch.tensor([-0.0, -0.0]),
        torch.randn(70).to(torch.float8_e4m3fn),
    ]
    out = write(tmp_path, module.program, [(given, {"n": np_like()})])
    args, kwargs = namespace(out)[1]["calls"][0]
    for want, have in zip(given, args, strict=True):
        assert (want.dtype, want.shape, want.requires_grad, type(want)) == (
            have.dtype,
            have.shape,
            have.requires_grad,
            type(have),
        )
        assert want.stride() == have.stride()
        assert torch.equal(want.contiguous().view(-1).view(torch.uint8), have.contiguous().view(-1).view(torch.uint8))
    assert args[7].untyped_storage().data_ptr() == args[8].untyped_storage().data_ptr()
    assert (kwargs["n"] == np_like()).all() and kwargs["n"].flags.f_contiguous


def np_like() -> Any:
    import numpy as np

    return np.asfortranarray(np.arange(80, dtype=np.float32).reshape(8, 10))


def test_what_cannot_be_told_is_said_or_imported(tmp_path: Path) -> None:
    source = """
class Odd:
    def __init__(self):
        self.me = self

odd = Odd()

def program(x):
    return x + 1 if odd.me is odd else x

def make():
    return (program, (torch.ones(2),))
"""
    module = load(tmp_path, source)
    proof = program_proof(lambda x: x, [(((i for i in range(3)),), {})])
    assert proof.files == {} and "cannot be told as text" in proof.problems[0]
    proof = program_proof(module.program, [((torch.ones(2),), {})], backend="eager")
    assert proof.problems == [] and "the program's own file" in proof.notes[0]
    out = write(tmp_path, module.program, [((torch.ones(2),), {})], factory=Factory(Path(module.__file__), "make"))
    assert lines(out) == []


@pytest.mark.heavy
def test_the_process_dies_or_the_program_cannot_be_built(tmp_path: Path) -> None:
    source = """
import os

def program(x):
    return x + 1

def dying(graph, inputs):
    os.abort()
"""
    module = load(tmp_path, source)
    assert run_repro(write(tmp_path / "dies", module.program, [((torch.ones(3),), {})], backend=module.dying)) == 1
    out = write(tmp_path / "bad", module.program, [((torch.ones(3),), {})])
    (out / "repro.py").write_text((out / "repro.py").read_text().replace("torch.ones(3)", "torch.no_such(3)"))
    assert run_repro(out) == 125
