"""Writer of ptdbg_ascend's layout: `<name>.pkl`, a text of one JSON list a line, and `<name>_<timestamp>/*.npy`."""

from __future__ import annotations

import contextlib
import json
import math
import re
import shutil
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from graphprobe.errors import ArtifactNotFoundError, UsageError
from graphprobe.records import TensorMeta, TensorStats
from graphprobe.store.calls import Call, CallDirection, CallDump, CallSlot, Scalar
from graphprobe.store.dump_dtypes import Array, widened
from graphprobe.store.files import claim_folder, seconds_from
from graphprobe.store.foreign.checked import summary_from_stats
from graphprobe.store.foreign.names import file_stem, foreign_from_api
from graphprobe.store.foreign.ptdbg import EDGE

_FRAME = re.compile(r"(?P<file>.*?):(?P<line>\d+) in (?P<function>[^:]*)(?:: (?P<code>.*))?", re.DOTALL)
_SIDES = {"input": "input", "kwarg": "input", "output": "output"}
_BACKWARD_SIDES = {"grad_output": "input", "grad_input": "output", "grad_kwarg": "output"}
_NUMBERS: dict[str, Callable[[str], float]] = {"int": int, "float": float, "bool": lambda text: text == "True"}


class WrittenName(NamedTuple):
    """The name of a call in ptdbg's first scheme, and what the second one would say.

    Attributes:
        number: of the forward call among all, from 1; a backward has that of its forward.
        kind, name: `Tensor`, `permute`.
        api_index: of the forward call among those of the same API, from 0; -1 if the dump does not tell.
    """

    number: int
    kind: str
    name: str
    api_index: int
    direction: CallDirection

    @property
    def text(self) -> str:
        """`1478_Tensor_permute_forward`."""
        return f"{self.number}_{self.kind}_{self.name}_{self.direction}"


class Numbering:
    """Gives the API calls of a step their names, in the order of execution."""

    def __init__(self) -> None:
        self._last = 0
        self._numbers: dict[tuple[str, int], int] = {}

    def name(self, call: Call) -> WrittenName:
        """The name of the next call; a backward whose forward was not seen counts as a call of its own."""
        kind, name = foreign_from_api(call.api)
        key = (call.api, call.index)
        if call.direction == "backward" and call.index >= 0 and key in self._numbers:
            number = self._numbers[key]
        else:
            self._last += 1
            number = self._last
            if call.direction == "forward":
                self._numbers[key] = number
        return WrittenName(number, kind, file_stem(name, most_bytes=120), call.index, call.direction)


class PtdbgWriter:
    """Writes the text as calls come, so that it is whole up to the last call whatever ends the program."""

    def __init__(self, pkl: Path, data_dir: Path) -> None:
        """Replaces `pkl`; `data_dir` must exist. Raises OSError."""
        self.data_dir = data_dir
        self.lines = 0
        self._file = open(pkl, "w", encoding="utf-8")  # noqa: SIM115

    def stack(self, call: str, frames: Sequence[str]) -> None:
        """The line of a stack; `frames` as in `Call.stack`."""
        self._line([f"{call}_stack_info", [_frame(frame) for frame in frames]])

    def tensor(
        self,
        name: str,
        meta: TensorMeta,
        stats: TensorStats | None,
        bits: Array | None,
        *,
        dump_step: int = 1,
        sampled: bool = False,
    ) -> None:
        """The line of a tensor and its file.

        Args:
            name: `1478_Tensor_permute_forward_input.0`.
            meta: the true dtype and shape.
            stats: of the full tensor; None leaves them out.
            bits: as `CallDump.values` gives them; None: no file.
            dump_step: above 1 keeps both ends and every so manyth element in between.
            sampled: whether `bits` are such a sample already.
        """
        if bits is not None:
            if dump_step > 1 and not sampled and bits.size > 2 * EDGE:
                bits = sample(bits, dump_step)
            np.save(self.data_dir / f"{name}.npy", widened(bits, meta.dtype)[0], allow_pickle=False)
        row: list[Any] = [name, dump_step, [], f"torch.{meta.dtype}", list(meta.shape)]
        self._line(row if stats is None else [*row, _row_of(stats)])

    def scalar(self, name: str, value: Scalar) -> None:
        """The line of a number; other arguments that are no tensor have no line in this format."""
        if value.type not in _NUMBERS:
            return
        number = _NUMBERS[value.type](value.text)
        self._line([name, 1, [], f"<class '{value.type}'>", [], [number] * 3])

    def _line(self, row: list[Any]) -> None:
        # NaN and Infinity as Python writes them, which is what readers of this format expect.
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        self.lines += 1

    def close(self) -> None:
        self._file.close()


def sample(bits: Array, step: int) -> Array:
    """The first 256 elements in row-major order, every `step`-th of those between, the last 256."""
    flat = bits.reshape(-1)
    if flat.size <= 2 * EDGE:
        return flat
    return np.concatenate([flat[:EDGE], flat[EDGE:-EDGE:step], flat[-EDGE:]])


def timestamped(path: Path) -> Path:
    """Make the folder `<path>_<YYYYmmdd>_<HHMMSS>` of this second, or of the next that nobody has. Raises OSError."""
    return claim_folder(path.parent, (f"{path.name}_{time:%Y%m%d_%H%M%S}" for time in seconds_from(datetime.now())))


def write_ptdbg(
    dump: CallDump,
    pkl: Path,
    *,
    dump_step: int = 1,
    stacks: bool = False,
    values: bool = True,
    select: Callable[[WrittenName], bool] | None = None,
) -> Path:
    """Write the API calls of a dump in ptdbg's layout: of the first step of the first rank.

    Args:
        dump: any dump; what is not a call of an API is left out.
        pkl: the text to write; an old one is replaced.
        dump_step: as in `PtdbgWriter.tensor`.
        stacks: whether to write the lines of the stacks.
        values: whether to write tensors at all; without, only stacks are written.
        select: which calls; None: all. It is asked in the order of execution.

    Returns:
        The folder of the `.npy` files.

    Raises:
        UsageError: the dump has no step.
        OSError: as the operating system gives it.
    """
    rank = next(iter(dump.ranks()), 0)
    steps = dump.steps(rank)
    if not steps:
        raise UsageError(f"{dump.title} has no step 0 of rank {rank}", hint=f"it has: {steps}")
    folder = timestamped(pkl.with_suffix(""))
    writer, numbering = PtdbgWriter(pkl, folder), Numbering()
    try:
        for call in dump.calls(rank, steps[0]):
            if call.kind != "api":
                continue
            name = numbering.name(call)
            if select is not None and not select(name):
                continue
            if stacks and call.stack:
                writer.stack(name.text, call.stack)
            for slot in call.slots if values else ():
                _write_slot(writer, dump, call, slot, name.text, dump_step)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        writer.close()
    return folder


def slot_name(slot: str, direction: CallDirection) -> str | None:
    """`input.0` -> `input.0`, `kwarg.bias` -> `input.bias`, `grad_output.0` -> `input.0`; None if it has no name."""
    head, _, path = slot.partition(".")
    side = (_SIDES if direction == "forward" else _BACKWARD_SIDES).get(head)
    return None if side is None else f"{side}.{file_stem(path, most_bytes=60)}"


def _write_slot(writer: PtdbgWriter, dump: CallDump, call: Call, slot: CallSlot, name: str, dump_step: int) -> None:
    place = slot_name(slot.name, call.direction)
    if place is None:
        return
    if slot.scalar is not None:
        writer.scalar(f"{name}_{place}", slot.scalar)
    if slot.meta is None:
        return
    bits = None
    if slot.value:
        with contextlib.suppress(ArtifactNotFoundError):  # then the line has no file, as of any tensor without values
            bits = dump.values(call, slot)
    writer.tensor(f"{name}_{place}", slot.meta, slot.stats, bits, dump_step=dump_step, sampled=slot.sampled)


def _row_of(stats: TensorStats) -> list[float]:
    """`[max, min, mean, l2norm]`, empty for a tensor without elements."""
    found = summary_from_stats(stats)
    return [] if found.max is None else [math.nan if value is None else value for value in found]


def _frame(frame: str) -> list[str]:
    found = _FRAME.fullmatch(frame)
    if found is None:
        return [frame, "0", "", ""]
    return [found["file"], found["line"], found["function"], found["code"] or ""]
