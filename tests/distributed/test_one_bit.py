"""One bit of a weight on one rank of DDP and FSDP2: rank, weight and step are named, and healthy runs agree."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from graphprobe.cli.main import main

PROGRAM = str(Path(__file__).parent / "programs" / "one_bit.py")
WRONG = {"ddp": 2, "fsdp2": 1}
RANKS = {"ddp": 4, "fsdp2": 2}


@pytest.fixture(scope="module", params=["ddp", "fsdp2"])
def dumps(request: Any, run_python: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    kind, folder = request.param, tmp_path_factory.mktemp(request.param)
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS[kind]))
    done = run_python(*torchrun, PROGRAM, str(folder), kind, str(WRONG[kind]), cwd=folder, env={"OMP_NUM_THREADS": "1"})
    assert done.code == 0, done.err[-4000:]
    return kind, folder


def run(*args: Any) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


def first_cause(folder: Path, case: str, out: Path) -> dict[str, Any]:
    result = run("compare", folder / case, folder / "healthy", "--json", out)
    assert result.exit_code == 1, result.output
    document = json.loads(out.read_text())
    assert len(document["findings"]) == 1, document["findings"]
    return dict(document["findings"][0])


def test_healthy_ranks_agree_and_compute_what_they_do_without_a_dump(dumps: tuple[str, Path], tmp_path: Path) -> None:
    kind, folder = dumps
    for rank in range(RANKS[kind]):
        learnt = {(folder / f"{case}.{rank}").read_text() for case in ("plain", "healthy", "again")}
        assert len(learnt) == 1
        assert (folder / f"highest.{rank}").read_text() not in learnt
    merged = run("merge", folder / "healthy", "--out", tmp_path / "index")
    assert merged.exit_code == 0, merged.output
    result = run("compare", folder / "again", folder / "healthy")
    assert result.exit_code == 0, result.output
    assert "equal bit for bit" in result.output


@pytest.mark.parametrize("case", ["lowest", "highest"])
def test_merge_names_the_rank_and_the_weight(dumps: tuple[str, Path], case: str, tmp_path: Path) -> None:
    kind, folder = dumps
    result = run("merge", folder / case, "--out", tmp_path / "index", "--json")
    assert result.exit_code == 1
    values = {v["what"]: v for v in json.loads(result.output)["values"] if v["relation"] == "differs"}
    assert "nn.functional.linear.1.forward.input.1" in values
    if kind == "ddp":
        assert "Optimizer.SGD.0.forward.parameter.second.weight" in values
    assert all(value["odd"] == [WRONG[kind]] and value["step"] == 1 for value in values.values())
    assert all("linear.1" in what or "second.weight" in what for what in values)


def test_compare_names_the_rank_the_call_and_the_step(dumps: tuple[str, Path], tmp_path: Path) -> None:
    kind, folder = dumps
    cause = first_cause(folder, "highest", tmp_path / "out.json")
    assert (cause["kind"], cause["rank"], cause["step"]) == ("changed_unseen", WRONG[kind], 1)
    assert (cause["candidate"]["label"], cause["candidate"]["module"]) == ("nn.functional.linear.1.forward", "second")
    named = "input.1 (second.weight) was changed" if kind == "ddp" else "input.1 was changed"
    assert named in cause["evidence"][0]


@pytest.mark.parametrize("dumps", ["fsdp2"], indirect=True)
def test_a_shard_is_blamed_on_the_rank_that_holds_it(dumps: tuple[str, Path], tmp_path: Path) -> None:
    """All ranks gather the wrong shard; the one that got it from nowhere is to blame, and not what gathers it."""
    kind, folder = dumps
    cause = first_cause(folder, "shard", tmp_path / "out.json")
    assert (cause["kind"], cause["rank"], cause["step"]) == ("changed_unseen", WRONG[kind], 1)
    assert cause["candidate"]["label"] == "ops.fsdp.all_gather_copy_in.2.forward"
    assert "(second.weight) was changed" in cause["evidence"][0]


@pytest.mark.parametrize("dumps", ["fsdp2"], indirect=True)
def test_merge_names_the_rank_whose_shard_was_changed(dumps: tuple[str, Path], tmp_path: Path) -> None:
    """All ranks gather one and the same wrong weight; the optimizer did not leave it so on the rank that holds it."""
    kind, folder = dumps
    result = run("merge", folder / "shard", "--out", tmp_path / "index")
    assert result.exit_code == 1, result.output
    assert f"Optimizer.SGD.0.forward.parameter.second.weight, step 1: rank {WRONG[kind]} has not" in result.output
    assert "DIFFERENT: 1 of" in result.output
