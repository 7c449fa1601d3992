"""Calls in program order with their slots, as readers of every format return them, and as an API dump has them."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from typing import Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from graphprobe.errors import GraphprobeError
from graphprobe.numerics.stats import stats_from_memory
from graphprobe.records import Number, TensorMeta, TensorStats, keep_on_one_line
from graphprobe.store.manifest import DumpedManifest

CallKind = Literal["api", "module", "optimizer", "node", "kernel", "value"]
"""`value` is a line of a format that tells no kind."""
CallDirection = Literal["forward", "backward"]
SlotRole = Literal["input", "output", "parameter", "buffer", "grad_input", "grad_output", "grad_parameter"]
"""`grad_output`: with respect to an output, so an input of a backward; `grad_input`: with respect to an input."""

Holder = Literal["", "parameter", "buffer", "leaf"]
"""What keeps a tensor between calls: a module as a parameter or buffer, or the program as a leaf with a gradient."""

DumpData = Literal["stats", "tensor"]
DumpLevel = Literal["api", "module", "mix"]
DumpMode = Literal["all", "list", "range", "stack"]

API_SCHEMA = 1
"""Version of the files of an API dump; `docs/formats/api_dump.md` describes it."""

CALLS = "calls.jsonl"
STACKS = "stacks.jsonl"
VALUES = "values"
RANK_PREFIX = "rank"
STEP_PREFIX = "step"

COMPILED = "compiled: what runs inside is one record; a graph dump shows it"
"""Note of a call of compiled code."""

FIRST_CALLS = 64
"""Calls by which it is told what a dump has."""


@functools.lru_cache(maxsize=4096)
def shape_problem(shape: tuple[int, ...]) -> str:
    """Why no tensor has the shape that a file claims; empty for one that can be. -1 is a symbolic size."""
    if math.prod(shape) < 2**62 and all(size >= -1 for size in shape):
        return ""
    return f"its shape is {list(shape)}, which none has"


class Scalar(msgspec.Struct, frozen=True, gc=False):
    """An argument that is no tensor: the name of its type, and its `repr`, in which a number is exact."""

    type: str
    text: str


class CallSlot(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """One argument or result of a call.

    Attributes:
        name: `input.0`, `input.2.1` (second of the list in third place), `kwarg.bias`, `output.0`, `parameter.weight`,
            `grad_input.0`, `grad_kwarg.bias`, `grad_output.0`, `grad_parameter.weight`. `grad_input.node.0` is what
            leaves the last autograd node of the call, which is a gradient of an argument only where there is one node.
        role: what it is to the call.
        meta: dtype, shape, strides, device; None for an argument that is no tensor.
        stats: as far as the dump has them; of a format without counts of NaN and Inf those are 0 and `known` lacks
            them.
        known: names of the fields of `stats` that the dump really has.
        digest: equal digests are equal bits, within one dump and between dumps of equal `digest_kind`; empty if none.
        digest_kind: how it was computed: `graphprobe`, `crc32`, `md5`; empty if there is none.
        scalar: for an argument that is no tensor.
        value: an opaque handle for `CallDump.values`; empty when the dump has no values of it.
        sampled: whether the values are a sample of the elements, so that they cannot be laid out in `meta.shape`.
        missing: why there are no values where there should be some.
        requires_grad: of the tensor; None where the dump does not tell.
        held: of an input, what keeps it between calls; empty: nothing that is known, so it is data, or the result of
            something that was not recorded; None where the dump does not tell.
    """

    name: str
    role: SlotRole
    meta: TensorMeta | None = None
    stats: TensorStats | None = None
    known: tuple[str, ...] = ()
    digest: str = ""
    digest_kind: str = ""
    scalar: Scalar | None = None
    value: str = ""
    sampled: bool = False
    missing: str = ""
    requires_grad: bool | None = None
    held: Holder | None = None

    def __post_init__(self) -> None:
        if "\n" in self.name:
            keep_on_one_line(self, "name")


class CompiledRegion(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """What the record of compiled code tells of its inside.

    Attributes:
        autocast: as it was in force when the code began: `cpu bfloat16`, one for each type of device.
        dtypes: in which the code computes: those of the floating-point values in the graphs that torch traced of it,
            and what the settings of torch let products of float32 be computed in (`tfloat32`, `bfloat16`).
        unknown: why there may be others; empty if there are none.
        unsteady: operations inside that turn floating-point values into whole numbers or truth values (`topk`, a
            comparison), so that rounding may change results altogether.
        draws: random numbers were drawn, as far as torch's own generators tell.
        operations: how many there are in the largest graph.
    """

    autocast: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    unknown: str = ""
    unsteady: tuple[str, ...] = ()
    draws: bool = False
    operations: int = 0


class CalledApi(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """What was called, and where: one call of an API, run of a module, step of an optimizer, or op of a compiled graph.

    Attributes:
        position: in its dump and rank, from 0, in the order of execution.
        kind: what was called.
        api: what was called, independent of the run: `torch.nn.functional.linear`, `torch.Tensor.add_`, the class
            name of a module, the operator of a graph's node.
        label: its name in the dump, unique within rank and step: `linear.3.forward`, `1478_Tensor_permute_forward`.
        direction: a backward belongs to the forward call of the same `api` and `index`.
        index: how many calls of the same kind and `api` came before in its step; -1 where the dump does not tell.
        module: path of the innermost module that was running, e.g. `layers.3.attention`; of a module its own path.
        source: `file.py:12`, the line of the program; empty if the dump has no stacks.
    """

    position: Number
    kind: CallKind
    api: str
    label: str
    direction: CallDirection = "forward"
    index: Number = -1
    module: str = ""
    source: str = ""


class Call(CalledApi, frozen=True, kw_only=True):
    """One call, as readers return it.

    Attributes:
        step: training step, 0 where nobody counts.
        rank: of the process.
        stack: outermost frame last: `file.py:12 in forward: x = self.fc(x)`.
        slots: in the order of the signature.
        notes: what a reader should know.
        compiled: of the forward of compiled code; None for other calls, and of dumps that do not tell.
    """

    step: int = 0
    rank: int = 0
    stack: tuple[str, ...] = ()
    slots: tuple[CallSlot, ...] = ()
    notes: tuple[str, ...] = ()
    compiled: CompiledRegion | None = None

    @property
    def is_compiled(self) -> bool:
        """Whether it is the forward of compiled code."""
        return self.compiled is not None or COMPILED in self.notes

    @property
    def has_shard(self) -> bool:
        """Whether it got or gave a DTensor that is split, of which this rank has a part."""
        return any(note.startswith("a DTensor ") and "(S" in note for note in self.notes)

    def __post_init__(self) -> None:
        if "\n" in self.api or "\n" in self.label or "\n" in self.module or "\n" in self.source:
            keep_on_one_line(self, "api", "label", "module", "source")


class WrittenSlot(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One argument or result of a call or an op, as `CallSlot` has it.

    Attributes:
        name, role, meta, stats, scalar, sampled, missing: as in `CallSlot`; the statistics of an op are in `stats.csv`.
        value: `<shard>:<name in it>`, of an op the name in its file; empty when no values are kept.
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


class ApiRecord(CalledApi, frozen=True, kw_only=True):
    """One call: a line of `calls.jsonl`. The step and the rank are those of the folder.

    Attributes:
        slots, notes, compiled: as in `Call`.
        stack: number of a line in `stacks.jsonl`; None without one.
        thread: name of the thread, empty for the one that began the dump.
    """

    stack: int | None = None
    thread: str = ""
    slots: tuple[WrittenSlot, ...] = ()
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

    called = "an API dump"
    version = "api_dump_schema", API_SCHEMA

    api_dump_schema: int
    calls: int = 0
    values: int = 0
    value_references: int = 0
    steps: list[int] = msgspec.field(default_factory=list)


def step_folder(step: int) -> str:
    """`step3`, below the folder of the rank."""
    return f"{STEP_PREFIX}{step}"


def shard_file(number: int) -> str:
    """`values/000003.safetensors`, below the folder of the rank."""
    return f"{VALUES}/{number:06d}.safetensors"


class CallDump(Protocol):
    """One dump of one or more ranks, read as a stream.

    Attributes:
        title: how messages call it: the path that was asked for.
        format: `graphprobe-api`, `graphprobe-graph`, `ptdbg`, `msprobe`.
        facts: what it says about its run, for the head of a report: torch, device, dtype, task.
    """

    title: str
    format: str
    facts: dict[str, str]

    def ranks(self) -> tuple[int, ...]:
        """The ranks it has, ascending."""
        ...

    def steps(self, rank: int) -> tuple[int, ...]:
        """The steps of a rank, ascending."""
        ...

    def calls(self, rank: int, step: int) -> Iterator[Call]:
        """The calls of one step in the order of execution, read as they are asked for."""
        ...

    def values(self, call: Call, slot: CallSlot) -> npt.NDArray[np.generic]:
        """Values of a slot that has a `value`: of the tensor's shape unless `sampled`, row-major, possibly mapped.

        A dtype that numpy lacks comes as unsigned integers of its item size; `slot.meta.dtype` says which it is.

        Raises:
            ArtifactNotFoundError: the values are gone or cut off.
        """
        ...

    def problems(self) -> tuple[str, ...]:
        """What could not be read so far, and what the dump itself says is missing, in words."""
        ...


class WithStatistics:
    """A `CallDump` whose slots have statistics wherever it has these or whole values: computed as they are read."""

    def __init__(self, dump: CallDump, *, most_bytes: float = math.inf) -> None:
        """`most_bytes`: of values, as float64, that are read; `unread` says whether there were more."""
        self.title, self.format, self.facts = dump.title, dump.format, dump.facts
        self.ranks, self.steps, self.values = dump.ranks, dump.steps, dump.values
        self.unread = False
        self._dump, self._left = dump, most_bytes
        self._problems: dict[str, None] = {}

    def calls(self, rank: int, step: int) -> Iterator[Call]:
        return map(self.filled, self._dump.calls(rank, step))

    def filled(self, call: Call) -> Call:
        """One call of the dump, with them."""
        return msgspec.structs.replace(call, slots=tuple(self._filled(call, slot) for slot in call.slots))

    def problems(self) -> tuple[str, ...]:
        return (*self._dump.problems(), *self._problems)

    def _filled(self, call: Call, slot: CallSlot) -> CallSlot:
        told = slot.stats is not None and (not slot.known or "max" in slot.known or "nan" in slot.known)
        if told or not slot.value or slot.sampled or slot.meta is None:
            return slot
        size_bytes = math.prod(slot.meta.shape) * 8
        if size_bytes > self._left:
            self.unread = True
            return slot
        self._left -= size_bytes
        try:
            values = np.ascontiguousarray(self._dump.values(call, slot))
            stats = stats_from_memory(values.ctypes.data, slot.meta.dtype, slot.meta.shape)
        except (GraphprobeError, OSError, ValueError) as error:
            self._problems[str(error)] = None
            return slot
        digest, kind = slot.digest or stats.digest, slot.digest_kind or "graphprobe"
        return msgspec.structs.replace(
            slot, stats=stats, known=TensorStats.__struct_fields__, digest=digest, digest_kind=kind
        )


def with_statistics(dump: CallDump) -> CallDump:
    """The dump; where it has values alone, with statistics and digests, which tell what came of which call."""
    calls = (call for rank in dump.ranks() for step in dump.steps(rank) for call in dump.calls(rank, step))
    slots = [slot for call in itertools.islice(calls, FIRST_CALLS) for slot in call.slots]
    values_alone = any(slot.value for slot in slots) and all(slot.stats is None for slot in slots)
    return WithStatistics(dump) if values_alone else dump
