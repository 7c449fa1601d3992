"""Backends that a program defines itself, in a repro."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import inspect
import math
import operator as op
import subprocess
import sys
import threading
from collections.abc import Iterator
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
from graphprobe.diagnose.case import Case
from graphprobe.diagnose.check_case import settings_of
from graphprobe.diagnose.dossier.own_backend import (
    OwnBackend,
    merged_text,
    own_backend,
    own_hook,
    shown_name,
    why_no_text,
)
from graphprobe.diagnose.dossier.writer import write_dossier
from graphprobe.diagnose.reduction.case_folder import finding_of
from graphprobe.diagnose.reduction.load_case import load_case
from graphprobe.diagnose.settings import changed_settings
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


def watch(gm: Any, example_inputs: Any) -> Any:
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


def run_repro_of(case: Case, folder: Path) -> subprocess.CompletedProcess[str]:
    write_dossier(folder, case, finding_of(case, "because"), versions={})
    return subprocess.run(
        [sys.executable, "-I", "repro.py"], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_repro_holds_the_backend_and_all_that_it_uses(tmp_path: Path) -> None:
    own = own_backend(refusing)
    assert own is not None
    done = run_repro_of(relu_case(own_backend=own), tmp_path / "it")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "refusing" in done.stdout
    again = load_case(tmp_path / "it").own_backend
    assert again == own
    with pytest.raises(RuntimeError, match="no relu: 3"):
        again.make()(symbolic_trace(torch.nn.ReLU()), [])


def tanh_for_erf(gm: Any, example_inputs: Any) -> Any:
    """A backend with a fault: it takes the fast gelu for the exact one."""
    gm = torch.fx.GraphModule(gm, gm.graph)
    for node in gm.graph.nodes:
        if getattr(node.target, "__name__", "") == "gelu":
            node.kwargs = {**node.kwargs, "approximate": "tanh"}
    gm.recompile()
    return gm.forward


def exact(gm: Any, example_inputs: Any) -> Any:
    return gm.forward


def test_a_value_that_a_backend_gets_wrong_is_traced_to_its_op(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.GELU(), torch.nn.Linear(8, 8))
    found = graphprobe.diagnose(model, torch.randn(4, 8), grad=False, backend=tanh_for_erf, out=tmp_path)
    (finding,) = found.findings
    assert (finding.kind, finding.module) == ("wrong_value", "2")
    assert finding.op is not None
    assert finding.op.endswith("gelu")
    assert finding.dossier is not None
    repro = Path(finding.dossier) / "repro.py"
    done = subprocess.run([sys.executable, "-I", str(repro)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    healthy = graphprobe.diagnose(model, torch.randn(4, 8), grad=False, backend=exact, out=tmp_path / "healthy")
    assert healthy.verdict == "healthy"


def test_without_it_the_repro_shows_nothing(tmp_path: Path) -> None:
    assert run_repro_of(relu_case(), tmp_path / "it").returncode == 0


@pytest.mark.heavy
def test_a_name_that_the_repro_has_itself(tmp_path: Path) -> None:
    own = own_backend(watch)
    assert own is not None
    assert run_repro_of(relu_case(own_backend=own), tmp_path / "it").returncode == 1


@pytest.mark.heavy
def test_what_a_backend_takes_from_the_function_around_it(tmp_path: Path) -> None:
    failing, fine = own_backend(enclosed_plainly(1.5)), own_backend(enclosed_plainly(2.5))
    assert failing is not None and fine is not None
    assert run_repro_of(relu_case(own_backend=failing), tmp_path / "failing").returncode == 1
    assert run_repro_of(relu_case(own_backend=fine), tmp_path / "fine").returncode == 0


@pytest.mark.heavy
def test_what_torch_wraps_is_found() -> None:
    wrapped = SimpleNamespace(compiler_fn=refusing)
    assert own_backend(wrapped) == own_backend(refusing)  # type: ignore[arg-type]
    wrapper = torch._TorchCompileWrapper
    assert own_backend(wrapper(of_aot, None, None, None)) == own_backend(of_aot)
    assert own_backend(wrapper("own_refusing", None, None, None)) == own_backend(refusing)
    told = own_backend(wrapper(refusing, None, {"a": 1}, None))
    assert told is not None
    assert told.make().keywords == {"options": {"a": 1}}


def compiled(own: OwnBackend | None) -> torch.Tensor:
    """A relu compiled with a backend anew from its text, and nothing of this module."""
    assert own is not None
    torch.compiler.reset()
    return torch.compile(lambda x: torch.relu(x), backend=own.make())(torch.ones(2))  # type: ignore[no-any-return]


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


@pytest.mark.parametrize("form", [pytest.param(f, marks=() if f in SOME else pytest.mark.heavy) for f in FORMS])
def test_forms_of_a_backend(form: str) -> None:
    """What was called before, as the watched program does it, has changed what it keeps; the text is a fresh one."""
    failing, healthy = FORMS[form]
    torch.compiler.reset()
    with pytest.raises(BackendCompilerFailed, match="no relu: 3"):
        torch.compile(lambda x: torch.relu(x), backend=failing)(torch.ones(2))
    SHARED.clear()
    told = own_backend(failing)
    with pytest.raises(BackendCompilerFailed, match="no relu: 3") as caught:
        compiled(told)
    assert "0x" not in str(caught.value)
    assert why_no_text(failing) == ""
    assert torch.equal(compiled(own_backend(healthy)), torch.ones(2))


@pytest.mark.parametrize(
    ("backend", "shown"),
    [
        ("inductor", '"inductor"'),
        ("own_aot", '"own_aot"'),
        (of_aot, f"of_aot of {__name__}"),
        (torch._TorchCompileWrapper(of_aot, None, None, None), f"of_aot of {__name__}"),
        (enclosed_plainly(1.0), "enclosed_plainly.backend"),
    ],
)
def test_it_is_called_as_the_program_calls_it(backend: Any, shown: str) -> None:
    assert shown_name(backend) == shown


def test_names_that_every_torch_knows_need_no_text() -> None:
    for name in ("inductor", "eager", "aot_ts", "openxla", "cudagraphs", "no_such_backend"):
        assert (own_backend(name), why_no_text(name)) == (None, "")


LOCK = threading.Lock()


def test_an_object_of_c_is_told_by_the_statement_that_makes_it() -> None:
    told = own_backend(functools.partial(refusing, most=LOCK.acquire))
    assert told is not None
    assert told.make().keywords["most"]() is True


def test_a_variable_of_the_function_around_it_that_changes() -> None:
    told = own_backend(enclosed_plainly(1.0, rebinds=True))
    assert told is not None
    made = told.make()
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
    told = own_backend(made_late)
    assert told is not None
    assert 'made_late = Marked("late")' in told.text
    made = told.make()
    assert (made.mark, made.limit) == ("late", 5)
    bare: dict[str, Any] = {}
    compiled_alone = compile(told.text, "alone", "exec", dont_inherit=True)  # annotations are read
    exec(compiled_alone, bare)
    assert bare["made_late"].limit == 5


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
def test_what_a_text_cannot_define(backend: Any, why: str, tmp_path: Path) -> None:
    assert own_backend(backend) is None
    reason = why_no_text(backend)
    assert reason.startswith("the backend ") and why in reason and "0x" not in reason
    done = run_repro_of(relu_case(unsaved=(reason,)), tmp_path / "it")
    assert done.returncode == 125
    assert reason in done.stdout


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
def test_a_module_of_the_program(lines: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short one goes in as it is; a long one is imported, and its folder said."""
    name = f"own_library_{lines}"
    padding = "\n".join(f"fact_{i} = {i}" for i in range(lines))
    uses = "(" + ", ".join(f"fact_{i}" for i in range(lines)) + ",)"
    text = LIBRARY.format(padding=padding).replace("    if fails", f"    {uses}\n    if fails")
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    told = own_backend(importlib.import_module(name).backend)
    assert told is not None
    assert (told.name, told.shown) == ("backend", f"backend of {name}")
    assert told.folder == (str(tmp_path) if lines == 100 else "")
    assert ("PYTHONPATH" in told.text) == (f"from {name} import backend" in told.text) == (lines == 100)
    assert run_repro_of(relu_case(own_backend=told), tmp_path / "it").returncode == 1


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
def test_a_class_whose_base_lies_in_another_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in zip(("own_first", "own_second"), TWO_MODULES, strict=True):
        (tmp_path / f"{name}.py").write_text(text)
    module = importlib.import_module("own_second")
    for backend in (module.backend, module.Derived(module.Settings(3))):
        told = own_backend(backend)
        assert told is not None and "class Base" in told.text
        assert "import own_first" not in told.text
        assert run_repro_of(relu_case(own_backend=told), tmp_path / told.name / str(id(backend))).returncode == 1
    told = own_backend(module.fine)
    assert told is not None
    assert told.make()(symbolic_trace(torch.nn.ReLU()), []) is not None


def test_a_module_that_is_installed_is_imported() -> None:
    told = own_backend(functools.partial(np.dot))  # no backend, but an installed function
    assert told is not None
    assert "import numpy" in told.text
    assert told.folder == ""


def test_texts_are_merged() -> None:
    first, second = own_backend(refusing), own_backend(of_aot)
    assert first is not None and second is not None
    text = merged_text([first, second])
    assert text is not None
    assert text.count("def refusing") == text.count("import operator") == 1
    defined: dict[str, Any] = {}
    exec(text, defined)
    assert set(defined) > {"refusing", "of_aot"}
    other = OwnBackend("refusing", "def refusing(gm, inputs):\n    return gm")
    assert merged_text([first, other]) is None


# -- hooks ------------------------------------------------------------------------------------------------------------


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
    told = own_hook([no_tan, graph_pass])
    assert [type(one).__name__ for one in told.make()] == ["function", "GraphPass"]
    told = own_hook(with_patterns)
    assert "register_graph_pattern" in told.text
    told.make()


@pytest.mark.parametrize(
    ("hook", "code"), [(graph_pass, 1), pytest.param(GraphPass(no_tan), 0, marks=pytest.mark.heavy)]
)
def test_a_hook_in_a_repro(hook: Any, code: int, tmp_path: Path) -> None:
    with torch._inductor.config.patch(post_grad_custom_post_pass=hook):
        changes = changed_settings().of_case()
    case = dataclasses.replace(relu_case(**changes), backend="inductor")
    done = run_repro_of(case, tmp_path / "it")
    assert done.returncode == code, done.stdout + done.stderr
    assert load_case(tmp_path / "it").hooks == case.hooks
    with settings_of(load_case(tmp_path / "it")):
        made = torch._inductor.config.post_grad_custom_post_pass
        assert type(made).__name__ == "GraphPass"
        assert made is not hook


@pytest.mark.heavy
def test_a_hook_that_cannot_be_saved_is_told(tmp_path: Path) -> None:
    with torch._inductor.config.patch(post_grad_custom_post_pass=eval("lambda graph: None")):
        changes = changed_settings().of_case()
    assert "post_grad_custom_post_pass" in changes["unsaved_settings"][0]
    done = run_repro_of(relu_case(**changes), tmp_path / "it")
    assert done.returncode == 125
    assert "has no text of its own in a file" in done.stdout
    fails = relu_case(**changes, own_backend=own_backend(refusing))
    assert run_repro_of(fails, tmp_path / "fails").returncode == 1


# -- a program --------------------------------------------------------------------------------------------------------

PROGRAM = """
import torch, torch._inductor.config as cfg
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

def refuse(graph):
    if any(n.target is torch.ops.aten.relu.default for n in graph.nodes):
        raise RuntimeError("no relu here")

def comp(gm, inputs):
    refuse(gm.graph)
    return make_boxed_func(gm.forward)

def f(x):
    return torch.relu(x.sin()).cos()

{lines}
"""
LINES = {
    "aot": "backend = aot_autograd(fw_compiler=comp)\ntorch.compile(f, backend=backend)(torch.ones(3))",
    "hook": "cfg.post_grad_custom_post_pass = refuse\ntorch.compile(f)(torch.ones(3))",
    "unsaved": "cfg.post_grad_custom_post_pass = eval('lambda g: refuse(g)')\ntorch.compile(f)(torch.ones(3))",
}


@pytest.mark.heavy
@pytest.mark.parametrize("lines", LINES)
def test_a_program_is_reduced_to_a_proof(lines: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.format(lines=LINES[lines]))
    done = subprocess.run(
        [sys.executable, "-m", "graphprobe", "reduce", "-o", "out", "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert "3 calls -> 1" in done.stdout, done.stdout + done.stderr
    assert "TorchCompileWrapper" not in done.stdout
    if lines == "unsaved":
        assert done.returncode == 125
        assert "proof: " not in done.stdout.replace("no proof: ", "")
        assert "has no text of its own in a file" in done.stdout
        return
    assert done.returncode == 1
    assert "  proof:   python out/repro/repro.py" in done.stdout
    repro = tmp_path / "out" / "repro" / "repro.py"
    alone = subprocess.run([sys.executable, "-I", str(repro)], capture_output=True, timeout=120, check=False)
    assert alone.returncode == 1
