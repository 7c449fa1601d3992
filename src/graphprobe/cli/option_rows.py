"""Rows of a table of options as options of a command."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import click

from graphprobe.settings import Option

Command = TypeVar("Command", bound=Callable[..., Any])


def options_from(rows: Iterable[Option], *, prefix: str = "", choices: bool = False) -> Callable[[Command], Command]:
    """Adds an option to a command for each row that has one; its value comes as the keyword `prefix + name`.

    A value that is not given is None. `choices`: click refuses what a choice does not take; else who reads the value
    does, in the words of JSON file and environment.
    """

    def decorate(command: Command) -> Command:
        for row in reversed([row for row in rows if row.spelled]):
            names = (*row.spelled.split("/"), f"{prefix}{row.name}")
            command = click.option(*names, **_form(row, choices), default=None, help=_help(row))(command)
        return command

    return decorate


def take(rows: Iterable[Option], values: dict[str, Any], *, prefix: str = "") -> dict[str, Any]:
    """Takes the values of these options out of all that the command got, by the names of the rows."""
    found = {row.name: values.pop(f"{prefix}{row.name}") for row in rows if row.spelled}
    return {name: value or None if isinstance(value, tuple) else value for name, value in found.items()}


def spelled(rows: Iterable[Option], given: Mapping[str, Any]) -> list[str]:
    """How those options are spelled on the command line that were given."""
    return [row.spelled for row in rows if given.get(row.name) is not None]


def _form(row: Option, choices: bool) -> dict[str, Any]:
    if row.type == "flag":
        return {"is_flag": True, "flag_value": not row.default}
    if row.type == "choice" and choices:
        return {"type": click.Choice(row.allowed)}
    return {"metavar": "|".join(row.allowed) or row.metavar, "multiple": row.repeated}


def _help(row: Option) -> str:
    text = f"do not {row.help}" if row.type == "flag" and row.default else row.help
    return f"{text[0].upper()}{text[1:]}."
