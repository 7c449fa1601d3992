"""The tree on a GPU: launches from the captured CUDA graph, replay of Triton code, no harm. Skips without a device."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphprobe.store import Run

pytestmark = pytest.mark.cuda

PROGRAM = """
import hashlib, sys, torch
torch.manual_seed(0)
layers = [torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.LayerNorm(128), torch.nn.Linear(128, 8)]
model = torch.nn.Sequential(*layers).cuda()
compiled = torch.compile(model, mode=sys.argv[1])
x = torch.randn(32, 64, device="cuda")
digest = hashlib.blake2b()
for step in range(4):
    torch.compiler.cudagraph_mark_step_begin()
    model.zero_grad()
    out = compiled(x)
    out.square().mean().backward()
    for t in (out, *(p.grad for p in model.parameters())):
        digest.update(t.detach().cpu().numpy().tobytes())
digest.update(torch.cuda.get_rng_state().numpy().tobytes())
print("RESULT", digest.hexdigest())
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cuda") / "program.py"
    path.write_text(PROGRAM)
    return path


def collect(run_python: Callable[..., Any], program: Path, out: Path, mode: str, *options: str) -> tuple[Run, str]:
    done = run_python("-m", "graphprobe", "run", "--out", str(out), *options, str(program), mode)
    assert done.code == 0, done.err
    return Run.open(out), str(done.out)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_outputs_gradients_and_rng_are_those_of_a_plain_run(
    run_python: Callable[..., Any], program: Path, tmp_path: Path, mode: str
) -> None:
    plain = run_python(str(program), mode)
    assert plain.code == 0 and plain.out.startswith("RESULT "), plain.err
    assert collect(run_python, program, tmp_path, mode, "--save-inputs")[1] == plain.out


def test_launches_come_from_the_capture_of_the_cuda_graph(
    run_python: Callable[..., Any], program: Path, tmp_path: Path
) -> None:
    run, _ = collect(run_python, program, tmp_path, "reduce-overhead")
    trace = json.loads(run.text(run.find("model__0/forward/ops")))
    assert "captured into a CUDA graph" in trace["otherData"]["source"]
    launches = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert launches and all(e["args"]["capturing"] for e in launches)
    assert any(e["name"].startswith("triton_") for e in launches)


def test_output_code_replays_bit_for_bit(run_python: Callable[..., Any], program: Path, tmp_path: Path) -> None:
    run, _ = collect(run_python, program, tmp_path, "default", "--save-inputs")
    for direction in ("forward", "backward"):
        done = run_python("-I", str(run.tool_dir / "model__0" / direction / "output_code.py"))
        assert done.code == 0, done.out + done.err
        assert "EQUAL" in done.out
