"""Faults that are known: those of torch's tracker that a finding looks like, from the catalogue of the package.

`scripts/known_faults.py` makes `known_faults.json` from the repository's cases, and runs each proof with each torch.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.fx import GraphModule, Interpreter, Node

from graphprobe.diagnose.reduction.load_case import load_case
from graphprobe.engine.interpret import plain_value
from graphprobe.engine.naming import op_of
from graphprobe.engine.subgraph import CALLS
from graphprobe.errors import GraphprobeError
from graphprobe.findings import Finding, KnownIssue
from graphprobe.internals.tensors import tree_leaves
from graphprobe.judge.verdict import base_of

log = logging.getLogger(__name__)

CATALOGUE = "known_faults.json"

FEW = 4
"""Calls of a reduced graph that count as needed for its fault."""

BESIDE = re.compile(r"^calls |\bnot contiguous$|^dynamic sizes$")
"""Facts that a larger program has beside those of the known fault."""

NAMED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`|\S*[/\\]\S*|\b0x[0-9a-f]+\b|-?\b\d[\d.e+-]*\b")
"""In the text of an exception, what is of one program."""


class KnownFault(msgspec.Struct, kw_only=True, frozen=True):
    """A row of the catalogue.

    Attributes:
        issue: `pytorch#N`, of torch's tracker; None where it has none.
        case: name of the program that shows it.
        kind, stage, op, pass_: as of its finding; `op` without its overload.
        condition: what is particular about the call that goes wrong, see `condition_of`; never empty.
        versions: of torch: whether its proof fails there. One that cannot tell is left out.
        workaround: the code with which the case was right; None where none was found.
    """

    issue: str | None = None
    case: str
    kind: str
    stage: str
    op: str | None = None
    pass_: str | None = msgspec.field(default=None, name="pass")
    condition: tuple[str, ...] = ()
    versions: dict[str, bool] = {}
    workaround: str | None = None

    def resembles(self, finding: Finding) -> bool:
        """Whether a finding is of torch's own compiler, and of the same kind, stage, pass and operation."""
        same = (finding.kind, finding.stage, finding.pass_) == (self.kind, self.stage, self.pass_)
        return same and stem_of(finding) == self.op and finding.backend is None

    def holds_under(self, condition: tuple[str, ...]) -> bool:
        """Whether a condition has all of this one's facts, and beside them none that may be a cause of its own."""
        more = {*condition} - {*self.condition}
        return {*self.condition} <= {*condition} and all(BESIDE.search(fact) for fact in more)


def stem_of(finding: Finding) -> str | None:
    """`copysign` of `aten.copysign.Tensor`."""
    return base_of(finding.op) if finding.op else None


@functools.cache
def catalogue() -> list[KnownFault]:
    """The faults that are known, by the number of their issue."""
    text = resources.files(__package__).joinpath(CATALOGUE).read_bytes()
    return msgspec.json.decode(text, type=list[KnownFault])


def known(finding: Finding) -> KnownIssue | None:
    """The known fault that a proven finding looks like; None where it looks like none, or like several."""
    rows = [one for one in catalogue() if one.resembles(finding)] if finding.proof is not None else []
    condition = condition_of(finding) if rows else ()
    alike = [one for one in rows if one.holds_under(condition)]
    if len({one.issue or one.case for one in alike}) != 1:
        return None
    there = [version for version, fails in alike[0].versions.items() if fails]
    gone = [version for version, fails in alike[0].versions.items() if not fails]
    return KnownIssue(issue=alike[0].issue, there=there, gone=gone)


def condition_of(finding: Finding) -> tuple[str, ...]:
    """What is particular about the call that goes wrong, sorted: one fact each.

    Of an operation: arguments that are not contiguous float32 tensors of some elements, and options; the operations
    around it, without which it is right. Of an exception its text, without what is of one program. Of infinities and
    NaN which of them is expected, and which comes.
    """
    facts = {*_of_worst(finding), *_of_text(finding)}
    if finding.proof == "piece" and finding.dossier is not None:
        try:
            facts |= set(_of_calls(finding, Path(finding.dossier)))
        except (GraphprobeError, RuntimeError, OSError) as error:
            log.info("no condition of %s: %s", finding.dossier, error)
    return tuple(sorted(facts))


def _of_worst(finding: Finding) -> Iterator[str]:
    sorts = [_sort_of(value) for value in (finding.worst.expected, finding.worst.actual)] if finding.worst else []
    if {*sorts} - {"finite"}:
        yield "expected {}, actual {}".format(*sorts)


def _sort_of(value: bool | int | float | str) -> str:
    if isinstance(value, str):
        return value.lstrip("-") if value.lstrip("-") in ("nan", "inf") else "finite"
    return "finite" if math.isfinite(value) else "nan" if value != value else "inf"


def _of_text(finding: Finding) -> Iterator[str]:
    if finding.relation:
        yield NAMED.sub("…", finding.relation)
    elif "exception" in finding.kind or finding.kind.startswith("crash") or finding.kind == "wrong_dtype":
        yield NAMED.sub("…", finding.reason.split("\n")[0].split(". ")[0])[:120]


def _of_calls(finding: Finding, folder: Path) -> Iterator[str]:
    case = load_case(folder)
    calls = [n for n in case.graph.graph.nodes if n.op in CALLS]
    accused = [n for n in calls if base_of(op_of(n)) == stem_of(finding)]
    if 1 < len(calls) <= FEW or not accused:
        yield from (f"calls {base_of(op_of(n))}" for n in calls)
    if case.dynamic:
        yield "dynamic sizes"
    if accused:
        given = _AccusedCall(case.graph, accused[0])
        with contextlib.suppress(Exception):  # what follows is not looked at, and the call itself may raise
            given.run(*[plain_value(v) for v in case.calls[-1].restore()])
        yield from given.facts


def _of_argument(value: Any) -> Iterator[str]:
    if isinstance(value, torch.Tensor):
        yield from () if value.dtype is torch.float32 else (f"of {value.dtype}",)
        yield from () if value.device.type == "cpu" else (f"on {value.device.type}",)
        if value.layout is torch.strided and not value.is_contiguous():
            yield "overlapping" if 0 in value.stride() else "not contiguous"
        yield from ("empty",) * (value.numel() == 0) + ("of no dimension",) * (value.ndim == 0)
        if value.is_floating_point() and value.numel() and not value.is_quantized and not value.isfinite().all():
            yield "not finite"
    elif isinstance(value, bool | str | torch.dtype | torch.memory_format | torch.layout):
        yield str(value)
    elif isinstance(value, float) and not math.isfinite(value):
        yield "not finite"


class _AccusedCall(Interpreter):
    """Runs a graph, and notes what is particular about what one of its calls is given."""

    def __init__(self, graph: GraphModule, node: Node) -> None:
        super().__init__(graph)
        self._accused, self.facts = node, list[str]()

    def run_node(self, n: Node) -> Any:
        if n is self._accused:
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            named = {f"argument {i}": value for i, value in enumerate(args)} | {f"{k}=": v for k, v in kwargs.items()}
            given = [(name, leaf) for name, value in named.items() for leaf in tree_leaves(value)]
            self.facts = [f"{name} {fact}" for name, value in given for fact in _of_argument(value)]
            memory = [one.untyped_storage().data_ptr() for _, one in given if type(one) is torch.Tensor]
            self.facts += ["arguments share memory"] * (len({*memory}) < len(memory))
        return super().run_node(n)
