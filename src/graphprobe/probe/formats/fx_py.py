"""Writes a stand-alone Python file that rebuilds an FX graph with its leaf modules, runs it, and compares."""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence

import torch
from torch import fx

from graphprobe.engine import replay
from graphprobe.engine.subgraph import attribute
from graphprobe.engine.values import one_file_bytes, why_not
from graphprobe.internals.ir.records import source_line
from graphprobe.probe.formats import GUARD, Script, assembled
from graphprobe.probe.formats.literals import Literals, Unreproducible, input_metas, metas_text

BUILD_MODULE = """
def module(cls, plain, tensors, children):
    made = cls.__new__(cls)
    torch.nn.Module.__init__(made)
    made.__dict__.update(plain)
    for name, (kind, value) in tensors.items():
        made.register_parameter(name, value) if kind == "parameter" else made.register_buffer(name, value)
    for name, child in children.items():
        made.add_module(name, child)
    return made
"""

_OWN = frozenset(torch.nn.Module().__dict__) - {"training"}
_HOOKS = tuple(name for name in _OWN if name.endswith("_hooks"))

RESERVED = frozenset(
    "torch operator math builtins g node root constants attach hop resolve custom_op sym build module".split()
) | frozenset(keyword.kwlist)

HELPERS = """
def node(g, op, name, target, args=(), kwargs=None):
    made = g.create_node(op, target, args, kwargs or {}, name)
    if made.name != name:
        made.name = name
    return made


def attach(root, path, value):
    *folders, leaf = path.split(".")
    for folder in folders:
        if not hasattr(root, folder):
            root.add_module(folder, torch.nn.Module())
        root = getattr(root, folder)
    setattr(root, leaf, value)


def resolve(module, qualname):
    try:
        found = importlib.import_module(module)
        for part in qualname.split("."):
            found = getattr(found, part)
        return found
    except (ImportError, AttributeError) as error:
        raise Undecided(f"{module}.{qualname} is not available here: {error}")


def custom_op(namespace, name, overload):
    try:
        found = getattr(getattr(torch.ops, namespace), name)
        return getattr(found, overload) if overload else found
    except AttributeError:
        raise Undecided(f"operator {namespace}::{name} is not registered; name its library with --import MODULE")


def hop(name):
    try:
        return getattr(torch.ops.higher_order, name)
    except AttributeError:
        importlib.import_module("torch._higher_order_ops")
        return getattr(torch.ops.higher_order, name)


def sym(expression, value):
    return value
"""

MAIN = """
def graphprobe_run():
    graph_module = build()
    return lambda args: torch.fx.Interpreter(graph_module).run(*args)


if __name__ == "__main__":
    sys.exit(main(graphprobe_run, METAS, __file__, PROBLEMS, eager={eager}))
"""


class GraphSource:
    """The functions that rebuild a graph module and the graph modules it calls, and what they stand on."""

    def __init__(self, gm: fx.GraphModule) -> None:
        self.literals = Literals()
        self.tensors: dict[str, torch.Tensor] = {}
        self.problems: list[str] = []
        self.functions: list[str] = []
        self._graph(gm, "", "build_graph")

    def problem(self, text: str) -> None:
        if text not in self.problems:
            self.problems.append(text)

    def tensor(self, path: str, tensor: torch.Tensor) -> str:
        """Keeps a tensor for the constants file and returns the expression that fetches it."""
        self.tensors[path] = tensor
        return f"constants[{path!r}]"

    def _graph(self, gm: fx.GraphModule, prefix: str, function: str) -> None:
        lines = [f"def {function}(constants):", "    root = torch.nn.Module()"]
        nodes: dict[fx.Node, str] = {}
        used = set(RESERVED)
        attached: set[str] = set()
        body = ["    g = torch.fx.Graph()"]
        source = ""
        for node in gm.graph.nodes:
            if node.op in ("get_attr", "call_module") and node.target not in attached:
                attached.add(node.target)
                lines += self._attribute(gm, node.target, prefix)
            if node.op not in ("placeholder", "output") and (line := source_line(node)) != source:
                source = line
                body += [f"    # {line}"] if line else []
            body.append(f"    {self._node(node, nodes, used, prefix)}{_comment(node)}")
        ending = f"    return torch.fx.GraphModule(root, g, {type(gm).__name__!r})"
        self.functions.append("\n".join([*lines, *body, ending]))

    def _node(self, node: fx.Node, nodes: dict[fx.Node, str], used: set[str], prefix: str) -> str:
        try:
            target = repr(node.target) if isinstance(node.target, str) else self.literals.callable(node.target)
            args, kwargs = self.literals.text(node.args, nodes), self.literals.text(dict(node.kwargs), nodes)
        except Unreproducible as reason:
            self.problem(f"node {prefix}{node.name}: {reason}")
            target, args, kwargs = repr(f"lost: {reason}"), "()", "{}"
        name = node.name if node.name.isidentifier() else re.sub(r"\W", "_", f"v_{node.name}")
        while name in used:
            name += "_"
        used.add(name)
        nodes[node] = name
        tail = f", {args}, {kwargs}" if kwargs != "{}" else (f", {args}" if args != "()" else "")
        return f"{name} = node(g, {node.op!r}, {node.name!r}, {target}{tail})"

    def _attribute(self, gm: fx.GraphModule, target: str, prefix: str) -> list[str]:
        path = f"{prefix}{target}"
        found = attribute(gm, target)
        if isinstance(found, fx.GraphModule):
            function = f"build_{re.sub(r'[^0-9A-Za-z_]', '_', path)}"
            self._graph(found, f"{path}.", function)
            return [f"    attach(root, {target!r}, {function}(constants))"]
        if isinstance(found, torch.Tensor):
            if (reason := why_not(found)) is not None:
                self.problem(f"{path} is no plain tensor: {reason}")
                return []
            return [f"    attach(root, {target!r}, {self.tensor(path, found)})"]
        try:
            if isinstance(found, torch.nn.Module):
                return [f"    attach(root, {target!r}, {self._module(found, path)})"]
            return [f"    attach(root, {target!r}, {self.literals.text(found, {})})"]
        except Unreproducible as reason:
            self.problem(f"{path}: {reason}")
            return []

    def _module(self, module: torch.nn.Module, path: str) -> str:
        """An expression that makes the module again without calling its constructor.

        Raises:
            Unreproducible: the class cannot be found elsewhere, an attribute has no source text, or it has hooks.
        """
        cls = self.literals.callable(type(module))
        if any(getattr(module, name) for name in _HOOKS if name in module.__dict__):
            raise Unreproducible(f"{type(module).__qualname__} has hooks")
        plain = {name: value for name, value in module.__dict__.items() if name not in _OWN}
        tensors = [
            f"{name!r}: ({kind!r}, {'None' if value is None else self.tensor(f'{path}.{name}', value)})"
            for kind, held in (("parameter", module._parameters), ("buffer", module._buffers))
            for name, value in held.items()
        ]
        children = [
            f"{name!r}: {'None' if child is None else self._module(child, f'{path}.{name}')}"
            for name, child in module._modules.items()
        ]
        attributes = self.literals.text(plain, {})
        return f"module({cls}, {attributes}, {{{', '.join(tensors)}}}, {{{', '.join(children)}}})"

    def code(self, constants: str) -> list[str]:
        """Texts that define `build()`, behind those of `replay`; `constants`: an expression for the file's path."""
        made = any(" module(" in text for text in self.functions)
        loading = f"load_constants({constants})" if self.tensors else "{}"
        build = f"def build():\n    return build_graph({loading})"
        return [HELPERS, *([BUILD_MODULE] if made else []), *self.functions, build]


def _comment(node: fx.Node) -> str:
    value = node.meta.get("val", node.meta.get("example_value"))
    if not isinstance(value, torch.Tensor):
        return ""
    try:
        return f"  # {str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    except Exception:  # a symbolic shape that cannot be printed any more
        return ""


def example_inputs(gm: fx.GraphModule) -> list[object]:
    """What the graph's placeholders were traced with: fake tensors, symbolic numbers; None where nothing is known."""
    metas = [node.meta for node in gm.graph.nodes if node.op == "placeholder"]
    return [meta.get("val", meta.get("example_value", meta.get("tensor_meta"))) for meta in metas]


def preamble(title: str, graph: GraphSource, inputs: Sequence[object]) -> str:
    """A script from its first line to the metas of its inputs: comments, replay code, helpers, `build…` functions."""
    return assembled(
        [title, *graph.problems, *dict.fromkeys(graph.literals.notes)],
        {f"import {module}" for module in graph.literals.imports | {"torch", "torch.fx"}},
        [
            replay.embedded(),
            *graph.code("Path(__file__).resolve().with_suffix('.constants.safetensors')"),
            f"PROBLEMS = {tuple(graph.problems)!r}\nMETAS = {metas_text(input_metas(inputs))}",
        ],
        first=["", GUARD],
        gap="\n\n\n",
    )


def fx_py_source(
    gm: fx.GraphModule,
    *,
    title: str,
    inputs: Sequence[object] | None = None,
    eager: bool = False,
) -> Script:
    """A Python file that defines `build() -> torch.fx.GraphModule`, and when run, runs the graph and compares.

    The rebuilt graph has the same nodes in the same order: op, name, target, arguments, nested graph modules, and the
    tensors it holds, which go to `<stem>.constants.safetensors`. Symbolic sizes become plain integers.

    Args:
        title: first line of the file, as a comment.
        inputs: example inputs, for making inputs when none were saved; None takes the placeholders' metadata.
        eager: the graph is one of Dynamo's: run it with gradients enabled and under the recorded autocast.

    What cannot be reproduced elsewhere (functions of `__main__`, tensor subclasses, script objects) is listed in
    `Script.problems` and in the file's head; the file then exits 125. It never raises for such graphs.
    """
    graph = GraphSource(gm)
    text = preamble(title, graph, example_inputs(gm) if inputs is None else inputs)
    return Script(
        source=text + "\n" + MAIN.format(eager=eager),
        constants=one_file_bytes(graph.tensors) if graph.tensors else None,
        problems=tuple(graph.problems),
    )
