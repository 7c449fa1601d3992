"""The session of this process: at most one at a time, switched on by `enable_with`, off by `disable`."""

from __future__ import annotations

import atexit
import inspect
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from graphprobe.errors import GraphprobeError, GraphprobeWarning, UsageError
from graphprobe.internals.bus import Subscriber
from graphprobe.internals.context import Frame, current
from graphprobe.internals.dynamo import dynamo_taps as dynamo
from graphprobe.internals.importhook import ImportHook
from graphprobe.probe.session import Session, check_watching, open_session
from graphprobe.records import Direction
from graphprobe.settings import Settings, resolve, torch_compile_debug_state
from graphprobe.store import layout

PHASES: dict[str, Direction] = {
    "pre_grad": "pre_grad",
    "joint": "joint",
    "forward": "forward",
    "inference": "forward",
    "backward": "backward",
}
"""Which of a model's graphs a caller of `observe_pass` names."""

Companion = Callable[[], Callable[[], None]]
"""Begins beside a session, such as what reduces a graph that fails; what it returns ends it."""


class _SessionSwitch:
    """Holds the session behind a lock; one instance a process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.session: Session | None = None
        self.companion_ends: Callable[[], None] | None = None
        self.waiting: ImportHook | None = None
        self.companion: Callable[[], Companion | None] = lambda: None
        """Of the session that is waited for."""
        self.at_exit = False


_switch = _SessionSwitch()


def session() -> Session | None:
    """The session that is on, or None."""
    return _switch.session


def resolved(arguments: Mapping[str, object]) -> Settings:
    """The settings that `enable` would work with; errors as there."""
    settings = resolve(arguments=arguments, environ=os.environ)
    check_watching(settings)
    return settings


def enable_with(settings: Settings, *, companion: Companion | None = None) -> Path:
    """Collect every compile of this process from now on; `companion` begins and ends with the session.

    Raises:
        UsageError: collecting is on already, or the folder cannot be written to.
    """
    return _open(settings, everything=True, companion=companion).writer.run_dir


def ensure() -> Session:
    """The session that is on, or a new one: for wrapped backends alone, unless TORCH_COMPILE_DEBUG asks for all."""
    with _switch.lock:
        if _switch.session is not None:
            return _switch.session
        everything = _switch.waiting is not None
        companion = _switch.companion() if everything else None
        return _open(resolve(arguments={}, environ=os.environ), everything=everything, companion=companion)


def disable() -> Path | None:
    """Stop collecting; everything is put back as it was. Returns the run folder, None when nothing was on."""
    with _switch.lock:
        _wait_no_more()
    return close()


def enable_on_first_use(companion: Callable[[], Companion | None]) -> None:
    """Collect as soon as the program loads torch's compiler: what `import graphprobe` does under TORCH_COMPILE_DEBUG=1.

    Nothing is made before that, so that a program which compiles nothing leaves nothing behind. A folder that cannot
    be written to is a warning here: the program did not ask by a call. `companion` is asked for at that time.
    """

    def open_now(_: object) -> None:
        with _switch.lock:
            _switch.waiting = None
        try:
            _open(resolve(arguments={}, environ=os.environ), everything=True, companion=companion())
        except GraphprobeError as error:
            warnings.warn(f"nothing is collected: {error.render()}", GraphprobeWarning, stacklevel=3)

    hook = ImportHook({"torch._dynamo": open_now})
    _switch.waiting, _switch.companion = hook, companion
    hook.install()


def _wait_no_more() -> None:
    if _switch.waiting is not None:
        _switch.waiting.remove()
        _switch.waiting = None


def _open(settings: Settings, *, everything: bool, companion: Companion | None = None) -> Session:
    with _switch.lock:
        _wait_no_more()
        current = _switch.session
        if current is not None and not (everything and not current.everything):
            raise UsageError(
                f"collecting is on already, into {current.writer.run_dir}",
                hint="leave the enclosing trace() or call graphprobe.disable() first",
            )
        if current is not None:
            close()
        opened = open_session(
            settings,
            everything=everything,
            adopt_run_dir=_torch_run_dir(settings),
            torch_debugs=torch_compile_debug_state(os.environ) == "on",
        )
        _switch.session = opened
        _switch.companion_ends = companion() if companion is not None else None
        if not _switch.at_exit:
            _switch.at_exit = True
            atexit.register(close)
    if everything:
        try:
            _warn_compiled_before(opened)
        except GraphprobeWarning as error:  # the program's filter turns it into an error: then nothing stays on
            close("failed", str(error))
            raise
    return opened


def _torch_run_dir(settings: Settings) -> Path | None:
    """torch's own run folder where it has made one in this process: both trees then lie side by side."""
    chosen = dynamo.torch_run_dir()
    if chosen is None or settings.out_dir is not None:
        return None
    path = Path(chosen)
    return path if path.is_dir() and not (path / layout.TOOL).exists() else None


def _warn_compiled_before(opened: Session) -> None:
    before = dynamo.compiled_before()
    if not before:
        return
    names = ", ".join(before)
    text = f"compiled before collecting began, so nothing of it can be collected: {names}"
    opened.writer.note(text)
    warnings.warn(
        f"{text}. Begin before the first call, or call torch._dynamo.reset() to have it compiled again.",
        GraphprobeWarning,
        stacklevel=_level_of_caller(),
    )


def _level_of_caller() -> int:
    """The `stacklevel`, as the calling function would give it, of the line outside graphprobe that led here."""
    level, frame = 1, inspect.currentframe()
    frame = frame.f_back if frame is not None else None
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("graphprobe", "contextlib"):
        level, frame = level + 1, frame.f_back
    return level


def close(state: Literal["finished", "failed"] = "finished", exception: str | None = None) -> Path | None:
    """Stop collecting, with how the program ended. Returns the run folder, None when nothing was on."""
    with _switch.lock:
        current, _switch.session = _switch.session, None
        companion_ends, _switch.companion_ends = _switch.companion_ends, None
    if companion_ends is not None:
        companion_ends()
    if current is None:
        return None
    current.stop(state, exception)
    return current.writer.run_dir


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
    session = _switch.session
    here = current()
    if session is None or here is None:
        yield
        return
    direction = PHASES[phase] if phase is not None else here.direction or "forward"
    frame = Frame(here.token, direction, phase or here.phase or "user_passes", here.subgraph)
    to = Subscriber(session)
    started = to.tell(f"pass {name}", lambda: session.pass_begins(frame, gm, name, subsystem), None)
    failure: BaseException | None = None
    try:
        yield
    except BaseException as error:
        failure = error
        raise
    finally:
        if started is not None:
            to.tell(f"pass {name}", lambda: session.pass_ends(frame, gm, name, started, failure), None)
