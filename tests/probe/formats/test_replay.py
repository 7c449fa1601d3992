"""Generated scripts, each in a fresh process, reproduce what ran bit for bit."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from graphprobe.engine.values import one_file_bytes
from graphprobe.probe.views import output_code_source

from .compiled import Stages


@pytest.mark.parametrize(
    ("name", "dynamic", "without"),
    [
        ("mutation_and_alias", False, "original"),
        pytest.param("attention_dropout", False, "optimized", marks=pytest.mark.heavy),
        pytest.param("cond_constants", False, "original", marks=pytest.mark.heavy),
        pytest.param("conv_batch_norm", False, "original", marks=pytest.mark.heavy),
        pytest.param("transformer_dropout", False, "", marks=pytest.mark.heavy),
        pytest.param("mlp", True, "optimized", marks=pytest.mark.heavy),
    ],
)
def test_inductor_stages_reproduce(
    name: str, dynamic: bool, without: str, lowered: Callable[..., Stages], run_script: Callable[..., Any]
) -> None:
    folder = lowered(name, dynamic).folder
    scripts = sorted(path for path in folder.rglob("*.py") if path.stem != without)
    assert scripts
    for path in scripts:
        done = run_script(path)
        assert done.code == 0 and "EQUAL: all" in done.out, f"{path}\n{done.out}\n{done.err}"
    assert not dynamic or ("SYMBOLS = [\n    {" in (folder / "forward" / "original.py").read_text())


def test_a_script_notices_a_changed_output_a_changed_input_and_a_missing_constant(
    tmp_path: Path, lowered: Callable[..., Stages], run_script: Callable[..., Any]
) -> None:
    shutil.copytree(lowered("mutation_and_alias").folder, tmp_path, dirs_exist_ok=True)
    place = tmp_path / "forward"
    saved = place / "outputs.safetensors"
    good = saved.read_bytes()
    saved.write_bytes(good[:-1] + bytes([good[-1] ^ 0x80]))
    done = run_script(place / "output_code.py")
    assert done.code == 1 and "DIFFERENT: 1 of" in done.out, done.out
    saved.write_bytes(good)

    records = json.loads((place / "outputs.json").read_text())
    changed = next(i for i, record in enumerate(records["values"][1]["items"]) if record["kind"] == "tensor")
    records["values"][1]["items"][changed] = {"kind": "unchanged"}
    (place / "outputs.json").write_text(json.dumps(records))
    done = run_script(place / "output_code.py")
    assert done.code == 1
    assert f"input {changed} was changed by this run" in done.out

    source = (place / "original.py").read_text()
    broken = source.replace("'compute', ()", "'extern', ()", 1)
    assert "'extern', ()" in broken
    (place / "original.py").write_text(broken)
    done = run_script(place / "original.py")
    assert done.code == 1
    assert "recorded: " in done.out

    done = run_script(place / "optimized.py", "--inputs", str(tmp_path))
    assert done.code == 0, done.err
    assert "nothing was compared" in done.out


CODE = """
import torch
_tensor_constant0 = None  # device(type='cpu') torch.float32 (2,) (1,) 7f


def call(args):
    x, = args
    args.clear()
    return (x + _tensor_constant0, )


if __name__ == "__main__":
    print("the generated benchmark")
"""


def test_output_code_constants_benchmark_and_problems(tmp_path: Path, run_script: Callable[..., Any]) -> None:
    constant = torch.tensor([1.0, 2.0])
    script = output_code_source(CODE, constants={"_tensor_constant0": constant}, inputs=[torch.ones(2)])
    path = tmp_path / "output_code.py"
    path.write_text(script.source)
    done = run_script(path)
    assert done.code == 125
    assert "constants.safetensors is missing" in done.out
    assert script.constants is not None
    (tmp_path / script.constants_name).write_bytes(script.constants)
    done = run_script(path)
    assert done.code == 0, done.err
    assert "benchmark" not in done.out
    assert "output 0: float32[2]" in done.out
    assert run_script(path, "--benchmark").out == "the generated benchmark\n"
    assert script.constants == one_file_bytes({"_tensor_constant0": constant})

    script = output_code_source(CODE, constants={"_torchbind_obj0": object()}, inputs=[])
    assert script.constants is None
    (problem,) = script.problems
    path.write_text(script.source)
    done = run_script(path)
    assert done.code == 125
    assert problem in done.out


@pytest.mark.parametrize("text", ["raise RuntimeError('g++ failed')", "from torch._inductor import not_in_this_torch"])
def test_output_code_that_does_not_load_decides_nothing(
    text: str, tmp_path: Path, run_script: Callable[..., Any]
) -> None:
    """As its kernels are compiled when it is imported, and it takes private names of the torch it was made with."""
    path = tmp_path / "output_code.py"
    for head in ("\n", "# AOT ID: ['0_forward']\n"):
        code = f"{head}{text}\n{CODE}"
        source = output_code_source(code, constants={}, inputs=[]).source
        assert source.splitlines()[1 : len(code.splitlines()) - 4] == code.splitlines()[1:-4]  # the trace has numbers
    path.write_text(source)
    done = run_script(path)
    assert done.code == 125
    assert "Error: " in done.err
