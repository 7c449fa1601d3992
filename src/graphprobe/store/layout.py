"""The only builder of paths: which file of a run lies where. All results are relative and use `/`.

Nothing is ever read back out of these names; the manifest and the event lines hold the facts. So the short address of
an artifact, `model__0/forward/after:<pass>`, is made from its event.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Literal

from graphprobe.errors import ArtifactNotFoundError
from graphprobe.records import Direction, Event, Where

ROOT = "torch_compile_debug"
"""Where runs are written by default, in the working directory: torch's own name for it."""
TOOL = "graphprobe"
MANIFEST = "manifest.json"
EVENTS = "events.jsonl"
LOG = "debug.log"
COMPILER_SETTINGS = "compiler_settings.json"
RECOMPILES = "recompiles.jsonl"
BREAKS = "graph_breaks.jsonl"
"""One graph break, or one function left uncompiled, a line."""
LOGS = "logs"
STEPS = "steps.jsonl"
WATCH, ANSWER, CRASH, HELD = "watch.jsonl", "watch.json", "crash.txt", "drift.json"
"""Of a watched program: a step a line, the answer to what went wrong, the stack of a fatal signal, and the steps that
were held against uncompiled ones."""
CALLS, GRAPHS = "api_dump", "graph_dump"
DUMPS = {CALLS: "calls of torch's API", GRAPHS: "operations of compiled graphs"}
"""Folders of a run with what `graphprobe run --dump` and `--dump-graph` dump, if nobody says where to."""
RESERVE = ".reserve"

TEMPORARY_PREFIX = ".tmp-"
MAX_NAME_LENGTH = 96
"""Longest pass name kept in a file name, in characters; file systems take 255 bytes in all."""

Stage = Literal["original", "optimized"]
Extension = Literal["txt", "pbtxt", "py"]

_STEM: dict[Direction, str] = {
    "traced": "traced",
    "pre_grad": "pre_grad",
    "joint": "aot_joint",
    "forward": "aot_forward",
    "backward": "aot_backward",
}

_NEAREST = 5
_LISTED = 20


def run_folder(*, started: datetime, pid: int, rank: int | None) -> str:
    """`run_<time>-pid_<pid>[-rank_<r>]`, with the time as torch writes it (local, microseconds)."""
    suffix = "" if rank is None else f"-rank_{rank}"
    return f"run_{started:%Y_%m_%d_%H_%M_%S_%f}-pid_{pid}{suffix}"


def log_file(name: str) -> str:
    """The log of one component or artifact: `logs/dynamo.log`."""
    return f"{LOGS}/{file_name_from_pass(name)}.log"


def model_folder(model: int) -> str:
    """`model__N`."""
    return f"model__{model}"


def graph_folder(where: Where) -> str:
    """`model__N/forward` and its like; `model__N/piece_K/forward` of a piece that the backend compiles by itself."""
    assert where.model is not None
    return f"{model_folder(where.model)}/{where.graph}"


def graph_file(where: Where, *, number: int) -> str:
    """The graph as a direction starts with it: `model__0/forward/000_aot_forward_graph.txt`."""
    return _numbered(where, number, "graph", "txt")


def pass_file(where: Where, pass_name: str, *, number: int) -> str:
    """The graph after a pass: `model__0/forward/001_aot_forward_graph_after_<pass>.txt`."""
    return _numbered(where, number, f"graph_after_{file_name_from_pass(pass_name)}", "txt")


def ir_file(where: Where, stage: Stage, *, number: int, extension: Extension = "txt", nested: str | None = None) -> str:
    """The backend's own graph before or after its optimisation: `…/NNN_aot_forward_original_graph[__<nested>].txt`."""
    suffix = f"__{file_name_from_pass(nested)}" if nested is not None else ""
    return _numbered(where, number, f"{stage}_graph{suffix}", extension)


def backend_graph_file(where: Where, name: str, *, number: int, extension: Extension) -> str:
    """The graph that a backend without an IR of its own was given: `…/NNN_<name>.<ext>`."""
    return f"{graph_folder(where)}/{number:03d}_{file_name_from_pass(name)}.{extension}"


def failure_file(where: Where, pass_name: str, *, number: int, aot: bool = True) -> str:
    """What a pass that raised had in hand: `…/NNN_aot_forward_FAILED_<pass>.txt`.

    `aot` False: AOTAutograd has not seen the graph, and so its name is not in the file's.
    """
    if not aot:
        name = f"{where.direction}_FAILED_{file_name_from_pass(pass_name)}"
        return backend_graph_file(where, name, number=number, extension="txt")
    return _numbered(where, number, f"FAILED_{file_name_from_pass(pass_name)}", "txt")


def ops_file(where: Where) -> str:
    """What is launched, in order: `…/captured_ops.json`."""
    return f"{graph_folder(where)}/captured_ops.json"


def code_file(where: Where, *, extension: str = ".py") -> str:
    """The code the backend generated: `…/output_code.py`; `output_code.cpp` of what is compiled ahead of time."""
    return f"{graph_folder(where)}/output_code{extension}"


def compile_file(model: int) -> str:
    """Why and how the model was compiled: `model__N/compile.json`."""
    return f"{model_folder(model)}/compile.json"


def graphs_file(model: int) -> str:
    """The nodes of the model's graphs, as records: `model__N/graphs.jsonl`."""
    return f"{model_folder(model)}/graphs.jsonl"


def dynamo_file(model: int) -> str:
    """The graph as Dynamo captured it: `model__N/dynamo_out_graph.txt`."""
    return f"{model_folder(model)}/dynamo_out_graph.txt"


def graph_name(direction: Direction, stage: Stage | None = None) -> str:
    """The name that events have of a direction's graph, `aot_forward_graph`, or of the backend's own at a stage."""
    return "_".join(filter(None, (_STEM[direction], stage, "graph")))


def file_name_from_pass(pass_name: str) -> str:
    """`pass_name` with only ASCII letters, digits, `.`, `_` and `-`, at most `MAX_NAME_LENGTH` long, never empty.

    Two passes may come out alike; the number before the name keeps their files apart.
    """
    safe = re.sub(r"[^A-Za-z0-9._-]+", "_", pass_name).strip("._-")
    return safe[:MAX_NAME_LENGTH].rstrip("._-") or "unnamed"


def _numbered(where: Where, number: int, rest: str, extension: str) -> str:
    assert where.direction is not None
    return f"{graph_folder(where)}/{number:03d}_{_STEM[where.direction]}_{rest}.{extension}"


def addresses_from_events(events: Iterable[Event]) -> dict[str, Event]:
    """Every event that has a file by its address, in order; of several that wrote one file under one address, the last.

    Artifacts that would share an address (a pass that ran twice) get `#1`, `#2` behind it. One file may have several
    addresses: a pass that runs others inside ends with the graph that the last of them left.
    """
    by_file = {(event.path, bare_address(event)): event for event in events if event.path is not None}
    bare = [(bare_address(event), event) for event in by_file.values()]
    totals = Counter(address for address, _ in bare)
    seen: Counter[str] = Counter()
    result: dict[str, Event] = {}
    for address, event in bare:
        seen[address] += 1
        result[f"{address}#{seen[address]}" if totals[address] > 1 else address] = event
    return result


def bare_address(event: Event) -> str:
    """The address of one event, not told apart from others of the same pass."""
    where, kind = event.where, event.kind
    folder = "run" if where.model is None else model_folder(where.model)
    if where.model is not None and where.direction is not None:
        folder = graph_folder(where)
    leaves = {
        "pass": f"after:{where.pass_name or event.name}",
        "failure": f"failed:{where.pass_name or event.name}",
        "graph": "dynamo" if where.direction is None else "graph",
        "ir": next((stage for stage in ("original", "optimized") if stage in event.name), event.name),
        **{same: same for same in ("code", "ops", "compile")},
    }
    leaf = leaves.get(kind, event.name)
    subgraph = f"@{where.subgraph}" if where.subgraph else ""
    # What is launched is taken once; only values differ from step to step.
    step = f"/step:{where.step}" if where.step is not None and kind in ("inputs", "outputs") else ""
    return f"{folder}/{leaf}{subgraph}{step}"


def find_address(wanted: str, artifacts: dict[str, Event]) -> str:
    """The one address that `wanted` means: an address, a path, a file name, or the unique beginning or end of one.

    Raises:
        ArtifactNotFoundError: nothing matches (the nearest are named), or more than one does (they are listed).
    """
    wanted = wanted.strip().strip("/")
    paths = {address: event.path or "" for address, event in artifacts.items()}
    names = {address: path.rsplit("/", 1)[-1] for address, path in paths.items()}
    ways: tuple[Callable[[str], bool], ...] = (
        lambda address: address == wanted,
        lambda address: paths[address] == wanted,
        lambda address: names[address] == wanted,
        lambda address: address.endswith("/" + wanted),
        lambda address: any(text.startswith(wanted) for text in (address, paths[address], names[address])),
        lambda address: "/" + wanted in address,
    )
    attempts = (list(filter(means, artifacts)) for means in (ways if wanted else ways[:4]))
    found = next(filter(None, attempts), [])
    if len({paths[address] for address in found}) == 1:
        return found[-1]
    if found:
        more = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
        listing = ", ".join(found[:_LISTED]) + more
        raise ArtifactNotFoundError(
            f"{wanted!r} stands for {len(found)} artifacts: {listing}", hint="give one of them in full"
        )
    near = difflib.get_close_matches(wanted, list(artifacts), n=_NEAREST, cutoff=0.4)
    near += [address for address in artifacts if address.rsplit("/", 1)[-1] == wanted.rsplit("/", 1)[-1]]
    nearest = list(dict.fromkeys(near))[:_NEAREST] or list(artifacts)[:_NEAREST]
    hint = f"nearest: {', '.join(nearest)}" if nearest else "the run has no artifacts"
    raise ArtifactNotFoundError(f"no artifact {wanted!r} in the run", hint=hint)
