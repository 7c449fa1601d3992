"""`graphprobe doctor`: what can be collected here, and what is lost where a tap is missing."""

import importlib
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result

from cli.calling import Python, call, with_variables
from graphprobe.diagnose import self_test
from graphprobe.internals.names import LOSES
from graphprobe.numerics import native
from numerics.stats_both import INSTRUCTION_SETS, instruction_set


def doctor(*args: object, **options: Any) -> Result:
    return call("doctor", *args, **options)


def rows(*args: str) -> dict[str, dict[str, Any]]:
    return {row["feature"]: row for row in json.loads(doctor("--json", *args).output)["features"]}


@pytest.mark.slow
def test_everything_works_here_and_caches_of_the_user_are_let_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    facts = json.loads(doctor("--json", code=0).output)
    assert facts["torch"].startswith("2.") and facts["devices"][0] == "cpu"
    tried = [f"{trial.verb}()" for trial in self_test.TRIALS]
    assert [row["feature"] for row in facts["features"]] == [*LOSES, *tried]
    assert {row["status"] for row in facts["features"]} == {"works"}
    assert [row["feature"] for row in facts["features"] if row["tried"]] == tried
    assert not any(row["detail"] for row in facts["features"])
    assert list(tmp_path.iterdir()) == []


def native_core() -> tuple[str, dict[str, Any]]:
    done = doctor("--names", code=0)
    (line,) = [line for line in done.output.splitlines() if line.startswith("native core: ")]
    return line, json.loads(doctor("--json", "--names").output)["native"]


def test_names_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = doctor("--names").output
    assert f"torch {torch.__version__} on cpu" in shown
    for feature in LOSES:
        assert re.search(rf"^  {feature} +its names are there$", shown, re.M), feature
    assert "warning: deterministic mode may switch itself off" in shown
    line, facts = native_core()
    assert line == f"native core: {native.description()}"
    assert facts["available"] == (native.core is not None)
    monkeypatch.setattr(torch, "__version__", "2.11.0")
    assert "warning" not in doctor("--names").output


@pytest.mark.parametrize(
    ("module", "attribute", "features"),
    [
        ("torch._inductor.compile_fx", "joint_graph_passes", {"joint_passes", "steps", "diagnose_passes"}),
        ("torch._functorch.aot_autograd", "aot_stage2_compile", {"aot_graphs", "steps"}),
        ("torch._inductor.debug", "log_ir_post_fusion", {"dump_kernel", "mixing"}),
        ("torch._C", "_current_autograd_node", {"api_dump", "dump_single_ops"}),
    ],
)
def test_what_is_lost_without_a_name(
    module: str, attribute: str, features: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(importlib.import_module(module), attribute)
    done = doctor("--names", code=1)
    lost = {name: row for name, row in rows("--names").items() if row["status"] != "works"}
    assert set(lost) == features
    for name, row in lost.items():
        assert row["detail"] == f"missing: {module}:{attribute}; without it: {LOSES[name]}"
        assert f"lost: {row['detail']}" in done.output


def tried(verb: str) -> str | None:
    chosen = [trial for trial in self_test.TRIALS if trial.verb == verb]
    return self_test.try_functions(kernels=False, trials=chosen)[verb]


def nothing(*args: Any, **kwargs: Any) -> Any:
    return []


@pytest.mark.parametrize(
    ("target", "yields", "verb"),
    [
        ("graphprobe.internals.taps.aot.patches", nothing, "trace"),
        ("graphprobe.internals.taps.recompile_taps.patches", nothing, "recompiles"),
        ("graphprobe.diagnose.self_test._values_in", nothing, "dump"),
        ("graphprobe.probe.dump.running.GraphCall.after", nothing, "get_backend"),
    ],
)
def test_a_tap_that_yields_nothing_is_lost(
    target: str, yields: Any, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, yields)
    assert tried(verb)


def test_a_trial_that_ends_its_process_is_lost_and_the_others_are_tried() -> None:
    rows = [
        self_test.Trial("a", bool),
        self_test.Trial("b", lambda trials: os.abort()),
        self_test.Trial("c", bool),
        self_test.Trial("d", bool, kernels=True),
    ]
    found = self_test.try_functions(kernels=False, trials=rows)
    assert found == {"a": "", "b": "the process was ended by SIGABRT", "c": "", "d": None}


@pytest.mark.parametrize("name", INSTRUCTION_SETS)
def test_the_instruction_set_in_use(name: str) -> None:
    with instruction_set(name):
        line, facts = native_core()
    assert line.endswith(f", instruction set {name}") and facts["instruction_set"] == name


def test_without_the_native_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "core", None)
    monkeypatch.setattr(native, "missing", "not built (No module named '_native')")
    line, facts = native_core()
    assert "native core: not built (No module named '_native'): statistics of tensors come from numpy" in line
    assert (facts["available"], facts["instruction_set"]) == (False, None)


def test_without_torch(run_python: Python, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; sys.argv = ['graphprobe', 'doctor']\n"
        "from graphprobe.cli.main import main; main()"
    )
    done = run_python("-c", code, cwd=tmp_path)
    assert done.code == 125, done.err
    assert "torch: cannot be imported" in done.out


@pytest.mark.heavy
def test_the_switch_collects_nothing_while_the_doctor_looks(run_warm: Python, tmp_path: Path) -> None:
    done = run_warm(*with_variables({"TORCH_COMPILE_DEBUG": "1"}, "doctor"), cwd=tmp_path)
    assert done.code == 0, done.err
    assert not list(tmp_path.rglob("graphprobe"))
