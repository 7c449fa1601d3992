"""`kill -9` in the middle of a compile: what was collected until then opens and is whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Finished
from faults.programs import sound, write_step
from graphprobe.store.reader import Run

KILL = "os.kill(os.getpid(), signal.SIGKILL)"
IN_A_PASS = f"""
def custom_pass(graph, call):
    if call == CALL:
        {KILL}
config.post_grad_custom_pre_pass = Custom()
"""
IN_LOWERING = f"""
from torch._inductor.graph import GraphLowering
GraphLowering.run = lambda *args: {KILL}
"""
IN_A_WRITE = f"""
write, left = os.write, iter(range(CALL))
def torn(descriptor, data):
    if next(left, None) is None:
        write(descriptor, bytes(data[:len(data) // 2]))
        {KILL}
    return write(descriptor, data)
os.write = torn
"""
BEFORE_A_RENAME = f"""
replace, left = os.replace, iter(range(CALL))
def torn(*args):
    if next(left, None) is None:
        {KILL}
    return replace(*args)
os.replace = torn
"""

CASES = {
    "forward pass": (IN_A_PASS.replace("CALL", "1"), {"model__0/joint/graph", "model__0/forward/graph"}),
    "lowering": (IN_LOWERING, {"model__0/forward/graph"}),
    "late backward": (IN_A_PASS.replace("CALL", "2"), {"model__0/forward/code", "model__0/backward/graph"}),
    "write 5": (IN_A_WRITE.replace("CALL", "5"), set()),
    "write 40": (IN_A_WRITE.replace("CALL", "40"), {"model__0/pre_grad/graph"}),
    "write 90": (IN_A_WRITE.replace("CALL", "90"), {"model__0/joint/graph"}),
    "rename 8": (BEFORE_A_RENAME.replace("CALL", "8"), set()),
}


@pytest.mark.parametrize("case", CASES)
def test_a_killed_run_opens_and_is_whole(case: str, run_warm: Callable[..., Finished], tmp_path: Path) -> None:
    setup, expected = CASES[case]
    script = write_step(tmp_path / "step.py", setup=f"{setup}\nprint(os.getpid(), flush=True)\n")
    done = run_warm("-m", "graphprobe", "run", str(script), cwd=tmp_path)
    assert done.code == -9, done.err
    run = Run.open(tmp_path)
    assert run.manifest.pid == int(done.out.split()[0])
    assert run.manifest.state == "running"
    assert run.state == "killed"
    assert run.manifest.ended_ns is None
    sound(run)
    assert expected <= set(run.artifacts()), sorted(run.artifacts())
    assert not any(address.startswith("model__1/") for address in run.artifacts())


def test_ls_says_that_it_was_killed(run_warm: Callable[..., Finished], tmp_path: Path) -> None:
    script = write_step(tmp_path / "step.py", setup=IN_A_PASS.replace("CALL", "1"))
    assert run_warm("-m", "graphprobe", "run", str(script), cwd=tmp_path).code == -9
    done = run_warm("-m", "graphprobe", "ls", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "killed" in done.out
    shown = run_warm("-m", "graphprobe", "show", str(tmp_path), "model__0/forward/graph", cwd=tmp_path)
    assert shown.code == 0, shown.err
    assert "torch.ops.aten.mm" in shown.out
