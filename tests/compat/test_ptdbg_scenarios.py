"""The scenarios that ptdbg's own guide walks through, with nothing but the import changed."""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import ROOT, Finished
from graphprobe.store import PtdbgDump

SCENARIOS = ROOT / "tests" / "compat" / "ptdbg_scenarios"
ENV = {"OMP_NUM_THREADS": "1", "CI": "true"}
STRICT = """
import warnings
from graphprobe.errors import GraphprobeWarning
warnings.simplefilter("error", GraphprobeWarning)
"""
Run = Callable[..., Finished]

NORM, LINEAR, GELU, MUL = "1_Functional_layer_norm", "2_Functional_linear", "3_Functional_gelu", "4_Tensor_mul_"
"""The first calls of the network."""


def run_scenario(name: str, folder: Path, run_warm: Run, helper: str = "network", *arguments: str) -> Finished:
    text = (SCENARIOS / f"{name}.py").read_text()
    changed = text.replace("from ptdbg_ascend import *", "from graphprobe.compat.ptdbg import *")
    assert sum(a != b for a, b in zip(text.splitlines(), changed.splitlines(), strict=True)) == 1
    (folder / "run.py").write_text(changed)
    (folder / f"{helper}.py").write_text((SCENARIOS / f"{helper}.py").read_text() + STRICT)
    return run_warm("run.py", *arguments, cwd=folder, env=ENV)


def rows_of(pkl: Path) -> list[list[Any]]:
    return [json.loads(line) for line in pkl.read_text().splitlines()]


def names_of(pkl: Path) -> list[str]:
    return [call.label for call in PtdbgDump(pkl).calls(0, 0)]


@pytest.fixture(scope="module")
def accuracy(tmp_path_factory: pytest.TempPathFactory, run_warm: Run) -> Path:
    folder = tmp_path_factory.mktemp("accuracy")
    done = run_scenario("accuracy", folder, run_warm)
    assert done.code == 0, done.err
    return folder


def test_the_files_are_those_of_the_source(accuracy: Path) -> None:
    kinds = {re.sub(r"\d{8}_?\d{6}", "T", path.name) for path in accuracy.iterdir()}
    names = ("npu_dump", "gpu_dump", "npu_dump_list", "npu_dump_scope", "npu_dump_stack")
    files = {f"{name}.pkl" for name in names} | {f"{name}_T" for name in names}
    assert kinds - {"__pycache__"} == files | {"output", "run.py", "network.py"}
    (result,) = (accuracy / "output").iterdir()
    assert re.fullmatch(r"compare_result_\d{14}\.csv", result.name)


def test_a_sampled_dump_of_the_whole_network(accuracy: Path) -> None:
    pkl = accuracy / "gpu_dump.pkl"
    assert not any("stack_info" in row[0] for row in rows_of(pkl))
    rows = {row[0]: row for row in rows_of(pkl)}
    row = rows["2_Functional_linear_forward_output.0"]
    assert row[1:5] == [2, [], "torch.float32", [20, 40]] and len(row[5]) == 4
    (folder,) = (path for path in accuracy.glob("gpu_dump_2*"))
    values = np.load(folder / f"{row[0]}.npy")
    assert values.shape == (256 + (800 - 512) // 2 + 256,)
    assert values.max() <= row[5][0]  # statistics are of all elements
    assert names_of(pkl)[:4] == [f"{name}_forward" for name in (NORM, LINEAR, GELU, MUL)]
    assert names_of(pkl)[-1] == f"{NORM}_backward"


def test_in_place_the_input_is_that_before_the_call(accuracy: Path) -> None:
    (folder,) = accuracy.glob("npu_dump_scope_2*")
    before, after = (np.load(folder / f"4_Tensor_mul__forward_{side}.0.npy") for side in ("input", "output"))
    np.testing.assert_array_equal(before * 2, after)
    assert before.shape == (20, 40)


def test_the_comparison_names_the_line_that_was_planted(accuracy: Path) -> None:
    lines = rows_of_result(accuracy / "output")
    sides = [f"{side} {text}" for text in ("Name", "Tensor Dtype", "Tensor Shape") for side in ("NPU", "Bench")]
    assert list(lines[0])[:8] == [*sides, "Cosine", "MaxAbsErr"]
    assert "NPU_Stack_Info" in lines[0]
    first = next(line for line in lines if line["Verdict"] != "ok")
    planted = ("5_Tensor_clone", "6_Tensor___getitem__", "7_Tensor_add_", "8_Tensor___setitem__")
    assert first["NPU Name"].startswith(planted) and first["Bench Name"] == "N/A"
    later = next(line for line in lines if line["NPU Name"] == "9_Functional_linear_forward_output.0")
    assert (later["Bench Name"], later["Accuracy Reached or Not"]) == ("5_Functional_linear_forward_output.0", "No")
    healthy = [line for line in lines if line["NPU Name"].startswith(("1_", "2_", "3_", "4_"))]
    assert all(line["Verdict"] == "ok" for line in healthy if "_forward" in line["NPU Name"])


def test_modes(accuracy: Path) -> None:
    listed = [f"{LINEAR}_forward", f"{MUL}_forward", f"{LINEAR}_backward"]
    assert names_of(accuracy / "npu_dump_list.pkl") == listed
    forward = [f"{name}_forward" for name in (LINEAR, GELU, MUL)]
    backward = [f"{name}_backward" for name in (MUL, GELU, LINEAR)]
    assert names_of(accuracy / "npu_dump_scope.pkl") == forward + backward
    for name in ("list", "scope", "stack"):
        stacks = [row for row in rows_of(accuracy / f"npu_dump_{name}.pkl") if row[0].endswith("_stack_info")]
        assert stacks and all(frames[0][0] == "network.py" for _, frames in stacks)
    stack = accuracy / "npu_dump_stack.pkl"
    assert all(row[0].endswith("_stack_info") for row in rows_of(stack))
    assert names_of(stack)[:3] == [f"{name}_forward" for name in (NORM, LINEAR, GELU)]
    (folder,) = accuracy.glob("npu_dump_stack_2*")
    assert list(folder.iterdir()) == []


def test_one_call(tmp_path: Path, run_warm: Run) -> None:
    done = run_scenario("one_call", tmp_path, run_warm)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0] == "2_Functional_linear_forward"
    assert lines[2].strip().startswith("network.py:") and "self.fc1" in lines[2]
    assert any(re.match(r"  output\.0: float32 \[20, 40\] max \S+ min \S+ mean \S+ l2 \S+", line) for line in lines)
    assert "2_Functional_linear_backward" in lines


def test_overflow(tmp_path: Path, run_warm: Run) -> None:
    done = run_scenario("overflow", tmp_path, run_warm)
    assert done.code != 0
    assert done.out.splitlines() == ["step 0 done", "step 1 done"]
    assert "overflow 2 of 2: torch.Tensor.mul" in done.err and "run.py:" in done.err
    texts = sorted(tmp_path.glob("Overflow_info_*.pkl"))
    assert len(texts) == 2
    for pkl in texts:
        rows = {row[0].split("_", 1)[1]: row for row in rows_of(pkl) if "stack_info" not in row[0]}
        assert [len(row) for row in rows.values() if row[3] == "torch.float16"] == [5, 5]  # no statistics
        (output,) = (row[0] for name, row in rows.items() if name == "Tensor_mul_forward_output.0")
        folder = pkl.with_suffix("")
        assert np.isinf(np.load(folder / f"{output}.npy")).any()
        assert np.isfinite(np.load(folder / f"{output.replace('output', 'input')}.npy")).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "api", "culprit"),
    [
        ("gpt2", "Torch_tanh", "torch.pow"),
        pytest.param("convnet", "Functional_conv2d", "conv2d", marks=pytest.mark.heavy),
    ],
)
def test_gpt2_and_a_convnet(name: str, api: str, culprit: str, tmp_path: Path, run_warm: Run) -> None:
    """All three scenarios: the second run of an operator is 3 % off; the stack of a call; a weight that overflows."""
    done = run_scenario("real_models", tmp_path, run_warm, "models", name)
    wrong, again = (rows_of_result(tmp_path / folder) for folder in ("npu", "again"))
    assert len(wrong) == len(again) > 150
    assert {line["Verdict"] for line in again} == {"ok"}
    found = [line for line in wrong if line["Verdict"] != "ok"]
    forwards = [label for label in names_of(tmp_path / "npu.pkl") if label.endswith(f"{api}_forward")]
    assert found[0]["NPU Name"] == found[0]["Bench Name"] == f"{forwards[1]}_output.0"
    assert (found[0]["Verdict"], found[0]["Blame"]) == ("candidate_worse", "local")
    assert {line["Blame"] for line in found[1:]} <= {"inherited", "random"}

    told = done.out.splitlines()
    calls = [label.partition("_forward")[0] for label in forwards]
    head = told.index(f"{calls[0]}_forward")
    assert "stack, innermost first" in told[head + 1] and ".py:" in told[head + 2]
    assert f"{calls[0]}_backward" in told

    assert done.code != 0 and told[-2:] == ["step 0 done", "step 1 done"]
    *_, last, hint = done.err.splitlines()
    assert "overflow 2 of 2: " in last and culprit in last and hint.startswith("hint: ")
    assert len(list(tmp_path.glob("Overflow_info_*.pkl"))) == 2


def rows_of_result(folder: Path) -> list[dict[str, str]]:
    (result,) = folder.iterdir()
    with open(result, newline="") as file:
        return list(csv.DictReader(file))
