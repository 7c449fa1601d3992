"""Every wrong argument of ptdbg's functions is an error that names it, before anything runs."""

import csv
import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import ROOT, Finished
from graphprobe.compat import ptdbg
from graphprobe.compat.ptdbg import set_dump_path, set_dump_switch
from graphprobe.compat.ptdbg_collect import file_of_rank
from graphprobe.errors import UsageError
from graphprobe.store import PtdbgDump


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    tool = ptdbg._Tool()
    monkeypatch.setattr(ptdbg, "_tool", tool)
    monkeypatch.chdir(tmp_path)
    yield
    assert tool.collecting is None and tool.watch is None  # nothing had begun


WRONG = {
    "ptdbg.seed_all(-1)": ["seed=-1", "0 to 4294967295"],
    "ptdbg.seed_all(2**32)": ["seed=4294967296"],
    "ptdbg.seed_all(True)": ["seed=True"],
    'ptdbg.seed_all("1234")': ["seed='1234'"],
    "ptdbg.seed_all(1, mode=2)": ["mode=2", "True or False"],
    "set_dump_path(7)": ["path=7", "file name"],
    'set_dump_path("")': ["path=''"],
    'set_dump_path(".")': ["is a folder", "name of a file in it"],
    'set_dump_path("./none/npu_dump.pkl")': ["./none/npu_dump.pkl", "no folder"],
    'set_dump_path("new/")': ["is a folder"],
    'set_dump_switch("on")': ["switch='on'", "'ON' or 'OFF'"],
    "set_dump_switch(True)": ["switch=True"],
    'set_dump_switch("ON", mode=0)': ["mode=0", "1 (all), 2 (list), 3 (range), 4 (stack)"],
    'set_dump_switch("ON", mode=5)': ["mode=5"],
    'set_dump_switch("ON", mode="2")': ["mode='2'"],
    'set_dump_switch("ON", mode=True)': ["mode=True"],
    'set_dump_switch("ON", 1, ["1_Torch_norm"])': ["with mode=1", "1_Torch_norm"],
    'set_dump_switch("ON", mode=2)': ["scope=[] with mode=2"],
    'set_dump_switch("ON", 2, "1_Torch_norm")': ["scope='1_Torch_norm'", "list of names"],
    'set_dump_switch("ON", 2, [1])': ["scope=[1]"],
    'set_dump_switch("ON", 2, ["Torch_norm"])': ["'Torch_norm'", "a number, a kind and an API"],
    'set_dump_switch("ON", 2, ["1_Torch_norm_forward_input.0"])': ["input.0"],
    'set_dump_switch("ON", mode=3)': ["scope=[] with mode=3", "two names"],
    'set_dump_switch("ON", 3, ["1_Torch_norm"])': ["with mode=3", "two names"],
    'set_dump_switch("ON", 4, ["1_Torch_a", "2_Torch_b", "3_Torch_c"])': ["with mode=4"],
    'set_dump_switch("ON", 3, ["9_Torch_a", "2_Torch_b"])': ["reversed", "call 9 comes after call 2"],
    'set_dump_switch("ON", 3, ["1_Torch_a", "Torch_b_2"])': ["'Torch_b_2'", "of one API"],
    'set_dump_switch("OFF", mode=9)': ["mode=9"],
    'set_dump_switch("ON")': ["no file to dump to"],
    '(set_dump_path("a.pkl"), set_dump_switch("ON"))': ["no hook is registered"],
    "register_hook(torch.ones(2), acc_cmp_dump)": ["model is a Tensor", "torch.nn.Module"],
    'register_hook(MODEL, "acc_cmp_dump")': ["hook='acc_cmp_dump'"],
    "register_hook(MODEL, print)": ["hook='print'"],
    "register_hook(MODEL, acc_cmp_dump, dump_step=0)": ["dump_step=0", "1 to 100"],
    "register_hook(MODEL, acc_cmp_dump, dump_step=101)": ["dump_step=101"],
    "register_hook(MODEL, acc_cmp_dump, dump_step=2.0)": ["dump_step=2.0"],
    "register_hook(MODEL, acc_cmp_dump, overflow_nums=2)": ["overflow_nums=2", "takes dump_step"],
    "register_hook(MODEL, overflow_check, overflow_nums=0)": ["overflow_nums=0", "from 1 on"],
    "register_hook(MODEL, overflow_check, dump_step=2)": ["dump_step=2", "takes overflow_nums"],
    "acc_cmp_dump(MODEL, 1, 2)": ["not to be called"],
    "overflow_check(MODEL)": ["not to be called"],
    'ptdbg.compare([], ".")': ["input_param=[]", "dictionary"],
    'ptdbg.compare({"npu_pkl_path": "a"}, ".")': ["lacks bench_pkl_path", "bench_dump_data_dir"],
    'ptdbg.parse("none.pkl", "1_Torch_norm")': ["none.pkl", "no such file"],
}
"""By what is called: words of the message."""


@pytest.mark.parametrize("line", WRONG)
def test_wrong_arguments(line: str) -> None:
    with pytest.raises(UsageError) as caught:
        eval(line, {"MODEL": torch.nn.Linear(2, 2), "torch": torch, "ptdbg": ptdbg} | vars(ptdbg))
    for text in WRONG[line]:
        assert text in str(caught.value)
    assert caught.value.hint
    assert list(Path.cwd().iterdir()) == []


def test_a_folder_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_dump_switch("OFF")
    assert list(tmp_path.iterdir()) == [], "OFF without ON does nothing"
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(UsageError, match="cannot be written to"):
        set_dump_path(tmp_path / "a.pkl")


def test_paths_of_compare(tmp_path: Path) -> None:
    for name in ("npu.pkl", "gpu.pkl"):
        (tmp_path / name).write_text("")
        (tmp_path / name[:3]).mkdir()
    good: dict[str, Any] = {"npu_pkl_path": "npu.pkl", "bench_pkl_path": "gpu.pkl"}
    good |= {"npu_dump_data_dir": "npu", "bench_dump_data_dir": "gpu"}
    for key, value, told in (
        ("npu_pkl_path", "npu", "npu_pkl_path.*no such file"),
        ("bench_pkl_path", None, "bench_pkl_path.*expected a path"),
        ("npu_dump_data_dir", "npu.pkl", "npu_dump_data_dir.*no such folder"),
        ("bench_dump_data_dir", "none", "bench_dump_data_dir.*no such folder"),
        ("other", 1, "has other, which nobody reads"),
    ):
        with pytest.raises(UsageError, match=told):
            ptdbg.compare({**good, key: value}, ".")
    with pytest.raises(UsageError, match="output_path='./output': there is no such folder"):
        ptdbg.compare(good, "./output")
    with pytest.raises(UsageError, match="stack_mode=1"):
        ptdbg.compare(good, ".", 1)  # type: ignore[arg-type]


def test_parse_tells_what_is_there(tmp_path: Path) -> None:
    pkl = tmp_path / "a.pkl"
    pkl.write_text('["21_Torch_add_forward_input.0", 1, [], "torch.float32", [1], [1, 1, 1]]\n')
    with pytest.raises(UsageError, match="no call 21_Torch_norm; call 21 is 21_Torch_add_forward"):
        ptdbg.parse(pkl, "21_Torch_norm")
    with pytest.raises(UsageError, match="no call 2_Torch_add"):
        ptdbg.parse(pkl, "2_Torch_add")  # and not call 21, whose name begins alike
    pkl.write_bytes(b"\x80\x04N.")
    with pytest.raises(UsageError, match="is a pickle"):
        ptdbg.parse(pkl, "21_Torch_norm")


@pytest.mark.parametrize(("world", "folder"), [(1, ""), (2, "rank1/")])
def test_each_rank_has_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: int, folder: str) -> None:
    assert file_of_rank(tmp_path / "a.pkl") == tmp_path / "a.pkl"
    for name, value in (("is_initialized", True), ("get_world_size", world), ("get_rank", world - 1)):
        monkeypatch.setattr(torch.distributed, name, lambda value=value: value)
    assert file_of_rank(tmp_path / "a.pkl") == tmp_path / f"{folder}a.pkl"
    assert (tmp_path / folder).is_dir()


def test_seeds_and_the_deterministic_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    for name in ("benchmark", "deterministic"):
        monkeypatch.setattr(torch.backends.cudnn, name, getattr(torch.backends.cudnn, name))
    drawn = []
    for seed in (1234, 1234, 4):
        ptdbg.seed_all(seed)
        drawn.append((random.random(), float(np.random.rand()), float(torch.rand(()))))
    assert drawn[0] == drawn[1]
    assert all(a != b for a, b in zip(drawn[0], drawn[2], strict=True))
    assert not torch.are_deterministic_algorithms_enabled()
    try:
        ptdbg.seed_all(mode=True)
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


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


def run_scenario(name: str, folder: Path, run_warm: Run) -> Finished:
    text = (SCENARIOS / f"{name}.py").read_text()
    changed = text.replace("from ptdbg_ascend import *", "from graphprobe.compat.ptdbg import *")
    assert sum(a != b for a, b in zip(text.splitlines(), changed.splitlines(), strict=True)) == 1
    (folder / "run.py").write_text(changed)
    (folder / "network.py").write_text((SCENARIOS / "network.py").read_text() + STRICT)
    return run_warm("run.py", cwd=folder, env=ENV)


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


def rows_of_result(folder: Path) -> list[dict[str, str]]:
    (result,) = folder.iterdir()
    with open(result, newline="") as file:
        return list(csv.DictReader(file))
