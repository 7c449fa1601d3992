"""The list of private names: all there on this torch; and what happens on a torch that lacks one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphprobe.internals.names import RUN_LOSES
from graphprobe.internals.taps import Taps


class Nobody:
    """Stands in for an observer that is never told anything."""


def test_every_tap_waits_at_first_and_says_what_is_lost_without_it() -> None:
    status = Taps(Nobody(), follow_run_dir="").status  # type: ignore[arg-type]
    assert status == dict.fromkeys(RUN_LOSES, "waiting")


WITHOUT = """
import json, sys
from pathlib import Path
import graphprobe
from graphprobe.internals import taps
from graphprobe.internals.inductor import inductor_taps as inductor
from graphprobe.internals.bus import Patch
lost = json.loads(sys.argv[2])
real = taps._all
def without(observer):
    return [Patch(p.tap, p.module, p.attribute + "_gone", p.make) if p.tap in lost else p for p in real(observer)]
taps._all = without
import torch
with graphprobe.trace(sys.argv[1]) as folder:
    x = torch.ones(4, requires_grad=True)
    y = torch.compile(lambda x: (x.sin() * 3).sum())(x)
    y.backward()
print("RESULT", float(y), x.grad.tolist())
print(folder)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "lost", [["guards", "metrics"], ["lowering"], ["aot_graphs"], ["passes", "post_grad_passes"], ["dynamo_graph"]]
)
def test_a_torch_that_lacks_a_name(lost: list[str], run_warm: Callable[..., Any], tmp_path: Path) -> None:
    done = run_warm("-c", WITHOUT, str(tmp_path), json.dumps(lost))
    assert done.code == 0, done.err[-4000:]
    assert done.out.startswith("RESULT 10.09")
    tool_dir = Path(done.out.splitlines()[1]) / "graphprobe"
    manifest = json.loads((tool_dir / "manifest.json").read_text())
    for tap in lost:
        assert manifest["taps"][tap].startswith("missing: torch.")
        assert any(tap in line and RUN_LOSES[tap] in line for line in manifest["missing"])
    assert not any("failed" in line for line in manifest["missing"]), manifest["missing"]
    assert {status for tap, status in manifest["taps"].items() if tap not in lost} == {"on"}
    left = {str(p.relative_to(tool_dir)) for p in tool_dir.rglob("*")}
    if lost == ["dynamo_graph"]:
        return
    assert "model__0/dynamo_out_graph.txt" in left
    assert ("model__0/forward/output_code.py" in left) == (lost != ["lowering"])
    assert ("model__0/joint" in left) == ("model__0/backward" in left) == (lost != ["aot_graphs"])
