"""What an API dump has on disk, as structs: one line a call, statistics inline, values by name in a shard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from graphprobe.records import Number, TensorMeta, TensorStats
from graphprobe.store.calls import CallDirection, CallKind, CompiledRegion, Holder, Scalar, SlotRole
from graphprobe.store.dump_dtypes import Array
from graphprobe.store.manifest import DumpedManifest

API_SCHEMA = 1
"""Version of the files of an API dump; `docs/formats/api_dump.md` describes it."""

CALLS = "calls.jsonl"
STACKS = "stacks.jsonl"
VALUES = "values"
RANK_PREFIX = "rank"
STEP_PREFIX = "step"

DumpData = Literal["stats", "tensor"]
DumpLevel = Literal["api", "module", "mix"]
DumpMode = Literal["all", "list", "range", "stack"]


class ApiSlot(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One argument or result of a call, as `store.calls.CallSlot` has it.

    Attributes:
        name, role, meta, stats, scalar, sampled, missing: as in `CallSlot`.
        value: `<shard>:<name in it>`; empty when no values are kept.
        requires_grad: of the tensor, for readers that want to run the call again.
        held: of an input: `parameter`, `buffer`, or `leaf` (it requires a gradient, and no operation gave it).
    """

    name: str
    role: SlotRole
    meta: TensorMeta | None = None
    stats: TensorStats | None = None
    scalar: Scalar | None = None
    value: str = ""
    sampled: bool = False
    missing: str = ""
    requires_grad: bool = False
    held: Holder = ""


class ApiRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """One call: a line of `calls.jsonl`. The step and the rank are those of the folder.

    Attributes:
        position, kind, api, label, direction, index, module, source, slots, notes, compiled: as in `store.calls.Call`.
        stack: number of a line in `stacks.jsonl`; None without one.
        thread: name of the thread, empty for the one that began the dump.
    """

    position: Number
    kind: CallKind
    api: str
    label: str
    direction: CallDirection = "forward"
    index: Number = -1
    module: str = ""
    source: str = ""
    stack: int | None = None
    thread: str = ""
    slots: tuple[ApiSlot, ...] = ()
    notes: tuple[str, ...] = ()
    compiled: CompiledRegion | None = None


class StackLine(msgspec.Struct, frozen=True):
    """A line of `stacks.jsonl`: frames as `file.py:12 in forward: x = self.fc(x)`, outermost last."""

    stack: int
    frames: tuple[str, ...]


class ApiManifest(DumpedManifest, kw_only=True):
    """`manifest.json` of an API dump.

    Attributes:
        api_dump_schema: version of the files; its presence says that this is an API dump.
        calls: records written; `collected_files` and `collected_bytes` count files and bytes.
        values: values written, each once; `value_references` counts the slots that point to one.
        steps: steps that have records.
    """

    api_dump_schema: int
    calls: int = 0
    values: int = 0
    value_references: int = 0
    steps: list[int] = msgspec.field(default_factory=list)


def step_folder(step: int) -> str:
    """`step3`, below the folder of the rank."""
    return f"{STEP_PREFIX}{step}"


def rank_folder(rank: int) -> str:
    """`rank0`, below the folder of the dump."""
    return f"{RANK_PREFIX}{rank}"


def shard_file(number: int) -> str:
    """`values/000003.safetensors`, below the folder of the rank."""
    return f"{VALUES}/{number:06d}.safetensors"


class Handed:
    """Values that were handed in, as the slots that have them know them.

    `name` is equal for equal bits, dtype and count. Where the digest comes from a device, the writing thread sets it.
    """

    __slots__ = ("name",)

    def __init__(self, name: str | None) -> None:
        self.name = name


class RawValue(msgspec.Struct, gc=False):
    """Values of one tensor, 1-d and row-major; handed in before every call that has them.

    Attributes:
        handed: what the slots hold.
        stats: needed where the name is not known yet.
        dtype, items: of the values, and how many.
        data: their bytes, which nobody changes any more, or a function that waits for them.
        sample: step of the sample; None: all values.
        size_bytes: what they take while they wait.
    """

    handed: Handed
    stats: Callable[[], TensorStats] | None
    dtype: str
    items: int
    data: Array | Callable[[], Array]
    sample: int | None
    size_bytes: int


class RawSlot(msgspec.Struct, gc=False):
    """One argument or result of which the writing thread has yet to find something out: as `api_records.ApiSlot`.

    Never changed once it is made, so that one object may stand in several calls.
    """

    name: str
    role: SlotRole
    meta: TensorMeta | None = None
    stats: TensorStats | Callable[[], TensorStats] | None = None
    scalar: Scalar | None = None
    payload: Handed | None = None
    sampled: bool = False
    missing: str = ""
    requires_grad: bool = False
    held: Holder = ""


Slot = ApiSlot | RawSlot


class Head(msgspec.Struct, gc=False):
    """What a backward has in common with its forward: as in `ApiRecord`, but `number` is its `index`.

    `label` lacks the direction, and `thread` is the forward's.
    """

    step: int
    kind: CallKind
    api: str
    label: str
    number: int
    module: str
    source: str
    stack: tuple[str, ...]
    thread: str


class RawCall(msgspec.Struct, gc=False):
    """One call. Its position is given where it is written, so that it is the order of the file.

    `size_bytes` is what it takes while it waits. A struct is made in a third of the time of a named tuple, and the
    garbage collector need not look at it.
    """

    head: Head
    direction: CallDirection
    thread: str
    slots: Sequence[Slot]
    notes: tuple[str, ...]
    size_bytes: int
    compiled: CompiledRegion | None = None

    @property
    def label(self) -> str:
        """Of the record."""
        return f"{self.head.label}.{self.direction}"


def value_name(digest: str, dtype: str, count: int, *, sample: int | None = None) -> str:
    """Equal for values of equal bits; `sample` is the step of a sample, None for all values."""
    return f"{digest}.{dtype}.{count}" if sample is None else f"{digest}.{dtype}.{count}.every{sample}"
