"""Real runs against each other: nothing differs without a cause, and a flipped option is found with its first stage."""

from pathlib import Path

import pytest
import torch

import graphprobe
from graphprobe.report import RunDiff, diff_runs
from graphprobe.store import Run


def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (torch.relu(x) + y).sum(0) * 2


def collected(folder: Path, **options: bool) -> Run:
    torch._dynamo.reset()
    with graphprobe.trace(out_dir=folder):
        torch.compile(program, options=options or None)(torch.ones(4, 8), torch.ones(4, 8))
    return Run.open(folder)


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return collected(tmp_path_factory.mktemp("usual"))


def test_twice_the_same_program_is_the_same(usual: Run, tmp_path: Path) -> None:
    diff = diff_runs(usual, collected(tmp_path))
    assert diff.outcome == "same", diff
    assert diff.compared > 5
    settings = usual.compiler_settings()
    assert settings is not None
    assert settings["torch._inductor.config.epilogue_fusion"] == "True"
    assert {name.split(".config.")[0] for name in settings} == {"torch._dynamo", "torch._functorch", "torch._inductor"}


@pytest.mark.slow
def test_option_of_one_compile_and_the_first_stage_are_named(usual: Run, tmp_path: Path) -> None:
    diff: RunDiff = diff_runs(usual, collected(tmp_path, **{"cpp.enable_kernel_profile": True}))
    assert [one.name for one in diff.settings] == ["torch._inductor.config.cpp.enable_kernel_profile"]
    assert [one.stage for one in diff.differences] == ["forward/code"]


def test_pass_that_works_otherwise_is_the_first_stage(usual: Run, tmp_path: Path) -> None:
    def to_zero(graph: torch.fx.Graph) -> None:
        for node in graph.nodes:
            if node.target is torch.ops.aten.mul.Tensor:
                node.args = (node.args[0], 3)

    with torch._inductor.config.patch(post_grad_custom_post_pass=to_zero):
        diff = diff_runs(usual, collected(tmp_path))
    assert diff.differences[0].stage == "forward/after:post_grad_custom_post_pass"
    assert "post_grad_custom_post_pass" in diff.settings[0].name
