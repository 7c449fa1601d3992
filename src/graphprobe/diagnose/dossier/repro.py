"""The text of `repro.py`: the failing graph as code, its settings, and the code that runs it twice and compares."""

from __future__ import annotations

import math
import pprint
from typing import Any

from torch import fx

from graphprobe.diagnose.case import Case
from graphprobe.diagnose.dossier import case_check, check, watch
from graphprobe.diagnose.dossier.own_backend import OwnBackend
from graphprobe.engine import replay
from graphprobe.engine.values import one_file_bytes
from graphprobe.internals.operators.operators import operator_of
from graphprobe.probe.formats import Script
from graphprobe.probe.formats.fx_py import BUILD_MODULE, HELPERS, GraphSource
from graphprobe.store.schema import is_json

CONSTANTS = "constants.safetensors"
MOST_REPEATS = 100
MISS = 1e-3
"""Chance that a flaky fault does not show in any of the repeats, where their number is not bounded."""

_USAGE = (
    "Run it with `python repro.py`; it needs torch and the files beside it.",
    "It exits 1 while the fault is there, 0 when it is gone, 125 when it cannot tell.",
)
_RULE = "# " + "-" * 100
_PARENT = """
if __name__ == "__main__" and "--child" not in sys.argv:
    try:
        sys.exit(watch(SETTINGS["kind"], SETTINGS["calls"], __file__))
    except (OSError, ValueError) as error:
        sys.stdout.write(f"CANNOT DECIDE: {type(error).__name__}: {error}\\n")
        sys.exit(125)
"""
_CHILD = """
if __name__ == "__main__":
    sys.exit(child(lambda: CaseCheck(build, SETTINGS, PROBLEMS, Path(__file__).resolve().parent)))
"""


def repro_source(case: Case, *, title: str, flaky_rate: float = 1.0) -> Script:
    """A Python file that exits 1 while the fault of `case` is there, 0 when it is gone, 125 when it cannot tell.

    It needs torch and the standard library, and reads from its own folder: `call<i>.inputs.safetensors` and `.json`
    for each call, `constants.safetensors` if the graph holds tensors, `allowed.safetensors` if the case has bounds.

    Args:
        title: first line of the file, as a comment.
        flaky_rate: how often the fault shows, 0 to 1; a flaky one is tried several times.

    What another process cannot rebuild is listed in `Script.problems`; the file then exits 125.
    """
    graph = GraphSource(case.graph)
    problems = [*graph.problems, *_problems(case)]
    settings = _settings(case, flaky_rate)
    head = [title, *problems, *dict.fromkeys(graph.literals.notes), "", *_USAGE]
    imports = sorted(graph.literals.imports | {"torch", "torch.fx"})
    loading = f'load_constants(Path(__file__).resolve().with_name("{CONSTANTS}"))' if graph.tensors else "{}"
    own = [_own(key, own) for key, own in owns_of(case).items()]
    parts = [
        "".join(f"# {line}".rstrip() + "\n" for entry in head for line in (entry.splitlines() or [""]))
        + "\nfrom __future__ import annotations\n\nimport sys",
        f"SETTINGS = {pprint.pformat(settings, width=110, sort_dicts=False)}\nPROBLEMS = {tuple(problems)!r}",
        *(["# What the program defines itself.\n" + "\n\n".join(own)] if own else []),
        *graph.functions,
        f"def build():\n    return build_graph({loading})",
        f"{_RULE}\n# What follows runs the graph above in a child process and compares; it is the same in every repro.",
        replay.embedded(file=watch.__file__, mark="watch") + "\n\n" + _PARENT,
        "".join(f"import {module}\n" for module in imports),
        replay.embedded(),
        replay.embedded(file=check.__file__, mark="check"),
        replay.embedded(file=case_check.__file__, mark="case"),
        HELPERS,
        *([BUILD_MODULE] if any(" module(" in text for text in graph.functions) else []),
        _CHILD,
    ]
    return Script(
        source="\n\n\n".join(part.strip() for part in parts) + "\n",
        constants=one_file_bytes(graph.tensors) if graph.tensors else None,
        constants_name=CONSTANTS,
        problems=tuple(problems),
    )


def owns_of(case: Case) -> dict[str, OwnBackend]:
    """What the program has made itself: its `backend`, and its functions by the settings that hold them."""
    backend = {"backend": case.own_backend} if case.own_backend is not None else {}
    return {**backend, **case.hooks}


def _own(key: str, own: OwnBackend) -> str:
    """Texts that run in a namespace each, so that no name means two things."""
    text = own.text.strip().replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    facts = {"name": own.name, "shown": own.shown, "folder": own.folder}
    return f'SETTINGS["own"]["{key}"] = {facts!r}\nSETTINGS["own"]["{key}"]["text"] = """\\\n{text}\n"""'


def _settings(case: Case, flaky_rate: float) -> dict[str, Any]:
    configs = case.configs
    if case.caches:
        configs["inductor"] = {"fx_graph_cache": True, **configs["inductor"]}
        configs["functorch"] = {"enable_autograd_cache": True, **configs["functorch"]}
    return {
        "kind": case.kind,
        "backend": case.backend if case.own_backend is None else case.own_backend.name,
        "dynamic": case.dynamic,
        "via": case.via,
        "grad": case.grad,
        "calls": len(case.calls),
        "repeats": repeats_for(flaky_rate),
        "autocast": not is_aten(case.graph),
        "allowed": bool(case.allowed),
        "unsaved": list(case.unsaved_settings),
        "own": {},
        "configs": {name: changes if is_json(changes) else {} for name, changes in configs.items()},
    }


def _problems(case: Case) -> list[str]:
    found = list(case.unsaved)
    found += [f"call {i}: {line}" for i, call in enumerate(case.calls) for line in call.opaque]
    for name in ("inductor_config", "functorch_config", "dynamo_config"):
        bad = [key for key, value in getattr(case, name).items() if not is_json({key: value})]
        found += [f"{name}: {key} has no JSON value" for key in bad]
    if case.allowed and len(case.allowed) != len(case.calls):
        found.append(f"{len(case.calls)} calls, allowed differences for {len(case.allowed)}")
    return found if case.calls else [*found, "no call was captured"]


def repeats_for(flaky_rate: float) -> int:
    """How often a fault that shows at this rate, 0 to 1, has to be tried."""
    if flaky_rate >= 1:
        return 1
    return min(MOST_REPEATS, math.ceil(math.log(MISS) / math.log1p(-flaky_rate))) if flaky_rate else MOST_REPEATS


def is_aten(graph: fx.GraphModule) -> bool:
    """Whether all calls are operators, which autocast does not see the way it sees functions of torch."""
    calls = [node for node in graph.graph.nodes if node.op.startswith("call_")]
    return all(node.op == "call_function" and _is_plain(node.target) for node in calls)


def _is_plain(target: Any) -> bool:
    return operator_of(target) is not None or getattr(target, "__module__", "") in ("_operator", "math")
