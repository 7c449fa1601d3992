"""`diagnose_passes`: a list of passes, run one after the other, each judged on the same values."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule

from graphprobe.diagnose.api import new_folder_for_proofs, with_limits
from graphprobe.diagnose.script_calls import name_of
from graphprobe.diagnose.settings import Compilation, Limits
from graphprobe.diagnose.ways.way_ladder import climbed_way
from graphprobe.diagnose.ways.way_program import Original, WayCall
from graphprobe.errors import UsageError, raised_from
from graphprobe.findings import Diagnosis, Finding
from graphprobe.internals.way_taps import TracedCall, WayGraph, copied_graph
from graphprobe.settings.limits import TimeBudget, limits_from

FIRST = "the graph before any pass"


def diagnose_passes(
    graph: GraphModule,
    passes: Sequence[Callable[[GraphModule], Any]],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    budget_s: float | None = None,
    out: str | Path | None = None,
) -> Diagnosis:
    """Run passes on a copy of a graph, one after the other, and find the first that changes what the graph computes.

    Args:
        graph: is left as it is. The `module()` of an ExportedProgram is one.
        passes: functions that are given a graph, and change it, or return another one, or a PassResult.
        args, kwargs: values to call the graph with.
        budget_s: seconds after which it ends, whatever runs then.
        out: folder for the dossiers; by default a new one under `graphprobe-diagnosis`.

    Returns:
        the Diagnosis. `rungs` has the state of each pass up to the first that is wrong. Its finding names the line and
        the node, and has the proof. `ruled_out` says of each pass that is right whether it keeps every bit.

    Raises:
        UsageError: an argument is not of the kind named above.
    """
    if not isinstance(graph, GraphModule):
        raise UsageError(f"diagnose_passes(graph={graph!r:.80}): it takes a torch.fx.GraphModule")
    if not isinstance(passes, (list, tuple)) or not passes or not all(map(callable, passes)):
        raise UsageError(f"diagnose_passes(passes={passes!r:.80}): it takes a list of functions")
    if not isinstance(args, (list, tuple)) or not isinstance(kwargs or {}, Mapping):
        raise UsageError(f"diagnose_passes(args={args!r:.80}): it takes a tuple, and a dict as kwargs")
    found = limits_from({"budget_s": budget_s}, os.environ, called=lambda name: f"diagnose_passes({name}=…)")
    limits = Limits(TimeBudget(found.get("budget_s")), deep=True)
    compilation = Compilation("eager", None, Path(out) if out is not None else new_folder_for_proofs())
    traced = TracedCall(copied_graph(graph), tuple(args), dict(kwargs or {}), torch.is_grad_enabled())
    last, live = WayGraph("trace", FIRST, traced, graph=traced.fn), graph
    for one in passes:
        live = copy.deepcopy(live)
        try:
            result = one(live)
        except Exception as error:
            return Diagnosis(verdict="fault", findings=[_raising(one, error)], graphs=len(last.way))
        result = getattr(result, "graph_module", result)
        live = result if isinstance(result, GraphModule) else live
        live.recompile()
        last = WayGraph("pass", name_of(one), traced, last, one, graph=copied_graph(live))
    held = WayCall.of(Original.of(traced), (traced.args, traced.kwargs), last, last.graph)
    return climbed_way(held, with_limits(compilation, found), limits)


def _raising(one: Callable[..., Any], error: Exception) -> Finding:
    return Finding(kind="crash_compile", stage="pass", pass_=name_of(one), reason=raised_from(error).line)
