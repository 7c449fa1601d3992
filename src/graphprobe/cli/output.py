"""Files and folders that a command is asked to write, checked before anything runs; and `--json` of all commands."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, overload

import click

from graphprobe.cli.option_rows import Command
from graphprobe.errors import UsageError
from graphprobe.report.visible import visible, write
from graphprobe.store.files import file_to_write, replace_file

STDOUT = "-"

JSON_METAVAR = "[FILE|-]"
JSON_HELP = "Print JSON instead; or write it to FILE, a new *.json."


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

    def __init__(self, asked: str | None, file: Path | None = None) -> None:
        """`file`: the checked path, where that is more than a new file."""
        self.printed = asked == STDOUT
        self.file = file if file is not None or asked in (None, STDOUT) else new_file("--json", asked)

    def __bool__(self) -> bool:
        return self.printed or self.file is not None

    def replaces_text(self, document: Callable[[], Any]) -> bool:
        """Put the document where it is wanted; whether it was printed, and no text is to be."""
        if self:
            text = json.dumps(document(), indent=2)
            write(f"{visible(text)}\n") if self.file is None else replace_file(self.file, f"{text}\n".encode())
        return self.printed


def json_option(command: Command) -> Command:
    """Adds `--json [FILE|-]`; its value comes as `json_to`, a `JsonTo`."""
    option = click.option(
        "--json", "json_to", metavar=JSON_METAVAR, callback=lambda _ctx, _option, value: JsonTo(value), help=JSON_HELP
    )
    return option(command)


@overload
def new_file(option: str, path: str, *marks: bytes, force: bool | None = None) -> Path: ...
@overload
def new_file(option: str, path: str | None, *marks: bytes, force: bool | None = None) -> Path | None: ...
def new_file(option: str, path: str | None, *marks: bytes, force: bool | None = None) -> Path | None:
    """The absolute path that `option` names: a file that does not exist yet, in a folder that does; None for none.

    With `force` it may be one that has one of `marks`, see `check_replaced`; None: the command has no `--force`.

    Raises:
        UsageError: it is none.
    """
    if path is None:
        return None
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
        text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
        replace_file(file, f"{text}\n".encode())
