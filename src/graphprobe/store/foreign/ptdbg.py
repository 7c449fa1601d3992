"""ptdbg_ascend's dumps, read and written: a text of one JSON list a line, and a folder of `.npy` files beside it."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from graphprobe.errors import ArtifactNotFoundError, UsageError
from graphprobe.records import TensorMeta, TensorStats
from graphprobe.store.calls import Call, CallDirection, CallDump, CallSlot, Scalar, SlotRole
from graphprobe.store.dump_dtypes import Array, bits_from_values, widened
from graphprobe.store.files import claim_folder, lines_at, open_file, seconds_from
from graphprobe.store.foreign.checked import (
    decoded,
    float_of,
    mapped_npy,
    shape_of,
    stats_from_known,
    summary_from_stats,
)
from graphprobe.store.foreign.names import (
    Counter,
    PtdbgName,
    api_from_foreign,
    file_stem,
    foreign_from_api,
    ptdbg_name,
    source_of,
)

EDGE = 256
"""Elements at either end that a sample always has."""

BACKWARD_NOTE = (
    "read as: the inputs of a backward are the gradients of the outputs. The first releases of ptdbg_ascend, which"
    " wrote the number in front, had it the other way round in some versions.",
)
_RANK = re.compile(r"rank(\d{1,18})")
_FIELDS = ("max", "min", "mean", "l2")
_FRAME = re.compile(r"(?P<file>.*?):(?P<line>\d+) in (?P<function>[^:]*)(?:: (?P<code>.*))?", re.DOTALL)
_SIDES = {"input": "input", "kwarg": "input", "output": "output"}
_BACKWARD_SIDES = {"grad_output": "input", "grad_input": "output", "grad_kwarg": "output"}
_NUMBERS: dict[str, Callable[[str], float]] = {"int": int, "float": float, "bool": lambda text: text == "True"}


def refuse_binary(path: Path) -> None:
    """Raise UsageError unless the file begins as a text of JSON lists; an empty file is fine."""
    try:
        with open_file(path) as file:
            head = file.read(64).lstrip()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error}", hint="pass the .pkl file of a ptdbg dump") from error
    if head and head[:1] != b"[":
        kind = "a pickle" if head[:1] == b"\x80" else "not a text of JSON lists"
        raise UsageError(
            f"{path} is {kind}: it begins with {head[:8]!r}",
            hint="a ptdbg dump is text in spite of its name; graphprobe never loads pickles, which can run code",
            slug="foreign-dump",
        )


class PtdbgDump:
    """A ptdbg dump as `CallDump`. `values` can be asked for in any order; `calls` reads the text as a stream."""

    format = "ptdbg"

    def __init__(self, path: Path, *, data_dir: Path | None = None) -> None:
        """Open a dump.

        Args:
            path: the `.pkl`, or a folder with one, or with a folder `rankN` for each rank that has one.
            data_dir: the folder of its `.npy` files; None: the newest `<name>_<digits>` beside the `.pkl`.

        Raises:
            UsageError: there is no such file, or it is no text of JSON lists.
        """
        self.title = str(path)
        self.facts: dict[str, str] = {}
        self._problems: dict[str, None] = {}
        self._files = _files(path)
        self._folders: dict[int, Path | None] = {}
        if data_dir is not None and (len(self._files) > 1 or not data_dir.is_dir()):
            expected = "leave it out for a dump of several ranks" if len(self._files) > 1 else "pass an existing folder"
            raise UsageError(f"data_dir is {data_dir}", hint=expected)
        for rank, file in self._files.items():
            refuse_binary(file)
            self._folders[rank] = data_dir or self._folder_of(file)

    def ranks(self) -> tuple[int, ...]:
        """The ranks, ascending; `(0,)` for a single file."""
        return tuple(self._files)

    def steps(self, rank: int) -> tuple[int, ...]:
        """Always `(0,)`: the format has no steps."""
        return (0,)

    def problems(self) -> tuple[str, ...]:
        """Lines that could not be read so far, and folders of values that are not there."""
        return tuple(self._problems)

    def calls(self, rank: int, step: int) -> Iterator[Call]:
        """The calls in the order of their lines."""
        if step != 0 or rank not in self._files:
            return
        counter, folder = Counter(), self._folders[rank]
        # A dump of only a part of the program has stacks.
        partial = any(name.is_stack for name, _ in itertools.islice(self._lines(self._files[rank]), 64))
        position = 0
        seen: set[str] = set()
        for _, group in itertools.groupby(self._lines(self._files[rank]), key=lambda line: line[0].call):
            lines = list(group)
            name = lines[0][0]
            if name.call in seen:
                self._problem(f"{self._files[rank].name}: lines of {name.call} lie apart; only the first are read")
                continue
            seen.add(name.call)
            yield self._call(name, lines, position, rank, counter, folder, partial=partial)
            position += 1

    def values(self, call: Call, slot: CallSlot) -> Array:
        folder = self._folders.get(call.rank)
        path = None if folder is None else folder / slot.value
        if path is None or not slot.value or slot.meta is None:
            raise ArtifactNotFoundError(f"{call.label} {slot.name} has no values in {self.title}")
        bits = bits_from_values(mapped_npy(path), slot.meta.dtype)
        if slot.sampled:
            return bits.reshape(-1)
        if bits.size != math.prod(slot.meta.shape):
            raise ArtifactNotFoundError(f"{path} has {bits.size} elements, expected the shape {slot.meta.shape}")
        return bits.reshape(slot.meta.shape)

    def _folder_of(self, file: Path) -> Path | None:
        pattern = re.compile(re.escape(file.stem) + r"(_[\d_]+)?")
        found = sorted(p for p in file.parent.iterdir() if p.is_dir() and pattern.fullmatch(p.name))
        if not found:
            self._problem(f"{file.name} has no folder {file.stem}_<timestamp> beside it, so no values")
            return None
        if len(found) > 1:
            self._problem(f"{file.name} has several folders of values beside it; taken: {found[-1].name}")
        return found[-1]

    def _problem(self, text: str) -> None:
        self._problems[text] = None

    def _lines(self, file: Path) -> Iterator[tuple[PtdbgName, list[Any]]]:
        try:
            for number, line in enumerate(lines_at(file), start=1):
                if not line.strip():
                    continue
                row = decoded(line)
                name = ptdbg_name(row[0]) if isinstance(row, list) and row and isinstance(row[0], str) else None
                if row is None or name is None or len(row) < 2:
                    self._problem(f"{file.name}:{number}: not a line of a ptdbg dump")
                    continue
                yield name, row
        except OSError as error:
            self._problem(f"{file.name} cannot be read further: {error.strerror}")

    def _call(
        self,
        name: PtdbgName,
        lines: list[tuple[PtdbgName, list[Any]]],
        position: int,
        rank: int,
        counter: Counter,
        folder: Path | None,
        *,
        partial: bool,
    ) -> Call:
        api = api_from_foreign(name.kind, name.name)
        stack: tuple[str, ...] = ()
        slots = []
        for part, row in lines:
            if part.is_stack:
                stack = tuple(map(_frame, row[1])) if isinstance(row[1], list) else ()
                continue
            slot = self._slot(part, row, folder)
            if slot is not None:
                slots.append(slot)
        index = counter.number("api", api, name.pair, name.direction)
        if partial:  # then the calls before it are not all there
            index = name.number if name.counted else -1
        return Call(
            position=position,
            kind="module" if name.kind == "Module" else "api",
            api=api,
            label=name.call,
            direction=name.direction,
            index=index,
            rank=rank,
            source=source_of(stack),
            stack=stack,
            slots=tuple(slots),
            notes=BACKWARD_NOTE if name.direction == "backward" and not name.counted else (),
        )

    def _slot(self, name: PtdbgName, row: list[Any], folder: Path | None) -> CallSlot | None:
        role, slot = _role_and_slot(name)
        rest = row[3:] if len(row) > 2 and isinstance(row[2], list) else row[2:]
        if len(rest) < 2 or not isinstance(rest[0], str):
            self._problem(f"{row[0]}: expected [name, dump_step, [], dtype, shape, statistics], found {len(row)} items")
            return None
        summary = rest[2] if len(rest) > 2 and isinstance(rest[2], list) else []
        if rest[0].startswith("<class"):
            kind = rest[0].removeprefix("<class '").removesuffix("'>")
            return CallSlot(name=slot, role=role, scalar=Scalar(kind, repr(summary[0]) if summary else ""))
        shape = shape_of(rest[1])
        if shape is None:
            self._problem(f"{row[0]}: {str(rest[1])[:80]} is no shape")
            return None
        meta = TensorMeta(rest[0].removeprefix("torch."), shape)
        numbers = {f: float_of(v) for f, v in zip(_FIELDS, summary, strict=False) if isinstance(v, (int, float))}
        known = {name: value for name, value in numbers.items() if value is not None}
        count = math.prod(shape)
        step = row[1] if isinstance(row[1], int) and row[1] > 0 else 1
        file = f"{row[0]}.npy"
        there = folder is not None and (folder / file).exists()
        digest = rest[3] if len(rest) > 3 and isinstance(rest[3], str) else ""
        return CallSlot(
            name=slot,
            role=role,
            meta=meta,
            stats=stats_from_known(count, known),
            known=tuple(known),
            digest=digest,
            digest_kind="md5" if len(digest) == 32 else "crc32" if digest else "",
            value=file if there else "",
            sampled=step > 1 and count > 2 * EDGE,
            missing="" if there or folder is None else f"{file} is not in {folder.name}",
        )


def _files(path: Path) -> dict[int, Path]:
    if path.is_file():
        return {0: path}
    if path.is_dir():
        found = {}
        for folder in path.iterdir():
            rank = _RANK.fullmatch(folder.name)
            if rank and folder.is_dir() and (files := sorted(folder.glob("*.pkl"))):
                found[int(rank[1])] = files[-1]
        files = sorted(path.glob("*.pkl"))
        if found or len(files) == 1:
            return dict(sorted(found.items())) or {0: files[0]}
        if files:
            names = ", ".join(file.name for file in files[:4])
            raise UsageError(f"{path} has {len(files)} .pkl files: {names}", hint="pass the one you mean")
    raise UsageError(f"no ptdbg dump at {path}", hint="pass its .pkl file, or the folder that has it")


def _role_and_slot(name: PtdbgName) -> tuple[SlotRole, str]:
    path = name.path or "0"
    if name.direction == "forward":
        if name.side == "input":
            return "input", f"input.{path}" if path[0].isdigit() else f"kwarg.{path}"
        return "output", f"output.{path}"
    if name.side == "input":
        return "grad_output", f"grad_output.{path}"
    return "grad_input", f"grad_input.{path}" if path[0].isdigit() else f"grad_kwarg.{path}"


def _frame(frame: Any) -> str:
    """`[path, "12", "forward", "x = self.fc(x)"]` as `path:12 in forward: x = self.fc(x)`."""
    if isinstance(frame, list) and len(frame) >= 3:
        code = f": {frame[3]}" if len(frame) > 3 and frame[3] else ""
        return f"{frame[0]}:{frame[1]} in {frame[2]}{code}"
    return str(frame)


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
        self._line([f"{call}_stack_info", [_frame_row(frame) for frame in frames]])

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


def _frame_row(frame: str) -> list[str]:
    found = _FRAME.fullmatch(frame)
    if found is None:
        return [frame, "0", "", ""]
    return [found["file"], found["line"], found["function"], found["code"] or ""]
