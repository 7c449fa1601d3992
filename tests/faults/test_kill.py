"""`kill -9` in the middle of a compile: what was collected until then opens and is whole."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from faults.programs import sound
from graphprobe.cli.main import main
from graphprobe.store import Run

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
GRAPH = "model__0/forward/graph"


@pytest.mark.parametrize(
    ("setup", "call", "expected"),
    [
        pytest.param(IN_A_PASS, 1, {"model__0/joint/graph", GRAPH}, id="forward pass"),
        pytest.param(IN_LOWERING, 0, {GRAPH}, id="lowering"),
        pytest.param(IN_A_PASS, 2, {"model__0/forward/code", "model__0/backward/graph"}, id="late backward"),
        pytest.param(IN_A_WRITE, 5, set(), id="write 5"),
        pytest.param(IN_A_WRITE, 40, {"model__0/pre_grad/graph"}, id="write 40"),
        pytest.param(IN_A_WRITE, 90, {"model__0/joint/graph"}, id="write 90"),
        pytest.param(BEFORE_A_RENAME, 8, set(), id="rename 8"),
    ],
)
def test_a_killed_run_opens_and_is_whole(setup: str, call: int, expected: set[str], step: Any, tmp_path: Path) -> None:
    done = step(setup=f"{setup.replace('CALL', str(call))}\nprint(os.getpid(), flush=True)\n")
    assert done.code == -9, done.err
    run = Run.open(tmp_path)
    assert run.manifest.pid == int(done.out.split()[0])
    assert (run.manifest.state, run.state, run.manifest.ended_ns) == ("running", "killed", None)
    sound(run)
    assert expected <= set(run.artifacts()), sorted(run.artifacts())
    assert not any(address.startswith("model__1/") for address in run.artifacts())
    listed = CliRunner().invoke(main, ["ls", str(tmp_path)])
    assert listed.exit_code == 0 and "killed" in listed.output, listed.output
    if GRAPH in expected:
        shown = CliRunner().invoke(main, ["show", str(tmp_path), GRAPH])
        assert shown.exit_code == 0 and "torch.ops.aten.mm" in shown.output, shown.output
