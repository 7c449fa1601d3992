"""Dumps on each of several ranks: held against each other, and against a run of one rank.

One bit of a weight on one rank of DDP and FSDP2: rank, weight and step are named, and healthy runs agree.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

import graphprobe
from conftest import Finished
from graphprobe.cli.main import main

RunRanks = Callable[..., Finished]


def run(*args: Any, code: int | None = None) -> Result:
    result = CliRunner().invoke(main, [str(arg) for arg in args])
    assert code in (None, result.exit_code), result.output
    return result


def compared(candidate: Path, reference: Path, out: Path) -> dict[str, Any]:
    """What `compare --json` says of two dumps that differ."""
    run("compare", candidate, reference, "--json", out, code=1)
    return dict(json.loads(out.read_text()))


def merged(dump: Path, out: Path, *, code: int) -> dict[str, dict[str, Any]]:
    """What `merge` says of each value that the ranks have."""
    result = run("merge", dump, "--out", out, "--json", code=code)
    return {value["what"]: value for value in json.loads(result.output)["values"]}


def related(values: dict[str, dict[str, Any]], relation: str) -> set[str]:
    return {what for what, value in values.items() if value["relation"] == relation}


@pytest.fixture(scope="module")
def dumps(run_ranks: RunRanks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dumps")
    for ranks, name, cases in ((0, "one", ["parts"]), (2, "two", ["parts", "same", "perturbed"])):
        (folder / name).mkdir()
        run_ranks(ranks, "dumped.py", str(folder / name), "experts", *cases, cwd=folder)
    return folder


@pytest.mark.parametrize("case", ["parts", "same"])
def test_what_is_replicated_and_what_is_sharded_is_told(case: str, dumps: Path, tmp_path: Path) -> None:
    values = merged(dumps / "two" / case, tmp_path, code=0)
    sharded, replicated = related(values, "sharded"), related(values, "replicated")
    assert sharded == {"nn.functional.linear.2.forward.input.1", "Optimizer.SGD.0.forward.parameter.expert.weight"}
    assert replicated == values.keys() - sharded
    assert {
        "nn.functional.linear.0.forward.input.1",
        "nn.functional.layer_norm.0.forward.kwarg.bias",
        "Tensor.add.0.forward.input.1",
        "Optimizer.SGD.0.forward.parameter.second.weight",
    } <= {what.replace("input.3", "kwarg.bias") for what in replicated}
    run("compare", tmp_path, dumps / "two" / case, code=0)  # the index is a dump like others


@pytest.mark.parametrize("case", ["parts", "same"])
def test_each_rank_does_what_a_single_one_does(case: str, dumps: Path, tmp_path: Path) -> None:
    result = run("compare", dumps / "two" / case, dumps / "one" / "parts", "--out", tmp_path, code=0)
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
    values = merged(dumps / "two" / "perturbed", tmp_path / "index", code=1)
    assert values["nn.functional.linear.1.forward.input.1"]["ranks"] == [[0], [1]]
    assert all("second.weight" in what or "linear.1" in what for what in related(values, "differs"))
    for candidate, reference in (("two/perturbed", "one/parts"), ("two/perturbed/rank1", "two/perturbed/rank0")):
        document = compared(dumps / candidate, dumps / reference, tmp_path / f"{Path(candidate).name}.json")
        assert [finding["kind"] for finding in document["findings"]] == ["state"]
        first = document["first"]
        assert (first["rank"], first["slot"], first["worst"]) == (1, "input.1", [1, 3])
        call = first["candidate"]
        assert (call["label"], call["module"]) == ("nn.functional.linear.1.forward", "second")
        assert "dumped.py:" in call["source"]


def test_ranks_with_other_data_are_not_accused(dumps: Path) -> None:
    result = run("compare", dumps / "two/parts/rank1", dumps / "two/parts/rank0", code=125)
    assert "Not decided: nn.functional.linear.0.forward" in result.output
    run("compare", dumps / "two/same/rank1", dumps / "two/same/rank0", code=0)


WRONG = {"ddp": 2, "fsdp2": 1}
RANKS = {"ddp": 4, "fsdp2": 2}


@pytest.fixture(scope="module", params=["ddp", "fsdp2"])
def bits(request: Any, run_ranks: RunRanks, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    kind, folder = request.param, tmp_path_factory.mktemp(request.param)
    cases = ["plain", "healthy", "again", "lowest", "highest", *(["shard", "called"] if kind == "fsdp2" else [])]
    run_ranks(RANKS[kind], "dumped.py", str(folder), kind, *cases, cwd=folder)
    return kind, folder


@pytest.mark.slow
def test_healthy_ranks_agree_and_compute_what_they_do_without_a_dump(bits: tuple[str, Path], tmp_path: Path) -> None:
    kind, folder = bits
    for rank in range(RANKS[kind]):
        learnt = {(folder / f"{case}.{rank}").read_text() for case in ("plain", "healthy", "again")}
        assert len(learnt) == 1
        assert (folder / f"highest.{rank}").read_text() not in learnt
    run("merge", folder / "healthy", "--out", tmp_path / "index", code=0)
    assert "equal bit for bit" in run("compare", folder / "again", folder / "healthy", code=0).output


@pytest.mark.slow
@pytest.mark.parametrize("case", ["lowest", "highest"])
def test_merge_names_the_rank_and_the_weight(bits: tuple[str, Path], case: str, tmp_path: Path) -> None:
    kind, folder = bits
    values = merged(folder / case, tmp_path / "index", code=1)
    differs = related(values, "differs")
    assert "nn.functional.linear.1.forward.input.1" in differs
    assert kind != "ddp" or "Optimizer.SGD.0.forward.parameter.second.weight" in differs
    assert all((values[what]["odd"], values[what]["step"]) == ([WRONG[kind]], 1) for what in differs)
    assert all("linear.1" in what or "second.weight" in what for what in differs)


def check_cause(bits: tuple[str, Path], case: str, tmp_path: Path, label: str) -> dict[str, Any]:
    """One cause is found, in the second step of the rank with the wrong bit."""
    kind, folder = bits
    (cause,) = compared(folder / case, folder / "healthy", tmp_path / "out.json")["findings"]
    assert (cause["kind"], cause["rank"], cause["step"]) == ("changed_unseen", WRONG[kind], 1)
    assert cause["candidate"]["label"] == label
    return dict(cause)


@pytest.mark.slow
def test_compare_names_the_rank_the_call_and_the_step(bits: tuple[str, Path], tmp_path: Path) -> None:
    cause = check_cause(bits, "highest", tmp_path, "nn.functional.linear.1.forward")
    assert cause["candidate"]["module"] == "second"
    named = "input.1 (second.weight) was changed" if bits[0] == "ddp" else "input.1 was changed"
    assert named in cause["evidence"][0]


@pytest.mark.slow
@pytest.mark.parametrize("bits", ["fsdp2"], indirect=True)
def test_a_shard_is_blamed_on_the_rank_that_holds_it(bits: tuple[str, Path], tmp_path: Path) -> None:
    """All ranks gather the wrong shard; the one that got it from nowhere is to blame, and not what gathers it.

    The optimizer did not leave it so on the rank that holds it.
    """
    cause = check_cause(bits, "shard", tmp_path, "ops.fsdp.all_gather_copy_in.2.forward")
    assert "(second.weight) was changed" in cause["evidence"][0]
    for case, by in (("shard", "something that was not recorded"), ("called", "Tensor.mul_.0.forward")):
        result = run("merge", bits[1] / case, "--out", tmp_path / case, code=1)
        assert f"second.weight (shard): began at step 1 on rank {WRONG['fsdp2']}, changed by {by}" in result.output
        assert "DIFFERENT: 1 of" in result.output


@pytest.mark.slow
@pytest.mark.parametrize("bits", ["fsdp2"], indirect=True)
@pytest.mark.parametrize(
    ("case", "kinds"), [("healthy", set()), ("shard", {"changed_unseen"}), ("called", {"extra_call"})]
)
def test_a_shard_of_each_rank_is_no_cause(bits: tuple[str, Path], case: str, kinds: set[str], tmp_path: Path) -> None:
    code, folder = 1 if kinds else 125, bits[1] / case
    run("compare", folder / "rank1", folder / "rank0", "--json", tmp_path / "out.json", code=code)
    found = json.loads((tmp_path / "out.json").read_text())
    assert {finding["kind"] for finding in found["findings"]} - {"unrecorded_origin"} == kinds
    assert any("shards of each rank" in note for note in found["notes"])


@pytest.mark.parametrize(("wrong", "code"), [(0.5, 1), (0.0, 0)])
def test_a_buffer_of_a_compiled_module(wrong: float, code: int, tmp_path: Path) -> None:
    """What each rank leaves in its buffers, of its own data, is no difference; what one begins with is."""
    for rank in range(2):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
        net.get_buffer("1.running_mean").add_(wrong * rank)
        compiled, data = torch.compile(net, backend="eager"), torch.Generator().manual_seed(rank)
        with graphprobe.dump(tmp_path / str(rank)):
            for _ in range(2):
                compiled(torch.randn(5, 3, generator=data))
    result = run("merge", tmp_path / "0", tmp_path / "1", "--out", tmp_path / "index", code=code)
    assert ("1.running_mean: began at step 0" in result.output) == bool(code), result.output
