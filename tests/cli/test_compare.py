"""`graphprobe compare`, `merge` and `parse` on dumps of real runs, and on wrong use."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import Result

import graphprobe
from cli.calling import call, record
from store.dump_helpers import OP, PLACE, new_writer, value


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


def compare(*args: object, **options: Any) -> Result:
    return call("compare", *args, **options)


@pytest.mark.parametrize("other", ["again", "narrow", "stats"])
@pytest.mark.parametrize("replay", [(), ("--no-replay",)], ids=["replay", "no replay"])
def test_healthy_runs_end_with_0(dumps: dict[str, str], other: str, replay: tuple[str, ...]) -> None:
    result = compare(dumps[other], dumps["good"], *replay)
    assert (result.exit_code, result.output[:4]) == (0, "SAME"), result.output


def test_a_noisy_weight_ends_with_1_and_is_named(dumps: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = compare(dumps["noisy"], dumps["good"], "--out", str(out), "--jobs", "2", code=1)
    assert "module:    layers.2" in result.output and "gets a weight" in result.output
    document = json.loads((out / "comparison.json").read_text())
    assert document["first"]["kind"] == "state" and document["first"]["candidate"]["module"] == "layers.2"
    rows = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    assert len(rows) == document["counts"]["pairs"]
    with open(out / "comparison.csv", newline="") as file:
        assert len(list(csv.reader(file))) == sum(len(row["slots"]) for row in rows) + 1
    assert "First divergence" in (out / "report.html").read_text()
    again = compare(dumps["noisy"], dumps["good"], "--out", str(out), code=2)
    assert "exists already" in again.output


def test_what_ends_with_1_can_be_chosen_and_json_goes_to_the_standard_output(dumps: dict[str, str]) -> None:
    words = (dumps["noisy"], dumps["good"], "--no-replay")
    compare(*words, "--fail-on", "nothing", code=0)
    result = compare(*words, "--fail-on", "candidate_worse", "--json", "-", code=1)
    assert json.loads(result.output)["outcome"] == "different"


def test_steps_that_do_not_exist_cannot_be_decided(dumps: dict[str, str]) -> None:
    result = compare(dumps["again"], dumps["good"], "--steps", "7", code=125)
    assert result.output.startswith("UNDECIDED")


def test_parse_prints_stack_statistics_and_values(dumps: dict[str, str]) -> None:
    result = call("parse", dumps["narrow"], "nn.functional.linear.2", code=0)
    assert "nn.functional.linear.2.forward" in result.output and "nn.functional.linear.2.backward" in result.output
    assert "bfloat16 [8, 16], max" in result.output and "test_compare.py" in result.output and "[[" in result.output
    document = json.loads(call("parse", dumps["narrow"], "nn.functional.linear.2.forward", "--json").output)
    assert [call["module"] for call in document] == ["layers.2"]


@pytest.mark.parametrize(
    ("last", "verdict"), [(3.0, "FINITE: none of 2 tensors"), (np.nan, "NONFINITE: 1 of 2 tensors")]
)
def test_parse_tells_what_is_finite_by_values_alone(last: float, verdict: str, tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "values")
    slots = [value("input.0", np.ones(2, np.float32)), value("output.0", np.array([-4.0, last], np.float32))]
    writer.submit(OP, PLACE, slots)
    writer.close()
    lines = call("parse", str(tmp_path / "values"), "ResNet-50.1.add_1").output.splitlines()
    assert lines[-2].startswith(verdict), lines
    assert any("output.0 float32 [2], max" in line and "min -4" in line for line in lines), lines


def test_merge_compares_ranks(dumps: dict[str, str], tmp_path: Path) -> None:
    result = call("merge", dumps["good"], dumps["again"], "--out", str(tmp_path / "same"), code=0)
    assert "2 ranks" in result.output and "replicated" in result.output
    result = call("merge", dumps["good"], dumps["noisy"], "--out", str(tmp_path / "other"), code=1)
    assert "ranks that agree" in result.output
    against = compare(str(tmp_path / "same"), dumps["good"], "--no-replay", code=0)
    assert "ranks 0, 1 of the candidate are held against rank 0" in against.output


def test_parse_finds_what_a_label_ends_in(dumps: dict[str, str]) -> None:
    whole = call("parse", dumps["good"], "nn.functional.gelu.0", "--no-values", code=0).output
    assert call("parse", dumps["good"], "gelu.0", "--no-values", code=0).output == whole
    call("parse", dumps["good"], "0", code=2)


def test_exact_names_the_first_call_that_gives_other_bits(dumps: dict[str, str], tmp_path: Path) -> None:
    compare("--exact", dumps["again"], dumps["good"], code=0)
    other = Path(dumped(tmp_path / "other", data="stats"))
    file = next(other.rglob("calls.jsonl"))
    lines = file.read_text().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if '"nn.functional.gelu.0.forward"' in line)
    call = json.loads(lines[at])
    (slot,) = [one for one in call["slots"] if one["role"] == "output"]
    digest = slot["stats"]["digest"]
    lines[at] = lines[at].replace(digest, digest[:-1] + ("0" if digest[-1] != "0" else "1"))
    file.write_text("".join(lines))
    compare(str(other), dumps["stats"], code=0)
    found = compare("--exact", str(other), dumps["stats"], code=1)
    assert "gives other last bits, no further off than noise" in found.output
    assert "First divergence: nn.functional.gelu.0.forward" in found.output


def test_a_run_or_a_folder_of_runs_with_one_dump_is_a_dump(dumps: dict[str, str], tmp_path: Path) -> None:
    one = record(tmp_path / "runs").run_dir
    dumped(one / "api_dump")
    for named in (one, one / "graphprobe", tmp_path / "runs"):
        assert compare(str(named), dumps["good"], "--no-replay").exit_code == 0, named
    dumped(record(tmp_path / "runs").run_dir / "api_dump")
    compare(str(one), dumps["good"], "--no-replay", code=0)
    dumped(one / "other")
    compare(str(one), dumps["good"], code=2)
    several = compare(str(tmp_path / "runs"), dumps["good"], code=2)
    assert "holds 3 dumps: " in several.output and "graphprobe merge" in several.output
