"""How many calls of the oracle a reduction takes, and how many nodes it leaves, against three other reducers.

    python bench/reduce.py [--quick] [--seeds 5] [--torch-seeds 1] [--torch-seconds 60] [--json FILE]
    python bench/reduce.py --without all [--quick] [--seeds 5]

A case is a graph of n nodes with 1, 2, 4 or 8 culprits at random places; it fails if all of them are there. In half of
the cases 32 pairs of nodes are bound by chance as well: a graph with the first node of a pair but without the second
cannot be judged, and that costs a call, too. Measured are

- graphprobe: its reducer, on sets of nodes, the asks included that confirm that the failure is steady;
- ddmin: Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing Input, 2002, on the same sets;
- CDD: Zhang et al., Toward a Better Understanding of Probabilistic Delta Debugging, 2025, likewise, with its p0 of 0.1;
- torch: the minifier of functorch, on an FX graph of n nodes in which each reads the one before and one of the eight
  before that. It writes and compiles Python code for every candidate, which takes long and changes no call, so this
  is switched off. It is stopped after --torch-seconds all the same; its calls are a lower bound then, marked ">", and
  the ratio to them an upper one.

Repeated questions are counted once, but for torch, which asks them again. Calls and nodes are medians over the seeds.

`--without NAME`, or `all` of them by turns, runs graphprobe's reducer alone, without one of its strategies, which shows
what that is worth. Here the culprits are next to each other in half of the cases, as those of one fault are. It tells,
relative to the whole reducer, the calls, and the nodes of all questions together, as these have to be compiled:
geometric means.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import itertools
import json
import math
import random
import statistics
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from graphprobe.reduce import search
from graphprobe.reduce.outcome import Answer, OracleVerdict
from graphprobe.reduce.reducer import reduce
from graphprobe.reduce.space import Unit

CONSTRAINTS = 32
ANSWERS = {verdict: Answer(verdict, "boom" if verdict is OracleVerdict.FAILS else "") for verdict in OracleVerdict}
NAMES = ("graphprobe", "ddmin", "CDD", "torch")


class Fault:
    """The oracle of one case: counts the sets of nodes that it was asked about."""

    def __init__(self, seed: int, nodes: int, culprits: int, constraints: int) -> None:
        rng = random.Random(f"{seed} {nodes} {culprits} {constraints}")
        self.nodes = nodes
        self.culprits = frozenset(rng.sample(range(nodes), culprits))
        self.pairs = [tuple(rng.sample(range(nodes), 2)) for _ in range(constraints)]
        self.known: dict[bytes, OracleVerdict] = {}

    def judge(self, keep: Collection[int]) -> OracleVerdict:
        kept = frozenset(keep)
        if any(a in kept and b not in kept for a, b in self.pairs):
            return OracleVerdict.UNRESOLVED
        return OracleVerdict.FAILS if self.culprits <= kept else OracleVerdict.PASSES

    def fails(self, keep: list[int]) -> bool:
        key = digest(keep)
        if key not in self.known:
            self.known[key] = self.judge(keep)
        return self.known[key] is OracleVerdict.FAILS


def digest(keep: Collection[int]) -> bytes:
    return hashlib.sha256(repr(sorted(keep)).encode()).digest()


class Nodes:
    """A case of graphprobe's reducer."""

    def __init__(self, keep: frozenset[int]) -> None:
        self.keep = keep
        self.digest = digest(keep).hex()
        self.size = (len(keep),)


class Graph:
    """The space of them."""

    def __init__(self, nodes: int) -> None:
        self.units = [Unit(str(node)) for node in range(nodes)]

    def candidate(self, keep: frozenset[int]) -> Nodes | None:
        return Nodes(keep) if keep else None


def by_graphprobe(fault: Fault) -> tuple[int, int]:
    done = reduce(Graph(fault.nodes), lambda case: ANSWERS[fault.judge(case.keep)])
    assert fault.judge(done.case.keep) is OracleVerdict.FAILS
    return done.calls, len(done.case.keep)


def by_ddmin(fault: Fault) -> tuple[int, int]:
    now, parts = list(range(fault.nodes)), 2
    while len(now) > 1:
        bounds = [len(now) * part // parts for part in range(parts + 1)]
        pieces = list(itertools.pairwise(bounds))
        subset = next((now[a:b] for a, b in pieces if fault.fails(now[a:b])), None)
        if subset is not None:
            now, parts = subset, 2
            continue
        rest = next((r for a, b in pieces if (r := now[:a] + now[b:]) and fault.fails(r)), None)
        if rest is not None:
            now, parts = rest, max(parts - 1, 2)
        elif parts >= len(now):
            break
        else:
            parts = min(2 * parts, len(now))
    return len(fault.known), len(now)


def by_cdd(fault: Fault, start: float = 0.1) -> tuple[int, int]:
    """Rounds of dropping chunks; the chunk of a round is what would go best if each node mattered with chance p, and p
    grows by 1 / (1 - 1/e) a round.
    """
    now, chance, size = list(range(fault.nodes)), start, fault.nodes
    while size > 1:
        size = max(1, round(-1 / math.log1p(-chance))) if chance < 1 else 1
        position = 0
        while position < len(now):
            rest = now[:position] + now[position + size :]
            if rest and fault.fails(rest):
                now = rest
            else:
                position += size
        chance /= 1 - 1 / math.e
    return len(fault.known), len(now)


class Neighbours(Fault):
    """Culprits next to each other."""

    def __init__(self, seed: int, nodes: int, culprits: int, constraints: int) -> None:
        super().__init__(seed, nodes, culprits, constraints)
        first = random.Random(f"{seed} {nodes}").randrange(nodes - culprits)
        self.culprits = frozenset(range(first, first + culprits))


WITHOUT: dict[str, tuple[Any, str, Any]] = {
    "halves": (search, "narrow_to_window", lambda subsets: None),
    "prefix and suffix": (search, "narrow", lambda subsets: frozenset()),
    "QuickXplain": (search, "explain", lambda subsets, fixed: frozenset()),
    "chunks of the sweep": (search, "CHUNKS", 1 << 30),
    "company of the sweep": (search, "_company", lambda subsets, seed: False),
}


def reduced(fault: Fault) -> tuple[int, int, int]:
    """Calls, nodes of all questions together, and nodes left."""
    asked = 0

    def oracle(case: Nodes) -> Answer:
        nonlocal asked
        asked += len(case.keep)
        return ANSWERS[fault.judge(case.keep)]

    done = reduce(Graph(fault.nodes), oracle)
    return done.calls, asked, len(done.case.keep)


def measure_without(name: str, sizes: tuple[int, ...], seeds: int) -> None:
    for kind, constraints in itertools.product((Fault, Neighbours), (0, CONSTRAINTS)):
        cases = [(seed, n, k, constraints) for n in sizes for k in (1, 2, 4, 8) for seed in range(seeds)]
        whole = [reduced(kind(*case)) for case in cases]
        with mock.patch.object(*WITHOUT[name]):
            less = [reduced(kind(*case)) for case in cases]
        pairs = list(zip(whole, less, strict=True))
        calls, asked = (statistics.geometric_mean(b[i] / a[i] for a, b in pairs) for i in (0, 1))
        more = sum(b[2] > a[2] for a, b in pairs)
        where = "next to each other" if kind is Neighbours else "scattered"
        print(
            f"without {name}, {where}, {constraints} bound: {calls:.2f} of the calls, {asked:.2f} of the nodes asked "
            f"about; more left in {more} of {len(cases)} cases",
            flush=True,
        )


class TimeIsUp(BaseException):
    """Not an `Exception`, which a reducer might take for a failure."""


def idle(_: Any) -> None:
    """Stands for what takes time and changes no call."""


def by_torch(fault: Fault, limit_s: float) -> tuple[int, int, bool]:
    """Calls, nodes left, and whether it came to its end."""
    import torch
    from functorch.compile import minifier

    graph, rng = torch.fx.Graph(), random.Random(fault.nodes)
    before = [graph.placeholder("x")]
    for number in range(fault.nodes):  # the number of a node is where every copy of it keeps it: in a keyword
        before.append(graph.call_function(torch.add, (before[-1], rng.choice(before[-9:])), {"alpha": number}))
    graph.output((before[-1],))
    module = torch.fx.GraphModule({}, graph)
    calls, best, end = 0, fault.nodes, time.monotonic() + limit_s

    def fails(module: Any, inputs: Any) -> bool:
        nonlocal calls, best
        if time.monotonic() > end:
            raise TimeIsUp
        calls += 1
        keep = [node.kwargs["alpha"] for node in module.graph.nodes if node.op == "call_function"]
        failing = fault.judge(keep) is OracleVerdict.FAILS
        best = min(best, len(keep)) if failing else best
        return failing

    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        stack.enter_context(mock.patch.object(torch.fx.GraphModule, "recompile", idle))
        stack.enter_context(mock.patch.object(torch.fx.Graph, "lint", idle))
        try:
            minifier(module, [torch.ones(1, dtype=torch.int64)], fails, dump_state=lambda *_: None)
        except TimeIsUp:
            return calls, best, False
    return calls, best, True


def measure(nodes: int, culprits: int, constraints: int, options: argparse.Namespace) -> dict[str, Any]:
    """All reducers on one kind of case: lists of calls and nodes left per reducer, by seed."""
    row: dict[str, Any] = {"nodes": nodes, "culprits": culprits, "constraints": constraints, "torch_done": []}
    ours: list[Callable[[Fault], tuple[int, int]]] = [by_graphprobe, by_ddmin, by_cdd]
    results: dict[str, list[tuple[int, int]]] = {name: [] for name in NAMES}
    for seed in range(options.seeds):
        for name, run in zip(NAMES, ours, strict=False):
            results[name].append(run(Fault(seed, nodes, culprits, constraints)))
        if seed < options.torch_seeds:
            calls, left, done = by_torch(Fault(seed, nodes, culprits, constraints), options.torch_seconds)
            results["torch"].append((calls, left))
            row["torch_done"].append(done)
    for name, found in results.items():
        row[name] = {"calls": [calls for calls, _ in found], "left": [left for _, left in found]}
    best = [min(left) for left in zip(*(row[name]["left"] for name in NAMES[1:3]), strict=True)]
    for seed, left in enumerate(row["torch"]["left"]):
        best[seed] = min(best[seed], left)
    row["more_left"] = sum(left > least for left, least in zip(row["graphprobe"]["left"], best, strict=True))
    for name in NAMES[1:]:
        pairs = zip(row["graphprobe"]["calls"], row[name]["calls"], strict=False)
        row[name]["ratios"] = [mine / theirs for mine, theirs in pairs]
    return row


def cells(row: dict[str, Any]) -> Iterator[str]:
    for name in NAMES:
        mark = ">" if name == "torch" and not all(row["torch_done"]) else ""
        calls, left = (f"{statistics.median(row[name][key]):g}" for key in ("calls", "left"))
        yield f"{mark + calls + ' → ' + left:>16}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="64 and 256 nodes, 3 seeds, 6 s for torch: a minute")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--torch-seeds", type=int, default=1)
    parser.add_argument("--torch-seconds", type=float, default=60.0)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--without", choices=["all", *WITHOUT], help="a strategy of graphprobe's reducer")
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.torch_seeds, options.torch_seconds = 3, 1, 6.0
    if options.without:
        for name in WITHOUT if options.without == "all" else [options.without]:
            measure_without(name, (64, 256) if options.quick else (64, 256, 1024, 4096), options.seeds)
        return
    print("calls → nodes left, medians; torch with > was stopped for its time")
    print(f"{'nodes':>5}{'culprits':>9}{'bound':>6}" + "".join(f"{name:>16}" for name in NAMES))
    rows = []
    for nodes in (64, 256) if options.quick else (64, 256, 1024, 4096):
        for constraints in (0, CONSTRAINTS):
            for culprits in (1, 2, 4, 8):
                row = measure(nodes, culprits, constraints, options)
                rows.append(row)
                print(f"{nodes:>5}{culprits:>9}{constraints:>6}" + "".join(cells(row)), flush=True)
    for kind, chosen in (
        ("monotone", [row for row in rows if not row["constraints"]]),
        ("bound", [row for row in rows if row["constraints"]]),
    ):
        ratios = {name: [r for row in chosen for r in row[name]["ratios"]] for name in NAMES[1:]}
        most = max(calls for row in chosen for calls in row["graphprobe"]["calls"])
        text = ", ".join(f"{statistics.median(found):.3f} of {name}'s" for name, found in ratios.items())
        cases = sum(len(row["graphprobe"]["calls"]) for row in chosen)
        more = sum(row["more_left"] for row in chosen)
        print(f"{kind}: median calls {text}; at most {most}; more left than the best in {more} of {cases} cases")
    if options.json:
        Path(options.json).write_text(json.dumps({"options": vars(options), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
