"""Turns rows of a table of options into options of a command, and defines `--only-function`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from graphprobe.errors import EXIT_OK, EXIT_UNDECIDED
from graphprobe.report.visible import echo
from graphprobe.settings import BY_NAME, Option

if TYPE_CHECKING:
    from graphprobe.internals.dynamo.only_function import OnlyFunction


Command = TypeVar("Command", bound=Callable[..., Any])


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
    """Takes the values of these options out of all that the command got, by the names of the rows."""
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
