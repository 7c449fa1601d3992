"""`graphprobe convert`: dumped values as `.npy` or text, and a dump of calls in the layout of ptdbg."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from graphprobe.cli.shared_options import JsonCommand, JsonTo, json_option, new_file
from graphprobe.errors import EXIT_OK, EXIT_UNDECIDED, ArtifactNotFoundError, SchemaError, UsageError
from graphprobe.report.document import counted
from graphprobe.report.terminal import print_closing
from graphprobe.report.visible import echo

if TYPE_CHECKING:
    from graphprobe.store.calls import CallDump
    from graphprobe.store.dump_convert import Converted, Format, Gap


@click.command(cls=JsonCommand)
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="PATH...")
@click.option(
    "--to", type=click.Choice(["npy", "txt", "ptdbg"]), default="npy", show_default=True, help="What to make."
)
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Folder to write to. For --to ptdbg: the .pkl file.")
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
@json_option
def command(paths: tuple[Path, ...], to: str, out: Path | None, force: bool, json_to: JsonTo) -> int:
    """Turn dumped values into .npy files, or into text.

    PATH is the file of one op, a stats.csv, a .npy file, or a folder of a dump at any level. The file of an op becomes
    FILE.SLOT.npy for each tensor in it, such as FILE.input.0.npy. It is written next to the file, or in the same tree
    below --out. txt is numpy's text with the dtype and the shape in front. It keeps every digit. bfloat16 and 8-bit
    floats become float32, which changes no value. A stats.csv becomes a structured array.

    With --to ptdbg, PATH is one dump of calls in any format that graphprobe compare reads. --out is then the new .pkl
    file.

    Exit codes: 0 all is written, 2 wrong usage, 125 something could not be read, and the rest is written.

    \b
    Examples:
      graphprobe convert dump/worldsize1_global_rank0 --out values
      graphprobe convert values/*/0/model/0/0/*.output.0.npy --to txt
      graphprobe convert dump --to txt --out text
      graphprobe convert dump --to ptdbg --out npu_dump.pkl
    """
    from rich.console import Console
    from rich.progress import track

    from graphprobe.store.dump_convert import Gap, convert, plan_conversion

    if to == "ptdbg":
        _export(paths, out, force, json_to)
        return EXIT_OK
    if out is not None and out.is_file():
        raise click.BadParameter(f"Directory '{out}' is a file.", param_hint="--out")
    form = cast("Format", to)
    targets, gaps = plan_conversion(paths, to=form, out=out, force=force)
    written: list[Converted] = []
    terminal = Console(stderr=True)
    try:
        for target in track(targets, "Converting", console=terminal, transient=True, disable=not terminal.is_terminal):
            try:
                written.append(convert(target, to=form, force=force))
            except (SchemaError, ArtifactNotFoundError) as error:
                gaps.append(Gap(str(target.source), target.slot, str(error)))
    finally:
        _report(written, gaps, json_to)
    if not json_to.printed:
        _end(written, gaps)
    return EXIT_UNDECIDED if any(not gap.expected for gap in gaps) else EXIT_OK


def _export(paths: tuple[Path, ...], out: Path | None, force: bool, json_to: JsonTo) -> None:
    """Write one dump, in any format that `graphprobe compare` reads, in ptdbg's layout, values beside the text."""
    from graphprobe.compare.open import open_dump
    from graphprobe.store.foreign.ptdbg import write_ptdbg

    if len(paths) != 1:
        raise UsageError(f"--to ptdbg takes one dump, {len(paths)} are given", hint="convert them one by one")
    dump = paths[0]
    if out is None:
        raise UsageError("--to ptdbg needs --out", hint="name a new .pkl file")
    source, target = dump.resolve(), out.resolve()
    if source == target or source in target.parents or target in source.parents:
        raise UsageError(f"--out {out} and {dump} lie one in the other", hint="name a new .pkl file elsewhere")
    if out.suffix != ".pkl":
        raise UsageError(f"--out {out}: expected a file name that ends with .pkl")
    there = new_file("--out", str(out), b"[[", b'["', force=force).exists()
    opened = open_dump(dump)
    try:
        write_ptdbg(opened, out, stacks=True)
    except BaseException as error:
        if not there:
            out.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(out)) from error
        raise
    left_out = _left_by_ptdbg(opened)
    if json_to.replaces_text(lambda: {"written": out, "format": "ptdbg", "left_out": left_out}):
        return
    for text in left_out:
        echo(f"Left out: {text}", err=True)
    print_closing(f"Wrote {out}", follow=["graphprobe", "compare", str(out), str(dump)])


def _report(written: Sequence[Converted], gaps: Sequence[Gap], json_to: JsonTo) -> None:
    if json_to.replaces_text(lambda: {"written": written, "gaps": gaps}):
        return
    for one in written:
        shape = "x".join(map(str, one.shape)) or "0-d"
        note = f" ({one.note})" if one.note else ""
        echo(f"Wrote {one.path}: {one.dtype} {shape}{note}")
    for gap in gaps:
        where = f"{gap.source} {gap.slot}".rstrip() + ": "
        echo(f"Not converted: {'' if gap.source in gap.reason else where}{gap.reason}", err=True)


def _end(written: Sequence[Converted], gaps: Sequence[Gap]) -> None:
    follow = ["graphprobe", "help", "convert"]
    if written:
        first = written[0].path
        follow = (
            ["graphprobe", "convert", str(first), "--to", "txt"] if first.suffix == ".npy" else ["head", str(first)]
        )
    failed = sum(not gap.expected for gap in gaps)
    verdict = f"CONVERTED: {counted(len(written), 'file')} written{f', {failed} could not be read' if failed else ''}"
    print_closing(verdict, follow=follow, style="bold green" if written and not failed else "bold yellow")


def _left_by_ptdbg(dump: CallDump) -> list[str]:
    """What `write_ptdbg` left out of a dump: it writes the calls of APIs in the first step of the first rank."""
    rank, *ranks = dump.ranks()
    step, *steps = dump.steps(rank)
    kinds = Counter(call.kind for call in dump.calls(rank, step) if call.kind != "api")
    left = [f"calls of kind {kind}: {count}" for kind, count in kinds.items()]
    places = [f"rank {other}" for other in ranks] + [f"step {other}" for other in steps]
    if places:
        left.append(f"{', '.join(places)}: a text holds one step of one rank; convert the folder of that step alone")
    return left
