"""Whole applications, as people compile them: healthy as they are, and a fault that is planted in them is found."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from graphprobe.diagnose.script_calls import is_whole

HERE = Path(__file__).parent / "applications"

CALLS = {
    **{"module_compile.py": 2, "loop.py": 1, "trainer.py": 1, "generate.py": 2, "regional.py 24": 1},
    **{"prepared.py": 1, "fitted.py": 1},
}
"""Diagnoses that each takes at the least: of training and evaluation, of the prompt and of one token more."""

NEEDS = {"trainer.py": "accelerate", "prepared.py": "accelerate", "fitted.py": "lightning"}

EQUAL = "{} equal graphs, looked into once, with the values of the first"
Run = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def run(diagnosed: Callable[..., Any]) -> Run:
    def diagnose(script: str, *options: str) -> tuple[int, dict[str, Any], str]:
        name, *arguments = script.split()
        if name in NEEDS:
            pytest.importorskip(NEEDS[name])
        done, found = diagnosed(*options, str(HERE / name), *arguments)
        return done.code, found, done.out + done.err

    return diagnose


@pytest.mark.slow
def test_equal_blocks_are_diagnosed_once(run: Run) -> None:
    code, found, told = run("regional.py 5 other", "--backend", "eager")
    assert (code, [d["verdict"] for d in found["diagnoses"]]) == (0, ["healthy"] * 2), told
    for count, diagnosis in zip((3, 2), found["diagnoses"], strict=True):
        assert EQUAL.format(count) in diagnosis["notes"]
        assert f"{diagnosis['function']}: {EQUAL.format(count)}" in told
    assert "step 1 True" in told, "the script itself went on"


class Filled:
    """Memory that calls write to, as a static cache is."""


def test_a_call_with_an_object_that_it_may_have_changed_is_not_made_again() -> None:
    for argument, whole in [(torch.ones(2), True), ([1, {"a": None}], True), (torch.float32, True), (Filled(), False)]:
        assert is_whole(((argument,), {})) is whole
        assert is_whole(((), {"cache": argument})) is whole


@pytest.mark.heavy
def test_lightning_that_logs_in_a_compiled_step(run: Run) -> None:
    """torch itself fails there, compiled alone: a finding, at the line that logs."""
    code, found, told = run("fitted.py log", "--backend", "eager")
    findings = [finding for diagnosis in found["diagnoses"] for finding in diagnosis["findings"]]
    assert code == 1 and "InternalTorchDynamoError" in told, told
    [finding] = findings
    assert (finding["kind"], finding["stage"]) == ("crash_compile", "dynamo")
    assert (finding["called_from"] or finding["source"]).endswith("fitted.py:20"), finding


@pytest.mark.heavy
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("script", CALLS)
def test_an_application_is_healthy(script: str, run: Run) -> None:
    code, found, told = run(script)
    verdicts = [d["verdict"] for d in found["diagnoses"]]
    assert code == 0 and set(verdicts) == {"healthy"} and len(verdicts) >= CALLS[script], told
    assert "step" in told
    if script == "regional.py 24":
        assert EQUAL.format(24) in found["diagnoses"][0]["notes"]


@pytest.mark.heavy
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("script", CALLS)
def test_a_planted_fault_is_found_in_an_application(script: str, run: Run) -> None:
    code, found, told = run(f"{script} planted", "--first")
    assert code == 1, told
    findings = [finding for diagnosis in found["diagnoses"] for finding in diagnosis["findings"]]
    assert findings, told
    assert {finding["kind"] for finding in findings} <= {"wrong_value", "wrong_gradient"}
    assert {finding["stage"] for finding in findings} == {"codegen"}
    assert any("relu" in (finding["op"] or "") for finding in findings)
    assert all(finding["dossier"] and finding["proof"] for finding in findings)
