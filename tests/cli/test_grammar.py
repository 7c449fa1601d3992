"""One grammar of commands: an option has one spelling and one meaning wherever it stands; old spellings still work."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from cli.test_reading import record
from graphprobe.cli import dump_api, dump_graph
from graphprobe.cli.main import COMMANDS, GROUPS, LazyGroup, main
from graphprobe.cli.option_rows import options_from, take
from graphprobe.cli.output import JSON_METAVAR, word_of_json
from graphprobe.settings import Option

RUNS_PROGRAMS = ("diagnose", "explain", "profile", "recompiles", "reduce", "run")


def command_of(name: str) -> click.Command:
    assert isinstance(main, LazyGroup)
    command = main.get_command(click.Context(main), name)
    assert command is not None
    return command


def options_of(name: str) -> dict[str, click.Option]:
    return {s: o for o in command_of(name).params if isinstance(o, click.Option) for s in (*o.opts, *o.secondary_opts)}


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Result]:
    monkeypatch.chdir(tmp_path)
    return lambda *args: CliRunner().invoke(main, list(args))


def test_json_is_one_option() -> None:
    with_json = {name: options["--json"] for name in COMMANDS if "--json" in (options := options_of(name))}
    assert COMMANDS.keys() - with_json.keys() == {"demo", "issue", "report", "run"}
    assert {name: option.metavar for name, option in with_json.items() if option.metavar != JSON_METAVAR} == {}
    assert [name for name, option in with_json.items() if option.is_flag] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_json_needs_no_file(name: str) -> None:
    option = options_of(name).get("--json")
    if option is not None:
        parsed = parsed_by(name, "--json")
        assert str(parsed) == "-" or parsed.printed


def parsed_by(name: str, *words: str) -> Any:
    """What `--json` of a command comes as; other arguments are missing, and are not asked for."""
    context = command_of(name).make_context(name, list(words), resilient_parsing=True)
    return context.params.get("json_to") or next(v for k, v in context.params.items() if k.startswith("json"))


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--json"], "--json=-"),
        (["--json", "run_1"], "--json=-"),
        (["--json", "-"], "--json"),
        (["--json", "new.json"], "--json"),
        (["--json", "--all"], "--json=-"),
        (["--json=x"], "--json=x"),
    ],
)
def test_a_file_behind_json_ends_in_json(words: list[str], value: str) -> None:
    assert word_of_json(words, 0) == value


def test_a_file_that_is_read_is_none_to_write(tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    assert word_of_json(["--json", str(profile)], 0, reads=True) == "--json"
    profile.write_text("{}")
    assert word_of_json(["--json", str(profile)], 0, reads=True) == "--json=-"


def test_behind_two_dashes_nothing_is_an_option() -> None:
    assert word_of_json(["--", "--json"], 1) == "--json"


def test_json_beside_the_text(invoke: Callable[..., Result], tmp_path: Path) -> None:
    record(tmp_path / "runs")
    printed = invoke("ls", "--json", "runs")
    written = invoke("ls", "runs", "--json", "listed.json")
    assert json.loads((tmp_path / "listed.json").read_text()) == json.loads(printed.stdout)
    assert written.stdout.startswith("run_")
    again = invoke("ls", "runs", "--json", "listed.json")
    assert again.exit_code == 2 and "listed.json" in again.stderr


@pytest.mark.parametrize("name", RUNS_PROGRAMS)
def test_whatever_runs_a_program_takes_it_in_the_same_ways(name: str) -> None:
    assert {"-m", "-c", "--only-function"} <= options_of(name).keys()


def test_every_folder_or_file_that_is_written_is_out() -> None:
    for name in COMMANDS:
        options = options_of(name)
        assert ("-o" in options) == ("--out" in options), name


def test_the_help_is_grouped_and_begins_with_diagnose(invoke: Callable[..., Result]) -> None:
    shown = invoke("--help").output
    at = [shown.index(f"\n{title}:") for title in GROUPS]
    assert at == sorted(at)
    assert shown[at[0] :].splitlines()[2].split()[0] == "diagnose"
    assert sorted(COMMANDS) == sorted(name for group in GROUPS.values() for name in group)


ROWS = (Option("steps", "steps", None, "", "--steps", "which steps", "STEPS", former="--dump-step"),)


def test_an_old_spelling_works_with_a_note_and_is_not_in_the_help() -> None:
    @click.command()
    @options_from(ROWS)
    def command(**values: Any) -> None:
        click.echo(f"taken: {take(ROWS, values)['steps']}")

    old, new = (CliRunner().invoke(command, [word, "3"]) for word in ("--dump-step", "--steps"))
    assert old.stdout == new.stdout == "taken: 3\n"
    assert old.stderr == "graphprobe: note: --dump-step is called --steps now\n" and new.stderr == ""
    assert "--dump-step" not in CliRunner().invoke(command, ["--help"]).output


@pytest.mark.parametrize(
    ("given", "environ", "calls", "graphs"),
    [
        ({"api_data": "stats"}, {}, ("3", "there"), (None, None)),
        ({"api_data": "stats"}, {"GRAPHPROBE_ENABLE_DUMP": "1"}, ("3", "there"), (None, None)),
        ({"dump_dump_data": "stats"}, {}, (None, None), ("3", "there")),
        ({"dump_dump_config_path": "c.json"}, {}, (None, None), ("3", "there")),
        ({"api_data": "stats", "dump_dump_data": "stats"}, {}, ("3", "there"), ("3", None)),
        ({}, {"GRAPHPROBE_ENABLE_DUMP": "1"}, (None, None), ("3", "there")),
        ({}, {}, ("3", "there"), (None, None)),
    ],
    ids=["calls", "calls by hand", "graphs", "graphs by file", "both", "graphs by environment", "none"],
)
def test_steps_and_folder_are_for_the_dump_that_is_asked_for(
    given: dict[str, str], environ: dict[str, str], calls: tuple[Any, Any], graphs: tuple[Any, Any]
) -> None:
    names = [f"{dump_api.PREFIX}{name}" for name in ("data", "config", "steps", "path")]
    names += [f"{dump_graph.PREFIX}{name}" for name in ("dump_data", "dump_config_path")]
    values: dict[str, Any] = dict.fromkeys(names) | {"api_steps": "3", "api_path": "there"} | given
    dump_graph.share(values, environ)
    assert (values["api_steps"], values["api_path"]) == calls
    assert (values.get("dump_dump_step"), values.get("dump_dump_path")) == graphs
