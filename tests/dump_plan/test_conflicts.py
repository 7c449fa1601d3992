"""Settings that exclude each other, from whatever side they come: the error names both."""

from typing import Any

import pytest

from dump_plan.conftest import Plan
from graphprobe.dump_plan import ModelEntry, WatchEntry, plan_from
from graphprobe.errors import DumpConfigError

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
