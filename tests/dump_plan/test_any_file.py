"""Whatever a file says: a plan, or a DumpConfigError with a kind and a place, and the published schema agrees."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import module_at
from dump_plan.test_document import ACCEPTED, REFUSED
from dump_plan.test_options import FORBIDDEN
from graphprobe.compiler_config import CompilerConfig
from graphprobe.dump_plan import ModelEntry, WatchEntry, plan_from
from graphprobe.dump_plan.document import schema
from graphprobe.dump_plan.options import BY_NAME, checked_option
from graphprobe.errors import DumpConfigError, SettingError
from graphprobe.records import STATISTICS
from graphprobe.select import layers_from_list

KINDS = {"type", "choice", "value", "syntax", "conflict"}
WORDS = "on off watcher exception all output stats tensor out 0|3-5 5-3 add Max input0".split()
KEYS = [
    "dump", "dump_path", "dump_list", "dump_mode", "dump_data", "dump_stats", "dump_step", "dump_op_switch",
    "dump_debug", "dump_scene", "model_name", "layer", "watcher_nodes", "optype_blacklist", "opname_blacklist",
    "opname_range", "name", "pos", "begin", "end",
]  # fmt: skip
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS) | st.text(max_size=6)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)
GOOD = [copy.deepcopy(dump) for dump in ACCEPTED.values()] + [copy.deepcopy(row[0]) for row in FORBIDDEN.values()]
TMP = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)


@st.composite
def nearly_good(draw: st.DrawFn) -> dict[str, Any]:
    """A file that is good or almost, with a few values put into arbitrary places."""
    dump: Any = copy.deepcopy(draw(st.sampled_from(GOOD)))
    for _ in range(draw(st.integers(0, 3))):
        entries = dump.get("dump_list")
        target = draw(st.sampled_from([dump, *(entries if isinstance(entries, list) else [])]))
        if isinstance(target, dict):
            target[draw(st.sampled_from(KEYS))] = draw(VALUES)
    return {"dump": dump}


def outcome(content: bytes) -> str:
    """`fine`, or the kind of the fault."""
    Path("c.json").write_bytes(content)
    try:
        plan = plan_from(options={"enable_dump": True, "dump_config_path": "c.json"})
    except DumpConfigError as fault:
        said = (fault.kind, fault.where, str(fault))
    else:
        assert plan.enabled
        return "fine"
    kind, where, text = said
    assert kind in KINDS and where.startswith("$") and where in text and len(text) < 2000
    return kind


@TMP
@given(VALUES | st.fixed_dictionaries({"dump": VALUES}) | nearly_good())
def test_any_value(document: Any) -> None:
    outcome(json.dumps(document).encode())


@TMP
@given(st.binary(max_size=40) | st.text('{}[]",: dump_pathlist0123\\/', max_size=60).map(str.encode))
def test_any_bytes(content: bytes) -> None:
    assert outcome(content) != "fine"


@TMP
@given(st.sampled_from(sorted(BY_NAME)), VALUES | st.binary() | st.tuples(st.text()) | st.just(object()), st.booleans())
def test_any_value_of_an_option(name: str, value: Any, from_text: bool) -> None:
    if value is None:
        return
    said, kept = "", None
    try:
        kept = checked_option(BY_NAME[name], value, called=f"dump_config.{name}", from_text=from_text)
    except SettingError as error:
        said = str(error)
    if kept is None:
        assert said.startswith(f"dump_config.{name} = ")
    else:
        assert checked_option(BY_NAME[name], kept, called=name) == kept


def allows(shape: Any, value: Any) -> bool:
    types = {"object": dict, "array": list, "string": str}
    return all(_keyword_allows(keyword, rule, shape, value, types) for keyword, rule in shape.items())


def _keyword_allows(keyword: str, rule: Any, shape: Any, value: Any, types: dict[str, type]) -> bool:
    is_object, is_array = isinstance(value, dict), isinstance(value, list)
    if keyword in ("$schema", "title", "description"):
        return True
    if keyword == "type":
        return isinstance(value, types[rule])
    if keyword in ("enum", "const"):
        return value in rule if keyword == "enum" else value == rule
    if keyword == "pattern":
        return not isinstance(value, str) or re.search(rule, value) is not None
    if keyword == "items":
        return not is_array or all(allows(rule, item) for item in value)
    if keyword == "minItems":
        return not is_array or len(value) >= rule
    if keyword == "uniqueItems":
        return not is_array or len({json.dumps(item) for item in value}) == len(value)
    if keyword == "contains":
        return not is_array or any(allows(rule, item) for item in value)
    if keyword == "properties":
        return not is_object or all(allows(rule[name], item) for name, item in value.items() if name in rule)
    if keyword == "additionalProperties":
        assert rule is False
        return not is_object or all(name in shape["properties"] for name in value)
    if keyword == "required":
        return not is_object or all(name in value for name in rule)
    if keyword == "minProperties":
        return not is_object or len(value) >= rule
    if keyword == "dependentRequired":
        return not is_object or all(set(others) <= value.keys() for name, others in rule.items() if name in value)
    if keyword in ("allOf", "anyOf"):
        return (all if keyword == "allOf" else any)(allows(part, value) for part in rule)
    assert keyword == "not", keyword
    return not allows(rule, value)


BEYOND_SCHEMA = {
    "steps backwards", "layer twice", "layer twice in two spellings", "a model twice", "layer with a comma",
    "two layers in one", "layer without line", "blacklisted line", "range from a glob",
}  # fmt: skip


JUDGED = [(name, {"dump": dump}, True) for name, dump in ACCEPTED.items()]
for name, (content, kind, _) in REFUSED.items():
    if kind != "syntax" and "path" not in name:
        document = json.loads(content) if isinstance(content, str) else {"dump": content}
        JUDGED.append((name, document, name in BEYOND_SCHEMA))
JUDGED += [(name, {"dump": row[0]}, False) for name, row in FORBIDDEN.items() if not row[1]]


@pytest.mark.parametrize(("document", "taken"), [row[1:] for row in JUDGED], ids=[row[0] for row in JUDGED])
def test_schema_takes_and_refuses_what_a_plan_does(document: Any, taken: bool) -> None:
    assert allows(schema(), document) is taken


@TMP
@given(nearly_good())
def test_what_the_schema_refuses_is_refused(document: Any) -> None:
    """Not the other way round: paths, names and steps that mean nothing are beyond a schema."""
    kind = outcome(json.dumps(document).encode())
    if not allows(schema(), json.loads(json.dumps(document))):
        assert kind != "fine"
    elif kind != "fine":
        assert kind in ("value", "conflict", "syntax")


def test_published_schema_is_current() -> None:
    script = module_at("scripts", "dump_config_schema.py")
    assert script.FILE.read_text(encoding="utf-8") == script.schema_text(), "run scripts/dump_config_schema.py"


def test_single_ops_overflow_and_watcher(plan_of: Any) -> None:
    plan = plan_of({"dump_path": "out", "dump_list": [], "dump_op_switch": "on"})
    assert (plan.single_ops, plan.models, plan.mode, plan.warnings) == (True, (), "all", ())
    plan = plan_of({"dump_path": "out", "dump_debug": "on"})
    assert (plan.overflow, plan.models, plan.single_ops, plan.watch, plan.warnings) == (True, (), False, (), ())
    entry = {"layer": ["A", "B"], "watcher_nodes": ["C", "D"]}
    plan = plan_of({"dump_path": "out/", "dump_list": [entry], "dump_mode": "output", "dump_scene": "watcher"})
    layers, nodes = layers_from_list(["A", "B"]), layers_from_list(["C", "D"])
    assert plan.watch == (WatchEntry(layers, nodes, "$.dump.dump_list[0]"),)
    assert (plan.mode, plan.models, plan.overflow, plan.warnings) == ("output", (), False, ())


@pytest.mark.parametrize("way", ["assigned", "by value"])
def test_every_option(tmp_path: Path, way: str) -> None:
    dump = {"dump_list": [{"model_name": "net"}], "dump_path": "out", "dump_mode": "output", "dump_data": "tensor"}
    (tmp_path / "dump_config.json").write_text(json.dumps({"dump": {**dump, "dump_op_switch": "off"}}))
    config = CompilerConfig()
    values = {
        "enable_dump": True,
        "dump_mode": "all",
        "dump_path": str(tmp_path),
        "quant_dumpable": True,
        "dump_step": "0|1",
        "dump_layer": "Add_1Mul_1 Add2",
        "dump_data": "stats",
        "dump_config_path": str(tmp_path / "dump_config.json"),
    }
    for name, value in values.items():
        if way == "assigned":
            setattr(config.dump_config, name, value)
        else:
            getattr(config.dump_config, name).value = value
    plan = config.dump_config.plan(environ={})
    assert plan.enabled and plan.quant_dumpable
    assert (plan.mode, plan.data, plan.stats, plan.path) == ("all", "stats", tuple(STATISTICS), str(tmp_path))
    assert plan.steps is not None and plan.steps.ranges == ((0, 1),)
    assert plan.models == (ModelEntry(layers=layers_from_list(["Add_1Mul_1", "Add2"]), where="dump_config.dump_layer"),)
    assert plan.warnings == (
        "dump_config.dump_mode = 'all' wins over $.dump.dump_mode = 'output'",
        f"dump_config.dump_path = {str(tmp_path)!r} wins over $.dump.dump_path = 'out'",
        "dump_config.dump_data = 'stats' wins over $.dump.dump_data = 'tensor'",
        "dump_config.dump_layer wins over $.dump.dump_list",
    )
