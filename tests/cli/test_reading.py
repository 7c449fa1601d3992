"""Commands that read a run, and the one grammar of all: an option has one spelling and one meaning."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import Result

from cli.calling import FUSED, START, call, command_of, record
from cli.captures import CAPTURES, SHOWN, TIMED, WIDTHS, capture, make_data, masked, too_wide
from graphprobe.cli import dumps
from graphprobe.cli.main import COMMANDS, GROUPS
from graphprobe.cli.shared_options import JSON_METAVAR, word_of_json
from graphprobe.records import SCHEMA_VERSION, Where
from graphprobe.store import RunWriter, layout
from report.printed_graphs import written
from warm.pool import Warm


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Calls a command in a working directory with one run under the default root."""
    monkeypatch.chdir(tmp_path)
    record(tmp_path / layout.ROOT)
    return call


def test_ls(invoke: Callable[..., Result]) -> None:
    result = invoke("ls", code=0)
    assert "forward/after:fuse" in result.output and "idle" not in result.output
    assert "idle" in invoke("ls", layout.ROOT, "--all").output
    assert json.loads(invoke("ls", "--json").output)["state"] == "finished"


def test_show(invoke: Callable[..., Result]) -> None:
    assert invoke("show", "after:fuse").stdout == FUSED
    assert invoke("show", layout.ROOT, "model__0/forward/graph").stdout == START
    document = json.loads(invoke("show", "model__0/forward/graph", "--json").output)
    assert (document["text"], document["event"]["kind"]) == (START, "graph")


def test_diff(invoke: Callable[..., Result]) -> None:
    result = invoke("diff", "--pass", "fuse", code=1)
    assert '-  add: "f32[2]" = f(a)' in result.output and "# File: x.py:3" in result.output
    document = json.loads(invoke("diff", "--pass", "fuse", "--json").output)
    assert document["different"] is True
    assert [node["name"] for node in document["graphs"][0]["removed"]] == ["add"]
    result = invoke("diff", "--pass", "idle", "--model", "0", "--direction", "forward", code=0)
    assert "no difference" in result.output and "the pass changed nothing" in result.output
    invoke("diff", "forward/graph", "after:fuse", code=1)
    alone = invoke("diff", layout.ROOT, code=1).output
    assert '-  add: "f32[2]" = f(a)' in alone and "DIFFERENT: 3 nodes" in alone and "idle" not in alone
    invoke("diff", layout.ROOT, "forward/graph", "forward/graph", code=0)


def test_diff_of_a_pass_that_changed_the_graph_twice(tmp_path: Path) -> None:
    writer = record(tmp_path)
    again = RunWriter.create(tmp_path, manifest=writer.manifest, rank=None, max_bytes=None)
    for number, text in enumerate((START, FUSED, START)):
        name = layout.pass_file(Where(model=0, direction="forward"), "fuse", number=number)
        where = Where(model=0, direction="forward", pass_name="fuse" if number else None)
        file = written(again, name, text)
        again.event(where=where, kind="pass" if number else "graph", name="fuse", file=file, changed=bool(number))
    again.close("finished")
    both = call("diff", again.run_dir, "--pass", "fuse", code=1).output
    assert '-  add: "f32[2]" = f(a)' in both and '+  add: "f32[2]" = f(a)' in both
    second = call("diff", again.run_dir, "--pass", "fuse#2", code=1).output
    assert '+  add: "f32[2]" = f(a)' in second and '-  add: "f32[2]" = f(a)' not in second
    document = json.loads(call("diff", again.run_dir, "--pass", "fuse", "--json").output)
    assert [one["different"] for one in document["passes"]] == [True, True]


def test_diff_across_two_runs(invoke: Callable[..., Result], tmp_path: Path) -> None:
    same, other = record(tmp_path / "b"), record(tmp_path / "c", FUSED.replace("g(a)", "h(a)"))
    invoke("diff", layout.ROOT, same.run_dir, "--pass", "fuse", code=0)
    result = invoke("diff", layout.ROOT, other.run_dir, "--pass", "fuse", code=1)
    assert "1 changed" in result.output and other.run_dir.name in result.output


def test_a_newer_schema_cannot_be_decided(invoke: Callable[..., Result], tmp_path: Path) -> None:
    writer = record(tmp_path / "new")
    path = writer.tool_dir / layout.MANIFEST
    path.write_text(path.read_text().replace(f'"schema": {SCHEMA_VERSION}', '"schema": 7'))
    result = invoke("ls", writer.run_dir, code=125)
    assert "schema 7" in result.stderr


def options_of(name: str) -> dict[str, click.Option]:
    return {s: o for o in command_of(name).params if isinstance(o, click.Option) for s in (*o.opts, *o.secondary_opts)}


def test_json_is_one_option() -> None:
    with_json = {name: options["--json"] for name in COMMANDS if "--json" in (options := options_of(name))}
    assert COMMANDS.keys() - with_json.keys() == {"demo", "issue", "report", "run"}
    assert {name: option.metavar for name, option in with_json.items() if option.metavar != JSON_METAVAR} == {}
    assert [name for name, option in with_json.items() if option.is_flag] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_json_needs_no_file(name: str) -> None:
    if "--json" in options_of(name):  # other arguments are missing, and are not asked for
        context = command_of(name).make_context(name, ["--json"], resilient_parsing=True)
        parsed = context.params.get("json_to") or next(v for k, v in context.params.items() if k.startswith("json"))
        assert str(parsed) == "-" or parsed.printed


def test_a_file_behind_json_ends_in_json_and_is_none_that_is_read(tmp_path: Path) -> None:
    for words, value in (
        (["--json"], "--json=-"),
        (["--json", "run_1"], "--json=-"),
        (["--json", "-"], "--json"),
        (["--json", "new.json"], "--json"),
        (["--json", "--all"], "--json=-"),
        (["--json=x"], "--json=x"),
    ):
        assert word_of_json(words, 0) == value
    assert word_of_json(["--", "--json"], 1) == "--json", "behind two dashes nothing is an option"
    profile = tmp_path / "profile.json"
    assert word_of_json(["--json", str(profile)], 0, reads=True) == "--json"
    profile.write_text("{}")
    assert word_of_json(["--json", str(profile)], 0, reads=True) == "--json=-"


def test_json_beside_the_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    record(tmp_path / "runs")
    printed = call("ls", "--json", "runs")
    told = call("ls", "runs", "--json", "listed.json")
    assert json.loads((tmp_path / "listed.json").read_text()) == json.loads(printed.stdout)
    assert told.stdout.startswith("run_")
    again = call("ls", "runs", "--json", "listed.json", code=2)
    assert "listed.json" in again.stderr


def test_options_that_several_commands_have() -> None:
    for name in ("diagnose", "explain", "profile", "recompiles", "reduce", "run"):
        assert {"-m", "-c", "--only-function"} <= options_of(name).keys(), "whatever runs a program takes it alike"
    for name in COMMANDS:
        options = options_of(name)
        assert ("-o" in options) == ("--out" in options), name


def test_the_help_is_grouped_and_begins_with_diagnose() -> None:
    shown = call("--help").output
    for name, line in COMMANDS.items():
        assert name in shown and line in " ".join(shown.split())
    for name in ("ls", "show", "diff"):
        assert "Examples:" in call(name, "--help").output
    at = [shown.index(f"\n{title}:") for title in GROUPS]
    assert at == sorted(at)
    assert shown[at[0] :].splitlines()[2].split()[0] == "diagnose"
    assert sorted(COMMANDS) == sorted(name for group in GROUPS.values() for name in group)


@pytest.mark.parametrize(
    ("given", "environ", "calls", "graphs"),
    [
        ({"api_data": "stats"}, {}, ("3", "there"), (None, None)),
        ({"api_data": "stats"}, {"GRAPHPROBE_ENABLE_DUMP": "1"}, ("3", "there"), (None, None)),
        ({"dump_dump_data": "stats"}, {}, (None, None), ("3", "there")),
        ({"dump_dump_config_path": "c.json"}, {}, (None, None), ("3", "there")),
        ({"dump_dump_debug": "on"}, {}, (None, None), ("3", "there")),
        ({"api_data": "stats", "dump_dump_data": "stats"}, {}, ("3", "there"), ("3", None)),
        ({}, {"GRAPHPROBE_ENABLE_DUMP": "1"}, (None, None), ("3", "there")),
        ({}, {}, ("3", "there"), (None, None)),
    ],
)
def test_steps_and_folder_are_for_the_dump_that_is_asked_for(
    given: dict[str, str], environ: dict[str, str], calls: tuple[Any, Any], graphs: tuple[Any, Any]
) -> None:
    names = [f"{dumps.CALL_PREFIX}{name}" for name in ("data", "config", "steps", "path")]
    names += [f"{dumps.GRAPH_PREFIX}{name}" for name in ("dump_data", "dump_config_path", "dump_debug")]
    values: dict[str, Any] = dict.fromkeys(names) | {"api_steps": "3", "api_path": "there"} | given
    dumps.share(values, environ)
    assert (values["api_steps"], values["api_path"]) == calls
    assert (values.get("dump_dump_step"), values.get("dump_dump_path")) == graphs


def kept(name: str, width: int) -> tuple[str, str]:
    command, _, shown = (CAPTURES / str(width) / f"{name}.txt").read_text(encoding="utf-8").partition("\n")
    return command, shown


def test_a_broken_word_is_found_and_what_is_measured_is_masked() -> None:
    assert too_wide("word " * 20, 80) == ["word " * 20]
    assert too_wide("at " + "folder/" * 20, 80) == too_wide("short", 80) == []
    assert masked("0.5 s in  /home/me/x.py:12") == masked("12.25 s in /a/b/x.py:12") != masked("1 s in /a/x.py:13")
    assert masked("mean -6.03904e-10") == masked("mean 1.2e-09") != masked("mean 1.2e-03")
    assert masked("3 graphs") != masked("4 graphs")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", SHOWN)
def test_nothing_is_wider_than_the_terminal(name: str, width: int) -> None:
    command, shown = kept(name, width)
    assert command == f"$ graphprobe {SHOWN[name]}"
    assert too_wide(shown, width) == []


def test_there_is_no_other_file() -> None:
    assert {path.stem for path in CAPTURES.glob("*/*.txt")} == SHOWN.keys()


@pytest.mark.heavy
def test_commands_show_what_was_kept(warm: Warm, tmp_path: Path) -> None:
    """`python tests/cli/captures.py FOLDER` writes the captures anew where they are to be others."""
    data = tmp_path / "data"
    make_data(data, python=warm.executable)
    wrong = {}
    for width in WIDTHS:
        for name, command in SHOWN.items():
            shown = capture(command, data, width)
            assert too_wide(shown, width) == [], name
            if name not in TIMED and masked(shown) != masked(kept(name, width)[1]):
                wrong[f"{name} at {width}"] = shown
    assert wrong == {}
