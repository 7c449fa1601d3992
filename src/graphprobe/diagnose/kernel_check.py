"""Which op Inductor lowered or generated wrongly: every value of the compiled graph against the op run by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.node import map_arg

from graphprobe.diagnose.local import (
    OK,
    Checked,
    Expectation,
    LocalError,
    Suspect,
    certainly_wrong,
    comparable,
    local_error,
)
from graphprobe.diagnose.passes import different
from graphprobe.engine.forked_child import doing
from graphprobe.engine.interpret import GraphRun, copied_together, flat_outputs, run_graph
from graphprobe.engine.memory import size_of, trim
from graphprobe.engine.naming import VIEWS_AND_SUCH, op_of
from graphprobe.engine.rounding import FAR, roundings_apart
from graphprobe.engine.subgraph import is_item, is_view, output_node, producer, showable
from graphprobe.engine.value_file import ValueFile
from graphprobe.engine.values import equal_bits
from graphprobe.internals.inductor.lowered_graph import LoweredGraph
from graphprobe.internals.operators.operators import value_of, writes_to
from graphprobe.internals.quiet import quiet

LARGE = 1 << 27
"""Bytes of a graph's results from which on their references are kept in a file."""

OVERWRITES = "its result is put into the memory of {input}, which {reader} has still to read"
SPOILT = "the memory of {input} holds something else already when it is read"
"""What is wrong where an input is overwritten too early: of the operation that does; of the first that reads."""


@dataclass
class CompiledGraph:
    """One graph of AOTAutograd on its way through Inductor.

    Attributes:
        direction: `forward` or `backward`.
        final: after the post-grad passes, what is lowered.
        inputs: of each recorded call, before it.
        outputs: of each recorded call.
        after: inputs after each recorded call.
        shown: nodes of `final` whose values the second compilation returns.
        values: these values, for each recorded call.
        overwritten: by number, the inputs that had changed after it.
        problem: why there are none.
        lowered: what Inductor made of `final`; None where it was not watched.
        compiled: the boxed callable that runs the kernels.
        to_show: compiles `final` with its values shown; None where it was, or need not be.
        expected: what recorded calls that are wrong should give, by number.
        file: has the memory of the values that are kept.
    """

    direction: str
    final: GraphModule
    inputs: list[list[Any]] = field(default_factory=list)
    outputs: list[list[Any]] = field(default_factory=list)
    after: list[list[Any]] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    values: list[list[Any]] = field(default_factory=list)
    overwritten: list[dict[int, Any]] = field(default_factory=list)
    problem: str = ""
    lowered: LoweredGraph | None = None
    compiled: Callable[[list[Any]], Any] | None = None
    to_show: Callable[[], Callable[[list[Any]], Any] | None] | None = None
    expected: dict[int, WholeGraph] = field(default_factory=dict)
    file: ValueFile | None = None


@dataclass
class KernelReport(Checked):
    """What the check of one compiled graph found; `whole`: what is wrong with it as a whole."""

    whole: LocalError = OK


def check_graph(
    compiled: CompiledGraph, call: int, show: Callable[[LocalError], None] = lambda whole: None
) -> KernelReport:
    """Judge the recorded call number `call` of a compiled graph: as a whole, and node by node.

    `show` gets what is wrong with the whole, and sees to it that `compiled` has the values of its nodes, if it likes.
    """
    report = KernelReport()
    inputs = compiled.inputs[call]
    run = run_graph(compiled.final, inputs, file=compiled.file)
    if run.failed is not None:
        return report
    report.whole = _whole(compiled, call, run)
    trim()
    show(report.whole)
    nodes = {n.name: n for n in compiled.final.graph.nodes}
    shown: dict[str, Any] = {}
    if call < len(compiled.values):
        shown = dict(zip(compiled.shown, compiled.values[call], strict=False))
        names = [n.name if isinstance(n, Node) else None for n in _returned(compiled.final)]
        given = compiled.values[call][len(compiled.shown) :]
        shown |= {name: v for name, v in zip(names, given, strict=False) if name is not None and name not in shown}
    overwritten = _overwritten(compiled, call, run)
    readers: list[Node] = []
    for number, (name, got) in enumerate(shown.items(), 1):
        doing(f"{compiled.direction}, op {number} of {len(shown)}")
        node = nodes[name]
        made_by = producer(node)
        if node.op != "call_function" or not comparable(op_of(made_by)) or (made_by is not node and is_view(made_by)):
            continue  # what draws numbers, or only looks at memory in another way
        error = check_node(compiled.final, node, got, shown, run)
        if compiled.file is not None:
            looked_at = [known.get(n.name) for n in node.all_input_nodes for known in (shown, run.values)]
            compiled.file.release(got, *looked_at)
        if error.answer == "worse" and overwritten:
            of_what_is_left = check_node(compiled.final, node, got, shown | overwritten, run)
            if of_what_is_left.answer in ("ok", "better"):
                readers.append(made_by)
                continue
        report.note(error, node, "codegen", compiled.direction)
        if error.answer == "worse":
            report.suspects.append(Suspect("codegen", compiled.direction, compiled.final, made_by, run.values, error))
    if readers:
        report.suspects.append(_writer(compiled, call, overwritten, readers, shown, run))
    report.suspects.sort(key=lambda s: -s.error.excess)
    if report.whole.answer == "worse" and not report.suspects:
        report.suspects += _wrong_outputs(compiled, call, run)
    return report


def _overwritten(compiled: CompiledGraph, call: int, run: GraphRun) -> dict[str, Any]:
    """Inputs that the kernels have changed and the graph does not, as the kernels have left them, by name.

    The memory of an input may be used again once the input has been read for the last time.
    """
    taken, given = [n.name for n in compiled.final.graph.nodes if n.op == "placeholder"], compiled.inputs[call]
    found = compiled.overwritten[call] if call < len(compiled.overwritten) else {}
    return {taken[i]: left for i, left in found.items() if equal_bits(given[i], run.inputs[i])}


def _writer(
    compiled: CompiledGraph,
    call: int,
    overwritten: Mapping[str, Any],
    readers: Sequence[Node],
    shown: Mapping[str, Any],
    run: GraphRun,
) -> Suspect:
    """What has put its result where `readers` have read something else, or the first of these where that is not known.

    They are right about what they have read.
    """
    nodes = {n.name: n for n in compiled.final.graph.nodes}
    given = dict(zip((n.name for n in nodes.values() if n.op == "placeholder"), compiled.inputs[call], strict=False))
    read = next((n for n in _read_by(readers[0]) if n in overwritten), next(iter(overwritten)))
    memory = given[read].untyped_storage().data_ptr()
    left = [v for name, v in overwritten.items() if given[name].untyped_storage().data_ptr() == memory]
    writer = next((nodes[n] for n, got in shown.items() for v in left if equal_bits(got, v)), None)
    node, text = (producer(writer), OVERWRITES) if writer is not None else (readers[0], SPOILT)
    error = certainly_wrong("wrong_value", text.format(input=read, reader=op_of(readers[0])))
    also, others = list(dict.fromkeys(map(op_of, readers))), list(dict.fromkeys(readers))
    found = Suspect(
        "codegen", compiled.direction, compiled.final, node, run.values, error, also=also, others=others, whole=True
    )
    return replace(found, certain=found.place)


def _read_by(node: Node) -> Iterator[str]:
    """The placeholders whose memory a node reads."""
    for given in node.all_input_nodes:
        if given.op == "placeholder":
            yield given.name
        elif given.op == "call_function" and is_view(given):
            yield from _read_by(given)


def _wrong_outputs(compiled: CompiledGraph, call: int, run: GraphRun) -> list[Suspect]:
    """The first output that is wrong although no value is when it is shown: memory reused too early, say."""
    for node, got in zip(_returned(compiled.final), compiled.outputs[call], strict=False):
        if not isinstance(node, Node) or node.op != "call_function" or not different(run.values[node.name], got):
            continue
        error = certainly_wrong(
            "wrong_value", "wrong in the kernels as they are, and no single value was seen to be wrong"
        )
        suspect = Suspect("codegen", compiled.direction, compiled.final, node, run.values, error, whole=True)
        return [replace(suspect, also=[op_of(n) for n in node.all_input_nodes if n.op == "call_function"])]
    return []


def check_node(gm: GraphModule, node: Node, got: Any, shown: Mapping[str, Any], run: GraphRun) -> LocalError:
    """The local error of one node, given the compiled values of its arguments.

    A view that was not shown is taken of the value it looks at. Where a value is not known as compiled, the node is
    skipped: the uncompiled value in its place would make an inherited error look like one of its own.
    """
    interpreter = Interpreter(gm)
    rounded: list[Any] = []
    unknown: list[str] = []

    def value(n: Node) -> Any:
        if n.name in shown:
            rounded.append(shown[n.name])
            return shown[n.name]
        if n.op in ("placeholder", "get_attr") or not isinstance(value_of(n), (torch.Tensor, list, tuple)):
            return run.values.get(n.name)
        if n.op == "call_function" and (is_item(n) or is_view(n)) and not writes_to(n):
            looks_at: Any = n.target
            return looks_at(*map_arg(n.args, value), **map_arg(n.kwargs, value))
        unknown.append(n.name)
        return run.values.get(n.name)

    made_by = producer(node)
    index: Any = None if made_by is node else node.args[1]
    try:
        args, kwargs = map_arg(made_by.args, value), map_arg(made_by.kwargs, value)
    except Exception as error:  # a view of a value laid out in another way
        return LocalError("skipped", reason=f"its inputs are not known as compiled: {error}")
    if unknown:
        return LocalError("skipped", reason=f"{', '.join(unknown)} is not known as compiled")
    target: Any = made_by.target if made_by.op == "call_function" else getattr(interpreter, made_by.op)

    def one_of(*given: Any, **named: Any) -> Any:
        result = target(*given, **named)
        return (given[0] if result is None else result)[index]

    call = target if index is None else one_of
    return local_error(op_of(made_by), call, list(args), dict(kwargs), got, rounded=rounded)


def _returned(gm: GraphModule) -> list[Any]:
    value = output_node(gm).args[0]
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _whole(compiled: CompiledGraph, call: int, run: GraphRun) -> LocalError:
    """Outputs, and the inputs that the graph changes: others may be memory that the compiled graph is free to use."""
    if call >= len(compiled.outputs):
        return LocalError("skipped", reason="no outputs were recorded")
    expected = WholeGraph(compiled, call, run)
    error = expected.judge(compiled.outputs[call], compiled.after[call])
    if error.answer == "worse":
        compiled.expected[call] = expected
    return error


class WholeGraph:
    """What one call of a compiled graph should give: its outputs, and the inputs that it changes.

    Others may be memory that the compiled graph is free to use.
    """

    def __init__(self, compiled: CompiledGraph, call: int, run: GraphRun) -> None:
        inputs, final = compiled.inputs[call], compiled.final
        self._changed = [i for i, value in enumerate(inputs) if not equal_bits(value, run.inputs[i])]
        self._expected: Expectation | None = None
        self._outputs, taken = flat_outputs(run.outputs), [n for n in final.graph.nodes if n.op == "placeholder"]
        unchanged = {n for i, n in enumerate(taken) if i not in self._changed}
        self._passed = [i for i, n in enumerate(_returned(final)) if n in unchanged]
        """Outputs that are inputs as they came: weights, saved for the backward."""
        if any(n.op == "call_function" and not comparable(op_of(n)) for n in final.graph.nodes):
            return
        wanted = [*self._made(self._outputs), *(run.inputs[i] for i in self._changed)]
        large = sum(size_of(value) for value in wanted if isinstance(value, torch.Tensor)) > LARGE
        file = compiled.file if large else None

        def everything(given: list[Any]) -> list[Any]:
            changed = [given[i] for i in self._changed]
            graph = Interpreter(final) if file is None else _ToFile(final, file)
            return [*self._made(flat_outputs(graph.boxed_run(given))), *changed]  # it empties the list

        self._expected = Expectation("graph", everything, [list(inputs)], {}, wanted=wanted, file=file)

    def judge(self, outputs: Sequence[Any], after: Sequence[Any], *, first: bool = False) -> LocalError:
        """Judge what a run gave: outputs, and all inputs after it. `first` as for an `Expectation`."""
        if self._expected is None:
            return LocalError("skipped", reason="it draws random numbers")
        if len(outputs) == len(self._outputs):
            for i in self._passed:
                if not equal_bits(outputs[i], self._outputs[i]):
                    return certainly_wrong("wrong_value", f"output {i} is not the input that it should be")
        return self._expected.judge([*self._made(outputs), *(after[i] for i in self._changed)], first=first)

    def far_off(self, outputs: Sequence[Any], after: Sequence[Any]) -> LocalError:
        """`worse` where a result is off by more than roundings usually add up to, `ok` where none is.

        It takes no float64 run, and accuses nothing: results that are zero but for roundings may be so far off, too.
        """
        if self._expected is None:
            return LocalError("skipped", reason="it draws random numbers")
        found = [*self._made(outputs), *(after[i] for i in self._changed)]
        pairs = zip(self._expected.wanted, found, strict=False)
        most = max((roundings_apart(want, have) for want, have in pairs), default=0.0)
        return LocalError("worse" if most > FAR else "ok", z=most, excess=most / FAR)

    def _made(self, outputs: Sequence[Any]) -> list[Any]:
        return [value for i, value in enumerate(outputs) if i not in self._passed]


class _ToFile(Interpreter):
    """Runs a graph; results that nothing else in it needs go into a file as soon as they are there."""

    def __init__(self, gm: GraphModule, file: ValueFile) -> None:
        super().__init__(gm)
        self._file, end = file, output_node(gm)
        results = [n for n in end.all_input_nodes if n.op == "call_function" and set(n.users) == {end}]
        self._own = {n for n in results if not is_view(n) and not is_item(n) and not writes_to(n)}

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        if n not in self._own or not isinstance(result, torch.Tensor):
            return result
        with quiet():
            return copied_together([result], self._file.copy)[0]


def to_show(gm: GraphModule) -> list[Node]:
    """The nodes worth returning: all that can be, but for plain views."""
    return [n for n in showable(gm) if op_of(n) not in VIEWS_AND_SUCH]
