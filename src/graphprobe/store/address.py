"""The short address of every artifact: `model__0/forward/after:<pass>`, from the facts of its event."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Sequence

from graphprobe.errors import ArtifactNotFoundError
from graphprobe.records import Event
from graphprobe.store import layout

_NEAREST = 5
_LISTED = 20


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
    folder = "run" if where.model is None else layout.model_folder(where.model)
    if where.model is not None and where.direction is not None:
        folder = layout.direction_folder(where.model, where.direction)
    leaf = event.name
    if kind == "pass":
        leaf = f"after:{where.pass_name or event.name}"
    elif kind == "failure":
        leaf = f"failed:{where.pass_name or event.name}"
    elif kind == "graph":
        leaf = "dynamo" if where.direction is None else "graph"
    elif kind == "ir":
        leaf = next((stage for stage in ("original", "optimized") if stage in event.name), event.name)
    elif kind in ("code", "ops", "compile"):
        leaf = kind
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
    attempts = (
        [address for address in artifacts if address == wanted],
        [address for address, path in paths.items() if path == wanted],
        [address for address, name in names.items() if name == wanted],
        [address for address in artifacts if address.endswith("/" + wanted)],
        [
            address
            for address in artifacts
            if wanted and any(text.startswith(wanted) for text in (address, paths[address], names[address]))
        ],
        [address for address in artifacts if wanted and "/" + wanted in address],
    )
    found = next((matches for matches in attempts if matches), [])
    if len({paths[address] for address in found}) == 1:
        return found[-1]
    if found:
        raise ArtifactNotFoundError(
            f"{wanted!r} stands for {len(found)} artifacts: {_listing(found)}", hint="give one of them in full"
        )
    near = difflib.get_close_matches(wanted, list(artifacts), n=_NEAREST, cutoff=0.4)
    near += [address for address in artifacts if address.rsplit("/", 1)[-1] == wanted.rsplit("/", 1)[-1]]
    nearest = list(dict.fromkeys(near))[:_NEAREST] or list(artifacts)[:_NEAREST]
    hint = f"nearest: {', '.join(nearest)}" if nearest else "the run has no artifacts"
    raise ArtifactNotFoundError(f"no artifact {wanted!r} in the run", hint=hint)


def _listing(addresses: Sequence[str]) -> str:
    rest = len(addresses) - _LISTED
    return ", ".join(addresses[:_LISTED]) + (f" and {rest} more" if rest > 0 else "")
