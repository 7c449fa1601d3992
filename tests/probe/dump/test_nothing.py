"""A dump with nothing in it says why."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphprobe.backends.configured import get_backend
from graphprobe.compiler_config import CompilerConfig
from graphprobe.errors import SettingError
from graphprobe.probe.dump.sessions import open_sessions


def f(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2


def notes(found: Any) -> str:
    assert found.ops() == []
    return "\n".join(found.manifest.notes)


def test_no_step_came(dumping: Any) -> None:
    compiled = dumping.compile(f, "aot_eager", dump_step="5-7")
    for _ in range(3):
        compiled(torch.ones(2))
    assert "dump_step selects none of the steps 0 to 2" in notes(dumping.end())


def test_no_op_is_selected(dumping: Any) -> None:
    dumping.compile(f, "aot_eager", dump_layer="sinus")(torch.ones(2))
    found = notes(dumping.end())
    assert "no op is selected in any graph" in found
    assert "'sinus' matched no op; similar: sin" in found


def test_nothing_was_compiled(dumping: Any, caplog: pytest.LogCaptureFixture) -> None:
    dumping.compile(f, "aot_eager")
    dumping.end()
    assert "no model was compiled with this backend" in caplog.text
    assert list(dumping.path.iterdir()) == []


def test_the_budget_is_reached_and_the_program_goes_on(dumping: Any) -> None:
    compiled = dumping.compile(f, "aot_eager", max_bytes="40KB")
    x = torch.ones(100_000)
    assert torch.equal(compiled(x), f(x))
    found = dumping.end()
    assert "max_bytes" in found.manifest.stopped
    assert any("max_bytes" in line for line in found.manifest.missing)


def test_what_is_not_asked_for_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.chdir(tmp_path)
    get_backend(compiler_config=CompilerConfig())
    assert open_sessions() == []


@pytest.mark.parametrize(
    ("options", "backend", "message"),
    [
        ({"engine": "kernel"}, "aot_eager", "launches no kernels of Inductor"),
        ({"engine": "instrument"}, "eager", "launches no kernels of Inductor"),
    ],
)
def test_what_cannot_be_is_refused(dumping: Any, options: Any, backend: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        dumping.backend(backend, **options)
