"""A dump with nothing in it says why."""

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


BLACKLIST = {"model_name": "f", "layer": ["sin"], "opname_blacklist": [{"name": "sin"}]}
SINGLE_OPS = {"dump_list": [], "dump_op_switch": "on", "dump_step": "7"}
NO_OP, NO_MODEL, STEPS = "no op is selected in any graph", ("no model was compiled", "no model is named"), "dump_step"
REASONS: list[tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]] = [
    ({"dump_step": "5-7"}, ("dump_step selects none of the steps 0 to 1",), ()),
    ({"dump_layer": "sinus", "dump_step": "0|1"}, (NO_OP, "'sinus' matched no op; similar: sin"), (STEPS,)),
    ({"dump_list": [BLACKLIST]}, ("blacklists leave out every op that is selected",), (NO_OP,)),
    (SINGLE_OPS, ("outside compiled graphs was dumped: dump_step selects none of the steps 0 to 1",), NO_MODEL),
    ({"dump_debug": "on"}, ("nothing was dumped: no op overflowed in 2 calls of graphs",), ()),
    ({"dump_scene": "exception"}, ("nothing was dumped: no op raised in 2 calls of graphs",), ()),
    ({"dump_scene": "watcher"}, ("no value was overwritten in",), ()),
]


@pytest.mark.parametrize(("keys", "said", "unsaid"), REASONS, ids=[str(keys) for keys, *_ in REASONS])
def test_the_reason_that_holds_is_named(dumping: Any, keys: Any, said: Any, unsaid: Any) -> None:
    compiled = torch.compile(f, backend=dumping.backend_of_file(**keys))
    for _ in range(2):
        compiled(torch.ones(2)).sum()
    found = notes(dumping.end())
    assert all(text in found for text in said), found
    assert not any(text in found for text in unsaid), found


def test_nothing_was_compiled(dumping: Any, caplog: pytest.LogCaptureFixture) -> None:
    dumping.compile(f, "aot_eager")
    dumping.end()
    assert "no model was compiled with this backend" in caplog.text
    assert list(dumping.path.iterdir()) == []


def test_what_is_not_asked_for_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.chdir(tmp_path)
    get_backend(compiler_config=CompilerConfig())
    assert open_sessions() == []


@pytest.mark.parametrize("backend", ["aot_eager", "eager"])
def test_what_cannot_be_is_refused(dumping: Any, backend: str) -> None:
    with pytest.raises(SettingError, match="launches no kernels of Inductor"):
        dumping.backend(backend, engine="kernel")


def test_steps_are_told_of_the_models_that_hold_what_is_selected(dumping: Any) -> None:
    backend = dumping.backend("aot_eager", dump_layer="sin", dump_step="1")
    other = torch.compile(lambda x: x.exp(), backend=backend)
    for _ in range(3):
        other(torch.ones(2))
    torch.compile(f, backend=backend)(torch.ones(2))
    assert "dump_step selects none of the steps 0 to 0, which were all" in notes(dumping.end())


def test_a_backward_that_never_runs_is_told(dumping: Any) -> None:
    compiled = dumping.compile(f, "aot_eager", dump_layer="cos", dump_step="0")
    compiled(torch.ones(2, requires_grad=True))
    compiled(torch.ones(2, requires_grad=True)).sum().backward()
    assert "were not called in a step that is dumped" in notes(dumping.end())


@pytest.mark.parametrize(("layer", "nodes", "lacking"), [("sin", "sinus", "watcher_nodes"), ("sinus", "sin", "layer")])
def test_a_watch_that_watches_nothing_does_not_say_that_all_is_well(
    dumping: Any, layer: str, nodes: str, lacking: str
) -> None:
    entry = {"layer": [layer], "watcher_nodes": [nodes]}
    backend = dumping.backend_of_file(dump_list=[entry], dump_scene="watcher", dump_mode="output")
    torch.compile(f, backend=backend)(torch.ones(2))
    found = "\n".join(dumping.end().manifest.notes)
    assert f"nothing was watched: no op of any graph is in {lacking}" in found
    assert "'sinus' matched no op; similar: sin" in found and "no value was overwritten" not in found
