"""A dump on each of two ranks: held against each other, and against a run of one rank."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from graphprobe.cli.main import main

PROGRAM = str(Path(__file__).parent / "programs" / "ddp_dump.py")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
ENV = {"OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def dumps(run_python: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dumps")
    for launcher, name in (((), "one"), (TORCHRUN, "two")):
        done = run_python(*launcher, PROGRAM, str(folder / name), cwd=folder, env=ENV)
        assert done.code == 0, done.err[-4000:]
    return folder


def run(*args: Any) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


def merged(dumps: Path, case: str, out: Path) -> tuple[int, dict[str, dict[str, Any]]]:
    result = run("merge", dumps / "two" / case, "--out", out, "--json")
    return result.exit_code, {value["what"]: value for value in json.loads(result.output)["values"]}


@pytest.mark.parametrize("case", ["parts", "same"])
def test_what_is_replicated_and_what_is_sharded_is_told(case: str, dumps: Path, tmp_path: Path) -> None:
    code, values = merged(dumps, case, tmp_path)
    assert code == 0
    sharded = {what for what, value in values.items() if value["relation"] == "sharded"}
    assert sharded == {"nn.functional.linear.2.forward.input.1", "Optimizer.SGD.0.forward.parameter.expert.weight"}
    replicated = {what for what, value in values.items() if value["relation"] == "replicated"}
    assert replicated == values.keys() - sharded
    assert {
        "nn.functional.linear.0.forward.input.1",
        "nn.functional.layer_norm.0.forward.kwarg.bias",
        "Tensor.add.0.forward.input.1",
        "Optimizer.SGD.0.forward.parameter.second.weight",
    } <= {what.replace("input.3", "kwarg.bias") for what in replicated}
    assert run("compare", tmp_path, dumps / "two" / case).exit_code == 0  # the index is a dump like others


@pytest.mark.parametrize("case", ["parts", "same"])
def test_each_rank_does_what_a_single_one_does(case: str, dumps: Path, tmp_path: Path) -> None:
    result = run("compare", dumps / "two" / case, dumps / "one" / "parts", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "ranks 0, 1 of the candidate are held against rank 0" in result.output
    assert "are parts of something that the other side has otherwise" in result.output
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert {row.get("rank", 0) for row in rows} == {0, 1} and all("rule" in row for row in rows)
    slots = {(r.get("rank", 0), r["candidate"]["label"], s["name"]): s for r in rows for s in r["slots"]}
    for rank in (0, 1):
        assert slots[rank, "nn.functional.linear.0.forward", "input.1"]["basis"] == "digest"
        step = slots[rank, "Optimizer.SGD.0.forward", "grad_parameter.first.weight"]
        assert step["basis"] in ("values", "digest")  # the ranks' mean is that of the whole batch
        expert = slots[rank, "nn.functional.linear.2.forward", "input.1"]
        assert (expert["basis"], expert["reason"]) == ("part", f"shape [{2 - rank}, 8] for [3, 8]: one of 2 parts")
        batch = slots[rank, "nn.functional.linear.0.forward", "input.0"]
        assert batch["basis"] == ("part" if case == "parts" else "digest")


def test_a_weight_that_differs_on_one_rank(dumps: Path, tmp_path: Path) -> None:
    code, values = merged(dumps, "perturbed", tmp_path / "index")
    assert code == 1
    differs = {what: value["ranks"] for what, value in values.items() if value["relation"] == "differs"}
    assert differs["nn.functional.linear.1.forward.input.1"] == [[0], [1]]
    assert all("second.weight" in what or "linear.1" in what for what in differs)
    for candidate, reference in (("two/perturbed", "one/parts"), ("two/perturbed/rank1", "two/perturbed/rank0")):
        out = tmp_path / f"{Path(candidate).name}.json"
        result = run("compare", dumps / candidate, dumps / reference, "--json", out)
        assert result.exit_code == 1, result.output
        document = json.loads(out.read_text())
        assert [finding["kind"] for finding in document["findings"]] == ["state"]
        first = document["first"]
        assert (first["rank"], first["candidate"]["label"], first["slot"], first["worst"]) == (
            1,
            "nn.functional.linear.1.forward",
            "input.1",
            [1, 3],
        )
        assert first["candidate"]["module"] == "second" and "ddp_dump.py:" in first["candidate"]["source"]


def test_ranks_with_other_data_are_not_accused(dumps: Path) -> None:
    result = run("compare", dumps / "two/parts/rank1", dumps / "two/parts/rank0")
    assert result.exit_code == 125 and "Not decided: nn.functional.linear.0.forward" in result.output
    assert run("compare", dumps / "two/same/rank1", dumps / "two/same/rank0").exit_code == 0
