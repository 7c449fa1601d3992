"""Counts the recompilations of a block, or of a whole program, and says what caused them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

import msgspec

from graphprobe.analysis.recompile_facts import Recompile
from graphprobe.analysis.recompiles import RecompileReport, Versions, new_causes, report_from_facts
from graphprobe.errors import UsageError, last_line
from graphprobe.internals.bus import Subscription
from graphprobe.internals.dynamo import recompile_taps
from graphprobe.report.explanation import group_line, recompile_lines

_LOST = "recompilations may be missing: "


class Recompiles:
    """Notes every recompilation of the process while it is open, on all threads. Made by `recompiles`.

    It changes neither what is compiled nor what torch logs; forked and started processes are not observed.
    """

    def __init__(
        self,
        *,
        allowed: int = 0,
        wants: Callable[[object], bool] | None = None,
        on_cause: Callable[[str], None] | None = None,
    ) -> None:
        """`wants` takes the backend of a function that is recompiled, and says whether it counts. Rest: `recompiles`.

        `on_cause` gets each cause that was not there before, in one line, on the thread that compiles.
        """
        if type(allowed) is not int or allowed < 0:
            raise UsageError(f"allowed={allowed!r}: it takes a number of recompilations, 0 or more")
        self._allowed = allowed
        self._wants = wants
        self._on_cause = on_cause or (lambda text: None)
        self._versions: dict[object, Versions] = {}
        self._known: set[tuple[object, ...]] = set()
        self._facts: list[Recompile] = []
        self._notes: list[str] = []
        self._lock = threading.Lock()
        self._taps: Subscription | None = None

    def open(self) -> None:
        """Begin to note. Raises UsageError when it has begun already."""
        if self._taps is not None:
            raise UsageError("recompilations are counted already by this object", hint="make a second one")
        self._taps = Subscription(recompile_taps.patches(self))
        self._taps.install()
        if self._taps.missing:
            self._note_missing(self._taps.missing)

    def close(self) -> None:
        """Stop noting, with everything put back; harmless when called twice."""
        taps, self._taps = self._taps, None
        if taps is None:
            return
        if taps.missing and not self._notes:
            self._note_missing(taps.missing)
        for address in taps.remove():
            self._notes.append(f"{address} was replaced by somebody else meanwhile; left as it is")

    @property
    def facts(self) -> tuple[Recompile, ...]:
        """Every recompilation so far, in order, as it was noted."""
        with self._lock:
            return tuple(self._facts)

    def result(self) -> RecompileReport:
        """The recompilations so far, grouped by cause; see `analysis.recompiles`."""
        incomplete = any(note.startswith(_LOST) for note in self._notes)
        return report_from_facts(self.facts, allowed=self._allowed, complete=not incomplete, notes=self._notes)

    def report(self) -> str:
        """The same as text, with a remedy for each cause."""
        return "\n".join(recompile_lines(self.result()))

    def to_json(self) -> str:
        """The same as one JSON object; fields as in `RecompileReport`."""
        return msgspec.json.encode(self.result()).decode()

    def __enter__(self) -> Recompiles:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def recompiled(self, fact: Recompile, backend: object) -> None:
        if self._wants is None or self._wants(backend):
            with self._lock:
                self._facts.append(fact)
                new = new_causes(fact, self._versions, self._known)
            for group in new:
                self._on_cause(group_line(group))

    def failed(self, what: str, details: str) -> None:
        """A fault of ours: say so, and get out of the program's way."""
        last = last_line(details)
        with self._lock:
            self._notes.append(f"{_LOST}graphprobe failed at {what}: {last}")
            taps = self._taps
        if taps is not None:
            taps.remove()

    def _note_missing(self, addresses: list[str]) -> None:
        self._notes.append(f"{_LOST}this torch lacks {', '.join(addresses)}")


def recompiles(*, allowed: int = 0) -> Recompiles:
    """`with recompiles() as r: …; print(r.report())` says what was recompiled in the block, why, and what to do.

    Args:
        allowed: recompilations of one function that are as wanted: `r.result().unwanted` counts from there on.

    Raises:
        UsageError: `allowed` is no number from 0 on.
    """
    return Recompiles(allowed=allowed)
