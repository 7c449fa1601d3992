"""The configuration object: assigned to directly or through `.value`, and refused at once where it is wrong."""

from pathlib import Path
from typing import Any

import pytest

from graphprobe.compat import torchair
from graphprobe.compiler_config import CompilerConfig
from graphprobe.dump_plan.options import OPTIONS
from graphprobe.errors import SettingError


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "c.json").write_text('{"dump": {"dump_path": "out"}}')


VALUES: dict[str, tuple[Any, Any]] = {
    "enable_dump": (True, "True"),
    "dump_mode": ("input", "inputs"),
    "dump_path": ("out", "gone"),
    "quant_dumpable": (True, "on"),
    "dump_step": ("0|3-5|10", "0|5-3"),
    "dump_layer": (" Add blocks.*.mlp ", ""),
    "dump_data": ("stats", "stat"),
    "dump_debug": ("off", "ON"),
    "dump_config_path": ("c.json", "gone.json"),
    "engine": ("interpreter", "eager"),
    "max_bytes": (1 << 20, -1),
    "write_through": (True, "yes"),
}
"""By option: a value that it takes, and one that it does not."""


def test_every_option_is_tried_here() -> None:
    assert [row.name for row in OPTIONS] == list(VALUES)


@pytest.mark.parametrize("make", [CompilerConfig, torchair.CompilerConfig])
@pytest.mark.parametrize("by_value", [False, True])
@pytest.mark.parametrize("name", VALUES)
def test_options_of_a_dump(make: type[CompilerConfig], by_value: bool, name: str) -> None:
    dump = make().dump_config
    option = getattr(dump, name)
    default = next(row.default for row in OPTIONS if row.name == name)
    good, bad = VALUES[name]
    assert option.value == default and option.given is None

    def assign(value: Any) -> None:
        if by_value:
            option.value = value
        else:
            setattr(dump, name, value)

    assign(good)
    assert option.value == good == option.given
    with pytest.raises(SettingError) as caught:
        assign(bad)
    assert str(caught.value).startswith(f"CompilerConfig().dump_config.{name} = {bad!r}")
    assert caught.value.hint
    assert option.value == good
    assign(None)
    assert option.value == default and option.given is None


def test_the_plan_has_what_was_set(tmp_path: Path) -> None:
    config = CompilerConfig()
    for name, (value, _) in VALUES.items():
        setattr(config.dump_config, name, value)
    plan = config.dump_config.plan(environ={"GRAPHPROBE_DUMP_MODE": "output"})
    assert (plan.enabled, plan.mode, plan.data, plan.engine) == (True, "input", "stats", "interpreter")
    assert (plan.path, plan.quant_dumpable, plan.max_bytes) == (str(tmp_path / "out"), True, 1 << 20)
    assert str(plan.steps) == "0|3-5|10"
    assert str(plan.models[0].layers) == "Add blocks.*.mlp"
    assert plan.config_path == str(tmp_path / "c.json")
    assert {plan.sources[name] for name in VALUES} == {"argument"}
    assert plan.warnings == ()


def test_what_nobody_set_comes_from_elsewhere() -> None:
    config = CompilerConfig()
    plan = config.dump_config.plan(environ={"GRAPHPROBE_ENABLE_DUMP": "1"}, context={"dump_step": "3"})
    assert plan.enabled and str(plan.steps) == "3"
    config.dump_config.enable_dump = False
    assert not config.dump_config.plan(environ={"GRAPHPROBE_ENABLE_DUMP": "1"}).enabled


def test_two_configurations_share_nothing() -> None:
    first, second = CompilerConfig(), CompilerConfig()
    first.dump_config.dump_step = "3"
    assert second.dump_config.dump_step.value is None
    second.dump_config.dump_step = first.dump_config.dump_step
    assert second.dump_config.dump_step == "3"


def test_an_option_is_as_true_as_its_value_and_has_no_other_attributes() -> None:
    config = CompilerConfig()
    with pytest.raises(AttributeError):
        config.dump_config.dump_step.valu = "1"  # type: ignore[attr-defined]
    assert not config.dump_config.enable_dump
    config.dump_config.enable_dump = True
    assert config.dump_config.enable_dump
    assert repr(config.dump_config.enable_dump) == str(config.dump_config.enable_dump) == "True"
