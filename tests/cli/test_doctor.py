"""`graphprobe doctor`: what can be collected here, and what is lost where a tap is missing."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from conftest import Finished
from graphprobe.cli.main import main
from graphprobe.internals.names import LOSES, RUN_LOSES
from graphprobe.numerics import native
from numerics.stats_both import INSTRUCTION_SETS, instruction_set


def doctor(*args: str) -> Result:
    return CliRunner().invoke(main, ["doctor", *args])


def test_everything_can_be_collected_here() -> None:
    done = doctor()
    assert done.exit_code == 0, done.output
    torch = importlib.import_module("torch")
    assert f"torch {torch.__version__} on cpu" in done.output
    for tap in LOSES:
        assert f"  {tap} " in done.output
    assert "missing" not in done.output


def test_json() -> None:
    done = doctor("--json")
    assert done.exit_code == 0, done.output
    facts = json.loads(done.output)
    assert {tap["tap"] for tap in facts["taps"]} == set(RUN_LOSES)
    assert {found["capability"] for found in facts["dump"]} == set(LOSES) - set(RUN_LOSES)
    assert all(tap["status"] == "ok" and tap["lost"] is None for tap in facts["taps"])
    assert facts["devices"][0] == "cpu"
    assert facts["torch"].startswith("2.")


@pytest.mark.parametrize(
    ("module", "attribute", "tap"),
    [
        ("torch._inductor.compile_fx", "joint_graph_passes", "joint_passes"),
        ("torch._inductor.debug", "DebugContext", "lowering"),
        ("torch._functorch.aot_autograd", "aot_stage2_compile", "aot_graphs"),
        ("torch._dynamo.output_graph", "OutputGraph", "dynamo_graph"),
        ("torch.fx.passes.graph_transform_observer", "GraphTransformObserver", "passes"),
    ],
)
def test_what_is_lost_without_a_tap(module: str, attribute: str, tap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(importlib.import_module(module), attribute)
    done = doctor()
    assert done.exit_code == 1, done.output
    line = next(line for line in done.output.splitlines() if line.startswith(f"  {tap} "))
    assert f"missing: {module}:{attribute}" in line
    assert f"-> {LOSES[tap]}" in line
    as_json = doctor("--json")
    assert as_json.exit_code == 1
    lost = {t["tap"]: t["lost"] for t in json.loads(as_json.output)["taps"] if t["status"] != "ok"}
    # Steps are told of by the same names.
    assert {name: what for name, what in lost.items() if name != "steps"} == {tap: LOSES[tap]}


@pytest.mark.parametrize(
    ("module", "attribute", "capabilities"),
    [
        ("torch._inductor.debug", "log_ir_post_fusion", ["dump_kernel", "mixing"]),
        ("torch._C", "_current_autograd_node", ["api_dump", "dump_single_ops"]),
    ],
)
def test_what_the_dump_lacks(
    module: str, attribute: str, capabilities: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(importlib.import_module(module), attribute)
    done = doctor()
    assert done.exit_code == 1, done.output
    for capability in capabilities:
        line = next(line for line in done.output.splitlines() if line.startswith(f"  {capability} "))
        assert f"missing: {module}:{attribute}" in line and f"  -> {LOSES[capability]}" in line
    lost = [found["capability"] for found in json.loads(doctor("--json").output)["dump"] if found["status"] != "ok"]
    assert lost == capabilities


def test_the_native_core() -> None:
    done = doctor()
    line = next(line for line in done.output.splitlines() if line.startswith("native core: "))
    assert line == f"native core: {native.description()}"
    assert json.loads(doctor("--json").output)["native"]["available"] == (native.core is not None)


@pytest.mark.parametrize("name", INSTRUCTION_SETS)
def test_the_instruction_set_in_use(name: str) -> None:
    with instruction_set(name):
        line = next(line for line in doctor().output.splitlines() if line.startswith("native core: "))
        assert line.endswith(f", instruction set {name}")
        assert json.loads(doctor("--json").output)["native"]["instruction_set"] == name


def test_without_the_native_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "core", None)
    monkeypatch.setattr(native, "missing", "not built (No module named '_native')")
    done = doctor()
    assert done.exit_code == 0, done.output
    assert "native core: not built (No module named '_native'): statistics of tensors come from numpy" in done.output
    found = json.loads(doctor("--json").output)["native"]
    assert (found["available"], found["instruction_set"]) == (False, None)


def test_without_torch(run_python: Callable[..., Finished], tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; sys.argv = ['graphprobe', 'doctor']\n"
        "from graphprobe.cli.main import main; main()"
    )
    done = run_python("-c", code, cwd=tmp_path)
    assert done.code == 125, done.err
    assert "torch: cannot be imported" in done.out


def test_the_switch_collects_nothing_while_the_doctor_looks(run_python: Callable[..., Any], tmp_path: Path) -> None:
    done = run_python("-m", "graphprobe", "doctor", cwd=tmp_path, env={"TORCH_COMPILE_DEBUG": "1"})
    assert done.code == 0, done.err
    assert not list(tmp_path.rglob("graphprobe"))


def test_a_missing_tap_is_told_in_the_run(run_python: Callable[..., Any], tmp_path: Path) -> None:
    """Simulated on a module that torch imports on its own: what else is collected, and what the manifest says."""
    (tmp_path / "program.py").write_text(
        "import torch, torch._functorch.aot_autograd as aot\n"
        "from graphprobe.internals.aot import aot_taps as ours\n"
        "import torch._dynamo.guards\n"
        "f = torch.compile(lambda x: x.sin() + 1, backend='eager')\n"
        "print(f(torch.zeros(2)).tolist())\n"
    )
    code = (
        "import sys\n"
        "from graphprobe.internals.dynamo import dynamo_taps as dynamo\n"
        "from graphprobe.internals.bus import Patch\n"
        "patches = dynamo.patches\n"
        "gone = Patch('guards', 'torch._dynamo.guards', 'ThereIsNoSuchManager.__init__', None)\n"
        "dynamo.patches = lambda observer: [p for p in patches(observer) if p.tap != 'guards'] + [gone]\n"
        "sys.argv = ['graphprobe', 'run', 'program.py']\n"
        "from graphprobe.cli.main import main; main()"
    )
    done = run_python("-c", code, cwd=tmp_path)
    assert done.code == 0, done.err
    assert done.out == "[1.0, 1.0]\n"
    assert f"graphprobe: missing: this torch lacks what the tap guards stands on: {LOSES['guards']}" in done.err
