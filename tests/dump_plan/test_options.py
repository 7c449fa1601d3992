"""Options: who wins, what they take, and how they are told from the file's keys."""

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from graphprobe.dump_plan import DumpPlan, ModelEntry, plan_from
from graphprobe.dump_plan.build import FILE_ONLY
from graphprobe.dump_plan.options import BY_NAME, OPTIONS
from graphprobe.errors import DumpConfigError, SettingError
from graphprobe.settings import BY_NAME as SETTINGS


def write(folder: Path, **dump: Any) -> str:
    file = folder / "c.json"
    file.write_text(json.dumps({"dump": {"dump_path": "out", **dump}}))
    return str(file)


def test_defaults(tmp_path: Path) -> None:
    plan = plan_from()
    assert (plan.enabled, plan.engine, plan.mode, plan.data) == (False, None, "all", "tensor")
    assert (plan.steps, plan.models, plan.watch, plan.config_path) == (None, (ModelEntry(),), (), None)
    assert (plan.overflow, plan.exceptions, plan.single_ops, plan.quant_dumpable) == (False,) * 4
    assert (plan.path, plan.max_bytes) == (str(tmp_path), SETTINGS["max_bytes"].default)
    assert plan.sources == dict.fromkeys((*BY_NAME, *FILE_ONLY), "default")
    assert plan.warnings == () and not plan.narrowed


def test_every_layer_overrides_the_next(tmp_path: Path) -> None:
    file = write(tmp_path, dump_mode="input", dump_data="stats", dump_step="1")
    environ = {"ENABLE_DUMP": "Yes", "DUMP_MODE": "output", "DUMP_STEP": "7", "DUMP_ENGINE": "kernel"}
    environ |= {"DUMP_MAX_BYTES": "1KiB", "QUANT_DUMPABLE": "", "DUMP_CONFIG_PATH": file}
    environ = {f"GRAPHPROBE_{name}": value for name, value in environ.items()}
    plan = plan_from(
        options={"dump_step": "3", "engine": None}, context={"dump_step": "2", "dump_data": "tensor"}, environ=environ
    )
    assert plan.enabled
    assert (plan.mode, plan.data, plan.engine, plan.max_bytes) == ("input", "tensor", "kernel", 1024)
    assert plan.steps is not None and plan.steps.ranges == ((3, 3),)
    assert plan.path == str(tmp_path / "out")
    assert plan.config_path == file
    assert {key: source for key, source in plan.sources.items() if source != "default"} == {
        "enable_dump": "env:GRAPHPROBE_ENABLE_DUMP",
        "dump_mode": f"file:{file}",
        "dump_path": f"file:{file}",
        "dump_step": "argument",
        "dump_data": "context",
        "dump_config_path": "env:GRAPHPROBE_DUMP_CONFIG_PATH",
        "engine": "env:GRAPHPROBE_DUMP_ENGINE",
        "max_bytes": "env:GRAPHPROBE_DUMP_MAX_BYTES",
    }
    assert plan.warnings == (
        "dump_config.dump_step = '3' wins over $.dump.dump_step = '1'",
        "context dump_data = 'tensor' wins over $.dump.dump_data = 'stats'",
    )


def test_a_plan_is_frozen_and_comparable() -> None:
    plan = plan_from()
    assert plan == plan_from()
    with pytest.raises(AttributeError):
        plan.enabled = True  # type: ignore[misc]
    assert msgspec.json.decode(msgspec.json.encode(plan), type=DumpPlan) == plan


BAD: list[tuple[str, Any]] = [
    ("enable_dump", "true"),
    ("enable_dump", 1),
    ("dump_mode", "inputs"),
    ("dump_mode", ["all"]),
    ("dump_mode", 3),
    ("dump_path", ""),
    ("dump_path", 3),
    ("dump_path", "a\0b"),
    ("dump_path", b"out"),
    ("quant_dumpable", 0),
    ("dump_step", 3),
    ("dump_step", ""),
    ("dump_step", "5-3"),
    ("dump_step", [1, 2]),
    ("dump_layer", "  "),
    ("dump_layer", 3),
    ("dump_layer", []),
    ("dump_layer", ["add", 3]),
    ("dump_layer", "add,mul"),
    ("dump_data", "stat"),
    ("dump_config_path", 3),
    ("engine", "kernels"),
    ("max_bytes", 0),
    ("max_bytes", -1),
    ("max_bytes", True),
    ("max_bytes", 1.5),
    ("max_bytes", "much"),
    ("max_bytes", 10**7000),
]


@pytest.mark.parametrize(("name", "value"), BAD, ids=[f"{name}-{at}" for at, (name, _) in enumerate(BAD)])
@pytest.mark.parametrize("giver", ["options", "context"])
def test_bad_values(name: str, value: Any, giver: str) -> None:
    with pytest.raises(SettingError) as caught:
        plan_from(**{giver: {name: value}})  # type: ignore[arg-type]
    assert str(caught.value).startswith(f"dump_config.{name} = " if giver == "options" else f"context {name} = ")
    assert caught.value.hint
    assert caught.value.exit_code == 2
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("GRAPHPROBE_ENABLE_DUMP", "2", "yes"),
        ("GRAPHPROBE_DUMP_STEP", "x", "0|3-5|10"),
        ("GRAPHPROBE_DUMP_MODE", "both", "one of input, output, all"),
        ("GRAPHPROBE_DUMP_MAX_BYTES", "0", "above 0"),
    ],
)
def test_bad_environment(variable: str, value: str, said: str) -> None:
    with pytest.raises(SettingError, match=variable) as caught:
        plan_from(environ={variable: value})
    assert repr(value) in str(caught.value)
    assert said in caught.value.hint


def test_unknown_options() -> None:
    with pytest.raises(SettingError, match="'dump_steps' is no option") as caught:
        plan_from(options={"dump_steps": "1"})
    assert caught.value.hint == "did you mean 'dump_step'?"
    with pytest.raises(SettingError, match="context 'dump_scene' is no option"):
        plan_from(context={"dump_scene": "watcher"})


@pytest.mark.parametrize("giver", ["options", "environ"])
def test_a_folder_must_be_there_once_it_is_needed(tmp_path: Path, giver: str) -> None:
    values = {"options": {"dump_path": "gone"}, "environ": {"GRAPHPROBE_DUMP_PATH": "gone"}}[giver]
    assert plan_from(**{giver: values}).path == str(tmp_path / "gone")  # type: ignore[arg-type]
    on = {"options": {"enable_dump": True}, "environ": {"GRAPHPROBE_ENABLE_DUMP": "1"}}[giver]
    with pytest.raises(SettingError, match="'gone': it does not exist") as caught:
        plan_from(**{giver: {**values, **on}})  # type: ignore[arg-type]
    assert not isinstance(caught.value, DumpConfigError)
    assert "make the directory" in caught.value.hint


def test_a_folder_of_the_file_is_not_asked_for_where_an_option_wins(tmp_path: Path) -> None:
    file = write(tmp_path, dump_path="gone")
    with pytest.raises(DumpConfigError, match="does not exist"):
        plan_from(options={"enable_dump": True, "dump_config_path": file})
    plan = plan_from(options={"enable_dump": True, "dump_config_path": file, "dump_path": tmp_path})
    assert plan.path == str(tmp_path)
    assert len(plan.warnings) == 1


def test_a_working_directory_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "cwd").mkdir()
    os.chdir(tmp_path / "cwd")
    (tmp_path / "cwd").rmdir()
    with pytest.raises(SettingError, match="working directory"):
        plan_from(options={"enable_dump": True})


def test_layers_as_a_list_and_steps_that_are_due() -> None:
    plan = plan_from(options={"dump_layer": ["add", "my code/model.py:3"]})
    assert plan.models[0].layers is not None
    assert [token.text for token in plan.models[0].layers.tokens] == ["add", "my code/model.py:3"]
    plan = plan_from(options={"enable_dump": True, "dump_step": "0|3-5"})
    assert [step for step in range(8) if plan.due(step)] == [0, 3, 4, 5]
    assert plan_from(options={"enable_dump": True}).due(7)
    assert not plan_from(options={"dump_step": "7"}).due(7)


def test_models_by_their_names() -> None:
    plan = plan_from()
    entries = (ModelEntry("ResNet-50.v1"), ModelEntry("bert*"), ModelEntry(None))
    plan = msgspec.structs.replace(plan, models=entries)
    assert plan.entries_for("model__0", "ResNet-50_v1") == (entries[0], entries[2])
    assert plan.entries_for("bert_large") == (entries[1], entries[2])
    assert plan.entries_for() == (entries[2],)
    assert plan.unmatched_models(("ResNet-50.v1", "model__0")) == (entries[1],)


def test_names_of_variables_follow_one_rule() -> None:
    for row in OPTIONS:
        name = row.name if row.name in ("enable_dump", "quant_dumpable") else "dump_" + row.name.removeprefix("dump_")
        assert row.env == f"GRAPHPROBE_{name.upper()}"
    assert {row.env for row in OPTIONS}.isdisjoint({row.env for row in SETTINGS.values()})
