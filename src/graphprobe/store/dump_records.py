"""The nouns of an op dump, as structs: which op ran, where its values belong, what lies in each slot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np

from graphprobe.records import Direction, Manifest, Number, TensorMeta, TensorStats

DUMP_SCHEMA = 1
"""Version of the files of a dump; `docs/formats/dump.md` describes it."""

Engine = Literal["kernel", "instrument", "interpreter", "eager"]
Side = Literal["input", "output"]
WhenFull = Literal["block", "drop"]
StatName = Literal["Max", "Min", "Avg", "Nan", "Negative Inf", "Positive Inf", "L2norm"]

STAT_FIELDS: dict[StatName, str] = {
    "Max": "max",
    "Min": "min",
    "Avg": "mean",
    "Nan": "nan",
    "Negative Inf": "negative_inf",
    "Positive Inf": "positive_inf",
    "L2norm": "l2",
}
"""Column of `stats.csv` by field of `TensorStats`, in the order of the columns."""


class OpInfo(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What is the same each time an op runs; make one per op of a graph and hand it in again and again.

    Attributes:
        op_type: what it computes, e.g. `add`, `cpp_fused_relu_0`.
        op_name: its name in the graph, e.g. `add_1`, `buf3`.
        engine: what ran it.
        perturbs: whether the engine changes what the program computes, be it by rounding.
        target: the operator in full, e.g. `aten.add.Tensor`.
        source: `file.py:12`, the line of the program it stems from.
        module: path of the module it stems from, e.g. `layers.3.attention`.
        fx_nodes: names of the FX nodes that it carries out.
        direction: which graph of the model.
    """

    op_type: str
    op_name: str
    engine: Engine
    perturbs: bool
    target: str = ""
    source: str = ""
    module: str = ""
    fx_nodes: tuple[str, ...] = ()
    direction: Direction | None = None


class Place(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Which folder an execution belongs to; make one per call of a graph.

    Attributes:
        model_name: as the user knows it; made safe for the folder only.
        model_id: number of the compiled graph.
        data_index: the step when the plan selects steps, else a counter of the dumped calls from 0.
        device_id: index of the device, 0 for the CPU.
        step: the step itself, None where nobody counts.
    """

    model_name: str
    model_id: Number
    data_index: Number
    device_id: Number = 0
    step: Number | None = None


class Argument(msgspec.Struct, frozen=True, omit_defaults=True):
    """An argument that is no tensor: its slot, the name of its type, and its `repr`, in which a number is exact."""

    name: str
    type: str
    text: str


class Slot(msgspec.Struct, frozen=True, omit_defaults=True):
    """One tensor that an op read or wrote.

    Attributes:
        name: `input.0`, `input.2.1` (second of the list that is the third argument), `kwarg.bias`, `output.0`.
        side: whether it was read or written.
        meta: dtype, shape, strides and device of the tensor in the program. The values on disk are row-major.
        stored: the dtype in the safetensors file. `U8` for another dtype means raw little-endian bytes, with the item
            size as one more dimension. None when the file holds no values of it.
        size_bytes: of the values in the file.
        missing: why there are no values where there should be some.
    """

    name: str
    side: Side
    meta: TensorMeta
    stored: str | None = None
    size_bytes: Number = 0
    missing: str = ""


class DumpRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One execution of one op: a line of `ops.jsonl`, and the same in the header of its file.

    Attributes:
        seq: position in the dump of this process, from 0, in the order of submission. A gap is an op not written.
        time_us: wall clock when it was handed in, microseconds since the epoch.
        file: relative to the time folder, `/`-separated; the `stats.csv` where only statistics were kept.
        stream_id: of the device, 0 for the CPU.
        slots: the tensors, in order.
        arguments: the other arguments, in order.
        notes: what a reader should know, e.g. that a value was cut or is an alias of another.
    """

    seq: Number
    time_us: Number
    op: OpInfo
    place: Place
    file: str
    stream_id: int = 0
    slots: tuple[Slot, ...] = ()
    arguments: tuple[Argument, ...] = ()
    notes: tuple[str, ...] = ()


Buffer: TypeAlias = bytes | bytearray | memoryview | np.ndarray[Any, Any]
Data: TypeAlias = Buffer | Callable[[], Buffer]


class DumpValue(NamedTuple):
    """One tensor as an engine hands it in.

    Attributes:
        name: of the slot, see `dump_slots`.
        side: read or written.
        meta: as in the program.
        data: the values in row-major order, little-endian: a C-contiguous buffer that nobody changes until it is
            written, or a function that the writing thread calls to get one (to wait for a copy from a device). None
            keeps no values.
        stats: the statistics for `stats.csv`, or a function that the writing thread calls for them.
    """

    name: str
    side: Side
    meta: TensorMeta
    data: Data | None = None
    stats: TensorStats | Callable[[], TensorStats] | None = None


class DumpManifest(Manifest, kw_only=True):
    """`manifest.json` of a dump: that of a run, with what concerns a dump.

    Attributes:
        dump_schema: version of the files; its presence says that this is a dump.
        engine: of the plan; each record names the one that spoke.
        plan: the plan as it was in force, for people.
        statistics: columns of `stats.csv` that are filled.
        ops: executions written. `collected_files` and `collected_bytes` count files and bytes.
        stopped: why dumping ended before the program did, e.g. because the budget was reached.
        when_full: what happens when the queue has no room: the program waits, or the op is dropped.
        queue_bytes, queue_ops: bounds of the queue; 0 bytes is no queue, each op is written before the program goes on.
        queue_peak_bytes: the most that was in it.
        blocked_ns: how long the program waited for room in the queue, in all.
    """

    dump_schema: int
    engine: str
    plan: dict[str, Any]
    statistics: list[str] = msgspec.field(default_factory=list)
    ops: int = 0
    stopped: str | None = None
    when_full: WhenFull = "block"
    queue_bytes: int = 0
    queue_ops: int = 0
    queue_peak_bytes: int = 0
    blocked_ns: int = 0


def view_from_buffer(buffer: Buffer) -> memoryview:
    """The bytes of `buffer`, 1-d, without a copy.

    Raises:
        ValueError: it is not C-contiguous, or big-endian.
    """
    if isinstance(buffer, np.ndarray):
        if not buffer.flags.c_contiguous or not buffer.dtype.isnative:
            raise ValueError(f"an array with strides {buffer.strides}, {buffer.dtype}: expected contiguous and native")
        return memoryview(buffer.reshape(-1).view(np.uint8).data)
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise ValueError(f"a buffer with strides {view.strides}: expected a contiguous one")
    return view.cast("B") if view.nbytes else memoryview(b"")


def dump_manifest_from_run(manifest: Manifest, *, engine: str, plan: dict[str, Any]) -> DumpManifest:
    """The manifest of a dump by the process that `manifest` describes; `plan` must be JSON as it stands."""
    document = msgspec.to_builtins(manifest) | {"dump_schema": DUMP_SCHEMA, "engine": engine, "plan": plan}
    return msgspec.convert(document, DumpManifest)
