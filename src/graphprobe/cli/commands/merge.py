"""`graphprobe merge`: the dumps of several ranks as one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphprobe.cli.shared_options import JsonCommand, JsonTo, json_option
from graphprobe.errors import EXIT_FOUND, EXIT_OK, EXIT_UNDECIDED, UsageError
from graphprobe.report.document import counted
from graphprobe.report.terminal import print_closing
from graphprobe.report.visible import echo
from graphprobe.store.files import check_replaced

if TYPE_CHECKING:
    from graphprobe.compare.ranks import Shared
    from graphprobe.store.calls import CallDump

DIFFER = ("differs", "changed_unseen")


@click.command(cls=JsonCommand)
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="DIR...")
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the index. Default: above DIR; DIR-ranks of one.",
)
@click.option("--force", is_flag=True, help="Overwrite an index that exists.")
@json_option
def command(folders: tuple[Path, ...], out: Path | None, force: bool, json_to: JsonTo) -> int:
    """Write an index of the dumps of several ranks, and compare parameters and buffers between the ranks.

    DIR is the dump of one rank or of several. The index, graphprobe-ranks.json, names the folders and copies nothing.
    `graphprobe compare` takes the index, or its folder. The dump says its rank. If all say 0, the ranks are numbered in
    the order given.

    Exit codes: 0 the values agree, 1 a value differs between ranks, 2 wrong usage, 125 there was nothing to compare.
    Under data parallelism every parameter must agree. Only parameters that are sharded evenly may differ. A shard
    differs if something that other ranks do not call changed it between two steps of the optimizer.

    \b
    Examples:
      graphprobe merge node0/dump node1/dump --out merged
      graphprobe compare merged single_process_dump
    """
    from graphprobe.compare.open import MERGED, open_dump
    from graphprobe.compare.ranks import MergedDump, shared_values

    opened = {folder: open_dump(folder) for folder in folders}
    by_rank = _by_rank(folders, opened)
    base = out if out is not None else Path(os.path.commonpath([f.absolute() for f in folders]))
    if out is None and len(folders) == 1:
        base = base.with_name(f"{base.name}-ranks")
    index = base / MERGED
    if index.exists() and not force:
        raise UsageError(f"{index} exists already", hint="pass --force to overwrite it, or --out for another folder")
    check_replaced(index, str(index), b'"ranks"')
    named = ", ".join(map(str, folders))
    merged = MergedDump(named, {rank: opened[folder] for rank, folder in by_rank.items()})
    shared = shared_values(merged)
    places = {str(rank): os.path.relpath(folder.absolute(), base.absolute()) for rank, folder in by_rank.items()}
    base.mkdir(parents=True, exist_ok=True)
    index.write_text(json.dumps({"schema": 1, "ranks": places}, indent=2) + "\n", encoding="utf-8")
    if not json_to.replaces_text(lambda: {"index": str(index), "ranks": places, "values": shared}):
        _tell(shared, places)
        echo(f"Wrote {index}\n")
        _end(shared, index)
    wrong = any(value.relation in DIFFER for value in shared)
    return EXIT_FOUND if wrong else EXIT_UNDECIDED if not shared else EXIT_OK


def _by_rank(folders: tuple[Path, ...], opened: dict[Path, CallDump]) -> dict[int, Path]:
    """The folder of each rank, as the dumps say; those that all say 0 are numbered in the order given."""
    claimed = [rank for dump in opened.values() for rank in dump.ranks()]
    if len(set(claimed)) == len(claimed):
        return {rank: folder for folder, dump in opened.items() for rank in dump.ranks()}
    if all(len(dump.ranks()) == 1 for dump in opened.values()) and set(claimed) == {0}:
        return dict(enumerate(folders))
    raise UsageError(f"several folders hold the same rank: {sorted(claimed)}", hint="pass each rank once")


def _end(shared: list[Shared], index: Path) -> None:
    causes, facts = _causes(shared), list[tuple[str, str]]()
    verdict, tone = f"SAME: no value of {len(shared)} differs between ranks", "green"
    if causes:
        verdict, tone = f"DIFFERENT: {len(causes)} of {len(shared)} values differ between ranks", "red"
        facts = [("first", _in_words(causes[0])), ("where", causes[0].line)]
    elif not shared:
        verdict, tone = "UNDECIDED: there was nothing to compare", "yellow"
    print_closing(verdict, facts, follow=["graphprobe", "report", os.path.relpath(index)], style=f"bold {tone}")


def _causes(shared: list[Shared]) -> list[Shared]:
    """The values that differ, the first to do so before the others; each once, wherever it is read."""
    found: dict[str, Shared] = {}
    for value in sorted(shared, key=lambda value: value.step):
        if value.relation in DIFFER:
            found.setdefault(value.name.removesuffix(" (shard)") or value.what, value)
    return list(found.values())


def _in_words(value: Shared) -> str:
    odd = f" on rank {', '.join(map(str, value.odd))}" if value.odd else ""
    by = f", changed by {value.written_by or 'something that was not recorded'}" if odd else ""
    return f"{value.name or value.what}: began at step {value.step}{odd}{by}"


def _tell(shared: list[Shared], places: dict[str, str]) -> None:
    echo(f"{len(places)} ranks: {', '.join(places)}")
    causes = _causes(shared)
    accused = {value.name for value in causes}
    for relation in ("replicated", "sharded", "own_data", "undecided"):
        found = [value for value in shared if value.relation == relation and value.name not in accused]
        if found:
            why = (
                f" from a call that all ranks make: {found[0].name or found[0].what}, …"
                if relation == "own_data"
                else ""
            )
            echo(f"{relation.replace('_', ' ')}: {counted(len(found), 'value')}{why}")
    if causes:
        echo(f"differs: {counted(len(causes), 'value')}")
    first = [value for value in causes if value.step == causes[0].step]
    for value in first[:20]:
        line = f" ({value.line})" if value.line else ""
        groups = " | ".join(",".join(map(str, group)) for group in value.ranks)
        echo(f"  {_in_words(value)}{line}; ranks that agree: {groups}")
    for later in causes[len(first) :][:1]:
        count = counted(len(causes) - len(first), "value")
        echo(f"  {count} from a later step on, which may follow: {later.name or later.what}, …")
    if not shared:
        echo("no parameter, buffer or weight that two ranks have: nothing could be compared")
