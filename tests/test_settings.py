import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import ROOT
from graphprobe.errors import SettingError
from graphprobe.records import SettingValue
from graphprobe.settings import (
    BY_NAME,
    TABLE,
    Settings,
    resolve,
    size_from_text,
    text_from_size,
    torch_compile_debug_state,
)


def config(tmp_path: Path, text: str | dict[str, object]) -> str:
    path = tmp_path / "config.json"
    path.write_text(text if isinstance(text, str) else json.dumps({"graphprobe": text}))
    return str(path)


def test_defaults_of_the_struct_are_those_of_the_table() -> None:
    settings = resolve(arguments={}, environ={})
    assert settings == Settings(sources={row.name: "default" for row in TABLE})
    assert {row.name: getattr(settings, row.name) for row in TABLE} == {row.name: row.default for row in TABLE}
    assert settings.max_bytes == 8 * 1024**3


def test_every_layer_overrides_the_next(tmp_path: Path) -> None:
    path = config(tmp_path, {"graph_dump": "pbtxt", "log_level": "debug", "out_dir": "file", "max_bytes": "1KiB"})
    environ = {
        "GRAPHPROBE_CONFIG": path,
        "GRAPHPROBE_GRAPH_DUMP": "py",
        "GRAPHPROBE_LOG_LEVEL": "warning",
        "GRAPHPROBE_OUT": "env",
        "GRAPHPROBE_MAX_BYTES": "1",
        "GRAPHPROBE_SAVE_INPUTS": "YES",
        "GRAPHPROBE_CAPTURE_OPS": "",
    }
    context = {"log_level": "info", "out_dir": "context"}
    settings = resolve(arguments={"out_dir": Path("argument"), "graph_dump": None}, context=context, environ=environ)
    assert settings.as_manifest() == {
        "out_dir": SettingValue("argument", "argument"),
        "log_level": SettingValue("info", "context"),
        "graph_dump": SettingValue("pbtxt", f"file:{path}"),
        "max_bytes": SettingValue(1024, f"file:{path}"),
        "save_inputs": SettingValue(True, "env:GRAPHPROBE_SAVE_INPUTS"),
        "capture_ops": SettingValue(True, "default"),
        "logs": SettingValue(None, "default"),
        "only_function": SettingValue(None, "default"),
        "record_frames": SettingValue(False, "default"),
        "config_path": SettingValue(path, "env:GRAPHPROBE_CONFIG"),
    }


@pytest.mark.parametrize("giver", ["argument", "context", "environment"])
def test_config_path_from_every_giver(tmp_path: Path, giver: str) -> None:
    good = config(tmp_path, {"graph_dump": "py"})
    bad = str(tmp_path / "missing.json")
    layers = {"environment": [good, None, None], "context": [bad, good, None], "argument": [bad, bad, good]}[giver]
    environ = {"GRAPHPROBE_CONFIG": layers[0] or ""}
    settings = resolve(arguments={"config_path": layers[2]}, context={"config_path": layers[1]}, environ=environ)
    assert settings.graph_dump == "py"


def test_flags_in_the_environment() -> None:
    for text, flag in (
        *((t, True) for t in ("1", "true", "YES", "On")),
        *((t, False) for t in ("0", "False", "no", "OFF")),
    ):
        settings = resolve(arguments={}, environ={"GRAPHPROBE_SAVE_INPUTS": text, "GRAPHPROBE_CAPTURE_OPS": text})
        assert (settings.save_inputs, settings.capture_ops) == (flag, flag)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("GRAPHPROBE_SAVE_INPUTS", ["2", "y"]),
        ("GRAPHPROBE_GRAPH_DUMP", ["text"]),
        ("GRAPHPROBE_LOG_LEVEL", ["INFO"]),
        ("GRAPHPROBE_MAX_BYTES", ["-1", "2 gigs", "1e9", "٣", "99999999 TiB"]),
    ],
)
def test_bad_environment_names_variable_value_and_what_is_accepted(name: str, values: list[str]) -> None:
    for value in values:
        with pytest.raises(SettingError) as caught:
            resolve(arguments={}, environ={name: value})
        accepted = next(row.accepted(from_text=True) for row in TABLE if row.env == name)
        assert name in str(caught.value) and repr(value) in str(caught.value) and accepted in str(caught.value)


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("save_inputs", ["true", 1], "True or False"),
        ("max_bytes", [True], "bool"),
        ("max_bytes", [1.5], "float"),
        ("out_dir", ["", 3], "a path"),
        ("graph_dump", ["pbtx"], "one of txt, pbtxt, py"),
        ("save_input", [True], "no setting"),
        ("only_function", [[], [""], [1], "", 3, ["a\0"]], "it takes names with commas between, or a list of names"),
    ],
)
def test_bad_arguments(name: str, values: list[object], said: str) -> None:
    for value in values:
        with pytest.raises(SettingError, match=said) as caught:
            resolve(arguments={name: value}, environ={})
        assert name in str(caught.value) and caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ('{"graphprobe": {"max_byte": 1}}', "$.graphprobe.max_byte is unknown", "'max_bytes'"),
        ('{"graphprob": {}}', "$.graphprob is unknown", "'graphprobe'"),
        ('{"graphprobe": {"config_path": "x"}}', "$.graphprobe.config_path is unknown", ""),
        ('{"graphprobe": {"save_inputs": "true"}}', "$.graphprobe.save_inputs is 'true'", ""),
        ('{"graphprobe": {"max_bytes": null}}', "$.graphprobe.max_bytes is None", ""),
        ('{"graphprobe": []}', "$.graphprobe is an array", ""),
        ("3", "$ is a number", ""),
        ('{"graphprobe": {', "not valid JSON", ""),
        ('{"graphprobe": {"save_inputs": true, "save_inputs": false}}', "'save_inputs' stands twice", ""),
        ("[" * 100_000, "not valid JSON", ""),
    ],
)
def test_bad_file_names_the_file_and_the_place(tmp_path: Path, text: str, said: str, hint: str) -> None:
    path = config(tmp_path, text)
    with pytest.raises(SettingError) as caught:
        # An argument that would win does not excuse the file.
        resolve(arguments={"config_path": path, "save_inputs": False, "max_bytes": 1}, environ={})
    assert str(caught.value).startswith(path)
    assert said in str(caught.value)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("1024", 1024), ("2GiB", 2 << 30), ("500MB", 500_000_000), ("1.5 kb", 1500), (" 64KiB ", 65536)],
)
def test_sizes(text: str, size: int) -> None:
    assert size_from_text(text) == size
    assert resolve(arguments={"max_bytes": text}, environ={}).max_bytes == size


@given(st.integers(0, 2**62), st.sampled_from(["", "b", "B"]))
def test_sizes_in_bytes_are_exact_and_their_texts_nearly(size: int, unit: str) -> None:
    assert size_from_text(f"{size}{unit}") == size
    if size <= 2**50:
        shown = size_from_text(text_from_size(size))
        assert shown is not None and abs(shown - size) <= 0.06 * size


@given(st.integers(0, 1023), st.sampled_from(["B", "KiB", "MiB", "GiB", "TiB"]))
def test_size_texts_come_back(value: int, unit: str) -> None:
    size = size_from_text(f"{value}{unit}")
    assert size is not None and size_from_text(text_from_size(size)) == size


@given(st.text(max_size=12))
def test_any_text_is_a_size_or_none(text: str) -> None:
    size = size_from_text(text)
    assert size is None or size >= 0


def test_torch_compile_debug_as_torch_takes_it() -> None:
    states = {"1": "on", "": "off", "0": "off", **dict.fromkeys(("true", "2", " 1", "01"), "ignored")}
    assert {value: torch_compile_debug_state({"TORCH_COMPILE_DEBUG": value}) for value in states} == states
    assert torch_compile_debug_state({}) == "off"


def test_environment_names_follow_the_rule() -> None:
    short = {"out_dir": "GRAPHPROBE_OUT", "config_path": "GRAPHPROBE_CONFIG"}
    assert {name: row.env for name, row in BY_NAME.items()} == {
        name: short.get(name, f"GRAPHPROBE_{name.upper()}") for name in BY_NAME
    }


def test_names_are_one_text_or_a_list() -> None:
    given = resolve(arguments={"only_function": ["forward", "Block.*"], "logs": "info"}, environ={})
    assert (given.only_function, given.logs) == ("forward,Block.*", "info")
    assert resolve(arguments={}, environ={"GRAPHPROBE_ONLY_FUNCTION": "a,b"}).only_function == "a,b"


def test_the_page_has_each_row() -> None:
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    for row in TABLE:
        option = row.spelled.replace("/", "`, `")
        assert f"| `{row.name}` | `{option}` | `{row.env}` | {row.help} | {row.accepted()} |\n" in page
