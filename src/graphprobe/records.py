"""The nouns of a run, as frozen structs: what the writer puts on disk and every reader gets back."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

SCHEMA_VERSION = 1
"""Version of the on-disk layout and of every struct below; written to each manifest."""

Direction = Literal["pre_grad", "joint", "forward", "backward"]
Kind = Literal["graph", "pass", "ir", "code", "ops", "compile", "inputs", "outputs", "log", "failure", "note"]


class Where(msgspec.Struct, frozen=True, omit_defaults=True):
    """The address of a fact.

    Attributes:
        rank: distributed rank, 0 in a single process.
        model: `N` of the folder `model__N`; None for facts of the whole run.
        compile_id: torch's compile id, e.g. `"0/1"` (frame 0, second compile); None when there is none.
        direction: which graph of the model; None for facts of the whole model.
        phase: which stage of the compiler spoke: `dynamo`, `aot`, `pre_grad_passes`, `joint_passes`,
            `post_grad_passes`, `lowering`, `codegen`, `run`, or a name given to `observe_pass`.
        pass_name: the pass, for kinds `pass` and `failure`.
        subgraph: attribute name of the nested graph module the pass ran on; None for the graph itself.
        step: call index of the compiled graph, for facts taken while it ran.
    """

    rank: int = 0
    model: int | None = None
    compile_id: str | None = None
    direction: Direction | None = None
    phase: str | None = None
    pass_name: str | None = None
    subgraph: str | None = None
    step: int | None = None


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of `events.jsonl`: something happened, and perhaps a file holds it.

    Attributes:
        seq: position in the run, from 0, without gaps.
        time_ns: wall clock, nanoseconds since the epoch.
        where: the address.
        kind: what sort of fact.
        name: the artifact's short name, e.g. `aot_forward_graph`, or the pass.
        changed: for passes, whether the graph differs from the one before; None where it has no meaning.
        path: file, relative to the run's `graphprobe` folder, `/`-separated; None when nothing was written.
        size_bytes: size of that file.
        digest: BLAKE2b-128 of the file's bytes, hexadecimal.
        before: for passes, the file that holds the graph as it was when the pass began.
        elapsed_ns: how long the pass or stage took.
        nodes_before, nodes_after: node counts around a pass.
        added, removed: names of nodes the pass made and dropped.
        subsystem: the compiler's own group name for the pass, if it has one.
        message: for failures and notes, the text.
    """

    seq: int
    time_ns: int
    where: Where
    kind: Kind
    name: str
    changed: bool | None = None
    path: str | None = None
    size_bytes: int | None = None
    digest: str | None = None
    before: str | None = None
    elapsed_ns: int | None = None
    nodes_before: int | None = None
    nodes_after: int | None = None
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    subsystem: str | None = None
    message: str | None = None


Number = Annotated[int, msgspec.Meta(ge=-1, le=2**62)]
"""Of a call, a size or a count; a file in which it is larger is damaged."""


class TensorMeta(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What a tensor is, without its values.

    Attributes:
        dtype: torch's name without the prefix: `float32`, `bfloat16`, `float8_e4m3fn`, `bool`, `complex64`.
        shape: sizes; `()` for a 0-d tensor.
        strides: in elements.
        device: `cpu`, `cuda:0`.
    """

    dtype: str
    shape: tuple[Number, ...]
    strides: tuple[Number, ...] = ()
    device: str = "cpu"


class TensorStats(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Statistics of one tensor, computed in one pass; `docs/metrics.md` has the definitions.

    Of complex numbers the magnitude counts. Without any finite element the five floats are None.

    Attributes:
        count: elements; two to a byte for packed 4-bit floats.
        min, max, mean, std: of the finite elements; `std` is that of the population. 64-bit integers are rounded to
            float64, and -0 is given as 0.
        l2: root of the sum of squares of the finite elements; infinite beyond float64.
        nan, positive_inf, negative_inf, zeros: how many elements are so.
        digest: positional and sensitive to the sign of zero and to the payload of NaN, 16 hexadecimal digits; equal
            for equal bits in equal logical order, whatever the strides. Shape and dtype do not enter.
    """

    count: int
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    std: float | None = None
    l2: float | None = None
    nan: int = 0
    positive_inf: int = 0
    negative_inf: int = 0
    zeros: int = 0
    digest: str = ""


class SettingValue(msgspec.Struct, frozen=True):
    """A setting as it was in force, and who set it: `argument`, `context`, `file:<path>`, `env:<NAME>`, `default`."""

    value: str | int | float | bool | None
    source: str


class Manifest(msgspec.Struct, omit_defaults=True, kw_only=True):
    """`manifest.json`: what ran, with what, and how it ended. Rewritten atomically whenever a field changes.

    `state` is `running` until the run is closed; a manifest that still says so belongs to a process that is alive or
    was killed. `collected` counts files and bytes; `missing` says in words what should be there and is not (budget
    reached, disk full, observer failed), one entry a cause.
    """

    schema: int = SCHEMA_VERSION
    state: Literal["running", "finished", "failed"] = "running"
    graphprobe: str
    torch: str | None = None
    python: str
    platform: str
    argv: list[str]
    cwd: str
    pid: int
    parent_pid: int
    rank: int = 0
    world_size: int = 1
    host: str = ""
    env: dict[str, str] = {}
    devices: list[str] = []
    settings: dict[str, SettingValue] = {}
    caches_bypassed: list[str] = []
    taps: dict[str, str] = {}
    started_ns: int
    ended_ns: int | None = None
    exception: str | None = None
    predicted_bytes: int | None = None
    collected_files: int = 0
    collected_bytes: int = 0
    models: int = 0
    missing: list[str] = []
    notes: list[str] = []
