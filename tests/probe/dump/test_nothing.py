"""A dump with nothing in it says why."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from graphprobe.backends.wrap import get_backend
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


def test_each_reason_is_the_one_that_holds(dumping: Any) -> None:
    """`dump_step` is named where it is what selects nothing, and nowhere else."""
    compiled = dumping.compile(f, "aot_eager", dump_layer="conv99", dump_step="0|1")
    for _ in range(2):
        compiled(torch.ones(2))
    found = notes(dumping.end())
    assert "'conv99' matched no op" in found and "nothing was dumped: no op is selected in any graph" in found
    assert "dump_step" not in found


def test_steps_are_told_of_the_models_that_hold_what_is_selected(dumping: Any) -> None:
    backend = dumping.backend("aot_eager", dump_layer="sin", dump_step="1")
    other = torch.compile(lambda x: x.exp(), backend=backend)
    for _ in range(3):
        other(torch.ones(2))
    torch.compile(f, backend=backend)(torch.ones(2))
    assert "dump_step selects none of the steps 0 to 0, which were all" in notes(dumping.end())


def test_a_blacklist_that_leaves_out_everything_is_named(dumping: Any, tmp_path: Any) -> None:
    path = tmp_path / "dump.json"
    entry = {"model_name": "f", "layer": ["sin"], "opname_blacklist": [{"name": "sin"}]}
    path.write_text(json.dumps({"dump": {"dump_path": str(dumping.path), "dump_list": [entry]}}))
    dumping.compile(f, "aot_eager", dump_path=None, dump_config_path=str(path))(torch.ones(2))
    found = notes(dumping.end())
    assert "blacklists leave out every op that is selected" in found and "no op is selected" not in found


def test_a_backward_that_never_runs_is_told(dumping: Any) -> None:
    compiled = dumping.compile(f, "aot_eager", dump_layer="cos", dump_step="0")
    compiled(torch.ones(2, requires_grad=True))
    compiled(torch.ones(2, requires_grad=True)).sum().backward()
    assert "were not called in a step that is dumped" in notes(dumping.end())


def test_ops_outside_of_graphs_that_never_ran_have_their_own_reason(dumping: Any, tmp_path: Any) -> None:
    path = tmp_path / "dump.json"
    document = {"dump_path": str(dumping.path), "dump_list": [], "dump_op_switch": "on", "dump_step": "7"}
    path.write_text(json.dumps({"dump": document}))
    compiled = dumping.compile(f, "aot_eager", dump_path=None, dump_config_path=str(path))
    for _ in range(2):
        compiled(torch.ones(2)).sum()
    found = notes(dumping.end())
    assert "no op outside compiled graphs was dumped: dump_step selects none of the steps 0 to 1" in found
    assert "no model was compiled" not in found and "no model is named" not in found


@pytest.mark.parametrize(("layer", "nodes", "lacking"), [("sin", "sinus", "watcher_nodes"), ("sinus", "sin", "layer")])
def test_a_watch_that_watches_nothing_does_not_say_that_all_is_well(
    dumping: Any, tmp_path: Any, layer: str, nodes: str, lacking: str
) -> None:
    path = tmp_path / "dump.json"
    entry = {"layer": [layer], "watcher_nodes": [nodes]}
    document = {"dump_path": str(dumping.path), "dump_list": [entry], "dump_scene": "watcher", "dump_mode": "output"}
    path.write_text(json.dumps({"dump": document}))
    dumping.compile(f, "aot_eager", dump_path=None, dump_config_path=str(path))(torch.ones(2))
    found = "\n".join(dumping.end().manifest.notes)
    assert f"nothing was watched: no op of any graph is in {lacking}" in found
    assert "'sinus' matched no op; similar: sin" in found and "no value was overwritten" not in found
