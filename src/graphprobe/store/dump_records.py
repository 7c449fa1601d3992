"""The nouns of an op dump, as structs, with the names of its files and folders: TorchAir's tree."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np

from graphprobe.records import Direction, Number, TensorMeta, TensorStats
from graphprobe.store.calls import WrittenSlot
from graphprobe.store.files import claim_folder, seconds_from
from graphprobe.store.manifest import DumpedManifest

DUMP_SCHEMA = 1
"""Version of the files of a dump; `docs/formats/dump.md` describes it."""

Engine = Literal["kernel", "interpreter", "eager"]
Side = Literal["input", "output"]

Buffer: TypeAlias = bytes | bytearray | memoryview | np.ndarray[Any, Any]
Data: TypeAlias = Buffer | Callable[[], Buffer]

INDEX = "ops.jsonl"
STATS = "stats.csv"

_MAX_MODEL_BYTES = 128
_MAX_TYPE_BYTES = 64
_MAX_OP_BYTES = 96
"""With the slot that `convert` adds, a file name stays below the 255 bytes that file systems take."""


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


class DumpRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One execution of one op: a line of `ops.jsonl`, and the same in the header of its file.

    Attributes:
        seq: position in the dump of this process, from 0, in the order of submission. A gap is an op not written.
        time_us: wall clock when it was handed in, microseconds since the epoch.
        file: relative to the time folder, `/`-separated; the `stats.csv` where only statistics were kept.
        stream_id: of the device, 0 for the CPU.
        slots: the tensors in order, and behind them the other arguments. Values on disk are row-major, and those of a
            dtype that safetensors lacks are raw little-endian bytes, with the item size as one more dimension.
        notes: what a reader should know, e.g. that a value was cut or is an alias of another.
    """

    seq: Number
    time_us: Number
    op: OpInfo
    place: Place
    file: str
    stream_id: int = 0
    slots: tuple[WrittenSlot, ...] = ()
    notes: tuple[str, ...] = ()


class DumpValue(NamedTuple):
    """One tensor as an engine hands it in.

    Attributes:
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


class DumpManifest(DumpedManifest, kw_only=True):
    """`manifest.json` of a dump of compiled graphs.

    Attributes:
        dump_schema: version of the files; its presence says that this is a dump.
        engine: of the plan; each record names the one that spoke.
        statistics: columns of `stats.csv` that are filled.
        ops: executions written. `collected_files` and `collected_bytes` count files and bytes.
        queue_bytes, queue_ops: bounds of the queue; 0 bytes is no queue, each op is written before the program goes on.
    """

    called = "a dump"
    version = "dump_schema", DUMP_SCHEMA

    dump_schema: int
    engine: str
    statistics: list[str] = msgspec.field(default_factory=list)
    ops: int = 0
    queue_bytes: int = 0
    queue_ops: int = 0


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


def rank_folder(world_size: int, rank: int) -> str:
    """`worldsize2_global_rank0`."""
    return f"worldsize{world_size}_global_rank{rank}"


def data_folder(place: Place) -> str:
    """`<device_id>/<model_name>/<model_id>/<data_index>`, relative to the time folder."""
    return f"{place.device_id}/{folder_name_from_model(place.model_name)}/{place.model_id}/{place.data_index}"


def op_file(op_type: str, op_name: str, seq: int, time_us: int) -> str:
    """`<op_type>.<op_name>.<seq>.<timestamp>`; `seq` alone keeps the files of a dump apart.

    Launch `mm.2` is `mm-2`: `mm_2` would be the name of a node, which it need not compute.
    """
    return f"{_op_stem(op_type, op_name)}.{seq}.{time_us}"


@functools.lru_cache(maxsize=4096)
def _op_stem(op_type: str, op_name: str) -> str:
    kind = _shortened(re.sub(r"[^A-Za-z0-9_-]", "_", op_type), _MAX_TYPE_BYTES)
    name = _shortened(re.sub(r"[^A-Za-z0-9_-]", "_", op_name.replace(".", "-")), _MAX_OP_BYTES)
    return f"{kind}.{name}"


def folder_name_from_model(model_name: str) -> str:
    """`model_name` with `_` for each `.`, `/`, `\\`, space, and anything else that is hostile in a path.

    Letters and digits of any script and `_ - + = @ , #` stay; a `-` in front does not, and a long name is cut and gets
    a digest of the whole. Two models that come out alike differ in their ids.
    """
    return _shortened(re.sub(r"[^\w\-+=@,#]|^-", "_", model_name), _MAX_MODEL_BYTES)


def claim_time_folder(dump_path: Path, *, world_size: int, rank: int, started: datetime) -> Path:
    """Make the time folder of this process, `20240131120000`: of the next second that nobody has, from `started` on.

    Raises:
        OSError: `dump_path` does not exist or cannot be written to.
    """
    parent = dump_path / rank_folder(world_size, rank)
    parent.mkdir(exist_ok=True)
    return claim_folder(parent, (f"{time:%Y%m%d%H%M%S}" for time in seconds_from(started)))


def _shortened(name: str, max_bytes: int) -> str:
    """`name` in at most so many bytes of UTF-8; one that had to be cut ends in a digest of the whole."""
    data = name.encode("utf-8")
    if len(data) <= max_bytes:
        return name or "unnamed"
    digest = blake2b(data, digest_size=4).hexdigest()
    return f"{data[: max_bytes - 9].decode('utf-8', 'ignore')}-{digest}"
