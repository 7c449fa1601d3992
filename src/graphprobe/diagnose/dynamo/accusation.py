"""Names what Dynamo got wrong: a node of its graph, a higher-order operator, or what the Python code calls."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
from torch.fx import GraphModule, Node
from torch.overrides import BaseTorchFunctionMode

from graphprobe.diagnose.dynamo.frame_places import node_places, place_raised, places_raised, users_source
from graphprobe.diagnose.dynamo.numpy_nodes import numpy_name
from graphprobe.diagnose.dynamo.python_culprit import applied_in, statement_of
from graphprobe.diagnose.dynamo.python_source import CALL, READ, Named
from graphprobe.diagnose.program import Program
from graphprobe.engine.forked_child import isolated
from graphprobe.engine.naming import module_of, op_of
from graphprobe.engine.subgraph import CALLS
from graphprobe.internals.operators.operators import OpMode
from graphprobe.internals.tensors import tree_leaves


class Accused(msgspec.Struct):
    """What Dynamo got wrong, where it comes from, and what is wrong.

    Attributes:
        op: the op, or what the Python code calls.
        also: what it may be, too, the likeliest first.
        called_from: the program's line that leads to a source in a library.
    """

    op: str
    node: str | None
    source: str | None
    module: str | None
    reason: str
    also: list[str] = []
    called_from: str | None = None


def of_python(names: Sequence[Named], ops: Sequence[str], reason: str, node: Node | None) -> Accused | None:
    """The first of the names as what is to blame, the others after it, and then the ops; None without names."""
    if not names:
        return None
    first, *rest = names
    telling = [n.name for n in rest if n.weight == CALL]
    others = [n.name for n in rest if n.weight == max(READ, first.weight)]
    also = [*telling, *ops, *others] if first.weight == CALL else [*ops, *telling, *others]
    module = module_of(node) if node is not None else None
    also = [name for name in dict.fromkeys(also) if name != first.name]
    return Accused(first.name, node.name if node is not None else None, first.source, module, reason, also)


def of_operator(node: Node, reason: str = "a higher-order operator; no other call is wrong") -> Accused:
    """A higher-order operator as the one that is to blame: `autograd_function_apply`."""
    return accuse(node, reason, within=node)


def _operator_names(node: Node, op: str | None) -> list[str]:
    """What the user's line of a higher-order operator calls, and the ops of its body."""
    places = node_places(node)
    called = applied_in(places[0]) if places else None
    graphs = [a for a in tree_leaves([node.args, node.kwargs]) if isinstance(a, Node) and a.op == "get_attr"]
    owner = node.graph.owning_module
    modules = [getattr(owner, str(g.target), None) for g in graphs]
    ops = [op_of(n) for m in modules if isinstance(m, GraphModule) for n in m.graph.nodes if n.op in CALLS]
    inner = [name for name in ops if "set_grad_enabled" not in name]
    return list(dict.fromkeys(name for name in (called, op, *inner) if name))


def accuse(
    node: Node, reason: str, *, op: str | None = None, also: Sequence[str] = (), within: Node | None = None
) -> Accused:
    """A node as the one that is to blame; in the body of a higher-order operator, this."""
    if within is not None:
        inner = None if node is within else op_of(node)
        name = str(within.target).rpartition(".")[2]
        source = users_source(node) or users_source(within)
        also = _operator_names(within, inner)
        return Accused(name, within.name, source, module_of(within), reason, list(also))
    name = op or numpy_name(node) or op_of(node)
    return Accused(name, node.name, users_source(node), module_of(node), reason, list(also))


def named_side_effect(where: str, fn: Any) -> Accused:
    """The statement of the user's that makes a side effect, as the one that Dynamo lost or made otherwise.

    Args:
        where: the label of what is changed, as in `graphprobe.judge.effects.snapshot`: `closure hits[0]`.
        fn: the program, uncompiled.
    """
    made = statement_of(where, fn)
    if made is None:
        return Accused("side_effect", None, None, None, f"{where} is not what it is uncompiled", ["side_effect"])
    return Accused(made.name, None, made.source, None, f"it changes {where}", ["side_effect"])


class Path(msgspec.Struct):
    """The operators that the uncompiled program runs; `raised`: what ends it with an exception."""

    ops: list[str] = []
    raised: Accused | None = None


def path_of(program: Program, mode: contextlib.AbstractContextManager[Any]) -> Path:
    """The way that the program takes under a mode, or under none: some of torch's layers ask for modes, and go another
    way then. Run it in a child."""
    found = Path()

    def around(op: Any, args: Any, kwargs: Any) -> Any:
        found.ops.append(str(op))
        return op(*args, **kwargs)

    def make(fn: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                with mode:
                    return fn(*args, **kwargs)
            except Exception as error:
                found.raised = _raising(error)
                raise

        return call

    with OpMode(around):
        program.run(make)
    return found


def _raising(error: Exception) -> Accused | None:
    """The call that raises, by the innermost line of Python, at the user's line."""
    place, users = place_raised(error), places_raised(error)
    name = applied_in(place) if place is not None else None
    if name is None or not users:
        return None
    op = name if name.startswith("torch.") else name.rpartition(".")[2]
    reason = "this raises uncompiled; the calls before it are not told, as torch takes another way where it is watched"
    return Accused(op, None, users[0].source, None, reason)


def from_states(states: tuple[Any, Any], run: Callable[[], Any]) -> Any:
    """Run with these states of the generators of Python and numpy; Python seeds its own anew in a forked process."""
    random.setstate(states[0])
    np.random.set_state(states[1])
    return run()


def other_path(program: Program, states: tuple[Any, Any], timeout_s: float) -> Path | None:
    """The way that the program takes by itself, where it takes another when its calls are seen; None: it does not."""
    alone, watched = (
        isolated(partial(from_states, states, partial(path_of, program, mode)), timeout_s=timeout_s).value
        for mode in (contextlib.nullcontext(), BaseTorchFunctionMode())
    )
    known = alone is not None and watched is not None
    return msgspec.convert(alone, Path) if known and alone["ops"] != watched["ops"] else None
