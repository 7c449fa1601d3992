"""The tree that each backend and mode leaves, and that watching changes no value."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import graphprobe
from conftest import damaged
from graphprobe.store import Run


def step(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ w).mean()


def train(**options: Any) -> list[torch.Tensor]:
    """Forward with backward, then an inference at another shape."""
    torch.compiler.reset()
    torch.manual_seed(0)
    x, w = torch.randn(4, 8), torch.randn(8, 8, requires_grad=True)
    compiled = torch.compile(step, dynamic=False, **options)
    loss = compiled(x, w)
    loss.backward()
    assert w.grad is not None
    with torch.no_grad():
        again = compiled(torch.ones(6, 8), w)
    return [loss.detach(), w.grad, again]


def equal(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def own(gm: torch.fx.GraphModule, inputs: Any) -> Any:
    """A user's backend: one that changes the graph, and never comes to AOTAutograd."""
    return gm.forward


AOT = ["model__0/forward/000_aot_forward_graph.txt", "model__0/backward/000_aot_backward_graph.txt",
       "model__0/joint/000_aot_joint_graph.txt", "model__1/forward/000_aot_forward_graph.txt"]  # fmt: skip
CODE = [f"model__{n}/{d}/output_code.py" for n, d in ((0, "forward"), (0, "backward"), (1, "forward"))]
OPS = [path.replace("output_code.py", "captured_ops.json") for path in CODE]

CASES: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "inductor": ({}, [*AOT, *CODE, *OPS], []),
    "max-autotune": ({"mode": "max-autotune"}, [*AOT, *CODE, *OPS], []),
    "reduce-overhead": ({"mode": "reduce-overhead"}, [*AOT, *CODE, *OPS], []),
    "aot_eager": ({"backend": "aot_eager"}, AOT, ["output_code.py", "captured_ops.json"]),
    "eager": ({"backend": "eager"}, [], ["aot_", "output_code.py", "joint", "backward"]),
    "own": ({"backend": own}, [], ["aot_", "output_code.py", "joint", "backward"]),
}


@pytest.mark.parametrize("case", CASES)
def test_tree(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options, _, _ = CASES[case]
    plain = train(**options)
    torch.compiler.reset()
    with graphprobe.trace(tmp_path / "trace"):
        assert equal(plain, train(**options))
    check_tree(case, tmp_path / "trace")
    (tmp_path / "wrap").mkdir()
    monkeypatch.chdir(tmp_path / "wrap")
    torch.compiler.reset()
    wrapped = graphprobe.wrap(options.get("backend", "inductor"))
    assert equal(plain, train(**{**options, "backend": wrapped}))
    graphprobe.disable()
    check_tree(case, tmp_path / "wrap")


def check_tree(case: str, folder: Path) -> None:
    _, expected, absent = CASES[case]
    run = Run.open(folder)
    files = sorted(str(path.relative_to(run.tool_dir)) for path in run.tool_dir.rglob("*") if path.is_file())
    assert set(expected) <= set(files), files
    assert not [file for file in files for part in absent if part in file.removeprefix("model__")]
    assert {f"model__{n}/{name}" for n in (0, 1) for name in ("dynamo_out_graph.txt", "compile.json")} <= set(files)
    assert (run.manifest.models, run.manifest.state, run.manifest.missing) == (2, "finished", [])
    assert damaged(run) == []
    name = case if case in ("aot_eager", "eager", "own") else "inductor"
    assert {model.compile["backend"] for model in run.models()} == {name}
    if "output_code.py" not in absent:
        for part in ("model__0/forward", "model__0/backward", "model__1/forward"):
            stages = [f for f in files if re.fullmatch(rf"{part}/\d+_aot_\w+_(original|optimized)_graph\.txt", f)]
            assert len(stages) == 2, files
            assert "_original_" in stages[0]


@pytest.mark.parametrize("kind", ["txt", "pbtxt", "py"])
def test_configured_backend(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options are set as they are or by their `value`: tests/test_compiler_config.py."""
    plain = train(mode="max-autotune")
    monkeypatch.chdir(tmp_path)
    config = graphprobe.CompilerConfig()
    config.mode = "max-autotune"  # type: ignore[assignment]
    config.debug.graph_dump.type.value = kind
    seen = train(backend=graphprobe.get_backend(compiler_config=config))
    graphprobe.disable()
    assert equal(plain, seen)
    run = Run.open(tmp_path)
    ir = {Path(e.path).suffix for e in run.events() if e.kind == "ir" and e.path is not None}
    assert (ir, run.manifest.missing) == ({f".{kind}"}, [])


def test_configured_modes_are_torchs_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Inductor's configuration is while it compiles, by `mode=` and by the config."""
    from torch._inductor import config as inductor
    from torch._inductor.custom_graph_pass import CustomGraphPass

    monkeypatch.chdir(tmp_path)
    seen: list[dict[str, Any]] = []

    class Look(CustomGraphPass):
        def __call__(self, graph: torch.fx.Graph) -> None:
            now = inductor.get_config_copy()
            seen.append({k: now[k] for k in ("max_autotune", "triton.cudagraphs", "coordinate_descent_tuning")})

        def uuid(self) -> Any:
            return None

    for mode in ("default", "max-autotune", "max-autotune-no-cudagraphs", "reduce-overhead"):
        config = graphprobe.CompilerConfig()
        config.mode = mode  # type: ignore[assignment]
        for options in (
            {"mode": mode},
            {"backend": graphprobe.get_backend(compiler_config=config)},
            {"backend": graphprobe.wrap("inductor"), "mode": mode},
        ):
            seen.clear()
            torch.compiler.reset()
            # Not by monkeypatch: it deletes the entries of torch's configuration when it is done.
            with inductor.patch(post_grad_custom_post_pass=Look(), fx_graph_cache=False):
                torch.compile(lambda x: x.sin() + 1, **options)(torch.ones(3))
            assert len(seen) == 1, (mode, options)
            if "backend" not in options:
                expected = dict(seen[0])
            assert seen[0] == expected, (mode, options)
    graphprobe.disable()
    assert expected["triton.cudagraphs"] is True


def test_options_reach_a_wrapped_inductor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    backend = graphprobe.wrap("inductor")
    compiled = torch.compile(lambda x: x.sin() + 1, backend=backend, options={"no_such_option": 1})
    with pytest.raises(Exception, match="Unexpected optimization option no_such_option"):
        compiled(torch.ones(3))
    graphprobe.disable()
