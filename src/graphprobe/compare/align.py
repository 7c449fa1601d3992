"""Which call of the candidate is which call of the reference.

Rules, in this order, each only for what those before left over:

1. same operation, module, direction and shapes, as a longest common subsequence of the whole program: `exact` where
   name and index agree too, else `sequence` (an extra call before has shifted the index), or `renamed`;
2. the same without the module, between the pairs found so far: `sequence`, or `renamed` where the names differ;
3. same operation, module and direction with other shapes, between the pairs: `module`;
4. same operation, module, direction and shapes, in another place: `moved`; the n-th to the n-th.

What remains has no partner. Nothing is ever paired by a part of a name.

The subsequence of two long programs is found in bounded time and memory: windows between anchors (patience: elements
that occur once on either side, in the same order), inside a window the greedy algorithm of Myers, "An O(ND) Difference
Algorithm and Its Variations", 1986, up to a number of edits.
"""

from __future__ import annotations

import bisect
import itertools
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from graphprobe.compare.result import Rule

if TYPE_CHECKING:
    from graphprobe.compare.outline import Outline

QUICK_EDITS = 48
"""Edits that are tried before anchors are looked for: most windows differ by less."""

SMALL = 256
"""Elements of both sides together up to which a window without anchors is solved exactly; a larger one is halved."""

GRAMS = (1, 3, 8)
"""Lengths of the runs of elements that serve as anchors."""

Pairs = list[tuple[int, int]]


def common_subsequence(a: Sequence[int], b: Sequence[int]) -> Pairs:
    """Positions (i, j) with a[i] == b[j], both strictly ascending, as many as can be found within the bounds.

    Equal sequences, and such that differ in few places, cost linear time. The longest subsequence is found where a
    window needs at most `QUICK_EDITS` edits or has at most `SMALL` elements; elsewhere a few pairs may be missed.
    """
    result: Pairs = []
    windows = [(0, len(a), 0, len(b))]
    while windows:
        a0, a1, b0, b1 = windows.pop()
        while a0 < a1 and b0 < b1 and a[a0] == b[b0]:
            result.append((a0, b0))
            a0, b0 = a0 + 1, b0 + 1
        while a0 < a1 and b0 < b1 and a[a1 - 1] == b[b1 - 1]:
            a1, b1 = a1 - 1, b1 - 1
            result.append((a1, b1))
        if a0 == a1 or b0 == b1:
            continue
        x, y = a[a0:a1], b[b0:b1]
        found = _myers(x, y, QUICK_EDITS)
        if found is None:
            anchors = _anchors(x, y)
            if anchors:
                edges = [(-1, -1), *anchors, (len(x), len(y))]
                for (i, j), (k, m) in itertools.pairwise(edges):
                    windows.append((a0 + i + 1, a0 + k, b0 + j + 1, b0 + m))
                found = anchors
            elif len(x) + len(y) <= SMALL:
                found = _myers(x, y, SMALL) or []
            else:
                i, j = a0 + len(x) // 2, b0 + len(y) // 2
                windows += [(a0, i, b0, j), (i, a1, j, b1)]
                continue
        result.extend((a0 + i, b0 + j) for i, j in found)
    result.sort()
    return result


def _anchors(x: Sequence[int], y: Sequence[int]) -> Pairs:
    """Elements whose run of the shortest possible length occurs once on either side, in ascending order on both."""
    for length in GRAMS:
        if min(len(x), len(y)) < length:
            break
        mine, theirs = _single(x, length), _single(y, length)
        both = sorted((i, theirs[run]) for run, i in mine.items() if run in theirs)
        if both:
            return ascending(both)
    return []


def _single(x: Sequence[int], length: int) -> dict[object, int]:
    seen: dict[object, int] = {}
    for i in range(len(x) - length + 1):
        run: object = x[i] if length == 1 else tuple(x[i : i + length])
        seen[run] = -1 if run in seen else i
    return {run: i for run, i in seen.items() if i >= 0}


def ascending(pairs: Pairs) -> Pairs:
    """The longest chain in which the second member ascends as well (patience sorting)."""
    tops: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for number, (_, j) in enumerate(pairs):
        pile = bisect.bisect_left(tops, j)
        before.append(ends[pile - 1] if pile else -1)
        tops[pile : pile + 1], ends[pile : pile + 1] = [j], [number]
    chain: Pairs = []
    at = ends[-1] if ends else -1
    while at >= 0:
        chain.append(pairs[at])
        at = before[at]
    return chain[::-1]


def _myers(x: Sequence[int], y: Sequence[int], most: int) -> Pairs | None:
    """The common subsequence if at most `most` edits make one of the other; None if it takes more."""
    n, m = len(x), len(y)
    reach: dict[int, int] = {1: 0}
    history: list[dict[int, int]] = []
    for edits in range(min(most, n + m) + 1):
        before = dict(reach)
        history.append(before)
        for k in range(-edits, edits + 1, 2):
            down = k == -edits or (k != edits and reach.get(k - 1, -1) < reach.get(k + 1, -1))
            i = reach.get(k + 1, 0) if down else reach.get(k - 1, 0) + 1
            j = i - k
            while i < n and j < m and j >= 0 and x[i] == y[j]:
                i, j = i + 1, j + 1
            reach[k] = i
            if i >= n and j >= m:
                return _walk_back(history, n, m, x, y)
    return None


def _walk_back(history: list[dict[int, int]], n: int, m: int, x: Sequence[int], y: Sequence[int]) -> Pairs:
    pairs: Pairs = []
    i, j = n, m
    for edits in range(len(history) - 1, -1, -1):
        reach, k = history[edits], i - j
        down = k == -edits or (k != edits and reach.get(k - 1, -1) < reach.get(k + 1, -1))
        before = k + 1 if down else k - 1
        start_i = reach.get(before, 0) if edits else 0
        start_j = start_i - before if edits else 0
        while i > start_i and j > start_j and i > 0 and j > 0 and x[i - 1] == y[j - 1]:
            i, j = i - 1, j - 1
            pairs.append((i, j))
        i, j = start_i, start_j
    return pairs[::-1]


class Alignment(msgspec.Struct):
    """The result.

    Attributes:
        partner: for each call of the candidate its partner in the reference, -1 for none.
        back: the same the other way round.
        rules: by position in the candidate.
        opposite: for a call of the candidate without a partner, the position of an unpaired call of the reference in
            the same gap that gives the same shapes: it stands in its place.
    """

    partner: array[int]
    back: array[int]
    rules: dict[int, Rule] = {}
    opposite: dict[int, int] = {}


def align(candidate: Outline, reference: Outline) -> Alignment:
    """Pairs the calls of one rank and step; see the module's text."""
    found = Alignment(array("i", [-1]) * len(candidate), array("i", [-1]) * len(reference))
    chain = common_subsequence(candidate.strong, reference.strong)
    for i, j in chain:
        rule: Rule = "sequence" if candidate.api[i] == reference.api[j] else "renamed"
        _pair(found, i, j, "exact" if candidate.exact[i] == reference.exact[j] else rule)
    chain = _between(found, chain, candidate.shape, reference.shape, candidate, reference, "sequence")
    chain = _between(found, chain, candidate.path, reference.path, candidate, reference, "module")
    _moved(found, candidate, reference)
    _opposites(found, chain, candidate, reference)
    return found


def _pair(found: Alignment, i: int, j: int, rule: Rule) -> None:
    found.partner[i], found.back[j] = j, i
    found.rules[i] = rule


def _gaps(chain: Pairs, ends: tuple[int, int]) -> list[tuple[int, int, int, int]]:
    """Between consecutive pairs, where both sides have something left."""
    edges = [(-1, -1), *chain, ends]
    return [(i + 1, k, j + 1, m) for (i, j), (k, m) in itertools.pairwise(edges) if k - i > 1 and m - j > 1]


def _between(
    found: Alignment,
    chain: Pairs,
    mine: array[int],
    theirs: array[int],
    candidate: Outline,
    reference: Outline,
    rule: Rule,
) -> Pairs:
    """Pairs inside the gaps of the chain by another key; returns the longer chain."""
    more: Pairs = []
    for a0, a1, b0, b1 in _gaps(chain, (len(candidate), len(reference))):
        for i, j in common_subsequence(mine[a0:a1], theirs[b0:b1]):
            same_name = candidate.api[a0 + i] == reference.api[b0 + j]
            _pair(found, a0 + i, b0 + j, rule if same_name or rule == "module" else "renamed")
            more.append((a0 + i, b0 + j))
    return sorted(chain + more) if more else chain


def _moved(found: Alignment, candidate: Outline, reference: Outline) -> None:
    """The n-th unpaired call of a key to the n-th of the other side, wherever they are, if there are as many."""
    mine: dict[int, list[int]] = {}
    theirs: dict[int, list[int]] = {}
    for i, j in enumerate(found.partner):
        if j < 0:
            mine.setdefault(candidate.strong[i], []).append(i)
    for j, i in enumerate(found.back):
        if i < 0:
            theirs.setdefault(reference.strong[j], []).append(j)
    for key, places in mine.items():
        others = theirs.get(key, [])
        if len(others) == len(places):
            for i, j in zip(places, others, strict=True):
                _pair(found, i, j, "moved")


def _opposites(found: Alignment, chain: Pairs, candidate: Outline, reference: Outline) -> None:
    for a0, a1, b0, b1 in _gaps(chain, (len(candidate), len(reference))):
        left = [i for i in range(a0, a1) if found.partner[i] < 0]
        right = [j for j in range(b0, b1) if found.back[j] < 0]
        gaps = common_subsequence([candidate.gap[i] for i in left], [reference.gap[j] for j in right])
        for i, j in gaps:
            found.opposite[left[i]] = right[j]
