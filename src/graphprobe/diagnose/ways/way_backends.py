"""Each step of a way as a backend of `torch.compile`, so that what finds and proves faults of backends does so here."""

from __future__ import annotations

import functools
import gc
import inspect
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

from torch.fx import Graph, GraphModule

from graphprobe.diagnose.dossier.own_backend import OwnBackend, WrittenBackend, own_text
from graphprobe.internals.inductor.executable_snapshots import Applied
from graphprobe.internals.way_taps import WayGraph
from graphprobe.program_text.plain_values import Unwritable
from graphprobe.program_text.sources import is_own

PASSED = '''def passed(gm, inputs):
    """Runs the graph as the pass leaves it."""
    for node in gm.graph.nodes:
        node.meta.setdefault("val", node.meta.get("example_value"))
    made = {call}
    made = getattr(made, "graph_module", made)
    made = made if isinstance(made, torch.fx.GraphModule) else gm
    made.recompile()
    return made
'''
EXPORTED = '''def exported(gm, inputs):
    """Runs the graph as torch.export makes it."""
    return torch.export.export(gm, tuple(inputs)).module()
'''
TRACED = '''from torch.fx.experimental.proxy_tensor import make_fx


def traced(gm, inputs):
    """Runs the graph as make_fx makes it."""
    return make_fx(gm, tracing_mode="fake")(*inputs)
'''
DECOMPOSED = '''def decomposed(gm, inputs):
    """Runs the graph with its operations decomposed."""
    decompositions = {begin} | {table}
    return torch.export.export(gm, tuple(inputs)).run_decompositions(decompositions).module()
'''
PACKAGED = '''def packaged(gm, inputs):
    """Runs the graph as AOTInductor compiles it."""
    exported = torch.export.export(gm, tuple(inputs))
    return torch._inductor.aoti_load_package(torch._inductor.aoti_compile_and_package(exported))
'''


def backend_of(graph: WayGraph) -> WrittenBackend | None:
    """What does to a graph what has made this one of the graph before; None where that cannot be called again."""
    if graph.kind in ("export", "module"):
        return _backend("exported", EXPORTED)
    if graph.kind == "trace":
        return _backend("traced", TRACED)
    if graph.kind == "decompose":
        return _decomposing(graph.applied if isinstance(graph.applied, Mapping) else None)
    if isinstance(graph.applied, Applied):
        return _passing(graph.applied)
    return passing(graph.applied) if callable(graph.applied) else None


def packaging() -> WrittenBackend:
    """AOTInductor."""
    return _backend("packaged", PACKAGED)


def passing(function: Callable[..., Any], called: str = "{}(gm)") -> WrittenBackend:
    """A pass as a backend; `called`: how, with a place for the function."""
    name = "pass_of_the_program"
    return _backend("passed", PASSED.replace("{call}", called), name, function)


def _backend(name: str, text: str, root: str = "", value: Any = None) -> WrittenBackend:
    """The backend of a text with a place for an expression of `value`, if it has one."""
    if not root:
        return WrittenBackend(text, name, {}, OwnBackend(name, f"import torch\n\n\n{text}", name))
    told: OwnBackend | None = None
    try:
        found, before, folders = own_text(value, root)
        whole = "\n\n\n".join([before.rstrip(), text.replace("{}", found)])
        told = OwnBackend(name, whole, name, ", ".join(dict.fromkeys(folders.values())))
    except Unwritable:
        pass
    return WrittenBackend(text.replace("{}", root), name, {root: value}, told)


def _decomposing(table: Mapping[Any, Any] | None) -> WrittenBackend:
    """`run_decompositions` with what the program has put into its table."""
    given = dict(table) if table is not None else {}
    own = {op: rule for op, rule in given.items() if is_own(str(getattr(rule, "__module__", "torch")))}
    whole = table is not None and len(own) == len(given)
    text = DECOMPOSED.replace("{begin}", "{}" if whole else "dict(torch.export.default_decompositions())")
    text = text.replace("{} | {table}", "{table}").replace("{table}", "{}" if own else "dict()")
    return _backend("decomposed", text, "table_of_the_program", own) if own else _backend("decomposed", text)


def own_rule(table: Any, op: str) -> Callable[..., Any] | None:
    """The program's own decomposition of an operation, by its name in a table of `run_decompositions`."""
    for target, rule in dict(table).items() if isinstance(table, Mapping) else ():
        if str(target) in (op, op.removesuffix(".default")) and is_own(str(getattr(rule, "__module__", "torch"))):
            found: Callable[..., Any] = rule
            return found
    return None


def _passing(applied: Applied) -> WrittenBackend | None:
    """The pass as it was called, on another graph."""
    function = _function_of(applied)
    if function is None:
        return None
    parameters = list(inspect.signature(function).parameters.values())
    given = {p.name: applied.arguments.get(p.name) for p in parameters}
    graphs = {name: of for name, value in given.items() if (of := _graph_in(value, applied.graph)) is not None}
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    others = {p.name: given[p.name] for p in parameters if p.name not in graphs and given[p.name] is not p.default}
    if len(graphs) != 1 or any(p.kind not in plain for p in parameters if p.name in others or p.name in graphs):
        return None
    ((name, of),) = graphs.items()
    called = f"{{}}({of})" if parameters[0].name == name else f"{{}}({name}={of})"
    return passing(functools.partial(function, **others) if others else function, called)


def _graph_in(value: Any, gm: GraphModule) -> str | None:
    if value is gm:
        return "gm"
    return "gm.graph" if isinstance(value, Graph) and value.owning_module is gm else None


def _function_of(applied: Applied) -> Callable[..., Any] | None:
    """The function, or bound method, that has this code."""
    code, first = applied.code, next(iter(applied.arguments.values()), None)
    named = applied.namespace.get(code.co_name)
    if isinstance(named, FunctionType) and named.__code__ is code:
        return named
    bound = getattr(first, code.co_name, None) if not isinstance(first, GraphModule | Graph) else None
    if inspect.ismethod(bound) and bound.__func__.__code__ is code:
        return bound
    found = [f for f in gc.get_referrers(code) if isinstance(f, FunctionType) and f.__code__ is code]
    return found[0] if len(found) == 1 else None
