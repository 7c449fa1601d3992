"""`graphprobe.wrap`: which compiles are collected, and how it composes with itself and with the other switches."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import graphprobe
from conftest import Finished
from graphprobe.probe import active
from graphprobe.store.reader import Run


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    yield
    graphprobe.disable()


def f(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1


def g(x: torch.Tensor) -> torch.Tensor:
    return x.cos() + 2


def functions(run: Run) -> list[str]:
    return [model.compile["function"] for model in run.models()]


def test_only_wrapped_backends_are_collected(tmp_path: Path) -> None:
    backend = graphprobe.wrap("aot_eager")
    torch.compile(g, backend="aot_eager")(torch.ones(2))
    torch.compile(f, backend=backend)(torch.ones(2))
    folder = graphprobe.disable()
    assert folder is not None
    assert functions(Run.open(folder)) == ["f"]


def test_under_trace_everything_is_collected_once(tmp_path: Path) -> None:
    with graphprobe.trace(tmp_path / "out") as folder:
        torch.compile(f, backend=graphprobe.wrap("aot_eager"))(torch.ones(2))
        torch.compile(g, backend="aot_eager")(torch.ones(2))
    assert functions(Run.open(folder)) == ["f", "g"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"], "one run, not two"


@pytest.mark.filterwarnings("ignore:compiled before collecting began")
def test_enable_after_wrap_takes_over(tmp_path: Path) -> None:
    backend = graphprobe.wrap("aot_eager")
    torch.compile(f, backend=backend)(torch.ones(2))
    with graphprobe.trace(tmp_path / "out") as folder:
        torch.compile(lambda x: x + 3, backend=backend)(torch.ones(2))
        torch.compile(g, backend="aot_eager")(torch.ones(2))
    assert functions(Run.open(folder)) == ["<lambda>", "g"]
    first = Run.open(tmp_path)
    assert (functions(first), first.state) == (["f"], "finished")


@pytest.mark.filterwarnings("ignore:compiled before collecting began")
def test_a_backend_wrapped_before_an_earlier_run_ended_is_collected_by_the_next(tmp_path: Path) -> None:
    backend = graphprobe.wrap("aot_eager")
    graphprobe.disable()
    torch.compile(f, backend=backend)(torch.ones(2))  # nothing collects now; it must work all the same
    with graphprobe.trace(tmp_path / "out") as folder:
        torch.compile(g, backend=backend)(torch.ones(2))
    assert functions(Run.open(folder)) == ["g"]


def test_wrap_of_a_wrap_keeps_the_settings_of_both() -> None:
    inner = graphprobe.wrap("aot_eager", graph_dump="py")
    both = graphprobe.wrap(inner, save_inputs=True)
    override = graphprobe.wrap(inner, graph_dump="pbtxt")
    assert repr(both) == "graphprobe.wrap('aot_eager')"
    for function, backend in ((f, both), (g, override)):
        torch.compile(function, backend=backend)(torch.ones(2))
    folder = graphprobe.disable()
    assert folder is not None
    run = Run.open(folder)
    assert functions(run) == ["f", "g"]
    suffixes = {e.where.model: Path(e.path).suffix for e in run.events() if e.kind == "ir" and e.path is not None}
    assert suffixes == {0: ".py", 1: ".pbtxt"}
    assert {e.where.model for e in run.events() if e.kind == "inputs" and e.name.startswith("inputs")} == {0}


def test_the_inner_backend_gets_what_torch_gives_and_its_attributes_show_through() -> None:
    seen: list[Any] = []

    def mine(gm: torch.fx.GraphModule, inputs: Any, **options: Any) -> Any:
        seen.append((isinstance(gm, torch.fx.GraphModule), len(inputs), options))
        return gm.forward

    mine.compiler_name = "mine_and_only"  # type: ignore[attr-defined]
    backend = graphprobe.wrap(mine)
    assert backend.__name__ == "mine"
    assert backend.compiler_name == "mine_and_only"
    with pytest.raises(AttributeError):
        _ = backend.no_such_attribute
    out = torch.compile(f, backend=backend, options={"a": 1})(torch.zeros(2))
    assert out.tolist() == [1.0, 1.0]
    assert seen == [(True, 1, {"options": {"a": 1}})]


def test_a_class_and_a_partial_can_be_wrapped() -> None:
    import functools

    class Backend:
        def __call__(self, gm: Any, inputs: Any) -> Any:
            return gm.forward

    def mine(scale: int, gm: Any, inputs: Any) -> Any:
        return gm.forward

    for backend, name in ((Backend(), "Backend"), (functools.partial(mine, 2), "partial")):
        wrapped = graphprobe.wrap(backend)
        torch.compiler.reset()
        assert torch.compile(f, backend=wrapped)(torch.zeros(1)).item() == 1.0
        assert wrapped.__name__ == name
    folder = graphprobe.disable()
    assert folder is not None
    assert len(Run.open(folder).models()) == 2


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_late_backward_after_disable_is_harmless(backend: str, tmp_path: Path) -> None:
    def plain() -> list[Any]:
        torch.compiler.reset()
        x = torch.ones(3, requires_grad=True)
        loss = torch.compile(lambda x: (x.sin() * x).sum(), backend=backend, dynamic=True)(x)
        return [x, loss]

    x, loss = plain()
    loss.backward()
    expected = x.grad
    torch.compiler.reset()
    with graphprobe.trace(tmp_path / "out") as folder:
        x, loss = plain()
    written = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    loss.backward()
    assert torch.equal(x.grad, expected)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == written, "a closed run does not grow"
    run = Run.open(folder)
    assert run.verify() == []
    assert "model__0/forward/graph" in run.artifacts()


WITH_RUN = """
import graphprobe, torch
def f(x): return x.sin() + 1
def g(x): return x.cos() + 1
backend = graphprobe.wrap("aot_eager", graph_dump="py")
torch.compile(f, backend=backend)(torch.ones(2))
torch.compile(g, backend="aot_eager")(torch.ones(2))
"""


def test_wrap_under_run(run_warm: Callable[..., Finished], tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(WITH_RUN)
    done = run_warm("-m", "graphprobe", "run", "--out", "out", "program.py", cwd=tmp_path)
    assert done.code == 0, done.err
    assert not (tmp_path / "torch_compile_debug").exists()
    run = Run.open(tmp_path / "out")
    assert functions(run) == ["f", "g"]
    assert {e.where.model for e in run.events() if e.kind == "ir"} == {0}


def test_wrap_by_itself_closes_at_exit(run_warm: Callable[..., Finished], tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(WITH_RUN)
    done = run_warm("program.py", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    run = Run.open(tmp_path)
    assert (functions(run), run.state) == (["f"], "finished")


@pytest.mark.parametrize("first", ["import torch", "pass", "import torch._dynamo"])
def test_wrap_under_the_switch_leaves_the_rest_collected(
    first: str, run_warm: Callable[..., Finished], tmp_path: Path
) -> None:
    program = first + WITH_RUN.replace('wrap("aot_eager"', "wrap(mine").replace(
        "backend =", "def mine(gm, inputs): return gm.forward\nbackend ="
    )
    (tmp_path / "program.py").write_text(program)
    done = run_warm("program.py", cwd=tmp_path, env={"TORCH_COMPILE_DEBUG": "1"})
    assert done.code == 0, done.err
    run = Run.open(tmp_path)
    assert functions(run) == ["f", "g"]
    # One run folder, torch's own tree and ours in it.
    (folder,) = (tmp_path / "torch_compile_debug").glob("run_*")
    assert folder == run.run_dir.resolve() or folder.name == run.run_dir.name
    assert {path.name for path in folder.iterdir()} >= {"graphprobe", "torchdynamo"}


def test_a_compile_while_nothing_collects_leaves_nothing(tmp_path: Path) -> None:
    assert active.session() is None
    torch.compile(f, backend="aot_eager")(torch.ones(2))
    assert list(tmp_path.iterdir()) == []


def test_facts_name_the_inner_backend() -> None:
    torch.compile(f, backend=graphprobe.wrap("aot_eager"))(torch.ones(2))
    folder = graphprobe.disable()
    assert folder is not None
    facts = json.loads((folder / "graphprobe/model__0/compile.json").read_text())
    assert facts["backend"] == "aot_eager"
