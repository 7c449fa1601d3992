"""`graphprobe parse`: one call of a dump."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import click

from graphprobe.cli.shared_options import JsonCommand, JsonTo, json_option
from graphprobe.errors import ArtifactNotFoundError, GraphprobeError
from graphprobe.report.comparison import print_call
from graphprobe.report.document import counted
from graphprobe.report.terminal import print_closing

if TYPE_CHECKING:
    from graphprobe.store.calls import Call, CallDump


@click.command(cls=JsonCommand)
@click.argument("dump")
@click.argument("call", metavar="CALL")
@click.option("--step", type=click.IntRange(min=0), help="Only in this step.")
@click.option("--rank", type=click.IntRange(min=0), help="Only of this rank.")
@click.option("--no-values", is_flag=True, help="Statistics only.")
@click.option("--data", metavar="DIR", help="Folder with the values of a ptdbg text.")
@json_option
def command(
    dump: str, call: str, step: int | None, rank: int | None, no_values: bool, data: str | None, json_to: JsonTo
) -> None:
    """Print the stack, the statistics and the values of the call CALL of a DUMP in any format that compare reads.

    CALL is a label such as linear.3.forward, or #N for the call in position N. The beginning of a label up to a dot
    or an underscore gives all that begin so: nn.functional.linear.3 and 21_Torch_norm give forward and backward. Where
    none does, the labels count that go on so after a dot: linear.3.

    \b
    Examples:
      graphprobe parse dump linear.3
      graphprobe parse npu_dump.pkl 21_Torch_batch_normal
    """
    from graphprobe.compare.open import open_dump
    from graphprobe.store.calls import WithStatistics

    opened = open_dump(dump, data_dir=data)
    named = _found(opened, call, step, rank) or _found(opened, call, step, rank, inside=True)
    found = [*map(WithStatistics(opened).filled, named)]
    if not found:
        hint = f"it has, for example, {', '.join(_some_labels(opened))}"
        raise ArtifactNotFoundError(f"{dump} has no call {call!r}", hint=hint)
    if json_to.replaces_text(lambda: found):
        return
    for one in found:
        print_call(one, values={} if no_values else _values(opened, one))
    _end(found, dump)


def _end(found: list[Call], dump: str) -> None:
    stats = [slot.stats for call in found for slot in call.slots if slot.stats is not None]
    nonfinite = sum(bool(one.nan or one.positive_inf or one.negative_inf) for one in stats)
    follow = ["graphprobe", "report", dump]
    told = f"of {counted(len(stats), 'tensor')} of {counted(len(found), 'call')}"
    if nonfinite:
        verdict = f"NONFINITE: {nonfinite} {told} {'holds' if nonfinite == 1 else 'hold'} NaN or infinity"
        print_closing(verdict, follow=follow, style="bold red")
    elif stats:
        print_closing(f"FINITE: none {told} holds NaN or infinity", follow=follow, style="bold green")
    else:
        print_closing(f"NO STATISTICS: none of {counted(len(found), 'call')}, and no whole values", follow=follow)


def _found(dump: CallDump, wanted: str, step: int | None, rank: int | None, *, inside: bool = False) -> list[Call]:
    return [
        call
        for r in dump.ranks()
        if rank is None or r == rank
        for s in dump.steps(r)
        if step is None or s == step
        for call in dump.calls(r, s)
        if matches(call, wanted, inside=inside)
    ]


def matches(call: Call, wanted: str, *, inside: bool = False) -> bool:
    """Whether `wanted` names the call: its label, the label up to a separator, or `#` and its position.

    inside: it names parts of the label, from a dot to a dot, which are no number alone.
    """
    if inside:
        return f".{wanted}." in f".{call.label}." and not wanted.isdecimal()
    if wanted.startswith("#"):
        return wanted[1:] == str(call.position)
    return call.label == wanted or call.label.startswith((f"{wanted}.", f"{wanted}_"))


def _some_labels(dump: CallDump) -> list[str]:
    first = ((rank, step) for rank in dump.ranks()[:1] for step in dump.steps(rank)[:1])
    labels = [call.label for place in first for call in islice(dump.calls(*place), 5)]
    return labels or ["no call at all"]


def _values(dump: CallDump, call: Call) -> dict[str, str]:
    from graphprobe.compare.measures import text_from

    texts = {}
    for slot in call.slots:
        if not slot.value or slot.meta is None:
            continue
        try:
            text = text_from(dump.values(call, slot), slot.meta.dtype)
        except (GraphprobeError, OSError) as error:
            texts[slot.name] = f"values could not be read: {error}"
            continue
        texts[slot.name] = f"sample of the values: {text}" if slot.sampled else text
    return texts
