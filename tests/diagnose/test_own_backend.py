"""Backends that a program defines itself, in a repro."""

import contextlib
import dataclasses
import functools
import importlib
import inspect
import math
import operator as op
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.registry import register_backend
from torch._dynamo.exc import BackendCompilerFailed
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._inductor.pattern_matcher import Arg, CallFunction, PatternMatcherPass, register_graph_pattern
from torch.fx import symbolic_trace

import graphprobe
from conftest import Finished
from graphprobe.diagnose.case import Case
from graphprobe.diagnose.check_case import settings_of
from graphprobe.diagnose.dossier.own_backend import (
    OwnBackend,
    merged_text,
    own_backend,
    own_hook,
    shown_name,
)
from graphprobe.diagnose.dossier.writer import write_dossier
from graphprobe.diagnose.reduction.case_folder import finding_of
from graphprobe.diagnose.reduction.load_case import load_case
from graphprobe.diagnose.settings import Compilation, changed_settings
from graphprobe.engine.values import capture

LIMIT = (3, "words")
SHARED: list[int] = []
TABLE: dict[Any, Any] = {}


def has_relu(gm: Any) -> bool:
    return any("relu" in str(node.target) for node in gm.graph.nodes)


def refusing(gm: Any, example_inputs: Any, *, most: float = math.inf) -> Any:
    if has_relu(gm) and op.lt(LIMIT[0], most):
        raise RuntimeError(f"no relu: {functools.reduce(op.add, LIMIT[:1])}")
    return gm.forward


def fine(gm: Any, example_inputs: Any, *, most: float = 0) -> Any:
    return gm.forward


def counting(gm: Any, example_inputs: Any) -> Any:
    SHARED.append(1)
    return refusing(gm, example_inputs, most=4 if len(SHARED) == 1 else 0)


def keep(gm: Any, example_inputs: Any) -> Any:
    return refusing(gm, example_inputs)


def noted(key: str) -> Any:
    def note(function: Any) -> Any:
        TABLE[key] = function
        return function

    return note


@noted("relu")
def of_table(gm: Any) -> None:
    raise RuntimeError("no relu: 3")


def looking_up(gm: Any, example_inputs: Any) -> Any:
    for key, rule in TABLE.items():
        if key in str([node.target for node in gm.graph.nodes]):
            rule(gm)
    return gm.forward


@functools.cache
def first_limit() -> int:
    return LIMIT[0]


def cached(gm: Any, example_inputs: Any) -> Any:
    return refusing(gm, example_inputs, most=first_limit() + 1)


@contextlib.contextmanager
def block() -> Iterator[None]:
    yield


def in_a_block(gm: Any, example_inputs: Any) -> Any:
    with block():
        return refusing(gm, example_inputs)


def compiler(gm: Any, example_inputs: Any) -> Any:
    return make_boxed_func(refusing(gm, example_inputs))


def compiler_fine(gm: Any, example_inputs: Any) -> Any:
    return make_boxed_func(fine(gm, example_inputs))


class Compiler:
    """A backend with a state, made of two classes."""

    mark = "3"

    def __init__(self, most: float) -> None:
        self.most = most

    def __call__(self, gm: Any, example_inputs: Any) -> Any:
        if has_relu(gm) and self.most > 2:
            raise RuntimeError(f"no relu: {self.mark}")
        return gm.forward

    def compile(self, gm: Any, example_inputs: Any) -> Any:
        return self(gm, example_inputs)


class Derived(Compiler):
    def __call__(self, gm: Any, example_inputs: Any) -> Any:
        return super().__call__(gm, example_inputs)


def enclosed(factor: list[int]) -> Any:
    def backend(gm: Any, example_inputs: Any) -> Any:
        return refusing(gm, example_inputs, most=factor[0])

    return backend


def enclosed_plainly(most: float, rebinds: bool = False) -> Any:
    numbers, seen = math, 0

    def backend(gm: Any, example_inputs: Any) -> Any:
        if has_relu(gm) and numbers.floor(most) == 1:
            raise RuntimeError("no relu: 3")
        return gm.forward

    def counted(gm: Any, example_inputs: Any) -> Any:
        nonlocal seen
        seen += 1
        return gm.forward

    return counted if rebinds else backend


of_aot, of_aot_fine = aot_autograd(fw_compiler=compiler), aot_autograd(fw_compiler=compiler_fine)
of_partial = functools.partial(refusing, most=4)
of_partial_fine = functools.partial(refusing, most=3)
instance = Derived(3.5)
instance_fine = Derived(1.5)
changed = Derived(1.5)
changed.most = 3.5
unnamed = lambda gm, inputs: refusing(gm, inputs)  # noqa: E731
unnamed_fine = lambda gm, inputs: fine(gm, inputs)  # noqa: E731

register_backend(refusing, name="own_refusing")
register_backend(fine, name="own_fine")
register_backend(of_aot, name="own_aot")
register_backend(of_aot_fine, name="own_aot_fine")


def relu_case(**settings: Any) -> Case:
    graph = symbolic_trace(lambda x: (torch.relu(x),))
    return Case(graph, [capture([torch.ones(2)])], "crash_compile", backend="eager", **settings)


Repro = Callable[..., Finished]


@pytest.fixture
def run_repro(run_warm: Callable[..., Finished], tmp_path: Path) -> Repro:
    """Writes the repro of a case, and runs it."""

    def run_repro(case: Case, folder: str = "it") -> Finished:
        write_dossier(tmp_path / folder, case, finding_of(case, "because"))
        return run_warm("repro.py", cwd=tmp_path / folder)

    return run_repro


def told(backend: Any) -> OwnBackend:
    found, _ = own_backend(backend)
    assert found is not None
    return found


@pytest.mark.slow
def test_a_repro_holds_the_backend_and_all_that_it_uses(run_repro: Repro, tmp_path: Path) -> None:
    own = told(refusing)
    done = run_repro(relu_case(own_backend=own))
    assert done.code == 1, done.out + done.err
    assert "refusing" in done.out
    again = load_case(tmp_path / "it").own_backend
    assert again == own
    with pytest.raises(RuntimeError, match="no relu: 3"):
        again.make()(symbolic_trace(torch.nn.ReLU()), [])
    assert run_repro(relu_case(), "without it").code == 0


@pytest.mark.heavy
def test_a_name_that_the_repro_has_itself(run_repro: Repro) -> None:
    assert run_repro(relu_case(own_backend=told(keep))).code == 1


@pytest.mark.heavy
def test_what_torch_wraps_is_found() -> None:
    wrapper = torch._TorchCompileWrapper
    for wrapped, backend in (
        (SimpleNamespace(compiler_fn=refusing), refusing),
        (wrapper(of_aot, None, None, None), of_aot),
        (wrapper("own_refusing", None, None, None), refusing),
    ):
        assert told(wrapped) == told(backend)
    assert told(wrapper(refusing, None, {"a": 1}, None)).make().keywords == {"options": {"a": 1}}


def compiled(backend: Any) -> torch.Tensor:
    """A relu, compiled."""
    torch.compiler.reset()
    return torch.compile(lambda x: torch.relu(x), backend=backend)(torch.ones(2))  # type: ignore[no-any-return]


FORMS = {
    "a function": (refusing, fine),
    "a shared list": (counting, fine),
    "a table that decorators fill": (looking_up, fine),
    "a cache": (cached, fine),
    "a decorator": (in_a_block, fine),
    "aot_autograd": (of_aot, of_aot_fine),
    "aot_autograd in place": (aot_autograd(fw_compiler=compiler), aot_autograd(fw_compiler=compiler_fine)),
    "a partial": (of_partial, of_partial_fine),
    "a partial in place": (functools.partial(refusing, most=4), functools.partial(refusing, most=3)),
    "an instance": (instance, instance_fine),
    "an instance in place": (Derived(3.5), Derived(1.5)),
    "an instance that was changed": (changed, instance_fine),
    "a method": (instance.compile, instance_fine.compile),
    "a lambda": (unnamed, unnamed_fine),
    "a lambda in place": (lambda gm, i: refusing(gm, i), lambda gm, i: fine(gm, i)),
    "a nested function": (enclosed_plainly(1.5), enclosed_plainly(2.5)),
    "a nested function on a list": (enclosed([4]), enclosed([3])),
    "a name": ("own_refusing", "own_fine"),
    "a name of aot_autograd's": ("own_aot", "own_aot_fine"),
}


SOME = ("a function", "aot_autograd in place", "an instance that was changed")


@pytest.mark.slow
@pytest.mark.parametrize("form", [pytest.param(f, marks=() if f in SOME else pytest.mark.heavy) for f in FORMS])
def test_forms_of_a_backend(form: str) -> None:
    """What was called before, as the watched program does it, has changed what it keeps; the text is a fresh one."""
    failing, healthy = FORMS[form]
    with pytest.raises(BackendCompilerFailed, match="no relu: 3"):
        compiled(failing)
    SHARED.clear()
    anew = told(failing).make()
    with pytest.raises(BackendCompilerFailed, match="no relu: 3") as caught:
        compiled(anew)
    assert "0x" not in str(caught.value)
    assert own_backend(failing)[1] == ""
    assert torch.equal(compiled(told(healthy).make()), torch.ones(2))


def test_how_a_backend_is_called() -> None:
    for backend, shown in (
        ("inductor", '"inductor"'),
        ("own_aot", '"own_aot"'),
        (of_aot, f"of_aot of {__name__}"),
        (torch._TorchCompileWrapper(of_aot, None, None, None), f"of_aot of {__name__}"),
        (enclosed_plainly(1.0), "enclosed_plainly.backend"),
    ):
        assert shown_name(backend) == shown
    for backend, name, line in (
        (refusing, "refusing", "def refusing"),
        ("own_refusing", "own_refusing", "def refusing"),
        (of_partial, "of_partial", "def refusing"),
        (of_aot, "of_aot", "of_aot, of_aot_fine ="),
        (instance, "instance", "instance = Derived"),
        (Derived(2.5), "", "    def __call__"),
        (Derived(2.5).compile, "", "    def compile"),
        (graphprobe.Wrapped(refusing, "refusing", {}), "refusing", "def refusing"),
        ("eager", "eager", None),
    ):
        told = Compilation(backend, None, Path()).told_backend
        shown, _, place = told.rstrip(")").partition(" (")
        assert shown.startswith(name)
        lines = Path(__file__).read_text().splitlines()
        assert (lines[int(place.rpartition(":")[2]) - 1] if place else "").startswith(line or "")
        assert bool(place) == (line is not None)


def test_what_is_imported_needs_no_text() -> None:
    for name in ("inductor", "eager", "aot_ts", "openxla", "cudagraphs", "no_such_backend"):
        assert own_backend(name) == (None, "")
    own = told(functools.partial(np.dot))  # no backend, but an installed function
    assert "import numpy" in own.text and own.folder == ""


LOCK = threading.Lock()


@pytest.mark.slow
def test_what_a_function_holds() -> None:
    assert told(functools.partial(refusing, most=LOCK.acquire)).make().keywords["most"]() is True
    made = told(enclosed_plainly(1.0, rebinds=True)).make()
    for count in (1, 2):
        made(symbolic_trace(torch.nn.ReLU()), [])
        assert inspect.getclosurevars(made).nonlocals["seen"] == count


OWN_OPS = torch.library.Library("own_ops", "DEF")
OWN_OPS.define("twice(Tensor x) -> Tensor")


class Marked:
    """Its statement is far from the classes and functions that its constructor needs."""

    def __init__(self, mark: str) -> None:
        self.mark, self.limit = mark, FAR_LIMIT

    def __call__(self, gm: Any, example_inputs: Any) -> Any:
        return of_mark(self, gm)


def of_mark(marked: Marked, gm: Any) -> Any:
    return gm.forward


FAR_LIMIT = len("limit")
made_late = Marked("late")


def test_a_statement_runs_behind_what_it_calls() -> None:
    own = told(made_late)
    assert 'made_late = Marked("late")' in own.text
    made = own.make()
    assert (made.mark, made.limit) == ("late", 5)
    bare: dict[str, Any] = {}
    compiled_alone = compile(own.text, "alone", "exec", dont_inherit=True)  # annotations are read
    exec(compiled_alone, bare)
    assert bare["made_late"].limit == 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "why"),
    [
        (functools.partial(refusing, most=threading.Lock().acquire), "made by C code, which keeps its state to itself"),
        pytest.param(
            functools.partial(refusing, most=torch.ops.own_ops.twice.default),
            "it uses the operator own_ops.twice",
            marks=pytest.mark.heavy,
        ),
        (eval("lambda gm, inputs: gm"), "<lambda> has no text of its own in a file"),
    ],
)
def test_what_a_text_cannot_define(backend: Any, why: str, run_repro: Repro) -> None:
    own, reason = own_backend(backend)
    assert own is None and reason.startswith("the backend ") and why in reason and "0x" not in reason
    if callable(getattr(backend, "func", None)):  # one repro is enough
        done = run_repro(relu_case(unsaved=(reason,)))
        assert done.code == 125 and reason in done.out


LIBRARY = """
import functools
{padding}

def compiler(gm, example_inputs, fails=True):
    if fails and "relu" in str(list(gm.graph.nodes)):
        raise RuntimeError("no relu: 3")
    return gm.forward

backend = functools.partial(compiler, fails=True)
"""


@pytest.mark.parametrize("lines", [1, 100])
def test_a_module_of_the_program(lines: int, run_repro: Repro, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short one goes in as it is; a long one is imported, and its folder said."""
    name = f"own_library_{lines}"
    padding = "\n".join(f"fact_{i} = {i}" for i in range(lines))
    uses = "(" + ", ".join(f"fact_{i}" for i in range(lines)) + ",)"
    text = LIBRARY.format(padding=padding).replace("    if fails", f"    {uses}\n    if fails")
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    own = told(importlib.import_module(name).backend)
    assert (own.name, own.shown) == ("backend", f"backend of {name}")
    assert own.folder == (str(tmp_path) if lines == 100 else "")
    assert ("PYTHONPATH" in own.text) == (f"from {name} import backend" in own.text) == (lines == 100)
    assert run_repro(relu_case(own_backend=own)).code == 1


TWO_MODULES = (
    """
import dataclasses
LIMIT = 3
@dataclasses.dataclass
class Settings:
    limit: int = LIMIT
class Base:
    def __init__(self, settings):
        self.settings = settings
    def __call__(self, gm, example_inputs):
        if self.settings.limit == LIMIT:
            raise RuntimeError("no relu: 3")
        return gm.forward
""",
    """
import own_first
from own_first import LIMIT, Base, Settings
class Derived(Base):
    def limit(self):
        return LIMIT
backend = Derived(Settings(3))
fine = Derived(Settings(2))
""",
)


@pytest.mark.heavy
def test_a_class_with_a_base_elsewhere(run_repro: Repro, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in zip(("own_first", "own_second"), TWO_MODULES, strict=True):
        (tmp_path / f"{name}.py").write_text(text)
    module = importlib.import_module("own_second")
    for number, backend in enumerate((module.backend, module.Derived(module.Settings(3)))):
        own = told(backend)
        assert "class Base" in own.text and "import own_first" not in own.text
        assert run_repro(relu_case(own_backend=own), str(number)).code == 1
    assert told(module.fine).make()(symbolic_trace(torch.nn.ReLU()), []) is not None


@pytest.mark.slow
def test_texts_are_merged() -> None:
    text = merged_text([told(refusing), told(of_aot)])
    assert text.count("def refusing") == text.count("import operator") == 1
    defined: dict[str, Any] = {}
    exec(text, defined)
    assert set(defined) > {"refusing", "of_aot"}
    other = OwnBackend("refusing", "def refusing(gm, inputs):\n    return gm")
    assert merged_text([told(refusing), other]) is None


def no_relu(graph: Any) -> None:
    if any("relu" in str(node.target) for node in graph.nodes):
        raise RuntimeError("no relu: 3")


def no_tan(graph: Any) -> None:
    if any("tan" in str(node.target) for node in graph.nodes):
        raise RuntimeError("no tan")


class GraphPass(CustomGraphPass):
    def __init__(self, *passes: Any) -> None:
        self.passes = passes

    def __call__(self, graph: Any) -> None:
        for one in self.passes:
            one(graph)

    def uuid(self) -> bytes:
        return get_hash_for_files((__file__,))  # type: ignore[no-any-return]


graph_pass = GraphPass(no_tan, no_relu)
patterns = PatternMatcherPass()


@register_graph_pattern(CallFunction(torch.ops.aten.relu.default, Arg()), pass_dict=patterns)
def relu_to_neg(match: Any, x: Any) -> None:
    match.replace_by_example(lambda x: torch.neg(x), [x])


def with_patterns(graph: Any) -> None:
    patterns.apply(graph)


@pytest.mark.heavy
def test_hooks_are_found_with_what_they_use() -> None:
    settings = {"post_grad_custom_post_pass": graph_pass, "_post_fusion_custom_pass": no_relu}
    with torch._inductor.config.patch(settings), torch._functorch.config.patch(joint_custom_pass=with_patterns):
        found = changed_settings()
    assert set(found.hooks) >= {
        "inductor.post_grad_custom_post_pass",
        "inductor._post_fusion_custom_pass",
        "functorch.joint_custom_pass",
    }
    made = found.hooks["inductor.post_grad_custom_post_pass"].make()
    with pytest.raises(RuntimeError, match="no relu"):
        made(symbolic_trace(torch.nn.ReLU()).graph)
    assert made.uuid()
    assert changed_settings().hooks.keys().isdisjoint(found.hooks)


@pytest.mark.heavy
def test_a_list_of_passes_and_a_pattern() -> None:
    assert [type(one).__name__ for one in own_hook([no_tan, graph_pass]).make()] == ["function", "GraphPass"]
    own = own_hook(with_patterns)
    assert "register_graph_pattern" in own.text
    own.make()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hook", "code"), [(graph_pass, 1), pytest.param(GraphPass(no_tan), 0, marks=pytest.mark.heavy)]
)
def test_a_hook_in_a_repro(hook: Any, code: int, run_repro: Repro, tmp_path: Path) -> None:
    with torch._inductor.config.patch(post_grad_custom_post_pass=hook):
        changes = changed_settings().of_case()
    case = dataclasses.replace(relu_case(**changes), backend="inductor")
    done = run_repro(case)
    assert done.code == code, done.out + done.err
    assert load_case(tmp_path / "it").hooks == case.hooks
    with settings_of(load_case(tmp_path / "it")):
        made = torch._inductor.config.post_grad_custom_post_pass
        assert type(made).__name__ == "GraphPass"
        assert made is not hook


@pytest.mark.heavy
def test_a_hook_that_cannot_be_saved_is_told(run_repro: Repro) -> None:
    with torch._inductor.config.patch(post_grad_custom_post_pass=eval("lambda graph: None")):
        changes = changed_settings().of_case()
    assert "post_grad_custom_post_pass" in changes["unsaved_settings"][0]
    done = run_repro(relu_case(**changes))
    assert done.code == 125 and "has no text of its own in a file" in done.out
    assert run_repro(relu_case(**changes, own_backend=told(refusing)), "fails").code == 1


PROGRAM = """
import torch, torch._inductor.config as cfg

def refuse(graph):
    if any(n.target is torch.ops.aten.relu.default for n in graph.nodes):
        raise RuntimeError("no relu here")

cfg.post_grad_custom_post_pass = refuse
torch.compile(lambda x: torch.relu(x.sin()).cos())(torch.ones(3))
"""


@pytest.mark.heavy
def test_a_program_is_reduced_to_a_proof(run_warm: Callable[..., Finished], tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = run_warm("-m", "graphprobe", "reduce", "-o", "out", "program.py", cwd=tmp_path)
    assert done.code == 1 and "3 calls -> 1" in done.out, done.out + done.err
    assert "TorchCompileWrapper" not in done.out
    assert "  proof:   python out/repro/repro.py" in done.out
    assert run_warm("out/repro/repro.py", cwd=tmp_path).code == 1
