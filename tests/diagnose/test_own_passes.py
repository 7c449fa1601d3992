"""Which pass of a backend that the program defines is to blame, whatever form its passes have."""

import copy
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import default_partition
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.graph_transform_observer import GraphTransformObserver

import graphprobe
from graphprobe.diagnose import steps
from graphprobe.diagnose.program import Program
from graphprobe.diagnose.prove import Prover
from graphprobe.diagnose.rungs import RungReport
from graphprobe.diagnose.settings import Compilation
from graphprobe.judge import Difference

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def program(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(-(x * 2).sin()) + 1


def calls(graph: Graph, name: str) -> list[Node]:
    return [n for n in graph.nodes if n.op not in ("placeholder", "output") and name in str(n.target)]


def replace(node: Node) -> None:
    node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]
    node.graph.erase_node(node)


def drop_neg(gm: GraphModule) -> None:
    """Wrong, and returns nothing."""
    for node in calls(gm.graph, "neg"):
        replace(node)
    gm.recompile()


def drop_no_neg(gm: GraphModule) -> None:
    for node in calls(gm.graph, "neg")[1:]:
        replace(node)
    gm.recompile()


def add_twice(gm: GraphModule) -> None:
    """Right: a - -b in the place of a + b."""
    for node in calls(gm.graph, "add"):
        with gm.graph.inserting_before(node):
            negated = gm.graph.call_function(torch.neg, (node.args[1],)) if isinstance(node.args[1], Node) else None
            other = -node.args[1] if negated is None else negated  # type: ignore[operator]
            node.replace_all_uses_with(new := gm.graph.call_function(torch.sub, (node.args[0], other)))
            new.name = f"{node.name}_turned"
        gm.graph.erase_node(node)
    gm.recompile()


def mark(gm: GraphModule) -> None:
    for node in gm.graph.nodes:
        node.meta["seen"] = True


def nothing(gm: GraphModule) -> None:
    pass


def fresh(gm: GraphModule) -> GraphModule:
    """Wrong, in a graph of its own."""
    made = copy.deepcopy(gm)
    for node in calls(made.graph, "neg"):
        node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]
    made.graph.eliminate_dead_code()
    made.recompile()
    return made


def of_graph(graph: Graph) -> None:
    for node in calls(graph, "neg"):
        replace(node)


def drop_one(gm: GraphModule, node: Node) -> None:
    replace(node)


def by_parts(gm: GraphModule) -> None:
    for node in calls(gm.graph, "neg"):
        drop_one(gm, node)
    gm.recompile()


def negate_result(gm: GraphModule) -> None:
    """Wrong alone; twice it is right."""
    (node,) = calls(gm.graph, "exp")
    with gm.graph.inserting_after(node):
        new = gm.graph.call_function(torch.neg, (node,))
    node.replace_all_uses_with(new)
    new.args = (node,)
    gm.recompile()


def negate_again(gm: GraphModule) -> None:
    negate_result(gm)


def fail(gm: GraphModule) -> None:
    raise ValueError("no pass of mine")


class Passes:
    def __init__(self, gm: GraphModule) -> None:
        self.gm = gm

    def first(self) -> None:
        add_twice(self.gm)

    def second(self) -> None:
        for node in calls(self.gm.graph, "neg"):
            replace(node)
        self.gm.recompile()

    def run(self) -> None:
        self.first()
        self.second()


def of_class(gm: GraphModule) -> None:
    Passes(gm).run()


def in_block(gm: GraphModule) -> None:
    with graphprobe.observe_pass(gm, "right"):
        gm.graph.lint()
    with graphprobe.observe_pass(gm, "dropping"):
        for node in calls(gm.graph, "neg"):
            replace(node)
        gm.recompile()


def in_observer(gm: GraphModule) -> None:
    with GraphTransformObserver(gm, "dropping"):
        for node in calls(gm.graph, "neg"):
            replace(node)
        gm.recompile()


def list_of(*passes: Callable[..., Any]) -> Callable[..., Any]:
    """A backend that runs passes on Dynamo's graph, one after the other."""

    def backend(gm: GraphModule, example_inputs: Any) -> Any:
        for one in passes:
            gm = one(gm.graph if one is of_graph else gm) or gm
        gm.recompile()
        return gm.forward

    return backend


def of_aot(*passes: Callable[..., Any], **more: Any) -> Callable[..., Any]:
    """The same, on AOTAutograd's graphs."""

    def compiler(gm: GraphModule, example_inputs: Any) -> Any:
        for one in passes:
            one(gm)
        return make_boxed_func(gm.forward)

    return aot_autograd(fw_compiler=compiler, **more)  # type: ignore[no-any-return]


def partition(joint: GraphModule, inputs: Any, **more: Any) -> Any:
    """Wrong: it drops the negation before it splits the graph."""
    for node in calls(joint.graph, "neg"):
        replace(node)
    return default_partition(joint, inputs, **more)


def only_backward(gm: GraphModule, example_inputs: Any) -> Any:
    drop_neg(gm)
    return make_boxed_func(gm.forward)


def place_of(function: Any) -> str:
    code = inspect.unwrap(function).__code__
    return f"{code.co_qualname} ({Path(code.co_filename).relative_to(Path.cwd())}:{code.co_firstlineno})"


def line_of(text: str) -> str:
    lines = Path(__file__).read_text().splitlines()
    return f"dropping ({Path(__file__).relative_to(Path.cwd())}:{lines.index(text) + 1})"


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., RungReport]:
    """What is said of the passes of a backend, none of which is proven here."""
    monkeypatch.setattr(Prover, "prove", lambda self, suspect: None)

    def looked(backend: Any, *, kind: Any = "wrong_value", grad: bool = False) -> RungReport:
        made = Program(program, [((X.clone().requires_grad_(grad),), {})], grad=grad)
        return steps.own_passes(made, Compilation(backend, None, tmp_path), Difference(kind, 0, "", "off"))

    return looked


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "culprit"),
    [
        (list_of(nothing, add_twice, drop_neg, mark, drop_no_neg), place_of(drop_neg)),
        (of_aot(nothing, mark, drop_neg, drop_no_neg, nothing), place_of(drop_neg)),
        (list_of(of_class), place_of(Passes.second)),
        (list_of(add_twice, fresh), place_of(fresh)),
        (list_of(of_graph), place_of(of_graph)),
        (list_of(by_parts), place_of(by_parts)),
        (list_of(negate_result, negate_again, drop_neg), place_of(drop_neg)),
        (list_of(in_block), line_of('    with graphprobe.observe_pass(gm, "dropping"):')),
        (list_of(in_observer), line_of('    with GraphTransformObserver(gm, "dropping"):')),
    ],
)  # fmt: skip
def test_the_pass_from_which_on_the_graph_is_wrong(backend: Any, culprit: str, looked: Any) -> None:
    found = looked(backend).findings
    assert [f.pass_ for f in found] == [culprit]
    assert all((f.stage, "neg" in f.op) == ("backend", True) for f in found)


@pytest.mark.parametrize(
    "backend",
    [list_of(nothing, add_twice, mark, drop_no_neg), of_aot(mark, drop_no_neg), list_of(negate_result, negate_again)],
    ids=["on Dynamo's graph", "on AOTAutograd's", "two halves"],
)
def test_passes_that_are_right_are_not_accused(backend: Any, looked: Any) -> None:
    report = looked(backend)
    assert (report.findings, report.notes, report.calls_inductor) == ([], [], False)


@pytest.mark.slow
def test_passes_on_later_graphs(looked: Any) -> None:
    (joint,) = looked(of_aot(mark, partition_fn=partition), grad=True).findings
    assert joint.pass_ == place_of(partition)
    (late,) = looked(of_aot(mark, bw_compiler=only_backward), grad=True).findings
    assert late.pass_ == place_of(drop_neg)
    assert looked(of_aot(mark, partition_fn=default_partition), grad=True).findings == []
    report = looked(of_aot(add_twice, fail), kind="crash_compile")
    assert report.findings == [] and report.origin.pass_ == place_of(fail)


LIBRARY = """
import torch

class Block(torch.nn.Module):
    def forward(self, x):
        return torch.exp(-x)
"""

SCRIPT = """
import torch
from torch._inductor.compile_fx import compile_fx

def drop(gm):
    for node in list(gm.graph.nodes):
        if "neg" in str(node.target):
            node.replace_all_uses_with(node.args[0])
            gm.graph.erase_node(node)
    gm.recompile()

def keep(gm):
    gm.graph.lint()

def mine(gm, inputs):
    for one in PASSES:
        one(gm)
    return BELOW

PASSES = [keep, PASS, keep]
f = torch.compile(lambda x: torch.relu(-x) + 1, backend=mine)
f(torch.linspace(-1, 1, 64))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("drops", "verdict"), [("drop", "FAULT"), ("keep", "HEALTHY")])
def test_a_script_with_a_backend_of_its_own(drops: str, verdict: str, diagnosed: Any) -> None:
    done, found = diagnosed("mine.py", text=SCRIPT.replace("PASS,", f"{drops},").replace("BELOW", "gm.forward"))
    said = done.out + done.err
    assert f"{verdict}: mine.py" in said, said
    assert not re.search("Inductor|codegen|code generation|C\\+\\+|report it|generated code", said)
    assert ("its pass `drop`" in said) == (drops == "drop")
    if drops == "drop":
        (finding,) = found["diagnoses"][0]["findings"]
        where = (finding["stage"], finding["backend"], finding["pass"])
        assert where == ("backend", "mine (mine.py:15)", "drop (mine.py:5)")
        assert finding["proof"] and "Inductor" not in Path(finding["dossier"], "REPORT.md").read_text()


CALLS = {
    "inside": "torch.compile(lambda x: net(x).sum(), backend=mine)(X)",
    "outside": "torch.compile(net, backend=mine)(X).sum()",
}


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
def test_an_operation_of_a_library_has_the_line_that_calls_it(call: str, diagnosed: Any, tmp_path: Path) -> None:
    library = tmp_path / "site-packages" / "other"
    library.mkdir(parents=True)
    (library / "__init__.py").write_text(LIBRARY)
    text = SCRIPT.replace("PASS,", "drop,").replace("BELOW", "gm.forward").partition("f = ")[0]
    made = "net = torch.nn.Sequential(torch.nn.ReLU(), other.Block())\nX = torch.linspace(-1, 1, 64)\n"
    head = "import sys; sys.path.insert(0, 'site-packages'); import other"
    done, _ = diagnosed("train.py", text=f"{head}\n{text}\n{made}{CALLS[call]}\n")
    line = len(f"{head}\n{text}\n{made}".splitlines()) + 1
    said = " ".join(done.out.split())
    assert f"your line: train.py:{line} (called from there: …/other/__init__.py:6) {CALLS[call]}" in said, done.err
    assert f"where: train.py:{line} in module 1 (Block) of Sequential" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("drops", "bug", "stage"), [("keep", "accuracy", "codegen"), ("drop", None, "backend")], ids=["below", "above"]
)
def test_a_backend_that_calls_inductor(drops: str, bug: str | None, stage: str, diagnosed: Any) -> None:
    text = SCRIPT.replace("PASS,", f"{drops},").replace("BELOW", "compile_fx(gm, inputs)")
    planted = f"\nimport torch._inductor.config as config\nconfig.cpp.inject_relu_bug_TESTING_ONLY = {bug!r}\n"
    done, found = diagnosed("mine.py", text=planted + text)
    (finding,) = found["diagnoses"][0]["findings"]
    assert (finding["stage"], bool(finding["backend"])) == (stage, stage == "backend"), done.out + done.err
