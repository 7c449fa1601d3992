"""A backend, a pass or a lowering that raises: the exception is unchanged, and the run says what happened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Finished
from faults.programs import sound, without_our_frames, write_step
from graphprobe.store.reader import Run

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
OWN_PASS_OUTSIDE_AOT = """
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
LOWERING = 'config.cpp.inject_relu_bug_TESTING_ONLY = "compile_error"\n' + NO_CACHE
IN_LOWERING = """
from torch._inductor.graph import GraphLowering
def run(self, *args):
    raise RuntimeError("cannot lower this")
GraphLowering.run = run
"""
IN_LOWERING += NO_CACHE

# name: (setup, options, direction, the pass or stage that failed, words of the exception)
CASES = {
    "backend": (BACKEND, ", backend=backend", "forward", "backend", "ValueError: the backend says no"),
    "own pass": (OWN_PASS, ", backend=backend", "forward", "fuse nothing", "RuntimeError: Tried to erase Node"),
    "own pass outside AOT": (
        OWN_PASS_OUTSIDE_AOT,
        ", backend=backend",
        "forward",
        "rewrite",
        "KeyError: 'no such rule'",
    ),
    "Inductor pass": (CUSTOM_PASS, "", "forward", "post_grad_custom_pre_pass", "a pass of mine"),
    "late backward": (CUSTOM_PASS_IN_BACKWARD, "", "backward", "post_grad_custom_pre_pass", "a pass of mine"),
    "lowering": (IN_LOWERING, "", "forward", "compile", "RuntimeError: cannot lower this"),
    "C++ compiler": (LOWERING, "", "forward", "compile", "CppCompileError"),
}


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=pytest.mark.heavy if name == "C++ compiler" else ()) for name in CASES]
)
def test_the_exception_is_the_programs_own(case: str, run_warm: Callable[..., Finished], tmp_path: Path) -> None:
    setup, options, direction, stage, words = CASES[case]
    script = write_step(tmp_path / "step.py", setup=setup, options=options)
    plain = run_warm(str(script), cwd=tmp_path)
    done = run_warm("-m", "graphprobe", "run", str(script), cwd=tmp_path)
    assert plain.code == done.code == 1, plain.err + done.err
    assert words in plain.err
    assert plain.out == done.out
    told = without_our_frames(done.err)
    assert told == without_our_frames(plain.err)
    assert told, done.err

    run = Run.open(tmp_path)
    sound(run)
    assert run.state == "failed"
    assert run.manifest.exception is not None
    assert words.partition(": ")[2] in run.manifest.exception
    assert run.manifest.missing == []
    failures = [event for event in run.events() if event.kind == "failure"]
    assert [(f.name, f.where.direction, f.where.model) for f in failures] == [(stage, direction, 0)]
    failure = failures[0]
    assert failure.path is not None
    name = Path(failure.path).name
    assert name[:3].isdigit()
    assert name.endswith(f"_FAILED_{stage.replace(' ', '_')}.txt"), name
    text = run.text(failure)
    head, _, graph = text.partition("# The graph before it:\n")
    assert f"# {stage} raised:" in head
    assert "Traceback (most recent call last)" in head
    assert words in head
    assert "def forward(self" in graph
    assert "relu" in graph
    facts = run.models()[0].compile
    assert words.partition(": ")[2] in facts["failure"]
    # Taken from the run alone: which graph the failing pass was given.
    with pytest.raises(Exception, match="raised|no pass"):
        run.before_and_after(stage)


def test_the_graph_before_the_failing_pass_is_whole_although_the_pass_has_changed_it(
    run_warm: Callable[..., Finished], tmp_path: Path
) -> None:
    setup = """
def custom_pass(graph, call):
    for node in graph.nodes:
        node.target = torch.ops.aten.neg.default if "relu" in str(node.target) else node.target
    raise ZeroDivisionError("half way")
config.post_grad_custom_pre_pass = Custom()
"""
    script = write_step(tmp_path / "step.py", setup=setup)
    assert run_warm("-m", "graphprobe", "run", str(script), cwd=tmp_path).code == 1
    run = Run.open(tmp_path)
    (failure,) = [event for event in run.events() if event.kind == "failure"]
    graph = run.text(failure).partition("# The graph before it:\n")[2]
    assert "aten.relu" in graph
    assert "aten.neg" not in graph


def test_a_failure_that_dynamo_falls_back_from(run_warm: Callable[..., Finished], tmp_path: Path) -> None:
    setup = BACKEND + "torch._dynamo.config.suppress_errors = True"
    script = write_step(tmp_path / "step.py", setup=setup, options=", backend=backend")
    plain = run_warm(str(script), cwd=tmp_path)
    done = run_warm("-m", "graphprobe", "run", str(script), cwd=tmp_path)
    assert plain.code == done.code == 0
    assert plain.out == done.out
    run = Run.open(tmp_path)
    assert run.state == "finished"
    assert [event.kind for event in run.events()].count("failure") == 2
    assert "the backend says no" in run.models()[0].compile["failure"]


def test_compiled_code_that_raises_when_it_runs(run_warm: Callable[..., Finished], tmp_path: Path) -> None:
    setup = """
def backend(gm, inputs):
    def run(*args):
        raise ValueError("at run time")
    return run
"""
    script = write_step(tmp_path / "step.py", setup=setup, options=", backend=backend")
    plain = run_warm(str(script), cwd=tmp_path)
    done = run_warm("-m", "graphprobe", "run", "--save-inputs", str(script), cwd=tmp_path)
    assert plain.code == done.code == 1
    assert without_our_frames(plain.err) == without_our_frames(done.err)
    run = Run.open(tmp_path)
    sound(run)
    assert run.state == "failed"
    assert run.manifest.exception == "ValueError: at run time"
    assert not [event for event in run.events() if event.kind == "failure"], "the compile did not fail"
    names = {event.name for event in run.events()}
    assert "inputs.safetensors" in names
    assert "outputs.safetensors" not in names


def test_a_fault_of_graphprobes_own_is_told_and_harms_nothing(
    run_warm: Callable[..., Finished], tmp_path: Path
) -> None:
    setup = """
from graphprobe.probe.pass_snapshots import Trail
def broken(*args, **kwargs):
    raise RuntimeError("graphprobe is broken")
Trail.pass_begins = Trail.graph = broken
"""
    plain = run_warm(str(write_step(tmp_path / "plain.py")), cwd=tmp_path)
    script = write_step(tmp_path / "step.py", setup=setup)
    done = run_warm("-m", "graphprobe", "run", str(script), cwd=tmp_path)
    assert done.code == 0, done.err
    assert done.out == plain.out
    run = Run.open(tmp_path)
    sound(run)
    assert any("graphprobe failed at" in m and "graphprobe is broken" in m for m in run.manifest.missing)
    assert "graphprobe: missing: graphprobe failed at" in done.err
    assert "in broken" in (run.tool_dir / "debug.log").read_text()
