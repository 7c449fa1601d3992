"""All taps of a session together: put in place as torch's modules appear, and taken out exactly."""

from __future__ import annotations

from graphprobe.internals import aot_taps as aot
from graphprobe.internals import step_taps
from graphprobe.internals.bus import Patch, Subscriber, Subscription
from graphprobe.internals.dynamo import dynamo_taps as dynamo
from graphprobe.internals.dynamo import graph_breaks, recompile_taps
from graphprobe.internals.inductor import inductor_taps as inductor
from graphprobe.internals.names import RUN_LOSES
from graphprobe.internals.observer import CompileObserver


class Taps:
    """The taps of one observer."""

    def __init__(self, observer: CompileObserver, *, follow_run_dir: str | None = None) -> None:
        """`follow_run_dir` is where torch is to put its own debug files, None to leave that to torch."""
        self._wanted = _all(observer)
        if follow_run_dir is not None:
            self._wanted.append(dynamo.follow_run_dir(follow_run_dir))
        self._subscription = Subscription(self._wanted)

    def install(self) -> None:
        self._subscription.install()

    def remove(self) -> list[str]:
        """Undo everything; returns addresses that somebody else patched over, which were left alone."""
        return self._subscription.remove()

    @property
    def status(self) -> dict[str, str]:
        """By tap: `on`, `waiting` (its torch module is not imported yet) or `missing: <address>`."""
        found: dict[str, str] = {}
        for patch in self._wanted:
            before, now = found.get(patch.tap, "waiting"), self._subscription.status[patch.address]
            if before == "waiting" or (before == "on" and now.startswith("missing")):
                found[patch.tap] = now
        return found

    def missing(self) -> dict[str, str]:
        """Taps this torch lacks, with what is lost."""
        return {tap: RUN_LOSES[tap] for tap, status in self.status.items() if status.startswith("missing")}


def _all(observer: CompileObserver) -> list[Patch]:
    return [
        *step_taps.patches(observer),
        *dynamo.patches(observer),
        *aot.patches(observer),
        *inductor.patches(observer),
        *graph_breaks.patches(Subscriber(observer)),
        *recompile_taps.patches(observer),
    ]
