"""The nouns of a run, as frozen structs: what the writer puts on disk and every reader gets back."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

SCHEMA_VERSION = 1
"""Version of the on-disk layout and of every struct below; written to each manifest."""

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""A whole number as a file may have it: one that is larger is refused when the file is read."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
"""A position or a number of things in a file."""

Direction = Literal["traced", "pre_grad", "joint", "forward", "backward"]
"""`traced`: what is exported or traced without `torch.compile`, and what the program makes of it."""

Kind = Literal["graph", "pass", "ir", "code", "ops", "compile", "inputs", "outputs", "log", "failure", "note"]

Number = Annotated[int, msgspec.Meta(ge=-1, le=2**62)]
"""Of a call, a size or a count; a file in which it is larger is damaged."""

STATISTICS = {
    "Max": "max",
    "Min": "min",
    "Avg": "mean",
    "Nan": "nan",
    "Negative Inf": "negative_inf",
    "Positive Inf": "positive_inf",
    "L2norm": "l2",
}
"""What a dump of graphs can be asked for, in the order of the columns of `stats.csv`, and the field of `TensorStats`.

A new one is a field, a row here, and a sum and its merge in `native/stats.h`, `stats_numpy` and `tensor_stats`.
"""


def keep_on_one_line(record: msgspec.Struct, *fields: str) -> None:
    """Spell out the line ends in names of a record: one from a file of somebody else could forge a line of output."""
    for field in fields:
        text = getattr(record, field)
        if text and "\n" in text:
            msgspec.structs.force_setattr(record, field, text.replace("\n", "\\n"))


class Where(msgspec.Struct, frozen=True, omit_defaults=True):
    """The address of a fact.

    Attributes:
        rank: distributed rank, 0 in a single process.
        model: `N` of the folder `model__N`; None for facts of the whole run.
        compile_id: torch's compile id, e.g. `"0/1"` (frame 0, second compile); None when there is none.
        direction: which graph of the model; None for facts of the whole model.
        piece: of a model whose backend cuts Dynamo's graph and compiles the pieces one by one: which of them; None for
            the first, and for a graph that is compiled whole.
        phase: which stage of the compiler spoke: `dynamo`, `aot`, `pre_grad_passes`, `joint_passes`,
            `post_grad_passes`, `lowering`, `codegen`, `run`, or a name given to `observe_pass`.
        pass_name: the pass, for kinds `pass` and `failure`.
        subgraph: attribute name of the nested graph module the pass ran on; None for the graph itself.
        step: call index of the compiled graph, for facts taken while it ran.
    """

    rank: Int64 = 0
    model: Int64 | None = None
    compile_id: str | None = None
    direction: Direction | None = None
    phase: str | None = None
    pass_name: str | None = None
    subgraph: str | None = None
    step: Int64 | None = None
    piece: Int64 | None = None

    def __post_init__(self) -> None:
        keep_on_one_line(self, "compile_id", "phase", "pass_name", "subgraph")

    @property
    def graph(self) -> str:
        """The graph of the model that it is about: `forward`, or `piece_1/forward`; empty for the whole model."""
        parts = (None if self.piece is None else f"piece_{self.piece}", self.direction)
        return "/".join(part for part in parts if part)


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

    seq: Int64
    time_ns: Int64
    where: Where
    kind: Kind
    name: str
    changed: bool | None = None
    path: str | None = None
    size_bytes: Int64 | None = None
    digest: str | None = None
    before: str | None = None
    elapsed_ns: Int64 | None = None
    nodes_before: Int64 | None = None
    nodes_after: Int64 | None = None
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    subsystem: str | None = None
    message: str | None = None

    def __post_init__(self) -> None:
        keep_on_one_line(self, "name", "subsystem")


class GraphArgument(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of a node's arguments that JSON has no form of its own for: a node, a constant, or a sequence.

    Attributes:
        node: name of the node whose value it is; empty for all others.
        text: a constant as Python writes it, e.g. `torch.float32`; empty for all others.
        kind: of a sequence: `list`, `tuple`, `slice`, `dict`, or the class of a named tuple.
        items: of a sequence, what is in it.
        keys: of a `dict`, the keys of the items.
    """

    node: str = ""
    text: str = ""
    kind: str = "list"
    items: tuple[GraphArgument | str | Int64 | float | bool | None, ...] = ()
    keys: tuple[str, ...] = ()


Argument = GraphArgument | str | int | float | bool | None
"""What a node is given: plain constants are themselves."""


class NodeValue(msgspec.Struct, frozen=True, omit_defaults=True):
    """A value that a node gives.

    Attributes:
        dtype: torch's name without the prefix; of a number `bool`, `int64` or `float64`; empty where it is not known.
        shape: sizes, symbols as text; None for what is no tensor.
        strides: in elements, symbols as text; empty where they are not known.
        device: `cpu`, `cuda:0`; empty where it is not known.
        text: what is shown in its place, for what is no plain tensor: `Sym(s0)`, `DTensor(f32[2])`.
    """

    dtype: str = ""
    shape: tuple[Int64 | str, ...] | None = None
    strides: tuple[Int64 | str, ...] = ()
    device: str = ""
    text: str = ""


class NodeSource(msgspec.Struct, frozen=True, omit_defaults=True):
    """The line of the program that a node stems from, and the path of the module whose code it is in."""

    file: str = ""
    line: Int64 = 0
    function: str = ""
    code: str = ""
    module: str = ""

    @property
    def place(self) -> str:
        """`x.py:12`; empty when it is not known."""
        return f"{self.file}:{self.line}" if self.file else ""


class NodeTarget(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node calls.

    Attributes:
        name: as torch prints it, e.g. `torch.ops.aten.mm.default`; a method's name; the path of a module or attribute.
        labels: names of the arguments in the operator's schema, in order.
        module: class of the module that is called.
    """

    name: str
    labels: tuple[str, ...] = ()
    module: str = ""


class NodeFacts(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A node of a graph.

    Attributes:
        name: in its graph; others refer to it by that.
        op: torch's word: `placeholder`, `get_attr`, `call_function`, `call_method`, `call_module`, `output`.
        args, kwargs: what it is given.
        values: what it gives, in order; empty where that is not known.
        several: whether it gives a tuple or list of them.
    """

    name: str
    op: str
    args: tuple[GraphArgument | str | Int64 | float | bool | None, ...] = ()
    kwargs: dict[str, GraphArgument | str | Int64 | float | bool | None] = {}
    values: tuple[NodeValue, ...] = ()
    several: bool = False


class NodeLine(NodeFacts, frozen=True, omit_defaults=True, kw_only=True):
    """A node as `graphs.jsonl` has it: target and source by their position among all of the file."""

    target: Count
    source: Count | None = None


class GraphRuns(msgspec.Struct, frozen=True):
    """One graph of a file: its path, e.g. `GraphModule/true_graph_0`, and its nodes as runs of `(first, count)`."""

    path: str
    nodes: tuple[tuple[Count, Count], ...]


class GraphsLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of `graphs.jsonl`: the graphs of one file, and what no line before it has.

    Targets, sources and nodes are numbered from 0 through the file, each written once.

    Attributes:
        path: of the file that shows the graphs as text, relative to the run's `graphprobe` folder.
        graphs: the graph first, then those nested in it.
    """

    path: str
    graphs: tuple[GraphRuns, ...]
    targets: tuple[NodeTarget, ...] = ()
    sources: tuple[NodeSource, ...] = ()
    nodes: tuple[NodeLine, ...] = ()


class CompileFacts(msgspec.Struct, omit_defaults=False):
    """`compile.json`. Timings in milliseconds; `reason` says in words why this compile took place.

    `ops` counts the calls of Dynamo's graph, nested graphs included; `begins` is where in the program the first stands,
    or, of a module all of whose code is torch's, the call of it. `settings`: those of torch's compilers that were not
    at their defaults when the backend began, mode and options of `torch.compile` included, by name.
    """

    schema: Int64 = 1
    compile_id: str | None = None
    function: str | None = None
    file: str | None = None
    line: Int64 | None = None
    backend: str | None = None
    mode: str | None = None
    reason: str = ""
    recompile_reason: str | None = None
    restart_of: Int64 | None = None
    graph_break: dict[str, str | list[str] | None] | None = None
    caches_bypassed: list[str] = []
    guards: list[dict[str, Any]] = []
    timings_ms: dict[str, float] = {}
    failure: str | None = None
    nodes: Int64 | None = None
    ops: Int64 | None = None
    begins: str | None = None
    settings: dict[str, str] = {}
    notes: list[str] = []


class CompilerSettings(msgspec.Struct):
    """`compiler_settings.json`: the settings of torch's compilers as the first compile found them, by name, as text."""

    schema: Int64 = 1
    torch: str = ""
    settings: dict[str, str] = {}


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

    count: Int64
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    std: float | None = None
    l2: float | None = None
    nan: Int64 = 0
    positive_inf: Int64 = 0
    negative_inf: Int64 = 0
    zeros: Int64 = 0
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

    schema: Int64 = SCHEMA_VERSION
    state: Literal["running", "finished", "failed"] = "running"
    graphprobe: str
    torch: str | None = None
    python: str
    platform: str
    argv: list[str]
    cwd: str
    pid: Int64
    parent_pid: Int64
    rank: Int64 = 0
    world_size: Int64 = 1
    host: str = ""
    env: dict[str, str] = {}
    devices: list[str] = []
    settings: dict[str, SettingValue] = {}
    caches_bypassed: list[str] = []
    taps: dict[str, str] = {}
    started_ns: Int64
    ended_ns: Int64 | None = None
    exception: str | None = None
    predicted_bytes: Int64 | None = None
    collected_files: Int64 = 0
    collected_bytes: Int64 = 0
    models: Int64 = 0
    missing: list[str] = []
    notes: list[str] = []
