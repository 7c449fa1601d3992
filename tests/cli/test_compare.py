"""`graphprobe compare`, `merge` and `parse` on dumps of real runs, and on wrong use."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

import graphprobe
from cli.test_reading import record
from conftest import Finished
from dump_helpers import OP, PLACE, new_writer, value
from graphprobe.cli.main import main

Run = Callable[..., Finished]


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.nn.functional.gelu(layer(x))
        return x


def dumped(path: Path, *, dtype: torch.dtype = torch.float32, data: str = "tensor", noise: float = 0.0) -> str:
    torch.manual_seed(0)
    net = Net()
    net.layers[2].weight.data.mul_(1 + noise * torch.randn(16, 16))
    net = net.to(dtype)
    torch.manual_seed(1)
    x = torch.randn(8, 16).bfloat16().to(dtype)
    with graphprobe.dump(path, model=net, data=data):
        net(x).sum().backward()
    return str(path)


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    base = tmp_path_factory.mktemp("dumps")
    return {
        "good": dumped(base / "good"),
        "again": dumped(base / "again"),
        "narrow": dumped(base / "narrow", dtype=torch.bfloat16),
        "noisy": dumped(base / "noisy", dtype=torch.bfloat16, noise=1e-3),
        "stats": dumped(base / "stats", data="stats"),
    }


def run(*args: str) -> Result:
    return CliRunner().invoke(main, list(args))


@pytest.mark.parametrize("other", ["again", "narrow", "stats"])
@pytest.mark.parametrize("replay", [(), ("--no-replay",)], ids=["replay", "no replay"])
def test_healthy_runs_end_with_0(dumps: dict[str, str], other: str, replay: tuple[str, ...]) -> None:
    result = run("compare", dumps[other], dumps["good"], *replay)
    assert (result.exit_code, result.output[:4]) == (0, "SAME"), result.output


def test_a_noisy_weight_ends_with_1_and_is_named(dumps: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run("compare", dumps["noisy"], dumps["good"], "--out", str(out), "--jobs", "2")
    assert result.exit_code == 1, result.output
    assert "module:    layers.2" in result.output and "gets a weight" in result.output
    document = json.loads((out / "comparison.json").read_text())
    assert document["first"]["kind"] == "state" and document["first"]["candidate"]["module"] == "layers.2"
    rows = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    assert len(rows) == document["counts"]["pairs"]
    with open(out / "comparison.csv", newline="") as file:
        assert len(list(csv.reader(file))) == sum(len(row["slots"]) for row in rows) + 1
    assert "First divergence" in (out / "report.html").read_text()
    again = run("compare", dumps["noisy"], dumps["good"], "--out", str(out))
    assert again.exit_code == 2 and "exists already" in again.output


def test_what_ends_with_1_can_be_chosen(dumps: dict[str, str]) -> None:
    assert run("compare", dumps["noisy"], dumps["good"], "--no-replay", "--fail-on", "nothing").exit_code == 0
    assert run("compare", dumps["noisy"], dumps["good"], "--no-replay", "--fail-on", "candidate_worse").exit_code == 1


def test_json_to_standard_output(dumps: dict[str, str]) -> None:
    result = run("compare", dumps["noisy"], dumps["good"], "--no-replay", "--json", "-")
    assert result.exit_code == 1
    assert json.loads(result.output)["outcome"] == "different"


def test_steps_that_do_not_exist_cannot_be_decided(dumps: dict[str, str]) -> None:
    result = run("compare", dumps["again"], dumps["good"], "--steps", "7")
    assert result.exit_code == 125 and result.output.startswith("UNDECIDED")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["compare", "nowhere", "nowhere"], "there is no dump nowhere"),
        (["compare", "GOOD", "GOOD", "--steps", "x"], "no number and no range"),
        (["compare", "GOOD", "GOOD", "--json", "no/such/folder/x.json"], "there is no folder"),
        (["parse", "GOOD", "no_such_call"], "has no call 'no_such_call'"),
        (["merge", "GOOD"], "has 1 rank"),
    ],
)
def test_wrong_use_ends_with_2(dumps: dict[str, str], args: list[str], message: str) -> None:
    result = run(*(dumps["good"] if a == "GOOD" else a for a in args))
    assert result.exit_code == 2, result.output
    assert message in result.output


def test_parse_prints_stack_statistics_and_values(dumps: dict[str, str]) -> None:
    result = run("parse", dumps["narrow"], "nn.functional.linear.2")
    assert result.exit_code == 0, result.output
    assert "nn.functional.linear.2.forward" in result.output and "nn.functional.linear.2.backward" in result.output
    assert "bfloat16 [8, 16], max" in result.output and "test_compare.py" in result.output and "[[" in result.output
    document = json.loads(run("parse", dumps["narrow"], "nn.functional.linear.2.forward", "--json").output)
    assert [call["module"] for call in document] == ["layers.2"]


@pytest.mark.parametrize(
    ("last", "verdict"), [(3.0, "FINITE: none of 2 tensors"), (np.nan, "NONFINITE: 1 of 2 tensors")]
)
def test_parse_tells_what_is_finite_by_values_alone(last: float, verdict: str, tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "values")
    slots = [value("input.0", np.ones(2, np.float32)), value("output.0", np.array([-4.0, last], np.float32))]
    writer.submit(OP, PLACE, slots)
    writer.close()
    lines = run("parse", str(tmp_path / "values"), "ResNet-50.1.add_1").output.splitlines()
    assert lines[-2].startswith(verdict), lines
    assert any("output.0 float32 [2], max" in line and "min -4" in line for line in lines), lines


def test_merge_compares_ranks(dumps: dict[str, str], tmp_path: Path) -> None:
    result = run("merge", dumps["good"], dumps["again"], "--out", str(tmp_path / "same"))
    assert result.exit_code == 0, result.output
    assert "2 ranks" in result.output and "replicated" in result.output
    result = run("merge", dumps["good"], dumps["noisy"], "--out", str(tmp_path / "other"))
    assert result.exit_code == 1 and "ranks that agree" in result.output
    against = run("compare", str(tmp_path / "same"), dumps["good"], "--no-replay")
    assert against.exit_code == 0 and "ranks 0, 1 of the candidate are held against rank 0" in against.output


COMMAND = """
import sys
sys.argv = ["graphprobe", *sys.argv[1:]]
try:
    from graphprobe.cli.main import main
    main()
finally:
    sys.stderr.write("\\nLOADED " + " ".join(sorted({m.partition(".")[0] for m in sys.modules})))
"""


def test_neither_the_help_nor_a_comparison_without_replay_imports_torch(dumps: dict[str, str], run_python: Run) -> None:
    for args in (
        ["compare", "--help"],
        ["compare", dumps["noisy"], dumps["good"], "--no-replay"],
        ["compare", dumps["stats"], dumps["good"]],
    ):
        done = run_python("-c", COMMAND, *args)
        loaded = done.err.rpartition("LOADED ")[2].split()
        assert "click" in loaded and not {"torch", "dask", "fsspec"} & set(loaded), args


def test_exact_names_the_first_call_that_gives_other_bits(dumps: dict[str, str], tmp_path: Path) -> None:
    assert run("compare", "--exact", dumps["again"], dumps["good"]).exit_code == 0
    other = Path(dumped(tmp_path / "other", data="stats"))
    file = next(other.rglob("calls.jsonl"))
    lines = file.read_text().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if '"nn.functional.gelu.0.forward"' in line)
    call = json.loads(lines[at])
    (slot,) = [one for one in call["slots"] if one["role"] == "output"]
    digest = slot["stats"]["digest"]
    lines[at] = lines[at].replace(digest, digest[:-1] + ("0" if digest[-1] != "0" else "1"))
    file.write_text("".join(lines))
    assert run("compare", str(other), dumps["stats"]).exit_code == 0
    found = run("compare", "--exact", str(other), dumps["stats"])
    assert found.exit_code == 1, found.output
    assert "gives other last bits, no further off than noise" in found.output
    assert "First divergence: nn.functional.gelu.0.forward" in found.output


def test_a_run_or_a_folder_of_runs_with_one_dump_is_a_dump(dumps: dict[str, str], tmp_path: Path) -> None:
    one = record(tmp_path / "runs").run_dir
    dumped(one / "api_dump")
    for named in (one, one / "graphprobe", tmp_path / "runs"):
        assert run("compare", str(named), dumps["good"], "--no-replay").exit_code == 0, named
    dumped(record(tmp_path / "runs").run_dir / "api_dump")
    assert run("compare", str(one), dumps["good"], "--no-replay").exit_code == 0
    dumped(one / "other")
    assert run("compare", str(one), dumps["good"]).exit_code == 2
    several = run("compare", str(tmp_path / "runs"), dumps["good"])
    assert several.exit_code == 2
    assert "holds 3 dumps: " in several.output and "graphprobe merge" in several.output
