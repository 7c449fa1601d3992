"""A directed graph in layers, from top to bottom: which layer, which order, which place, and the edges as polylines.

The method of Sugiyama, Tagawa and Toda (1981) in its plainest form: layers by the longest path, a place holder in each
layer that an edge passes through, sweeps that put each node at the mean place of its neighbours, and last the places
themselves. It is made for some sixty nodes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import msgspec

SWEEPS = 8
GAP_X, GAP_Y = 26.0, 54.0
"""Between boxes of one layer, and between layers."""

THIN = 14.0
"""Width of an edge that passes through a layer."""

Point = tuple[float, float]


class Placed(msgspec.Struct, frozen=True):
    """Where everything is, in pixels from the upper left corner.

    Attributes:
        centres: of each node's box; y is its middle.
        edges: for each edge, in the given order, the points of its line, from the upper box to the lower.
        width, height: of the whole.
    """

    centres: tuple[Point, ...]
    edges: tuple[tuple[Point, ...], ...]
    width: float
    height: float


def layout(widths: Sequence[float], height: float, edges: Sequence[tuple[int, int]]) -> Placed:
    """Place the nodes 0 … n-1 of an acyclic graph.

    Args:
        widths: of each node's box; all boxes are `height` high.
        edges: from upper to lower node; an edge of a node to itself, or against the order of the numbers, is an error.

    Raises:
        ValueError: the numbers are no topological order.
    """
    if any(not 0 <= a < b < len(widths) for a, b in edges):
        raise ValueError("nodes are numbered in topological order: an edge goes from a lower number to a higher")
    layer = _layers(len(widths), edges)
    chains = _chains(layer, edges, len(widths))
    size = [*widths, *([THIN] * (sum(len(chain) for chain in chains) - 2 * len(chains)))]
    below: list[list[int]] = [[] for _ in size]
    above: list[list[int]] = [[] for _ in size]
    layer_of = dict(enumerate(layer))
    for (a, _), chain in zip(edges, chains, strict=True):
        for step, (upper, lower) in enumerate(itertools.pairwise(chain)):
            below[upper].append(lower)
            above[lower].append(upper)
            layer_of[upper] = layer[a] + step
    rows: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
    for node in sorted(range(len(size)), key=lambda n: (layer_of[n], n)):
        rows[layer_of[node]].append(node)
    _order(rows, above, below)
    x = _places(rows, size, above, below)
    left = min((x[n] - size[n] / 2 for n in range(len(size))), default=0.0)
    x = [place - left for place in x]

    def y(node: int) -> float:
        return layer_of[node] * (height + GAP_Y) + height / 2

    lines = tuple(_line(chain, x, y, size, height, above, below) for chain in chains)
    return Placed(
        centres=tuple((round(x[n], 1), y(n)) for n in range(len(widths))),
        edges=lines,
        width=max((x[n] + size[n] / 2 for n in range(len(size))), default=0.0),
        height=len(rows) * (height + GAP_Y) - GAP_Y if rows else 0.0,
    )


def _layers(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """By the longest path from above, and then as low as that costs no length of edges: inputs stand by their users."""
    layer = [0] * count
    above = [0] * count
    below: list[list[int]] = [[] for _ in range(count)]
    for a, b in sorted(edges):
        layer[b] = max(layer[b], layer[a] + 1)
        above[b] += 1
        below[a].append(b)
    for node in range(count - 1, -1, -1):
        if below[node] and len(below[node]) >= above[node]:
            layer[node] = min(layer[b] for b in below[node]) - 1
    return layer


def _chains(layer: Sequence[int], edges: Sequence[tuple[int, int]], count: int) -> list[list[int]]:
    """For each edge the nodes that it runs through: its ends, and place holders numbered from `count`."""
    chains = []
    for a, b in edges:
        between = layer[b] - layer[a] - 1
        chains.append([a, *range(count, count + between), b])
        count += between
    return chains


def _order(rows: list[list[int]], above: Sequence[list[int]], below: Sequence[list[int]]) -> None:
    """Fewer crossings: down and up in turns, each node goes to the mean place of its neighbours."""
    best, least = [list(row) for row in rows], _crossings(rows, below)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else rows[::-1]:
            places = {node: i for other in rows for i, node in enumerate(other)}
            near = above if down else below
            means = {
                node: sum(places[n] for n in near[node]) / len(near[node]) if near[node] else places[node]
                for node in row
            }
            row.sort(key=lambda node: (means[node], places[node]))
        found = _crossings(rows, below)
        if found < least:
            best, least = [list(row) for row in rows], found
    rows[:] = best


def _crossings(rows: list[list[int]], below: Sequence[list[int]]) -> int:
    total = 0
    for row, under in itertools.pairwise(rows):
        place = {node: i for i, node in enumerate(under)}
        ends = [place[n] for node in row for n in sorted(below[node], key=place.__getitem__)]
        total += sum(left > right for i, left in enumerate(ends) for right in ends[i + 1 :])
    return total


def _places(
    rows: list[list[int]], size: Sequence[float], above: Sequence[list[int]], below: Sequence[list[int]]
) -> list[float]:
    """Places in their rows: as near to the neighbours as the order and the gaps allow."""
    x = [0.0] * len(size)
    for row in rows:
        at = 0.0
        for node in row:
            x[node] = at + size[node] / 2
            at += size[node] + GAP_X
    for turn in range(12):
        down = turn % 2 == 0
        for row in rows if down else rows[::-1]:
            near = above if down else below
            wanted = [sum(x[n] for n in near[node]) / len(near[node]) if near[node] else x[node] for node in row]
            for node, place in zip(row, _apart(row, wanted, size), strict=True):
                x[node] = place
    return x


def _apart(row: list[int], wanted: list[float], size: Sequence[float]) -> list[float]:
    """The places nearest to the wanted ones without overlap: neighbours that would overlap are moved as one block."""
    blocks: list[tuple[float, int, list[float]]] = []  # sum of the offsets' wishes, how many, offsets from the first
    for i in range(len(row)):
        blocks.append((wanted[i], 1, [0.0]))
        while len(blocks) > 1:
            (left_sum, left_n, left), (right_sum, right_n, right) = blocks[-2:]
            first = i - right_n + 1
            gap = (size[row[first - 1]] + size[row[first]]) / 2 + GAP_X
            if left_sum / left_n + left[-1] + gap <= right_sum / right_n:
                break
            shift = left[-1] + gap
            merged = [*left, *(shift + offset for offset in right)]
            blocks[-2:] = [(left_sum + right_sum - shift * right_n, left_n + right_n, merged)]
    return [total / count + offset for total, count, offsets in blocks for offset in offsets]


def _line(
    chain: list[int],
    x: Sequence[float],
    y: Callable[[int], float],
    size: Sequence[float],
    height: float,
    above: Sequence[list[int]],
    below: Sequence[list[int]],
) -> tuple[Point, ...]:
    """From the lower side of the first box, through the place holders, to the upper side of the last."""
    first, last = chain[0], chain[-1]
    start = _attached(first, chain[1], below[first], x, size)
    end = _attached(last, chain[-2], above[last], x, size)
    points = [(start, y(first) + height / 2)]
    for node in chain[1:-1]:
        points += [(x[node], y(node) - height / 2), (x[node], y(node) + height / 2)]
    points.append((end, y(last) - height / 2))
    return tuple((round(px, 1), round(py, 1)) for px, py in points)


def _attached(node: int, other: int, others: Sequence[int], x: Sequence[float], size: Sequence[float]) -> float:
    """Where along the side of its box an edge begins: edges are spread in the order of what they lead to."""
    order = sorted(dict.fromkeys(others), key=x.__getitem__)
    share = (order.index(other) + 1) / (len(order) + 1)
    return x[node] + (share - 0.5) * size[node] * 0.7
