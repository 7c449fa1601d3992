"""Faults that are no op's but lie between values, or around the call: each found by a change that mends the program."""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import CodeType, FrameType
from typing import Any, NamedTuple
from unittest import mock

import msgspec
import torch
from torch.autograd import forward_ad
from torch.fx import GraphModule, Node

from graphprobe.diagnose.dynamo.frame_places import is_users, places_of, users_source
from graphprobe.diagnose.dynamo.python_source import functions_of, returned_names
from graphprobe.diagnose.ladder import Ladder
from graphprobe.diagnose.program import Program, tensors_of
from graphprobe.diagnose.rungs import RungReport, Watch, aot_rung, dynamo_rung, run_program
from graphprobe.diagnose.settings import Compilation
from graphprobe.engine.interpret import flat_outputs
from graphprobe.engine.naming import module_of, op_of
from graphprobe.engine.subgraph import CALLS, ancestors, output_node
from graphprobe.findings import Finding, Stage, told_more
from graphprobe.internals.aot_backends import lookup
from graphprobe.internals.names import require
from graphprobe.judge.effect_walk import names_of_code
from graphprobe.judge.judging import Difference, compare
from graphprobe.judge.observation import read
from graphprobe.judge.uncompiled import Reference
from graphprobe.judge.verdict import RungName

MOST_RELATIONS = 4
"""Relations of one kind that are tried."""

OTHER_TYPE = re.compile(r"is '([\w.]+)', uncompiled '(?:builtins\.)?([\w.]+)'")

HOOKS = {
    "_backward_hooks": "register_full_backward_hook",
    "_backward_pre_hooks": "register_full_backward_pre_hook",
    "_forward_hooks": "register_forward_hook",
    "_forward_pre_hooks": "register_forward_pre_hook",
}
"""Attributes of a module that have its hooks, and what registers them."""

HOOKS_SWITCH = "torch._dynamo.config.skip_nnmodule_hook_guards"
SWITCH = "torch._functorch.config.backward_pass_autocast"
"""Settings that mend a program."""

UNGUARDED = "No guard looks at this: compiled afresh before each call (torch.compiler.reset()) the program is right."
STALE = "no guard looks at `{}`: code of an earlier call is taken again"

LEFT_WHOLE = {
    "set_": (
        "torch.Tensor.set_",
        "what was taken from {} before its data is assigned does not keep its memory",
        "Assigning to its data gives {} other memory (set_), and AOTAutograd does not keep apart what was taken from "
        "it before. Run uncompiled, with the rest compiled, the program is right. Move the assignment out of what is "
        "compiled, or copy with copy_().",
    ),
    "set_default_dtype": (
        "torch.set_default_dtype",
        "the default dtype does not change to {}",
        "AOTAutograd leaves set_default_dtype({}) out, and the dtypes behind it are those of another default. Run "
        "uncompiled, with the rest compiled, the program is right. Set the default outside of what is compiled, or "
        "name the dtype where tensors are made (dtype=…).",
    ),
}
"""Calls of a graph that AOTAutograd does not follow: the operation, and of its first argument the title and reason."""

NO_INFERENCE = (
    "Uncompiled, what is made under {mode} is {one}; AOTAutograd does not follow the mode inside of a graph. Made "
    "again under {mode} (clone), the outputs of the graph are right. Enter {mode} around the call of what is compiled."
)


class Mode(NamedTuple):
    """A mode inside of a graph.

    Attributes:
        made: makes of an output what it is uncompiled.
        relation, reason: of the names of the outputs.
    """

    made: Callable[[torch.Tensor], torch.Tensor]
    relation: str
    reason: str


def _made_in(inference: bool, value: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode(inference):
        return value.clone()


MODES = {
    "no_grad": Mode(
        torch.Tensor.detach,
        "{} has a gradient, though it is a view that is made under no_grad",
        "Uncompiled, no gradient goes through a view that is made under no_grad; AOTAutograd makes the view again from "
        "its base, and lets one through. With {}.detach() the program is right.",
    ),
    "inference_mode": Mode(
        partial(_made_in, True),
        "{} is no inference tensor, though it is made under inference_mode",
        NO_INFERENCE.format(mode="inference_mode()", one="an inference tensor"),
    ),
    "inference_mode(False)": Mode(
        partial(_made_in, False),
        "{} is an inference tensor, though it is made under inference_mode(False)",
        NO_INFERENCE.format(mode="inference_mode(False)", one="no inference tensor"),
    ),
}


class Relation(msgspec.Struct):
    """What a program does that compiled code does not follow.

    Attributes:
        op, also, source, module, stage, relation, reason: as in a finding.
        number: of Dynamo's graph.
        cuts: nodes of that behind which it is cut in two, which should mend the program.
        whole: or the op that is to be left uncompiled in each graph.
        mode: or the one under which these outputs of the graph are made.
    """

    op: str
    relation: str
    reason: str
    stage: Stage = "aot"
    source: str | None = None
    module: str | None = None
    also: list[str] = []
    number: int = 0
    cuts: list[str] = []
    whole: str = ""
    mode: str = ""
    outputs: list[int] = []


class Tried(RungReport):
    """A run with something changed, and what this is."""

    relation: Relation | None = None


def related(ladder: Ladder, rung: RungName, differences: Sequence[Difference]) -> list[Finding]:
    """The relation that is to blame, as a finding; none where no change of one mends the program."""
    first = differences[0]
    ways: list[Callable[[Ladder, Difference], Relation | None]] = []
    if rung == "dynamo":
        ways = [_other_type, _hooked_later, _traced_hook]
    elif rung == "aot" or (rung == "plain" and ladder.compilation.is_aot_eager):
        ways = [_cut, _autocast]
    elif rung in ("kernels", "plain") and ladder.compilation.is_inductor and _takes_tangents(ladder.program):
        ways = [_tangent]
    for way in ways:
        found = way(ladder, first)
        if found is not None:
            shown = next(iter(ladder.seen(ladder.top).certain), first)
            fields = msgspec.structs.asdict(found) | {"reason": told_more(shown.text, found.reason)}
            fields |= {"kind": shown.kind, "worst": shown.worst}
            fields |= {"direction": "backward"} if shown.where.startswith("gradients") else {}
            return [msgspec.convert(fields, Finding)]
    return []


def is_unguarded(ladder: Ladder, first: Difference) -> bool:
    """Whether Dynamo's graphs are right where each call gets its own."""
    return first.call > 0 and _mends(ladder, partial(_afresh, ladder.program, ladder.compilation))


def _mends(ladder: Ladder, step: Callable[[], RungReport]) -> bool:
    report = ladder.answer(step, RungReport)
    return report is not None and not ladder.compared(report)


def _mending(ladder: Ladder, step: Callable[[], Tried]) -> Relation | None:
    """The relation that a step has changed, if the program is right then."""
    tried = ladder.answer(step, Tried)
    return None if tried is None or tried.relation is None or ladder.compared(tried) else tried.relation


@contextlib.contextmanager
def _calls_seen(asked: dict[CodeType | str, str], told: Callable[[str, FrameType, Any], None]) -> Iterator[None]:
    """Call `told` with name, the caller's frame and an argument of each call of some functions.

    Args:
        asked: the argument that is wanted, by a function's code; of C functions by their name.
    """
    known = {id(key): name for key, name in asked.items()}  # the hash of code takes long
    tell = torch.compiler.disable(told)  # type: ignore[no-untyped-call]

    def watch(frame: FrameType, event: str, arg: Any) -> None:
        if event == "call" and id(frame.f_code) in known and frame.f_back is not None:
            tell(frame.f_code.co_name, frame.f_back, frame.f_locals.get(known[id(frame.f_code)]))
        elif event == "c_call" and getattr(arg, "__name__", "") in asked:
            tell(arg.__name__, frame, getattr(arg, "__self__", None))

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        yield
    finally:
        sys.setprofile(before)


def _line(frame: FrameType) -> str | None:
    places = places_of(frame, _line.__code__)
    return places[0].source if places else None


def _other_type(ladder: Ladder, first: Difference) -> Relation | None:
    """Something that is no tensor, and is returned as another type."""
    types, path = OTHER_TYPE.search(first.text), first.where.partition("[")[2].rstrip("]")
    if types is None or not first.where.startswith("outputs"):
        return None
    fn: Any = ladder.program.fn
    fn = type(fn).forward if isinstance(fn, torch.nn.Module) else fn
    names = returned_names(getattr(fn, "__func__", fn), path)
    place = names[0].source if names else None
    relation = f"the {types[2]} that is returned is a {types[1].rpartition('.')[2]}"
    also = [named.name for named in names]
    return Relation(types[2], relation, f"Compiled, {relation}.", "dynamo", place, also=also)


def _hooked_later(ladder: Ladder, first: Difference) -> Relation | None:
    """A hook that a module has since a later call: right where guards look at hooks."""
    asked = partial(_later_hooks, ladder.program, first.call)
    found = ladder.answer(asked, list[Relation]) if first.call else None
    step = partial(_dynamo, ladder.program, ladder.compilation, **{HOOKS_SWITCH.rpartition(".")[2]: False})
    return found[0] if found and _mends(ladder, step) else None


def _hooks_of(program: Program) -> dict[tuple[str, str, int], str]:
    """The hooks of each module of a program, with the module's name."""
    found = {}
    for root in program.modules():
        for name, module in root.named_modules():
            for kind in HOOKS:
                found.update({(name, kind, key): name for key in getattr(module, kind, {})})
    return found


def _later_hooks(program: Program, call: int) -> list[Relation]:
    """Hooks that modules have since this call, and had not when they were compiled."""
    lines: dict[str, tuple[str, str | None]] = {}
    names = {id(module): name for root in program.modules() for name, module in root.named_modules()}
    before = _hooks_of(program)

    def told(name: str, frame: FrameType, module: Any) -> None:
        lines[names.get(id(module), "")] = name, _line(frame)

    with _calls_seen({getattr(torch.nn.Module, name).__code__: "self" for name in HOOKS.values()}, told):
        for _ in itertools.islice(program.steps(lambda fn: fn), call + 1):
            pass
    new = {name: HOOKS[key[1]] for key, name in _hooks_of(program).items() if key not in before}
    found = []
    for name, usual in new.items():
        kind, line = lines.get(name, (usual, None))
        hook = f"the hook of module {name or 'itself'}"
        reason = (
            f"T{hook[1:]} was registered after the first call, and no guard looks at hooks: the "
            f"code that was compiled without it is taken again. With {HOOKS_SWITCH} = False the program is right. "
            "Or register it before the first call."
        )
        relation = f"{hook} is not called: it was registered after the first call"
        found.append(Relation(kind, relation, reason, "dynamo", line, name or None))
    return found


def _traced_hook(ladder: Ladder, first: Difference) -> Relation | None:
    """A hook that reads the grad mode: uncompiled it does as compiled where it reads that of the forward."""
    seen, tried = ladder.seen("dynamo").report, ladder.answer(partial(_as_in_the_forward, ladder.program), Tried)
    if seen is None or tried is None or tried.relation is None:
        return None
    explained = Reference([[*map(read, tried.calls)]])
    return None if compare(explained, [*map(read, seen.calls)]) else tried.relation


def _as_in_the_forward(program: Program) -> Tried:
    """The uncompiled program, whose hooks find the grad mode on in a backward."""
    report, mode = Tried(), torch.is_grad_enabled

    def is_grad_enabled() -> bool:
        frame = sys._getframe(1)
        around = [outer.f_code.co_name for outer, _ in traceback.walk_stack(frame)]
        if mode() or not is_users(frame.f_code.co_filename) or "_engine_run_backward" not in around:
            return mode()
        reason = (
            "Uncompiled, the hook runs in the backward, where the grad mode is off. Dynamo traces it with the forward, "
            "where the mode is on: uncompiled with this answer, the program does as compiled. Read the mode outside "
            "of the hook."
        )
        relation = "a hook reads the grad mode of the forward"
        report.relation = Relation("torch.is_grad_enabled", relation, reason, "dynamo", _line(frame))
        return True

    with mock.patch.object(torch, "is_grad_enabled", is_grad_enabled):
        report.calls = program.run(lambda fn: fn)
    return report


def _dynamo(program: Program, compilation: Compilation, **settings: Any) -> RungReport:
    with require("torch._dynamo", "config", purpose="what guards look at").patch(settings):
        return run_program(program, compilation, dynamo_rung(Watch(recorded=0)))


def _afresh(program: Program, compilation: Compilation) -> RungReport:
    """The program on Dynamo's graphs, all of them dropped before each call."""

    def between(fn: Any, i: int) -> None:
        if program.between is not None:
            program.between(fn, i)
        torch.compiler.reset()

    return _dynamo(replace(program, between=between), compilation)


def _cut(ladder: Ladder, first: Difference) -> Relation | None:
    """The first relation inside of a graph that is mended where the graph is cut."""
    found = ladder.answer(partial(_inside, ladder.program, ladder.compilation), list[Relation]) or []
    step = partial(_in_parts, ladder.program, ladder.compilation)
    return next((one for one in found[:MOST_RELATIONS] if _mends(ladder, partial(step, one))), None)


def _inside(program: Program, compilation: Compilation) -> list[Relation]:
    """Outputs of one graph that are differentiated by each other, and calls inside of a graph that are not followed."""
    watch, found = Watch(recorded=0), dict[tuple[int, str, str], Relation]()
    made: dict[int, tuple[int, Node, Node, torch.Tensor]] = {}
    whole = aot_rung(watch)

    def backend(gm: GraphModule, inputs: Sequence[Any], **settings: Any) -> Any:
        compiled, number, depth = whole(gm, inputs, **settings), len(watch.dynamo) - 1, len(gm.graph.nodes)
        nodes = flat_outputs(output_node(gm).args[0])

        def run(*args: Any) -> Any:
            result = compiled(*args)
            shown = [(n, v) for n, v in zip(nodes, flat_outputs(result), strict=False) if isinstance(v, torch.Tensor)]
            pairs = [(n, v) for n, v in shown if v.requires_grad and not v.is_leaf]
            for node, value in pairs:
                later = next((n for n, _ in pairs if n is not node and node in ancestors([n], depth)), None)
                if later is not None:
                    made[id(value)] = number, node, later, value
            return result

        return run

    def told(name: str, frame: FrameType, given: Any) -> None:
        for tensor in tensors_of([given]):
            if (known := made.get(id(tensor))) is None or known[3] is not tensor:
                continue
            number, node, later, _ = known
            reason = (
                f"{node.name} and {later.name} are both outputs of one compiled function, so {later.name} does not "
                f"depend on {node.name}, and {name} finds no way from one to the other. Cut in two between them, the "
                "compiled program is right. Move the call before the graph break, or return "
                f"only {later.name} from what is compiled."
            )
            api = f"torch.autograd.{name}" if name == "grad" else f"Tensor.{name}"
            lost, at = f"no gradient goes from {later.name} to {node.name}", _line(frame)
            relation = Relation(api, lost, reason, "aot", at, also=[name], number=number, cuts=[node.name])
            found.setdefault((number, node.name, name), relation)

    asked: dict[CodeType | str, str] = {
        torch.Tensor.register_hook.__code__: "self",
        torch.autograd.grad.__code__: "inputs",
        torch.Tensor.backward.__code__: "inputs",
        torch.autograd.backward.__code__: "inputs",
        "retain_grad": "self",
    }
    with _calls_seen(asked, told):
        run_program(program, compilation, backend)
    return [*found.values(), *_left_whole(watch), *_made_under(watch)]


def _in_parts(program: Program, compilation: Compilation, relation: Relation) -> RungReport:
    """The program on AOTAutograd's graphs, but with what should mend it done to Dynamo's: see `Relation`."""
    count, whole = itertools.count(), aot_rung(Watch(recorded=0))
    graph_break = require("torch._dynamo", "graph_break", purpose="breaking a graph in two")

    def part(gm: GraphModule, inputs: Sequence[Any], **settings: Any) -> Any:
        left = any(op_of(node) == relation.whole for node in gm.graph.nodes if node.op in CALLS)
        return gm.forward if left else whole(gm, inputs, **settings)

    def backend(gm: GraphModule, inputs: Sequence[Any], **settings: Any) -> Any:
        if next(count) != relation.number and not relation.whole:
            return whole(gm, inputs, **settings)
        if relation.mode:
            compiled, made = whole(gm, inputs, **settings), MODES[relation.mode].made
            outputs = relation.outputs
            return lambda *args: [made(v) if i in outputs else v for i, v in enumerate(flat_outputs(compiled(*args)))]
        alone = [n for n in gm.graph.nodes if n.op in CALLS and op_of(n) == relation.whole]
        names = {*relation.cuts, *(n.name for node in alone for n in (node.prev, node))}
        for node in [n for n in gm.graph.nodes if n.name in names and n.op in CALLS]:
            with gm.graph.inserting_after(node):
                gm.graph.call_function(graph_break)
        gm.recompile()  # a copy would not be compiled inside of what is: Dynamo knows only its own graphs there
        parts = torch.compile(gm, backend=part, dynamic=compilation.dynamic)
        return lambda *args: parts(*args)

    return run_program(program, replace(compilation, fullgraph=False), backend)


def _left_whole(watch: Watch) -> list[Relation]:
    """Calls that AOTAutograd does not follow, and does where they stay uncompiled."""
    found = list[Relation]()
    for number, graph in enumerate(watch.dynamo):
        for node in (n for n in graph.graph.graph.nodes if n.op in CALLS):
            if (row := LEFT_WHOLE.get(op_of(node).rpartition(".")[2])) is None:
                continue
            given = str(node.args[0]).removeprefix("l_").strip("_")
            op, relation, reason = row[0], row[1].format(given), row[2].format(given)
            also = ["aten.set_.source_Tensor"] if op.endswith("_") else []
            where = users_source(node), module_of(node)
            found.append(Relation(op, relation, reason, "aot", *where, also, number, whole=op_of(node)))
    return found


def _made_under(watch: Watch) -> list[Relation]:
    """Outputs of a graph that are made under a mode which the graph enters."""
    found = list[Relation]()
    for number, graph in enumerate(watch.dynamo):
        outputs, modes = flat_outputs(output_node(graph.graph).args[0]), _modes(graph.graph)
        for mode in dict.fromkeys(modes.values()):
            made = {i: n for i, n in enumerate(outputs) if isinstance(n, Node) and modes.get(n) == mode}
            if mode == "no_grad":  # else a gradient is what it has not
                made = {i: n for i, n in made.items() if n.meta["example_value"].requires_grad}
            if made:
                first, names = next(iter(made.values())), " and ".join(n.name for n in made.values())
                texts = MODES[mode].relation.format(names), MODES[mode].reason.format(names)
                where = users_source(first), module_of(first)
                relation = Relation(op_of(first), *texts, "aot", *where, [mode], number, mode=mode)
                found.append(msgspec.structs.replace(relation, outputs=list(made)))
    return found


def _modes(gm: GraphModule) -> dict[Node, str]:
    """By the calls of a graph the mode that is on, if the graph has entered one."""
    found, entered, grad = dict[Node, str](), list[str](), True
    for node in (n for n in gm.graph.nodes if n.op in CALLS):
        match op_of(node).rpartition(".")[2]:
            case "_set_grad_enabled":
                grad = bool(node.args[0])
            case "_enter_inference_mode":
                entered.append("inference_mode" if node.args[0] else "inference_mode(False)")
            case "_exit_inference_mode":
                entered.pop()
            case _ if entered or not grad:
                found[node] = entered[-1] if entered else "no_grad"
    return found


def _autocast(ladder: Ladder, first: Difference) -> Relation | None:
    """Autocast around the call, under which the backward is made: right where the backward is made without."""
    if not ladder.program.grad and first.kind not in ("wrong_gradient", "crash_runtime", "extra_exception"):
        return None
    return _mending(ladder, partial(_backward_apart, ladder.program, ladder.compilation))


def _backward_apart(program: Program, compilation: Compilation) -> Tried:
    """The program on AOTAutograd's graphs with no autocast in the backward, and the op whose backward is another."""
    report, plain, off = Tried(), Watch(recorded=0), Watch(recorded=0)
    outer: list[str] = []

    def backend(gm: GraphModule, inputs: Sequence[Any], **settings: Any) -> Any:
        outer.extend(device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device))
        return aot_rung(off)(gm, inputs, **settings)

    with require("torch._functorch", "config", purpose="the backward").patch({SWITCH.rpartition(".")[2]: "off"}):
        run_program(program, compilation, backend, report)
    if not outer:
        return report
    run_program(program, compilation, aot_rung(plain))
    pairs = zip(_computing(plain), _computing(off), strict=False)
    first = next((mine for mine, other in pairs if mine[1:] != other[1:]), None)  # computes in another dtype
    if first is not None:
        number, name, *_ = first
        graph = plain.dynamo[number].graph.graph
        made = next((n for n in graph.nodes if n.name == name), None)
        op = op_of(made) if made is not None else name
        where = (users_source(made), module_of(made)) if made is not None else (None, None)
        reason = (
            f"The call runs under autocast ({outer[0]}), and AOTAutograd makes the whole backward under it; uncompiled "
            f'each op\'s backward runs in the dtype of its forward. With {SWITCH} = "off" the program is right.'
        )
        relation = f"the backward of {op} runs under the autocast that is on around the call"
        report.relation = Relation(op, relation, reason, "aot", *where, also=[op.rpartition(".")[2]])
    return report


def _computing(watch: Watch) -> list[tuple[int, str, str, Any]]:
    """What the backward graphs compute: graph, the forward's node, op and dtype; conversions and views left out."""
    found = []
    for graph in watch.graphs:
        for node in graph.graph.graph.nodes if graph.direction == "backward" else ():
            stack = node.meta.get("fwd_source_fn_stack")
            if stack and node.op in CALLS and not re.search(r"_to_copy|\.t\.|view|expand|permute", op_of(node)):
                dtype = getattr(node.meta.get("val"), "dtype", None)
                found.append((graph.owner, str(stack[-1][0]), op_of(node), dtype))
    return found


def _tangent(ladder: Ladder, first: Difference) -> Relation | None:
    """A tangent of forward mode that kernels do not carry on: right where it is computed beside them."""
    return _mending(ladder, partial(_with_tangents, ladder.program, ladder.compilation))


def _with_tangents(program: Program, compilation: Compilation) -> Tried:
    """The compiled program, where each graph's outputs get the tangents that they have uncompiled."""
    report, inductor = Tried(), lookup("inductor")
    lines: list[str | None] = []

    def backend(gm: GraphModule, inputs: Sequence[Any], **settings: Any) -> Any:
        compiled = inductor(gm, inputs, **settings)

        def run(*args: Any) -> Any:
            if all(_tangent_of(t) is None for t in tensors_of(args)):
                return compiled(*args)
            right, given = flat_outputs(gm.forward(*args)), compiled(*args)
            result = []
            for value, wanted in zip(flat_outputs(given), right, strict=True):
                tangent = _tangent_of(wanted)
                lost = tangent is not None and _tangent_of(value) is None
                if lost and report.relation is None:
                    report.relation = _lost(lines[-1] if lines else _line(sys._getframe(1)))
                result.append(forward_ad.make_dual(value, tangent) if lost else value)  # type: ignore[no-untyped-call]
            return tuple(result)

        return run

    def told(name: str, frame: FrameType, given: Any) -> None:
        lines.append(_line(frame))

    with _calls_seen({forward_ad.make_dual.__code__: "tensor"}, told):
        run_program(program, compilation, backend, report)
    return report


def _takes_tangents(program: Program) -> bool:
    """Whether a tangent may be on the way: of an argument, or since the program's code names what makes one."""
    names = {name for function in functions_of(program.fn) for name in names_of_code(function.__code__)}
    given = tensors_of(list(program.calls))
    return bool(names & {"make_dual", "jvp"}) or any(_tangent_of(tensor) is not None for tensor in given)


def _tangent_of(value: Any) -> torch.Tensor | None:
    inside = isinstance(value, torch.Tensor)
    return forward_ad.unpack_dual(value).tangent if inside else None  # type: ignore[no-untyped-call]


def _lost(source: str | None) -> Relation:
    reason = (
        "The tangent of forward-mode differentiation that an argument of compiled code carries is dropped: kernels do "
        "not look at it, and their result has none. With the tangent computed beside the kernels, the program is "
        "right. Call the function uncompiled there, or compile one that calls torch.func.jvp."
    )
    relation, op = "the forward-mode tangent of an argument is dropped", "torch.autograd.forward_ad.make_dual"
    return Relation(op, relation, reason, "runtime", source, also=["make_dual"])
