"""Options: who wins, what they take, and how they are told from the file's keys."""

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dump_plan.conftest import Plan
from graphprobe.dump_plan import DumpPlan, ModelEntry, WatchEntry, plan_from
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


OUT = {"dump_path": "out"}
WATCH = {**OUT, "dump_scene": "watcher"}
DEBUG = {**OUT, "dump_debug": "on"}
PAIR = {"layer": ["A"], "watcher_nodes": ["C"]}
BLACK = [{"name": "conv", "pos": ["input0"]}]

# name: file, options, the two names, in which `DUMP.` is `$.dump.`
FORBIDDEN: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "overflow and models": ({**DEBUG, "dump_list": [{"model_name": "a"}]}, {}, "DUMP.dump_debug", "DUMP.dump_list"),
    "overflow and layers": ({**DEBUG, "dump_list": [{"layer": ["a"]}]}, {}, "DUMP.dump_debug", "DUMP.dump_list"),
    "overflow and single ops": ({**DEBUG, "dump_op_switch": "on"}, {}, "DUMP.dump_debug", "DUMP.dump_op_switch"),
    "overflow and watcher": ({**DEBUG, "dump_scene": "watcher"}, {}, "DUMP.dump_debug", "DUMP.dump_scene"),
    "overflow and the option": (DEBUG, {"dump_layer": "add"}, "DUMP.dump_debug", "dump_config.dump_layer"),
    "watcher and single ops": ({**WATCH, "dump_op_switch": "on"}, {}, "DUMP.dump_scene", "DUMP.dump_op_switch"),
    "watcher and inputs": ({**WATCH, "dump_mode": "input"}, {}, "DUMP.dump_scene", "DUMP.dump_mode"),
    "watcher and both sides": ({**WATCH, "dump_mode": "all"}, {}, "DUMP.dump_scene", "DUMP.dump_mode"),
    "watcher and the option's mode": (WATCH, {"dump_mode": "all"}, "DUMP.dump_scene", "dump_config.dump_mode"),
    "watcher and the option's layers": (
        {**WATCH, "dump_list": [PAIR]}, {"dump_layer": "add"}, "DUMP.dump_scene", "dump_config.dump_layer"),
    "a file that an option would mend": (
        {**WATCH, "dump_mode": "all"}, {"dump_mode": "output"}, "DUMP.dump_scene", "DUMP.dump_mode"),
    "watcher and a model": (
        {**WATCH, "dump_list": [PAIR, {**PAIR, "model_name": "a"}]}, {},
        "DUMP.dump_scene", "DUMP.dump_list[1].model_name"),
    "watcher and a blacklist of types": (
        {**WATCH, "dump_list": [{**PAIR, "optype_blacklist": BLACK}]}, {},
        "DUMP.dump_scene", "DUMP.dump_list[0].optype_blacklist"),
    "watcher and a blacklist of names": (
        {**WATCH, "dump_list": [{**PAIR, "opname_blacklist": BLACK}]}, {},
        "DUMP.dump_scene", "DUMP.dump_list[0].opname_blacklist"),
    "watched nodes without watcher": (
        {**OUT, "dump_list": [PAIR]}, {}, "DUMP.dump_list[0].watcher_nodes", "DUMP.dump_scene"),
    "watched nodes and exception": (
        {**OUT, "dump_list": [PAIR], "dump_scene": "exception"}, {},
        "DUMP.dump_list[0].watcher_nodes", "DUMP.dump_scene = 'exception'"),
    "statistics of no statistics": ({**OUT, "dump_stats": ["Max"]}, {}, "DUMP.dump_stats", "DUMP.dump_data"),
    "statistics of tensors": (
        {**OUT, "dump_stats": ["Max"], "dump_data": "tensor"}, {}, "DUMP.dump_stats", "DUMP.dump_data"),
    "statistics and the option": (
        {**OUT, "dump_stats": ["Max"]}, {"dump_data": "tensor"}, "DUMP.dump_stats", "dump_config.dump_data"),
}  # fmt: skip


@pytest.mark.parametrize(("dump", "options", "one", "other"), FORBIDDEN.values(), ids=list(FORBIDDEN))
def test_forbidden(plan_of: Plan, dump: dict[str, Any], options: dict[str, Any], one: str, other: str) -> None:
    with pytest.raises(DumpConfigError) as caught:
        plan_of(dump, **options)
    error, one, other = caught.value, one.replace("DUMP.", "$.dump."), other.replace("DUMP.", "$.dump.")
    assert (error.kind, error.where) == ("conflict", one) and error.hint
    assert str(error).startswith("c.json: ") and one in str(error) and other in str(error)


def test_forbidden_even_where_nothing_is_dumped(plan_of: Plan) -> None:
    with pytest.raises(DumpConfigError, match="exclude each other"):
        plan_of({**DEBUG, "dump_op_switch": "on"}, enable_dump=False)


def test_a_setting_of_the_environment_conflicts_by_its_name(plan_of: Plan) -> None:
    plan_of(WATCH)
    with pytest.raises(DumpConfigError, match="environment variable GRAPHPROBE_DUMP_MODE"):
        plan_from(options={"dump_config_path": "c.json"}, environ={"GRAPHPROBE_DUMP_MODE": "all"})


def test_watching_is_of_outputs_unless_said_otherwise(plan_of: Plan) -> None:
    plan = plan_of(WATCH)
    assert plan.mode == "output"
    assert plan.watch == (WatchEntry(where="$.dump.dump_scene"),)
    assert plan.sources["dump_mode"] == "file:c.json"
    assert plan_of(WATCH, dump_mode="output").sources["dump_mode"] == "argument"


def test_statistics_that_an_option_switches_off_are_told(plan_of: Plan) -> None:
    file = {**OUT, "dump_data": "stats", "dump_stats": ["L2norm", "Max"]}
    assert plan_of(file).stats == ("Max", "L2norm")
    plan = plan_of(file, dump_data="tensor")
    assert plan.data == "tensor"
    assert plan.warnings == (
        "dump_config.dump_data = 'tensor' wins over $.dump.dump_data = 'stats'",
        "$.dump.dump_stats has no effect: dump_config.dump_data wins",
    )
    by_option = plan_of({**OUT, "dump_stats": ["Max"]}, dump_data="stats")
    assert (by_option.stats, by_option.warnings) == (("Max",), ())


def test_layers_of_options_and_environment_against_the_list(plan_of: Plan) -> None:
    file = {**OUT, "dump_list": [{"model_name": "a"}]}
    plan = plan_of(file, dump_layer="add")
    assert [entry.model_name for entry in plan.models] == [None]
    assert plan.warnings == ("dump_config.dump_layer wins over $.dump.dump_list",)
    assert plan.sources["dump_list"] == "default" and plan.sources["dump_layer"] == "argument"
    options = {"enable_dump": True, "dump_config_path": "c.json"}
    plan = plan_from(options=options, environ={"GRAPHPROBE_DUMP_LAYER": "add"})
    assert plan.models == (ModelEntry("a", where="$.dump.dump_list[0]"),)
    assert plan.warnings == ("$.dump.dump_list wins over environment variable GRAPHPROBE_DUMP_LAYER",)
    single = plan_of({**OUT, "dump_list": [], "dump_op_switch": "on"}, dump_layer="add")
    assert single.single_ops and single.narrowed and single.warnings == ()


def test_what_has_no_effect_is_told(plan_of: Plan) -> None:
    assert plan_of({**OUT, "dump_list": []}).warnings == (
        "nothing is dumped: $.dump.dump_list is empty; left out, it is every model",
    )
    assert plan_of({**DEBUG, "dump_mode": "input", "dump_data": "tensor"}).warnings == (
        "$.dump.dump_mode has no effect: $.dump.dump_debug keeps an op's values whole",
    )
    exception = {**OUT, "dump_scene": "exception", "dump_data": "stats"}
    assert plan_of(exception).warnings == (
        "$.dump.dump_data has no effect: $.dump.dump_scene keeps an op's values whole",
    )
    assert plan_of({**exception, "dump_op_switch": "on"}).warnings == ()
    idle = plan_of(OUT, enable_dump=None, dump_step="3")
    assert not idle.enabled
    assert idle.warnings == (
        "nothing is dumped: enable_dump is not True, though $.dump.dump_path, dump_config.dump_config_path, "
        "dump_config.dump_step is set",
    )
