"""Generated scripts, each in a fresh process, reproduce what ran bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd

from graphprobe.engine.values import one_file_bytes
from graphprobe.probe.views import output_code_source

from .compiled import PROGRAMS, Stages, run_script, train


@pytest.fixture(autouse=True)
def _two_threads() -> None:
    torch.set_num_threads(2)


def check(place: Path, *, without: str = "") -> None:
    scripts = sorted(path for path in place.rglob("*.py") if path.stem != without)
    assert scripts
    for path in scripts:
        done = run_script(path)
        assert done.returncode == 0, f"{path}\n{done.stdout}\n{done.stderr}"
        assert "EQUAL: all" in done.stdout


@pytest.mark.parametrize(
    ("name", "without"),
    [
        pytest.param("attention_dropout", "optimized", marks=pytest.mark.heavy),
        ("mutation_and_alias", "original"),
        pytest.param("cond_constants", "original", marks=pytest.mark.heavy),
        pytest.param("conv_batch_norm", "original", marks=pytest.mark.heavy),
        pytest.param("transformer_dropout", "", marks=pytest.mark.heavy),
    ],
)
def test_inductor_stages_reproduce(name: str, without: str, tmp_path: Path) -> None:
    stages = Stages(tmp_path)
    with stages.tapped():
        train(PROGRAMS[name], stages.backend)
    check(tmp_path, without=without)


@pytest.mark.heavy
def test_inductor_stages_reproduce_with_symbolic_sizes(tmp_path: Path) -> None:
    stages = Stages(tmp_path)
    with stages.tapped():
        train(PROGRAMS["mlp"], stages.backend, dynamic=True)
    check(tmp_path, without="optimized")
    assert "SYMBOLS = [\n    {" in (tmp_path / "forward" / "original.py").read_text()


@pytest.mark.parametrize(
    "name",
    [
        "bfloat16_autocast",
        *(pytest.param(n, marks=pytest.mark.heavy) for n in ("cond_constants", "transformer_dropout")),
    ],
)
def test_fx_graphs_reproduce(name: str, tmp_path: Path) -> None:
    stages = Stages(tmp_path)
    train(PROGRAMS[name], aot_autograd(fw_compiler=stages.aot, bw_compiler=stages.aot))
    if name != "transformer_dropout":
        train(PROGRAMS[name], stages.dynamo)
    check(tmp_path)


def test_a_script_notices_a_changed_output_a_changed_input_and_a_missing_constant(tmp_path: Path) -> None:
    stages = Stages(tmp_path)
    with stages.tapped():
        train(PROGRAMS["mutation_and_alias"], stages.backend)
    place = tmp_path / "forward"
    saved = place / "outputs.safetensors"
    good = saved.read_bytes()
    saved.write_bytes(good[:-1] + bytes([good[-1] ^ 0x80]))
    done = run_script(place / "output_code.py")
    assert done.returncode == 1, done.stdout
    assert "DIFFERENT: 1 of" in done.stdout
    saved.write_bytes(good)

    records = json.loads((place / "outputs.json").read_text())
    changed = next(i for i, record in enumerate(records["values"][1]["items"]) if record["kind"] == "tensor")
    records["values"][1]["items"][changed] = {"kind": "unchanged"}
    (place / "outputs.json").write_text(json.dumps(records))
    done = run_script(place / "output_code.py")
    assert done.returncode == 1
    assert f"input {changed} was changed by this run" in done.stdout

    source = (place / "original.py").read_text()
    broken = source.replace("'compute', []", "'extern', []", 1)
    assert "'extern', []" in broken
    (place / "original.py").write_text(broken)
    done = run_script(place / "original.py")
    assert done.returncode == 1
    assert "recorded: " in done.stdout

    done = run_script(place / "optimized.py", "--inputs", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "nothing was compared" in done.stdout


CODE = """
import torch
_tensor_constant0 = None  # device(type='cpu') torch.float32 (2,) (1,) 7f


def call(args):
    x, = args
    args.clear()
    return (x + _tensor_constant0, )


def get_args():
    return [torch.ones(2)]


if __name__ == "__main__":
    print("the generated benchmark")
"""


def test_output_code_constants_benchmark_and_problems(tmp_path: Path) -> None:
    constant = torch.tensor([1.0, 2.0])
    script = output_code_source(CODE, constants={"_tensor_constant0": constant})
    path = tmp_path / "output_code.py"
    path.write_text(script.source)
    done = run_script(path)
    assert done.returncode == 125
    assert "constants.safetensors is missing" in done.stdout
    assert script.constants is not None
    (tmp_path / script.constants_name).write_bytes(script.constants)
    done = run_script(path)
    assert done.returncode == 0, done.stderr
    assert "benchmark" not in done.stdout
    assert "output 0: float32[2]" in done.stdout
    assert run_script(path, "--benchmark").stdout == "the generated benchmark\n"
    assert script.constants == one_file_bytes({"_tensor_constant0": constant})

    script = output_code_source(CODE, constants={"_torchbind_obj0": object()})
    assert script.constants is None
    (problem,) = script.problems
    path.write_text(script.source)
    done = run_script(path)
    assert done.returncode == 125
    assert problem in done.stdout


@pytest.mark.parametrize("text", ["raise RuntimeError('g++ failed')", "from torch._inductor import not_in_this_torch"])
def test_output_code_that_does_not_load_decides_nothing(text: str, tmp_path: Path) -> None:
    """As its kernels are compiled when it is imported, and it takes private names of the torch it was made with."""
    path = tmp_path / "output_code.py"
    for head in ("\n", "# AOT ID: ['0_forward']\n"):
        code = f"{head}{text}\n{CODE}"
        source = output_code_source(code).source
        assert source.splitlines()[1 : len(code.splitlines()) - 4] == code.splitlines()[1:-4]  # the trace has numbers
    path.write_text(source)
    done = run_script(path)
    assert done.returncode == 125
    assert "Error: " in done.stderr
