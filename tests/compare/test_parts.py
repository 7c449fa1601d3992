"""Shapes that differ by the ratio of the numbers of ranks are parts; without that ratio they are faults."""

import numpy as np
import pytest

from compare.made import MemoryDump, call, scalar, tensor
from graphprobe.cli.commands.merge import _tell
from graphprobe.compare import compare_dumps
from graphprobe.compare.judge import UNEVEN, is_part, parts_between
from graphprobe.compare.ranks import Shared
from graphprobe.compare.result import Summary


def dump(rows: int, world: int, *, view: int | None = None, scale: float = 1.0) -> MemoryDump:
    x = np.linspace(-1, 1, rows * 4, dtype=np.float32).reshape(rows, 4)
    weight = np.arange(4, dtype=np.float32) * np.float32(scale)
    given = (x * weight).astype(np.float32)
    total = np.asarray(given.mean(axis=0), dtype=np.float32)
    made = MemoryDump(
        [
            call(0, "torch.Tensor.view", tensor("input.0", "input", x), scalar("input.1", view or rows)),
            call(1, "Mul", tensor("input.0", "input", x), tensor("parameter.w", "parameter", weight),
                 tensor("output.0", "output", given), kind="module", module="m"),
            call(2, "torch.mean", tensor("input.0", "input", given), tensor("output.0", "output", total)),
        ]
    )  # fmt: skip
    made.facts = {"world_size": str(world)}
    return made


def compared(candidate: MemoryDump, reference: MemoryDump) -> Summary:
    with compare_dumps(candidate, reference) as comparison:
        return comparison.summary


def test_a_part_of_the_batch_is_told_and_not_accused() -> None:
    summary = compared(dump(4, 2), dump(8, 1))
    assert (summary.outcome, summary.findings) == ("same", [])
    assert summary.counts.by_basis == {"part": 5, "digest": 1}
    assert any("5 values are parts" in note for note in summary.notes)


@pytest.mark.parametrize(
    ("candidate", "kind"),
    [(dump(4, 1), "shape"), (dump(3, 2), "shape"), (dump(4, 2, view=5), "scalar"), (dump(4, 2, scale=1.1), "state")],
    ids=["as many ranks", "no such part", "another argument", "a weight"],
)
def test_what_is_no_part_is_accused(candidate: MemoryDump, kind: str) -> None:
    first = compared(candidate, dump(8, 1)).first
    assert first is not None and first.kind == kind


@pytest.mark.parametrize(
    ("mine", "theirs", "parts", "found"),
    [
        ((4, 8), (8, 8), 2, True),
        ((8, 8), (4, 8), 2, True),
        ((4, 4), (8, 8), 2, True),
        ((2, 2, 2), (4, 4, 4), 2, False),
        ((1, 8), (3, 8), 2, True),
        ((2, 8), (3, 8), 2, True),
        ((3, 8), (8, 8), 2, False),
        ((8,), (8, 8), 2, False),
        ((8, 8), (8, 8), 2, False),
        ((1, 8), (2, 8), UNEVEN, True),
    ],
)
def test_parts(mine: tuple[int, ...], theirs: tuple[int, ...], parts: int, found: bool) -> None:
    assert is_part(mine, theirs, parts) is found


def test_the_number_of_parts() -> None:
    assert parts_between(dump(4, 8), dump(4, 2)) == 4
    assert parts_between(dump(4, 2), dump(4, 2)) == 1
    assert parts_between(dump(4, 3), dump(4, 2)) == 1  # neither has the other's parts


def test_what_begins_to_differ_first_is_listed_and_what_may_follow_is_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = Shared(what="norm.mean", relation="differs", ranks=((0, 2), (1,)), step=0, odd=(1,))
    later = [Shared(what=f"w{n}", relation="differs", ranks=((0, 2), (1,)), step=1, odd=(1,)) for n in range(3)]
    _tell([*later, first], {"0": "a", "1": "b", "2": "c"})
    told = capsys.readouterr().out.splitlines()
    assert told[2:] == [
        "  norm.mean: began at step 0 on rank 1, changed by something that was not recorded; ranks that agree: 0,2 | 1",
        "  3 values from a later step on, which may follow: w0, …",
    ]
    _tell([first], {"0": "a", "1": "b", "2": "c"})
    assert "later step" not in capsys.readouterr().out
