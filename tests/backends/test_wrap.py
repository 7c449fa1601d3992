"""`graphprobe.wrap`: which compiles are collected, and how it composes with itself and with the other switches."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import graphprobe
from conftest import Finished, damaged
from graphprobe.probe import active
from graphprobe.store import Run


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


def closed() -> Run:
    folder = graphprobe.disable()
    assert folder is not None
    return Run.open(folder)


def test_only_wrapped_backends_are_collected_and_facts_name_the_inner_one(tmp_path: Path) -> None:
    assert active.session() is None
    torch.compile(g, backend="aot_eager")(torch.ones(3))
    assert list(tmp_path.iterdir()) == [], "while nothing collects, a compile leaves nothing"
    backend = graphprobe.wrap("aot_eager")
    torch.compile(g, backend="aot_eager")(torch.ones(2))
    torch.compile(f, backend=backend)(torch.ones(2))
    assert [(model.compile["function"], model.compile["backend"]) for model in closed().models()] == [
        ("f", "aot_eager")
    ]


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
    torch.compile(g, backend=backend)(torch.ones(3))  # nothing collects now; it must work all the same
    with graphprobe.trace(tmp_path / "next") as folder:
        torch.compile(g, backend=backend)(torch.ones(3, 3))
    assert functions(Run.open(folder)) == ["g"]


def test_wrap_of_a_wrap_keeps_the_settings_of_both() -> None:
    inner = graphprobe.wrap("aot_eager", graph_dump="py")
    both = graphprobe.wrap(inner, save_inputs=True)
    override = graphprobe.wrap(inner, graph_dump="pbtxt")
    assert repr(both) == "graphprobe.wrap('aot_eager')"
    for function, backend in ((f, both), (g, override)):
        torch.compile(function, backend=backend)(torch.ones(2))
    run = closed()
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
    assert len(closed().models()) == 2


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_late_backward_after_disable_is_harmless(backend: str, tmp_path: Path) -> None:
    def forward() -> list[Any]:
        torch.compiler.reset()
        x = torch.ones(3, requires_grad=True)
        return [x, torch.compile(lambda x: (x.sin() * x).sum(), backend=backend, dynamic=True)(x)]

    x, loss = forward()
    loss.backward()
    expected = x.grad
    with graphprobe.trace(tmp_path / "out") as folder:
        x, loss = forward()
    written = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    loss.backward()
    assert torch.equal(x.grad, expected)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == written, "a closed run does not grow"
    run = Run.open(folder)
    assert damaged(run) == []
    assert "model__0/forward/graph" in run.artifacts()


WITH_RUN = """
import graphprobe, torch
def f(x): return x.sin() + 1
def g(x): return x.cos() + 1
backend = graphprobe.wrap("aot_eager", graph_dump="py")
torch.compile(f, backend=backend)(torch.ones(2))
torch.compile(g, backend="aot_eager")(torch.ones(2))
"""


@pytest.mark.parametrize("how", ["alone", "under run", "under the switch"])
def test_a_program_that_wraps(how: str, run_warm: Callable[..., Finished], tmp_path: Path) -> None:
    """Alone its run is closed at its end; where everything is collected, the settings are for the wrapped backend."""
    switch = "import os; os.environ['TORCH_COMPILE_DEBUG'] = '1'\n"
    (tmp_path / "program.py").write_text(switch + WITH_RUN if how == "under the switch" else WITH_RUN)
    words = ("-m", "graphprobe", "run", "-q", "--out", "torch_compile_debug") if how == "under run" else ()
    done = run_warm(*words, "program.py", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    run = Run.open(tmp_path)
    assert (functions(run), run.state) == (["f"] if how == "alone" else ["f", "g"], "finished")
    assert {e.where.model for e in run.events() if e.kind == "ir"} == {0}
    # One run folder; under the switch torch's own tree and ours are in it.
    (folder,) = (tmp_path / "torch_compile_debug").glob("run_*")
    assert folder == run.run_dir.resolve() or folder.name == run.run_dir.name
    assert how != "under the switch" or {path.name for path in folder.iterdir()} >= {"graphprobe", "torchdynamo"}
