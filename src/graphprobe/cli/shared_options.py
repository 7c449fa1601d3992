"""Options that several commands have: those of a table, `--json`, `--only-function`; and what they name, checked."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from graphprobe.errors import EXIT_OK, EXIT_UNDECIDED, UsageError
from graphprobe.report.visible import echo, visible, write
from graphprobe.settings import BY_NAME, Option
from graphprobe.store.files import file_to_write, replace_file

if TYPE_CHECKING:
    from graphprobe.internals.dynamo.only_function import OnlyFunction

Command = TypeVar("Command", bound=Callable[..., Any])

STDOUT = "-"

look_option = click.option(
    "--budget", "budget_s", type=click.FloatRange(min=1), default=600.0, show_default=True, help="Seconds for the look."
)

JSON_METAVAR = "[FILE|-]"
JSON_HELP = "Print JSON instead; or write it to FILE, a new *.json."


def options_from(
    rows: Iterable[Option], *, prefix: str = "", choices: bool = False, shared: Iterable[str] = ()
) -> Callable[[Command], Command]:
    """Adds an option to a command for each row that has one; its value comes as the keyword `prefix + name`.

    A value that is not given is None. `choices`: click refuses what a choice does not take; else who reads the value
    does, in the words of JSON file and environment. `shared`: what another table of the command spells, too.
    """

    def decorate(command: Command) -> Command:
        for row in reversed([row for row in rows if row.spelled]):
            form = _form(row, choices)
            if row.spelled not in shared:
                names = (*row.spelled.split("/"), f"{prefix}{row.name}")
                command = click.option(*names, **form, default=None, help=_help(row))(command)
        return command

    return decorate


def take(rows: Iterable[Option], values: dict[str, Any], *, prefix: str = "") -> dict[str, Any]:
    """Takes the values of these options out of all that the command received, by the names of the rows."""
    found: dict[str, Any] = {}
    for row in rows:
        if row.spelled:
            found[row.name] = values.pop(f"{prefix}{row.name}", None)
    return {name: value or None if isinstance(value, tuple) else value for name, value in found.items()}


def spelled(rows: Iterable[Option], given: Mapping[str, Any]) -> list[str]:
    """How those options are spelled on the command line that were given."""
    return [row.spelled for row in rows if given.get(row.name) is not None]


def _form(row: Option, choices: bool) -> dict[str, Any]:
    if row.type == "flag" or row.allowed == ("on", "off"):
        return {"is_flag": True, "flag_value": "on" if row.allowed else not row.default}
    if row.type == "choice" and choices:
        return {"type": click.Choice(row.allowed)}
    return {"metavar": "|".join(row.allowed) or row.metavar, "multiple": row.repeated}


def _help(row: Option) -> str:
    text = f"do not {row.help}" if row.type == "flag" and row.default else row.help
    return f"{text[0].upper()}{text[1:]}."


def count_option(name: str, least: int, default: int, words: str) -> Callable[[Command], Command]:
    """An option that takes a number, which is at least `least`."""
    return click.option(name, type=click.IntRange(min=least), default=default, show_default=True, help=words)


only_function_option = options_from((BY_NAME["only_function"],))


@contextmanager
def filtered(names: tuple[str, ...]) -> Iterator[OnlyFunction]:
    """Filter within the block, in processes forked in it as well, and say at its end what was left out.

    Raises:
        UsageError: a name is empty.
    """
    from graphprobe.internals.dynamo.only_function import OnlyFunction

    only = OnlyFunction(names or os.environ.get(BY_NAME["only_function"].env) or None, graphs_too=False)
    with only.shared():
        only.install()
        try:
            yield only
        finally:
            only.remove()
            for line in only.report():
                echo(f"graphprobe: {line}", err=True)


def exit_code(only: OnlyFunction, code: int) -> int:
    """`code`, but not "nothing is wrong" where the filter left nothing to look at."""
    return EXIT_UNDECIDED if only.patterns and not only.compiled and code == EXIT_OK else code


class JsonCommand(click.Command):
    """A command whose `--json` may stand without a file: only `-`, or a name that ends in .json, is one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See click's."""
        return super().parse_args(ctx, [word_of_json(args, at) for at in range(len(args))])


def word_of_json(args: list[str], at: int, *, reads: bool = False) -> str:
    """The word at this place; a `--json` without a file has the standard output as its value.

    `reads`: the command reads files of such names, so that a file that exists is none to be written.
    """
    if args[at] != "--json" or "--" in args[:at]:
        return args[at]
    following = args[at + 1] if at + 1 < len(args) else ""
    file = following == STDOUT or (following.endswith(".json") and not (reads and os.path.isfile(following)))
    return args[at] if file else f"--json={STDOUT}"


class JsonTo:
    """Where `--json` puts a document: to the standard output in the place of the text, or into a new file beside it."""

    def __init__(self, asked: str | None, *marks: bytes, force: bool | None = None) -> None:
        """`marks` and `force`: see `new_file`."""
        self.printed = asked == STDOUT
        is_file = asked is not None and not self.printed
        self.file = new_file("--json", asked or "", *marks, force=force) if is_file else None

    def __bool__(self) -> bool:
        return self.printed or self.file is not None

    def replaces_text(self, document: Callable[[], Any]) -> bool:
        """Put the document, which may hold structs and paths, where it is wanted; whether that is in place of text."""
        if self:
            text = json.dumps(_plain(document()), indent=2)
            write(f"{visible(text)}\n") if self.file is None else replace_file(self.file, f"{text}\n".encode())
        return self.printed


def _plain(document: Any) -> Any:
    return msgspec.to_builtins(document, enc_hook=str)


def json_option(command: Command) -> Command:
    """Adds `--json [FILE|-]`; its value comes as `json_to`, a `JsonTo`."""
    option = click.option(
        "--json", "json_to", metavar=JSON_METAVAR, callback=lambda _ctx, _option, value: JsonTo(value), help=JSON_HELP
    )
    return option(command)


def new_file(option: str, path: str, *marks: bytes, force: bool | None = None) -> Path:
    """The absolute path that `option` names: a file that does not exist yet, in a folder that does.

    With `force` it may be one that has one of `marks`, see `check_replaced`; None: the command has no `--force`.

    Raises:
        UsageError: it is none.
    """
    by = "" if force is None else "--force"
    return file_to_write(path, *marks, named=f"{option} {path}", force=bool(force), by=by)


def new_folder(path: str) -> Path:
    """The absolute path that `--out` names: of a folder that is empty, or not there yet; raises UsageError else."""
    folder = Path(path).absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(
            f"--out {path}: it exists and is not an empty folder", hint="name a folder that is new or empty"
        )
    return folder


def write_json(file: Path | None, document: Mapping[str, Any]) -> None:
    """Writes the document in the place of `file`; None: nowhere."""
    if file is not None:
        text = json.dumps(_plain(document), indent=2, ensure_ascii=False, allow_nan=False)
        replace_file(file, f"{text}\n".encode())
