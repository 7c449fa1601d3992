"""The sizes that are written into a graph: where they stand, and how they follow when the inputs get smaller."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

from graphprobe.diagnose.reduction.edits.base import check_runs, copied_inputs, runnable
from graphprobe.diagnose.reduction.edits.measure import calls, graphs_in, literals, put
from graphprobe.engine.interpret import cuda_devices, run_graph
from graphprobe.internals.operators.operators import operator_of

NAMES = frozenset(
    "size shape sizes self_size input_size input_sizes split_sizes split_size split_size_or_sections normalized_shape "
    "output_size start end length storage_offset repeats pad n m padded_size num_classes stop dims_size".split()
)
"""Names of arguments that are sizes, or positions along a dim."""

STRIDED = frozenset({"as_strided", "as_strided_", "as_strided_scatter", "empty_strided", "new_empty_strided"})
"""Their argument `stride` follows the sizes; that of a convolution does not."""

FROM: dict[str, int] = {
    **dict.fromkeys("view reshape expand repeat tile broadcast_to new_zeros new_ones new_empty new_full".split(), 1),
    **dict.fromkeys("split split_with_sizes layer_norm rms_norm pad getitem setitem resize_ view_copy".split(), 1),
    **dict.fromkeys("zeros ones empty rand randn full arange eye iota tril_indices triu_indices".split(), 0),
    **dict.fromkeys("narrow unflatten as_strided adaptive_avg_pool2d interpolate one_hot".split(), 1),
}
"""Functions and methods without a schema: their sizes stand from this argument on."""

VIEWS = frozenset("view _unsafe_view reshape view_copy _reshape_alias".split())
EXPANDS = frozenset("expand broadcast_to expand_copy".split())


def name_of(node: Node) -> str:
    """The plain name of what a node calls, e.g. `view`."""
    found = operator_of(node.target)
    if found is not None:
        return found.name
    return str(node.target) if isinstance(node.target, str) else str(getattr(node.target, "__name__", ""))


def size_arguments(node: Node) -> dict[str, int]:
    """Integers above 1 that stand where sizes stand, by path."""
    names = getattr(operator_of(node.target), "arguments", ())
    name = name_of(node)
    found = {}
    for path, value in literals(node):
        if type(value) is not int or value < 2 or value >= 2**62:
            continue
        kind, place = path.split(".")[:2]
        if kind == "kwargs":
            argument = place
        elif names:
            argument = names[int(place)] if int(place) < len(names) else ""
        else:
            argument = "size" if int(place) >= FROM.get(name, math.inf) else ""
        if argument in NAMES or (argument == "stride" and name in STRIDED):
            found[path] = value
    return found


class _Fitting(Interpreter):
    """Runs a graph on inputs of other sizes; a call that has sizes gets the first ones that it runs with."""

    def __init__(self, gm: GraphModule, before: Mapping[str, tuple[int, ...]], sizes: Mapping[int, int], bold: bool):
        super().__init__(gm)
        self.extra_traceback = False
        self.before, self.sizes, self.bold = before, sizes, bold
        self.chosen: dict[str, dict[str, int]] = {}

    def run_node(self, n: Node) -> Any:
        found = size_arguments(n) if n.op in ("call_function", "call_method") else {}
        if not found:
            return super().run_node(n)
        args, kwargs = n.args, n.kwargs
        error: Exception | None = None
        options = list(self._options(n, found))
        for option in _distinct([*options, {}] if self.bold else [{}, *options], found):
            put(n, option)
            try:
                result = super().run_node(n)
            except Exception as raised:  # another choice may do
                error = raised
                n.args, n.kwargs = args, kwargs
            else:
                self.chosen[n.name] = option
                return result
        assert error is not None
        raise error

    def _options(self, node: Node, found: Mapping[str, int]) -> Iterator[dict[str, int]]:
        yield from self._by_shape(node, found)
        exact = {path: self.sizes[value] for path, value in found.items() if value in self.sizes}
        yield exact
        ratios = [
            (path, value // old * new)
            for path, value in sorted(found.items(), key=lambda item: -item[1])
            for old, new in self.sizes.items()
            if value % old == 0 and path not in exact
        ]
        yield {**exact, **dict(reversed(ratios))}
        for path, value in ratios:
            yield {**exact, path: value}
        for path, value in exact.items():
            yield {path: value}
        for old, new in self.sizes.items():  # parts of a dim: all of them scaled
            if all(value * new % old == 0 and value * new >= old for value in found.values()):
                yield {path: value * new // old for path, value in found.items()}

    def _by_shape(self, node: Node, found: Mapping[str, int]) -> Iterator[dict[str, int]]:
        """The sizes of a view, from the shape that it views."""
        name = name_of(node)
        source = node.args[0] if node.args else None
        value = self.env[source] if isinstance(source, Node) and source.name in self.before else None
        if not isinstance(source, Node) or not isinstance(value, torch.Tensor):
            return
        old, new = self.before[source.name], tuple(value.shape)
        wanted, paths = _size_list(node)
        if name in EXPANDS and wanted:
            skipped = len(wanted) - len(old)
            yield {
                path: new[i - skipped] if i >= skipped and old[i - skipped] == size else self.sizes.get(size, size)
                for i, (size, path) in enumerate(zip(wanted, paths, strict=True))
                if path in found
            }
        elif name in VIEWS and wanted:
            following = viewed(old, new, wanted, self.sizes)
            if following is not None:
                yield {path: size for path, size in zip(paths, following, strict=True) if path in found}


def _distinct(options: Sequence[dict[str, int]], found: Mapping[str, int]) -> list[dict[str, int]]:
    kept = []
    for option in options:
        changed = {path: value for path, value in option.items() if value != found[path]}
        if changed not in kept:
            kept.append(changed)
    return kept


def _size_list(node: Node) -> tuple[list[int], list[str]]:
    """The sizes of a view or an expansion, and their paths; empty where one of them is computed."""
    nested = len(node.args) == 2 and isinstance(node.args[1], (list, tuple))
    given: Any = node.args[1] if nested else node.args[1:]
    if not all(type(size) is int for size in given):
        return [], []
    return list(given), [f"args.1.{i}" if nested else f"args.{i + 1}" for i in range(len(given))]


def viewed(old: Sequence[int], new: Sequence[int], wanted: Sequence[int], sizes: Mapping[int, int]) -> list[int] | None:
    """The sizes of a view of a tensor whose shape is now `new`, where `wanted` viewed the shape `old`.

    Dims are grouped so that each group of `old` holds as many elements as its group of `wanted`; -1 stays. A group
    that was split keeps the sizes of `sizes` if they fit, otherwise the first of its dims that can be scaled is.

    Returns:
        None where nothing fits.
    """
    rest = math.prod(size for size in wanted if size != -1)
    total = math.prod(old)
    if 0 in old or 0 in wanted or rest == 0 or total % rest or math.prod(old) == 0:
        return None
    full = [total // rest if size == -1 else size for size in wanted]
    result: list[int] = []
    i = j = 0
    while i < len(old) or j < len(full):
        i, j, first_i, first_j = i + 1, j + 1, i, j
        while (a := math.prod(old[first_i:i])) != (b := math.prod(full[first_j:j])):
            if a < b and i < len(old):
                i += 1
            elif b < a and j < len(full):
                j += 1
            else:
                return None
        result += _group(list(old[first_i:i]), list(new[first_i:i]), full[first_j:j], sizes)
    return [-1 if size == -1 else made for size, made in zip(wanted, result, strict=True)]


def _group(old: list[int], new: list[int], parts: list[int], sizes: Mapping[int, int]) -> list[int]:
    if old == parts:
        return new
    target, before = math.prod(new), math.prod(old)
    if len(parts) == 1:
        return [target]
    if target == before:
        return parts
    exact = [sizes.get(part, part) for part in parts]
    if math.prod(exact) == target:
        return exact
    for k, part in enumerate(parts):
        if part * target % before == 0 and part * target >= before:
            return [*parts[:k], part * target // before, *parts[k + 1 :]]
    return _split(target, parts)


def _split(target: int, parts: Sequence[int]) -> list[int]:
    """Factors of `target`, each but the last one a divisor of its part."""
    result = []
    for part in parts[:-1]:
        result.append(math.gcd(part, target))
        target //= result[-1]
    return [*result, target]


def shapes_of(graph: GraphModule, inputs: Sequence[Any]) -> tuple[dict[str, tuple[int, ...]], bool]:
    """Shape of every tensor of a run, by name of the node; and whether the graph runs without data."""
    run, meta = run_graph(_without_data(graph), [_empty(value) for value in inputs]), True
    if run.failed is not None:  # an op that looks at values, or a device that is written into the graph
        run, meta = run_graph(runnable(graph), inputs), False
    if run.failed is not None:
        raise run.failed[1]
    return {name: tuple(value.shape) for name, value in run.values.items() if isinstance(value, torch.Tensor)}, meta


def _without_data(graph: GraphModule) -> GraphModule:
    made = runnable(graph)
    return made if made is graph else made.to("meta")


def _empty(value: Any) -> Any:
    """A tensor with the same geometry and no data."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def fit_sizes(
    graph: GraphModule,
    inputs: Sequence[Any],
    before: Mapping[str, tuple[int, ...]],
    sizes: Mapping[int, int],
    *,
    bold: bool,
    meta: bool,
) -> None:
    """Change the sizes in the graph, in place, so that it runs on `inputs`; graphs inside operators get `sizes` too.

    Args:
        before: shapes of the tensors of a run on the old inputs.
        sizes: new sizes by old.
        bold: what is in the graph is tried last, and not first.
        meta: look for them without data; then run it once with data.

    Raises:
        Exception: what the graph raises where nothing fits; it is unchanged then.
    """
    owners = list(dict.fromkeys(graphs_in(graph)))
    kept = [(node, node.args, node.kwargs) for owner in owners for node in calls(owner)]
    for body in owners[1:]:
        for node in calls(body):
            put(node, {path: sizes[value] for path, value in size_arguments(node).items() if value in sizes})
        body.recompile()
    try:
        run = _Fitting(_without_data(graph) if meta else runnable(graph), before, sizes, bold)
        values = copied_inputs([_empty(value) for value in inputs] if meta else inputs)
        with torch.no_grad(), torch.random.fork_rng(cuda_devices(values)):
            run.run(*values)
        for node, args, kwargs in kept:
            if node.graph is graph.graph:
                node.args, node.kwargs = args, kwargs
                put(node, run.chosen.get(node.name, {}))
        if meta:
            check_runs(graph, inputs)
    except Exception:
        for node, args, kwargs in kept:
            node.args, node.kwargs = args, kwargs
        for body in owners[1:]:
            body.recompile()
        raise
