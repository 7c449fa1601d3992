"""Which pass broke a graph: each snapshot is run on the real inputs and held against the last one that was right."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import torch
from torch.fx import GraphModule, Node

from graphprobe.diagnose.exceptions import NOBODY
from graphprobe.diagnose.local import OK, LocalError, Suspect, certainly_wrong, comparable, local_error
from graphprobe.engine.forked_child import doing
from graphprobe.engine.interpret import GraphRun, copied, flat_outputs, run_graph
from graphprobe.engine.naming import name_of, op_of
from graphprobe.engine.reference import is_noisy, is_plain
from graphprobe.engine.subgraph import CALLS, attribute, is_view, output_node, producer
from graphprobe.engine.values import same_bits
from graphprobe.findings import Stage
from graphprobe.internals.aot_backends import is_higher_order
from graphprobe.internals.inductor.executable_snapshots import ExecutableSnapshot, PassLog, graph_signature
from graphprobe.internals.operators.operators import writes_to

ROUNDINGS = 64
"""Relative differences, in units of the dtype's roundoff, from which on two values of a node are called different."""

REACH, SPREAD = 3, 30
"""How many steps back from a view, what a pass has removed is taken to be what it looks at; and how many steps what a
pass has put one call in the place of is followed."""


@dataclass
class Step:
    """What a group of passes made of a graph, run on one set of inputs.

    Attributes:
        suspects: one for each pass that changed what the graph computes.
        passes: names of the passes that changed the graph and are right.
    """

    suspects: list[Suspect]
    passes: list[str]


def analyse(log: PassLog, inputs: Sequence[Any], direction: str) -> Step:
    """Run every snapshot of `log` on `inputs`.

    Where the last snapshot is right, the others are taken to be. Else each is held against the last one that was
    right, as a whole graph: outputs and changed inputs, in units of the float64 reference's noise. After a wrong pass,
    what it made becomes what the next ones are held against.
    """
    stage: Any = log.phase
    suspects: list[Suspect] = []
    right: list[str] = []
    if not log.snapshots:
        return Step([], [])
    base = log.snapshots[0]
    base_run = run_graph(base.graph, inputs)
    if base_run.failed is not None:
        return Step([], [])
    last = log.snapshots[-1]
    last_run = run_graph(last.graph, inputs)
    if _compare(base.graph, base_run, last_run, inputs).answer != "worse" and last_run.failed is None:
        return Step([], [snapshot.name for snapshot in log.snapshots[1:]])
    for number, snapshot in enumerate(log.snapshots[1:], 1):
        doing(f"{direction}, pass {number} of {len(log.snapshots) - 1}")
        run = run_graph(snapshot.graph, inputs)
        error = _compare(base.graph, base_run, run, inputs)
        if error.answer != "worse":
            right.append(snapshot.name)
            if run.failed is None:
                base, base_run = snapshot, run
            continue
        suspects.append(_blame(stage, snapshot.name, direction, base.graph, base_run, snapshot.graph, run, error))
        if run.failed is not None:
            return Step(suspects, right)
        base, base_run = snapshot, run
    return Step(suspects, right)


def own_culprit(log: PassLog, inputs: Sequence[Any], direction: str, *, raises: bool) -> Suspect | None:
    """The pass from which on a graph computes something else than at first, to the end; None where no single one is.

    A graph that cannot be run op by op may hold operations of the backend's own, unless the program `raises`.
    """
    base = right = log.snapshots[0]
    base_run = right_run = run_graph(base.graph, inputs)
    wrong: tuple[ExecutableSnapshot, GraphRun, LocalError] | None = None
    for snapshot in reversed(log.snapshots[1:]) if base_run.failed is None else ():
        run = run_graph(snapshot.graph, inputs)
        if run.failed is not None and not raises:
            continue
        error = _compare(base.graph, base_run, run, inputs)
        if error.answer != "worse":
            right, right_run = snapshot, run
            break
        wrong = snapshot, run, error
    if wrong is None or not wrong[0].name or log.snapshots[log.snapshots.index(wrong[0]) - 1] is not right:
        return None
    after, run, error = wrong
    suspect = _blame("backend", after.name, direction, right.graph, right_run, after.graph, run, error)
    return _in_branch(suspect, after.graph, inputs)


def _in_branch(suspect: Suspect, after: GraphModule, inputs: Sequence[Any]) -> Suspect:
    """The node that the pass has broken in a graph that the accused operator calls, named; else as it is."""
    node, before = suspect.node, suspect.graph
    if not is_higher_order(node.target):
        return suspect
    for name in (n.target for n in node.all_input_nodes if n.op == "get_attr"):
        right, wrong = attribute(before, name), attribute(after, name)
        graphs = isinstance(right, GraphModule) and isinstance(wrong, GraphModule)
        if not graphs or graph_signature(right) == graph_signature(wrong):
            continue
        seen: list[Any] = []
        with right.register_forward_pre_hook(lambda _, args, seen=seen: seen.append(copied(list(args)))):
            run_graph(before, inputs)
        if not seen:
            continue  # it is another branch that was taken
        right_run, wrong_run = run_graph(right, seen[0]), run_graph(wrong, seen[0])
        error = _compare(right, right_run, wrong_run, seen[0])
        if error.answer == "worse" and right_run.failed is None:
            by = suspect.stage, suspect.pass_ or "", suspect.direction
            inner = _in_branch(_blame(*by, right, right_run, wrong, wrong_run, error), wrong, seen[0])
            place = inner.place if inner.certain == NOBODY else inner.certain
            return replace(suspect, certain=msgspec.structs.replace(place, also=[*place.also, suspect.op]))
    return suspect


def changed_between(
    stage: Stage, direction: str, right: GraphModule, wrong: GraphModule, inputs: Sequence[Any], others: Sequence[Any]
) -> Suspect | None:
    """The node that makes two versions of one graph compute different things, each run on inputs of its own.

    None when a version cannot be run, or all nodes of one name have one value.
    """
    a, b = run_graph(right, inputs), run_graph(wrong, others)
    if a.failed is not None or b.failed is not None:
        return None
    names = [n.name for n in wrong.graph.nodes if n.op in CALLS and n.name in a.values]
    if not any(different(a.values[name], b.values[name]) for name in names):
        return None
    error = certainly_wrong("wrong_value", "another value than before the graph was split")
    return replace(_blame(stage, "", direction, right, a, wrong, b, error), pass_=None)


def saved_wrongly(
    forward: GraphModule,
    forward_inputs: Sequence[Any],
    right: GraphModule,
    wrong: GraphModule,
    inputs: Sequence[Any],
    others: Sequence[Any],
) -> Suspect | None:
    """The forward's node whose saved value the backward gets wrong; None when what both versions get is the same."""
    names = [[n.name for n in gm.graph.nodes if n.op == "placeholder"] for gm in (right, wrong)]
    expected, got = dict(zip(names[0], inputs, strict=False)), dict(zip(names[1], others, strict=False))
    made = {n.name: n for n in forward.graph.nodes if n.op in CALLS}
    spoiled = [name for name in got if name in expected and name in made and different(expected[name], got[name])]
    spoiled += _replaced_inputs(right, wrong, made)
    if not spoiled:
        return None
    error = certainly_wrong("wrong_gradient", "the backward uses another value for it than the forward computed")
    values = run_graph(forward, forward_inputs).values
    return Suspect("joint", "backward", forward, made[spoiled[0]], values, error)


def _replaced_inputs(right: GraphModule, wrong: GraphModule, made: Mapping[str, Node]) -> list[str]:
    """Names of saved values in whose place a call of the backward got something else."""
    calls = {n.name: n for n in right.graph.nodes if n.op in CALLS}
    found = []
    for node in wrong.graph.nodes:
        before = _argument_nodes(calls[node.name]) if node.name in calls else []
        for a, b in zip(before, _argument_nodes(node), strict=False):
            if a.op == "placeholder" and a.name in made and b.op in CALLS:
                found.append(a.name)
    return found


def _compare(gm: GraphModule, base: GraphRun, run: GraphRun, inputs: Sequence[Any]) -> LocalError:
    if run.failed is not None:
        node, raised = run.failed
        text = f"{node.name} raises {type(raised).__name__}: {str(raised).splitlines()[0][:200] if str(raised) else ''}"
        return certainly_wrong("crash_runtime", text)
    wanted = [*flat_outputs(base.outputs), *base.inputs]
    have = [*flat_outputs(run.outputs), *run.inputs]
    if len(wanted) == len(have) and not any(
        same_bits(w, h) for w, h in zip(wanted, have, strict=True) if isinstance(w, torch.Tensor)
    ):
        return _shared(base, run)
    if any(n.op == "call_function" and not comparable(op_of(n)) for n in gm.graph.nodes):
        # Float64 draws other numbers, so there is no reference; the runs themselves draw the same.
        if len(wanted) == len(have) and not any(different(w, h) for w, h in zip(wanted, have, strict=True)):
            return OK
        return certainly_wrong("wrong_value", "it differs by more than rounding")

    def everything(*args: Any) -> list[Any]:
        return [*flat_outputs(torch.fx.Interpreter(gm).run(*args)), *args]

    # What a graph is called with is exact; what its own values lose in rounding, the run held against loses as well.
    return local_error("graph", everything, list(inputs), {}, have, rounded=())


def _shared(base: GraphRun, run: GraphRun) -> LocalError:
    """Whether an output lies in the memory of an input, or of another output, as it does not before the pass."""
    before, count = _memory(base), len(flat_outputs(base.outputs))
    for i, j in _pairs(_memory(run), count):
        if before[i] != before[j]:
            other = f"output {j}" if j < count else f"input {j - count}"
            return certainly_wrong("aliasing", f"output {i} shares the memory of {other}, and did not before")
    return OK


def _memory(run: GraphRun) -> list[int]:
    """A number for the memory of each output, then of each input; different ones of what has none."""
    values = [*flat_outputs(run.outputs), *run.inputs]
    return [v.untyped_storage()._cdata if is_plain(v) and v.numel() else -i for i, v in enumerate(values, 1)]


def _pairs(memory: Sequence[int], outputs: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(outputs) for j in range(i + 1, len(memory)) if memory[i] == memory[j]]


def different(a: Any, b: Any) -> bool:
    """Whether two values of a node differ by more than a few roundings, in dtype or in shape."""
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
            return len(a) != len(b) or any(different(x, y) for x, y in zip(a, b, strict=True))
        return type(a) is not type(b) or (isinstance(a, int) and a != b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return True
    if not same_bits(a, b):
        return False
    if not is_noisy(a):
        return True
    if not torch.equal(torch.isfinite(a), torch.isfinite(b)) or not torch.equal(torch.isnan(a), torch.isnan(b)):
        return True
    if not torch.equal(a[torch.isinf(a)], b[torch.isinf(a)]):
        return True
    wide = torch.complex128 if a.is_complex() else torch.float64
    x, y = a.to(wide).nan_to_num(0, 0, 0), b.to(wide).nan_to_num(0, 0, 0)
    rms = float(x.abs().square().mean().sqrt())
    gap = float((x - y).abs().square().mean().sqrt())
    return gap > ROUNDINGS * torch.finfo(a.dtype).eps * max(rms, 1e-300)


def _blame(
    stage: Stage,
    name: str,
    direction: str,
    before: GraphModule,
    right: GraphRun,
    after: GraphModule,
    wrong: GraphRun,
    error: LocalError,
) -> Suspect:
    """The node of `before` that the pass has broken: the first whose place in `after` holds something else."""
    old = {n.name: n for n in before.graph.nodes}

    def suspect(node: Node, also: list[str], others: list[Node]) -> Suspect:
        if (made_by := producer(node)) is not node:
            others, node = [node, *others], made_by
        if is_view(node) and not writes_to(node) and (computing := _removed_behind(node, after)):
            also, others, node = [op_of(n) for n in (*computing[1:], node)] + also, [node, *others], computing[0]
        if op_of(node).startswith("higher_order.") and node.args and not isinstance(node.args[0], Node):
            also = [name_of(node.args[0]), *also]
        if node.name not in {n.name for n in after.graph.nodes}:
            also = [*also, *_added(before, after), *map(op_of, _removed_behind(node, after, SPREAD))]
        also = list(dict.fromkeys(also))
        return Suspect(stage, direction, before, node, right.values, error, name, also, others)

    for node in after.graph.nodes:
        if node.op == "placeholder" or node.op == "get_attr":
            continue
        previous = old.get(node.name)
        failed = wrong.failed is not None and wrong.failed[0] is node
        if node.op != "output" and not failed:
            if previous is None or node.name not in wrong.values or node.name not in right.values:
                continue
            if not different(right.values[node.name], wrong.values[node.name]):
                continue
        if node.op == "output":
            previous = output_node(before)
        culprit = _changed_argument(previous, node, right, wrong) if previous is not None else None
        if culprit is not None:
            removed, added = culprit
            also = [op_of(n) for n in (added, node) if n.op in CALLS]
            return suspect(removed, also, [previous] if previous is not None and previous.op in CALLS else [])
        if node.op in CALLS and previous is not None and previous.op in CALLS:
            return suspect(previous, [], list(previous.all_input_nodes))
        if failed:
            break
    return suspect(_fallback(before, after), [], [])


def _added(before: GraphModule, after: GraphModule) -> list[str]:
    """The ops that compute what a pass has put into a graph, the last first."""
    old = {n.name for n in before.graph.nodes}
    added = [n for n in after.graph.nodes if n.op in CALLS and n.name not in old and not is_view(producer(n))]
    return [op_of(producer(n)) for n in reversed(added)]


def _removed_behind(node: Node, after: GraphModule, steps: int = REACH) -> list[Node]:
    """The calls behind another one that compute something and that the pass has removed, the nearest first."""
    left = {n.name for n in after.graph.nodes}
    found: list[Node] = []
    edge = [node]
    for _ in range(steps):
        edge = list(dict.fromkeys(n for one in edge for n in one.all_input_nodes if n.op in CALLS))
        found += [n for n in edge if not is_view(n) and n.name not in left]
    return found


def _changed_argument(previous: Node, node: Node, right: GraphRun, wrong: GraphRun) -> tuple[Node, Node] | None:
    """(what an argument was, what it is now) where another node with another value has taken its place."""
    mine, theirs = list(_argument_nodes(previous)), list(_argument_nodes(node))
    if len(mine) != len(theirs) or {n.name for n in mine} == {n.name for n in theirs}:
        return None
    for a, b in zip(mine, theirs, strict=True):
        known = a.op in CALLS and a.name in right.values and b.name in wrong.values
        if a.name != b.name and known and different(right.values[a.name], wrong.values[b.name]):
            return a, b
    return _replaced_output(previous, node, right, wrong) if node.op == "output" else None


def _replaced_output(previous: Node, node: Node, right: GraphRun, wrong: GraphRun) -> tuple[Node, Node] | None:
    """(what an output was, what it is now) where it has become another in the end: memory that is changed later."""
    mine, theirs = list(_argument_nodes(previous)), list(_argument_nodes(node))
    values = [flat_outputs(run.outputs) for run in (right, wrong)]
    if not len(mine) == len(theirs) == len(values[0]) == len(values[1]):
        return None
    before, pairs = _memory(right), _pairs(_memory(wrong), len(mine))
    shared = {k for i, j in pairs if before[i] != before[j] for k in (i, j)}
    for k, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        if a.name != b.name and a.op in CALLS and (k in shared or different(values[0][k], values[1][k])):
            return a, b
    return None


def _argument_nodes(node: Node) -> list[Node]:
    found: list[Node] = []

    def note(n: Node) -> Node:
        found.append(n)
        return n

    torch.fx.map_arg((node.args, node.kwargs), note)
    return found


def _fallback(before: GraphModule, after: GraphModule) -> Any:
    """A node that the pass removed or gave other arguments, writing ones first; else the last call."""
    kept = {n.name: n for n in after.graph.nodes}
    calls = [n for n in before.graph.nodes if n.op in CALLS]
    order = {n.name: i for i, n in enumerate(after.graph.nodes)}
    writing = [n for n in calls if writes_to(n) and n.name in kept]
    for first, second in itertools.pairwise(writing):
        if order[first.name] > order[second.name]:
            return first
    for node in calls:
        if node.name not in kept or str(kept[node.name].args) != str(node.args):
            return node
    return calls[-1] if calls else next(iter(before.graph.nodes))
