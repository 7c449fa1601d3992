"""Which call of the candidate is which call of the reference.

Rules, in this order, each only for what those before left over:

1. same operation, module, direction and shapes, as a longest common subsequence of the whole program: `exact` where
   name and index agree too, else `sequence` (an extra call before has shifted the index), or `renamed`;
2. the same without the module, between the pairs found so far: `sequence`, or `renamed` where the names differ;
3. same operation, module and direction with other shapes, between the pairs: `module`;
4. same operation, module, direction and shapes, in another place: `moved`; the n-th to the n-th.

What remains has no partner. Nothing is ever paired by a part of a name.
"""

from __future__ import annotations

import itertools
from array import array
from dataclasses import dataclass, field

from graphprobe.compare.outline import Outline
from graphprobe.compare.result import Rule
from graphprobe.compare.sequence import Pairs, common_subsequence


@dataclass(slots=True)
class Alignment:
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
    rules: dict[int, Rule] = field(default_factory=dict)
    opposite: dict[int, int] = field(default_factory=dict)


def align(candidate: Outline, reference: Outline) -> Alignment:
    """Pairs the calls of one rank and step; see the module's text."""
    partner = array("i", [-1]) * len(candidate)
    back = array("i", [-1]) * len(reference)
    found = Alignment(partner, back)
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
    windows = []
    for (i, j), (k, m) in itertools.pairwise(edges):
        if k - i > 1 and m - j > 1:
            windows.append((i + 1, k, j + 1, m))
    return windows


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
