"""A repro made of the program itself fails while compiled and uncompiled differ, and passes when they do not.

The programs here do otherwise when they are compiled where `UNCOMPILED` stands, and the same where it is taken out.
"""

import importlib.util
import itertools
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from graphprobe.diagnose.dossier.long import long_program
from graphprobe.diagnose.dossier.template import Repro
from graphprobe.diagnose.dossier.writer import run_repro, write_files
from graphprobe.diagnose.program import Program
from graphprobe.diagnose.settings import Compilation
from graphprobe.findings import Finding
from graphprobe.program_text.plain_values import Unwritable

UNCOMPILED = "not torch.compiler.is_compiling()"
HEAD = "import torch\nfrom torch import nn\nimport numpy as np\nimport functools, collections, dataclasses, enum\n"
HEAD += "ONES = [((torch.ones(3),), {})]\n"
_numbers = itertools.count()

PROGRAMS = """
#: a list of the function around it -> log: uncompiled list [1], compiled list []
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
    return build([]), ONES

#: a variable of the function around it -> program.count: uncompiled 4, compiled 3
def build():
    count = 3
    def program(x):
        nonlocal count
        if UNCOMPILED:
            count += 1
        return x + 1
    return program
def make():
    return build(), ONES

#: a global number -> count: uncompiled 2, compiled 0
count = 0
def program(x):
    global count
    if UNCOMPILED:
        count += 2
    return x + count
CALLS = ONES * 2

#: an attribute of a module with parameters -> fn.steps: uncompiled 1, compiled 0
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

#: a gradient -> fn.weight.grad: uncompiled torch.float32 (3,), compiled nothing
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 2.0))
    def forward(self, x):
        weight = self.weight if UNCOMPILED else self.weight.detach()
        return x * weight
def make():
    return Model(), [((torch.ones(3, requires_grad=True),), {})]

#: an exception that is caught -> result: 3 of 3 values differ, the worst at (0,): uncompiled 3.0, compiled 1.0
def program(x):
    try:
        {}["k"]
    except KeyError as e:
        return x * (3 if UNCOMPILED else 1)

#: an exception that is missing -> uncompiled it raises ValueError: no; compiled it does not raise
def program(x):
    if UNCOMPILED and x.shape[0] == 3:
        raise ValueError("no")
    return x + 1

#: numpy -> result: 2 of 2 values differ, the worst at (0,): uncompiled 2, compiled 3
def program(x):
    return np.add(x, 1) if UNCOMPILED else np.add(x, 2)
CALLS = [((np.array([1, 2], dtype=np.int16),), {})]

#: dicts -> args[0]: uncompiled collections.OrderedDict with ['a'], compiled collections.OrderedDict with ['a'], ['b']
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
CALLS = [((collections.OrderedDict(a=torch.ones(2), b=torch.ones(2)),), {})]

#: strides of the result -> strides of tensor 0 of the result: uncompiled [1, 3], compiled [2, 1]
def program(x):
    return x.t().clone() if UNCOMPILED else x.t().contiguous()
CALLS = [((torch.arange(6.0).reshape(2, 3),), {})]

#: whose memory the result is -> memory of tensor 0 of the result: uncompiled args[0], compiled its own
def program(x, y):
    return x[1:] if UNCOMPILED else x[1:].clone()
def make():
    base = torch.arange(8.0)
    return program, [((base[2:], base[::2]), {})]

#: a class's attribute, and a default -> Counter.count: uncompiled 6, compiled 5
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

#: a method behind a decorator -> scale.factor: 1 of 1 values differ, the worst at (): uncompiled 4.0, compiled 3.0
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

#: an optimizer -> model.weight: 9 of 9 values differ
model = nn.Linear(3, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
def program(x):
    loss = torch.func.vmap(model)(x).sum()
    loss.backward()
    if UNCOMPILED:
        optimizer.step()
    optimizer.zero_grad()
    return loss
CALLS = [((torch.ones(3, 3),), {})]

#: what torch made of a function -> result: 9 of 9 values differ, the worst at (0, 0): uncompiled 2.0, compiled 3.0
def inner(x):
    return x * (2 if UNCOMPILED else 3)
def make():
    return torch.func.vmap(inner), [((torch.ones(3, 3),), {})]

#: a bound method -> table: uncompiled dict with ['a'], ['b'], compiled dict with ['a']
class Net:
    def __init__(self):
        self.table = {"a": torch.ones(2)}
    def run(self, x, k):
        if UNCOMPILED:
            self.table["b"] = x
        return x + self.table["a"] * k
def make():
    return Net().run, [((torch.ones(2),), {"k": 2.0})]

#: an object of several calls -> result: 3 of 3 values differ, the worst at (0,): uncompiled 3.0, compiled 2.0
class Counter:
    value = 0
def program(x, counter):
    counter.value += 1
    return x * (counter.value if UNCOMPILED else min(counter.value, 2))
CALLS = [((torch.ones(3), Counter()), {})] * 3

#: an object that two closures share -> result: 3 of 3 values differ, the worst at (0,): uncompiled 2.0, compiled 1.0
def make():
    held = []
    @torch.compiler.disable
    def note():
        held.append(1)
    def program(x):
        note()
        return x * (len(held) if UNCOMPILED else min(len(held), 1))
    return program, [((torch.ones(3),), {})] * 2

#: a class beside its user -> result: 3 of 3 values differ, the worst at (0,): uncompiled 3.0, compiled 2.0
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
        y = x * 2 if gate or not (UNCOMPILED) else x * 3
        shut()
        return y
    return program, [((torch.ones(3),), {})] * 2
"""
"""What differs in each, behind the arrow. Where there is no `make`, `program` is called as in `CALLS`, or with ones."""

NAMED = {m[1]: (m[3], m[2]) for m in re.finditer(r"#: (.+) -> (.+)\n((?:(?!#: ).*\n)+)", PROGRAMS)}


def load(folder: Path, source: str, name: str = "") -> Any:
    """The module of a text; each has a name of its own. It calls its program with ones where it has no `make`."""
    name = name or f"proven_{next(_numbers)}"
    make = "" if "def make" in source else "\ndef make():\n    return program, globals().get('CALLS', ONES)\n"
    (folder / f"{name}.py").write_text(HEAD + source + make)
    return loaded(folder / f"{name}.py", name)


def loaded(file: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write(folder: Path, fn: Any, calls: Any, **how: Any) -> Path:
    write_files(folder / "proof", long_of(fn, calls, **how).written())
    return folder / "proof"


def long_of(fn: Any, calls: Any, *, backend: Any = "eager", **how: Any) -> Repro:
    finding = Finding(kind="wrong_value", stage="dynamo")
    return long_program(Program(fn, calls, **how), Compilation(backend, None, Path()), finding)


def namespace(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The globals of a repro, and its `CHECK`; it is loaded, and not run."""
    space = vars(loaded(folder / "repro.py", "proof"))
    return space, space["CHECK"]


def lines(folder: Path) -> list[str]:
    """What a repro finds; both halves run in this process, each from a build of its own."""
    seen = []
    for compiled in (False, True):
        torch._dynamo.reset()
        space, given = namespace(folder)
        function = torch.compile(given["fn"], **space["COMPILE"]) if compiled else given["fn"]
        seen.append(space["seen_of"]({**given, "modules": ["proof"]}, function))
    return list(space["differences"](*seen, space["within"](lambda eps: eps**0.5)))


@pytest.mark.parametrize("name", NAMED)
def test_what_differs_is_told_and_nothing_else(tmp_path: Path, name: str) -> None:
    source, expected = NAMED[name]
    never = "False" if name == "an exception that is missing" else "True"
    for condition, faulty in ((UNCOMPILED, True), (never, False)):
        folder = tmp_path / str(faulty)
        folder.mkdir()
        fn, calls = load(folder, source.replace("UNCOMPILED", condition)).make()
        out = write(folder, fn, calls, grad=True if "requires_grad" in source else None)
        text, found = (out / "repro.py").read_text(), lines(out)
        assert "graphprobe" not in text and text.count("instance(Counter") <= 1
        assert any(expected in line for line in found) if faulty else found == [], found


@pytest.mark.usefixtures("warm_proofs")
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


def test_tensors_come_back_as_they_were(tmp_path: Path) -> None:
    module = load(tmp_path, "def program(*args, **kwargs):\n    return 0\n")
    memory = torch.arange(6, dtype=torch.float64)
    numbers = np.asfortranarray(np.arange(80, dtype=np.float32).reshape(8, 10))
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
    out = write(tmp_path, module.program, [(given, {"n": numbers})])
    args, kwargs = namespace(out)[1]["calls"][0]
    for want, have in zip(given, args, strict=True):
        for fact in ("dtype", "shape", "requires_grad", "__class__"):
            assert getattr(want, fact) == getattr(have, fact)
        assert want.stride() == have.stride()
        assert torch.equal(want.contiguous().view(-1).view(torch.uint8), have.contiguous().view(-1).view(torch.uint8))
    assert args[7].untyped_storage().data_ptr() == args[8].untyped_storage().data_ptr()
    assert (kwargs["n"] == numbers).all() and kwargs["n"].flags.f_contiguous


def test_what_cannot_be_told_is_said_or_imported(tmp_path: Path) -> None:
    source = """
odd = (i for i in "abc")

def program(x):
    return x + 1 if odd is not None else x
"""
    module = load(tmp_path, source)
    with pytest.raises(Unwritable, match="cannot be told as text"):
        long_of(lambda x: x, [(((i for i in range(3)),), {})])
    out = write(tmp_path, module.program, [((torch.ones(2),), {})])
    assert "# It imports the program's own file" in (out / "repro.py").read_text("utf-8")
    assert lines(out) == []


@pytest.mark.heavy
@pytest.mark.usefixtures("warm_proofs")
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
