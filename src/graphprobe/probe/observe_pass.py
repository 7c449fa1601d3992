"""For authors of compilers: the same tree for passes of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from graphprobe.errors import UsageError
from graphprobe.internals.bus import Subscriber
from graphprobe.internals.context import Frame, current
from graphprobe.probe import active
from graphprobe.records import Direction

PHASES: dict[str, Direction] = {
    "pre_grad": "pre_grad",
    "joint": "joint",
    "forward": "forward",
    "inference": "forward",
    "backward": "backward",
}


@contextmanager
def observe_pass(gm: Any, name: str, *, phase: str | None = None, subsystem: str | None = None) -> Iterator[None]:
    """Record the graph after a pass of one's own: `with observe_pass(gm, "fuse_rope", phase="forward"): ...`.

    Written only where something collects (`graphprobe run`, `enable`, `wrap`), and only if the pass changed the graph;
    otherwise it does nothing. An exception from the block goes on its way, and leaves a `FAILED` file.

    Args:
        gm: the `torch.fx.GraphModule` the pass changes in place.
        name: of the pass, as it appears in file names and events.
        phase: which of the model's graphs: `forward`, `backward`, `joint`, `pre_grad`, `inference` (the same as
            `forward`); None takes the graph that is being compiled on this thread, else `forward`.
        subsystem: a group name of the compiler's own, for the event.

    Raises:
        UsageError: `gm` has no graph, the name is empty, or the phase is none of the above.
    """
    if not hasattr(gm, "graph"):
        raise UsageError(f"observe_pass(gm=...) takes a torch.fx.GraphModule, not {type(gm).__name__}")
    given: object = name
    if not isinstance(given, str) or not given:
        raise UsageError(f"observe_pass(name=...) takes a non-empty string, not {name!r}")
    if phase is not None and phase not in PHASES:
        raise UsageError(f"observe_pass(phase={phase!r}): expected one of {', '.join(PHASES)}")
    session = active.session()
    here = current()
    if session is None or here is None:
        yield
        return
    direction = PHASES[phase] if phase is not None else here.direction or "forward"
    frame = Frame(here.token, direction, phase or here.phase or "user_passes", here.subgraph)
    to = Subscriber(session)
    started = to.tell(f"pass {name}", lambda: session.pass_begins(frame, gm, name, subsystem), None)
    try:
        yield
    except BaseException as error:
        failure = error
        if started is not None:
            to.tell(f"pass {name}", lambda: session.pass_ends(frame, gm, name, started, failure), None)
        raise
    if started is not None:
        to.tell(f"pass {name}", lambda: session.pass_ends(frame, gm, name, started, None), None)
