"""What is asked of a watch on the graphs of a program, what is known of it, and what comes of it; imports no torch."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphprobe.errors import GraphprobeError, GraphprobeWarning, UsageError
from graphprobe.internals.dynamo import repro_hooks

if TYPE_CHECKING:
    from graphprobe.diagnose.reduction.reduce_case import CaseReduction

PLACES, LEVELS = ("dynamo", "aot"), (2, 3, 4)
AFTER, LEVEL = repro_hooks.VARIABLES
FOLDER = "graphprobe-reduced"
NOWHERE = "nowhere"


class GraphDiedError(GraphprobeError):
    """A graph ended the child process that compiled and ran it first, as it would have ended the program."""

    slug = "graph-died"


class ReducedExit(SystemExit):
    """Ends the program as `sys.exit()` would, because what was wanted of it is on disk."""


@dataclass(frozen=True)
class Asked:
    """After which stage graphs are taken, and what is looked for."""

    after: str  # `dynamo`: Dynamo's graphs. `aot`: those of AOTAutograd, as Inductor gets them.
    level: int  # 2: exceptions. 3: also crashes and hangs, by a trial in a child process. 4: also wrong values.


def asked_by(environ: Mapping[str, str]) -> Asked | None:
    """What TORCHDYNAMO_REPRO_AFTER and TORCHDYNAMO_REPRO_LEVEL ask for; None when they are not set.

    Raises:
        UsageError: a value that they cannot have.
    """
    after, level = environ.get(AFTER), environ.get(LEVEL)
    if after is not None and after not in PLACES:
        raise UsageError(f"{AFTER}={after!r}: it takes dynamo or aot", hint=f"unset {AFTER} to switch it off")
    if level is not None and level not in map(str, LEVELS):
        raise UsageError(
            f"{LEVEL}={level!r}: it takes 2, 3 or 4", hint="2: exceptions, 3: also crashes, 4: also wrong values"
        )
    if level is not None and after is None:
        raise UsageError(f"{LEVEL}={level} says nothing without {AFTER}", hint=f"set {AFTER}=dynamo or {AFTER}=aot")
    return None if after is None else Asked(after, int(level or 2))


@dataclass
class WatchOutcome:
    """What came of watching.

    Attributes:
        notes: failures that could not be reduced, graphs that could not be judged.
    """

    graphs: int = 0  # that were seen
    reduction: CaseReduction | None = None  # of the first graph that failed
    folder: Path | None = None  # of the reduction, also where it was made by another process
    notes: list[str] = field(default_factory=list)


class GraphsWatch:
    """What a watch on the graphs that this process compiles was asked, and whether it goes on.

    Args:
        asked: None: as `torch._dynamo.config` says at each graph, which the environment or the program sets.
        out: folder for the reduction; None: a new one in `graphprobe-reduced`.
        on_note: is told what happens, one sentence each.
        on_reduction: is told the result; None: `on_note` is told where it lies.
        options: of `reduce_case`.
        exit: whether the program is left, by `ReducedExit`, once a graph was reduced; else it goes on, and fails as it
            would have.
    """

    def __init__(
        self,
        asked: Asked | None = None,
        *,
        out: Path | None = None,
        on_note: Callable[[str], None] | None = None,
        on_reduction: Callable[[CaseReduction], None] | None = None,
        options: Mapping[str, Any] | None = None,
        exit: bool = False,
    ) -> None:
        self.asked, self.out = asked, out
        self.ended = WatchOutcome()
        self.on_note, self.on_reduction = on_note or _warned, on_reduction
        self.options, self.exit = dict(options or {}), exit
        self.turn = threading.Lock()
        self.busy = False  # a graph is tried or reduced, here or in a child
        self._base = Path.cwd()  # the program may go elsewhere
        self.on = False

    def _wanted(self) -> Asked | None:
        after, level = repro_hooks.asked_of_torch()
        asked = self.asked or (Asked(after, level) if after is not None else None)
        return asked if asked is not None and asked.after in PLACES and asked.level in LEVELS else None

    def place(self) -> str | None:
        """Where graphs are wanted now, as `ReproHooks` takes it."""
        if self.on and self.busy:
            return NOWHERE  # in children too: torch's minifier stays off
        asked = self._wanted() if self.on else None
        if asked is None:
            return None
        return NOWHERE if self.ended.folder is not None else asked.after

    @property
    def watching(self) -> bool:
        """Whether a graph that fails is to be reduced."""
        return self.on and not self.busy and self.ended.folder is None

    @property
    def level(self) -> int:
        """What is looked for, see `Asked`."""
        asked = self._wanted()
        return asked.level if asked is not None else LEVELS[0]

    def note(self, text: str) -> None:
        """Keep and tell what could not be done."""
        self.ended.notes.append(text)
        self.on_note(text)

    def folder(self) -> Path:
        """Where the next reduction goes."""
        if self.out is None:
            return self._base / FOLDER / datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")
        if self.options.get("resume"):
            return self.out
        folder, number = self.out, 1
        while folder.exists() and any(folder.iterdir()):  # that of a graph before, which does not fail by itself
            number += 1
            folder = self.out.with_name(f"{self.out.name}-{number}")
        return folder


def _warned(text: str) -> None:
    warnings.warn(f"graphprobe: {text}", GraphprobeWarning, stacklevel=3)
