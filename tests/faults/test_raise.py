"""A backend, a pass or a lowering that raises: the exception is unchanged, and the run says what happened."""

from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Finished
from faults.programs import sound, without_our_frames
from graphprobe.store import Run

Step = Callable[..., Finished]

BACKEND = """
def backend(gm, inputs):
    raise ValueError("the backend says no")
"""
OWN_PASS = """
import graphprobe
from torch._dynamo.backends.common import aot_autograd
def compiler(gm, inputs):
    with graphprobe.observe_pass(gm, "fuse nothing", phase="forward"):
        gm.graph.erase_node(next(n for n in gm.graph.nodes if n.op == "call_function"))
    return gm.forward
backend = aot_autograd(fw_compiler=compiler)
"""
OUTSIDE_AOT = """
import graphprobe
def backend(gm, inputs):
    with graphprobe.observe_pass(gm, "rewrite"):
        raise KeyError("no such rule")
"""
CUSTOM_PASS = """
def custom_pass(graph, call):
    raise ZeroDivisionError("a pass of mine")
config.post_grad_custom_pre_pass = Custom()
"""
CUSTOM_PASS_IN_BACKWARD = CUSTOM_PASS.replace("    raise", "    if call == 2: raise")
NO_CACHE = "config.fx_graph_cache = torch._functorch.config.enable_autograd_cache = False"
"""On a hit of torch's caches, which watching bypasses, the plain program would not come to the fault."""
CXX = 'config.cpp.inject_relu_bug_TESTING_ONLY = "compile_error"\n' + NO_CACHE
IN_LOWERING = f"""
from torch._inductor.graph import GraphLowering
def run(self, *args):
    raise RuntimeError("cannot lower this")
GraphLowering.run = run
{NO_CACHE}
"""
OWN = ", backend=backend"
IN_A_PASS = "post_grad_custom_pre_pass"


@pytest.mark.parametrize(
    ("setup", "options", "direction", "stage", "words"),
    [
        pytest.param(BACKEND, OWN, "forward", "backend", "ValueError: the backend says no", id="backend"),
        pytest.param(OWN_PASS, OWN, "forward", "fuse nothing", "RuntimeError: Tried to erase Node", id="own pass"),
        pytest.param(OUTSIDE_AOT, OWN, "forward", "rewrite", "KeyError: 'no such rule'", id="own pass outside AOT"),
        pytest.param(CUSTOM_PASS, "", "forward", IN_A_PASS, "a pass of mine", id="Inductor pass"),
        pytest.param(CUSTOM_PASS_IN_BACKWARD, "", "backward", IN_A_PASS, "a pass of mine", id="late backward"),
        pytest.param(IN_LOWERING, "", "forward", "compile", "RuntimeError: cannot lower this", id="lowering"),
        pytest.param(CXX, "", "forward", "compile", "CppCompileError", id="C++ compiler", marks=pytest.mark.heavy),
    ],
)
def test_the_exception_is_the_programs_own(
    setup: str, options: str, direction: str, stage: str, words: str, step: Step, tmp_path: Path
) -> None:
    plain, done = (step(watched, setup=setup, options=options) for watched in (None, ()))
    assert plain.code == done.code == 1, plain.err + done.err
    assert words in plain.err
    assert plain.out == done.out
    told = without_our_frames(done.err)
    assert told == without_our_frames(plain.err)
    assert told, done.err

    run = Run.open(tmp_path)
    sound(run)
    assert (run.state, run.manifest.missing) == ("failed", [])
    assert run.manifest.exception is not None
    assert words.partition(": ")[2] in run.manifest.exception
    (failure,) = [event for event in run.events() if event.kind == "failure"]
    assert (failure.name, failure.where.direction, failure.where.model) == (stage, direction, 0)
    assert failure.path is not None
    name = Path(failure.path).name
    assert name[:3].isdigit()
    assert name.endswith(f"_FAILED_{stage.replace(' ', '_')}.txt"), name
    text = run.text(failure)
    head, _, graph = text.partition("# The graph before it:\n")
    assert all(part in head for part in (f"# {stage} raised:", "Traceback (most recent call last)", words))
    assert "def forward(self" in graph and "relu" in graph
    assert words.partition(": ")[2] in run.models()[0].compile["failure"]
    # Taken from the run alone: which graph the failing pass was given.
    with pytest.raises(Exception, match="raised|no pass"):
        run.before_and_after(stage)


def test_the_graph_before_the_failing_pass_is_whole(step: Step, tmp_path: Path) -> None:
    setup = """
def custom_pass(graph, call):
    for node in graph.nodes:
        node.target = torch.ops.aten.neg.default if "relu" in str(node.target) else node.target
    raise ZeroDivisionError("half way")
config.post_grad_custom_pre_pass = Custom()
"""
    assert step(setup=setup).code == 1
    run = Run.open(tmp_path)
    (failure,) = [event for event in run.events() if event.kind == "failure"]
    graph = run.text(failure).partition("# The graph before it:\n")[2]
    assert "aten.relu" in graph
    assert "aten.neg" not in graph


def test_a_failure_that_dynamo_falls_back_from(step: Step, tmp_path: Path) -> None:
    setup = BACKEND + "torch._dynamo.config.suppress_errors = True"
    plain, done = (step(watched, setup=setup, options=OWN) for watched in (None, ()))
    assert plain.code == done.code == 0
    assert plain.out == done.out
    run = Run.open(tmp_path)
    assert run.state == "finished"
    assert [event.kind for event in run.events()].count("failure") == 2
    assert "the backend says no" in run.models()[0].compile["failure"]


def test_compiled_code_that_raises_when_it_runs(step: Step, tmp_path: Path) -> None:
    setup = """
def backend(gm, inputs):
    def run(*args):
        raise ValueError("at run time")
    return run
"""
    plain, done = (step(watched, setup=setup, options=OWN) for watched in (None, ("--save-inputs",)))
    assert plain.code == done.code == 1
    assert without_our_frames(plain.err) == without_our_frames(done.err)
    run = Run.open(tmp_path)
    sound(run)
    assert run.state == "failed"
    assert run.manifest.exception == "ValueError: at run time"
    assert not [event for event in run.events() if event.kind == "failure"], "the compile did not fail"
    names = {event.name for event in run.events()}
    assert "inputs.safetensors" in names and "outputs.safetensors" not in names


def test_a_fault_of_graphprobes_own_is_told_and_harms_nothing(step: Step, plain: Finished, tmp_path: Path) -> None:
    setup = """
from graphprobe.probe.pass_snapshots import Trail
def broken(*args, **kwargs):
    raise RuntimeError("graphprobe is broken")
Trail.pass_begins = Trail.graph = broken
"""
    done = step(setup=setup)
    assert (done.code, done.out) == (0, plain.out), done.err
    run = Run.open(tmp_path)
    sound(run)
    assert any("graphprobe failed at" in m and "graphprobe is broken" in m for m in run.manifest.missing)
    assert "graphprobe: missing: graphprobe failed at" in done.err
    assert "in broken" in (run.tool_dir / "debug.log").read_text()
