"""The switch: one session at a time, everything put back, and how a run ends."""

import atexit
import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.output_graph
import torch._inductor.compile_fx
from torch._dynamo.backends.common import aot_autograd

import graphprobe
from conftest import Finished
from graphprobe.probe import active
from graphprobe.store import Run


@pytest.fixture(autouse=True)
def off() -> Iterator[None]:
    yield
    graphprobe.disable()


def compile_one() -> None:
    torch.compile(lambda x: x.sin() + 1, backend="aot_eager")(torch.ones(2))


def test_how_a_trace_ends(tmp_path: Path) -> None:
    with graphprobe.trace(tmp_path / "a") as folder:
        assert active.session() is not None
        assert Run.open(folder).state == "running"
    assert Run.open(folder).state == "finished"
    with pytest.raises(ValueError, match="mine"):
        with graphprobe.trace(tmp_path / "b") as folder:
            raise ValueError("mine")
    manifest = Run.open(folder).manifest
    assert (manifest.state, manifest.exception) == ("failed", "ValueError: mine")
    assert active.session() is None
    assert graphprobe.disable() is None


def test_one_run_after_the_other_each_with_its_own_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(atexit, "register", lambda *args: asked.append(args))
    monkeypatch.setattr(active._switch, "at_exit", False)
    folders = []
    for _ in range(2):
        torch.compiler.reset()
        with graphprobe.trace(tmp_path) as folder:
            compile_one()
        folders.append(folder)
    assert len(set(folders)) == 2
    assert [len(Run.open(folder).models()) for folder in folders] == [1, 1]
    assert len(asked) == 1, "atexit is asked once"


def test_disable_in_the_middle_of_a_trace_is_harmless(tmp_path: Path) -> None:
    with graphprobe.trace(tmp_path) as folder:
        assert graphprobe.disable() == folder
        compile_one()
    assert Run.open(folder).models() == ()


def test_the_warning_about_early_compiles_is_also_given_by_a_trace_at_the_callers_line(tmp_path: Path) -> None:
    def early(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    torch.compile(early, backend="eager")(torch.ones(1))
    with pytest.warns(graphprobe.GraphprobeWarning, match="early") as caught:
        with graphprobe.trace(tmp_path):
            pass
    assert caught[0].filename == __file__


PROGRAM = """
{first}
import graphprobe
import sys, torch
def f(x): return x.sin() + 1
torch.compile(f, backend="aot_eager")(torch.ones(2))
sys.exit(3)
"""
SWITCHED = {
    "before torch": "",
    "after torch": "import torch",
    # In the fork of a process that has loaded it.
    "within the program, after torch's compiler": "import os; os.environ['TORCH_COMPILE_DEBUG'] = '1'",
}


@pytest.mark.slow
@pytest.mark.parametrize("case", SWITCHED)
def test_the_switch(
    case: str, run_python: Callable[..., Finished], run_warm: Callable[..., Finished], tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.format(first=SWITCHED[case]))
    if case.startswith("within"):
        done = run_warm("program.py", cwd=tmp_path)
    else:
        done = run_python("program.py", cwd=tmp_path, env={"TORCH_COMPILE_DEBUG": "1"})
    assert (done.code, done.out) == (3, ""), done.err
    (folder,) = (tmp_path / "torch_compile_debug").glob("run_*")
    assert {path.name for path in folder.iterdir()} >= {"graphprobe", "torchdynamo"}
    assert (folder / "torchdynamo/debug.log").is_file()
    run = Run.open(tmp_path)
    assert [model.compile["function"] for model in run.models()] == ["f"]
    assert "model__0/forward/graph" in run.artifacts()
    assert run.state == "finished"
    assert run.manifest.missing == []


def test_a_run_that_nobody_ends_is_ended_at_exit(run_warm: Callable[..., Finished], tmp_path: Path) -> None:
    done = run_warm("-c", "import graphprobe; print(graphprobe.enable('out'))", cwd=tmp_path)
    assert done.code == 0, done.err
    run = Run.open(tmp_path / "out")
    assert run.state == "finished"
    assert str(run.run_dir).endswith(done.out.strip())


def graphs_alive(backend: str) -> int:
    """Compiles a function for several constants, forward and backward, drops it, and counts the graphs still held."""
    seen: list[weakref.ref[Any]] = []

    def watched(gm: Any, example_inputs: Any) -> Any:
        seen.append(weakref.ref(gm))
        if backend == "inductor":
            from torch._inductor.compile_fx import compile_fx

            return compile_fx(gm, example_inputs)
        if backend == "eager":
            return gm.forward

        def compiler(graph: Any, _: Any) -> Any:
            seen.append(weakref.ref(graph))
            return graph.forward

        return aot_autograd(fw_compiler=compiler)(gm, example_inputs)

    def run() -> None:
        for i in range(5):
            x = torch.ones(3, requires_grad=True)
            torch.compile(lambda t, i=i: (t * i).sin().sum(), backend=watched)(x).backward()

    run()
    torch._dynamo.reset()
    gc.collect()
    assert len(seen) >= 2
    return sum(reference() is not None for reference in seen)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot", "inductor"])
def test_no_more_graphs_are_kept_than_without(backend: str, tmp_path: Path) -> None:
    plain = graphs_alive(backend)
    folder = graphprobe.enable(tmp_path)
    try:
        watched = graphs_alive(backend)
    finally:
        graphprobe.disable()
    assert graphprobe.Run.open(folder).manifest.models >= 2
    assert watched <= plain
