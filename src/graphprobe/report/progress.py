"""What is being done, and since when: on a terminal a line that is drawn anew, elsewhere a line now and then."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from graphprobe.findings import NamedStep
from graphprobe.report.terminal import Text
from graphprobe.report.visible import one_line, ranked

if TYPE_CHECKING:
    from rich.live import Live

STEPS = {
    "uncompiled": "running it uncompiled",
    "float64": "running it in float64",
    "dynamo": "running Dynamo's graphs",
    "aot": "running AOTAutograd's graphs",
    "passes": "looking into the passes",
    "kernels": "looking into the generated code",
    "plain": "running it compiled, not looked into",
    "bits": "comparing it bit for bit",
    "culprit": "looking for the operation",
    "proof": "making the program its own proof",
    "rounded": "running it with narrow values rounded as uncompiled",
}
"""The steps of a diagnosis, in words."""

LINE_EVERY_S = 30.0
"""How often a line is written where none can be drawn anew."""


class ProgressLine:
    """Shows what is being done, from the first time that it is told something to `stop`.

    It draws when it is told something and has no thread: programs are forked while it shows, and a child must not
    inherit a lock that is held. Standard output and error stay the program's own; nothing is redirected.
    """

    def __init__(self, file: IO[str] | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`file`: standard error by default."""
        self._file, self._clock = file, clock
        self._live: Live | None = None
        self._began = self._written = clock()

    def tell(self, what: str) -> None:
        """Show `what`, on one line as wide as the terminal; elsewhere nothing."""
        if self._stream.isatty():
            self._draw(f"graphprobe: {what} … {self._clock() - self._began:.0f} s")

    def tell_step(self, name: str, step: NamedStep) -> None:
        """Show a step of what is called `name`: at once on a terminal, in other files each half a minute.

        A fact is written at once, and stays.
        """
        text, file = self.line_of(name, step), self._stream
        if step.fact:
            self.stop()
            text = f"graphprobe: {name}: {step.fact}"
        elif file.isatty():
            self._draw(text)
            return
        elif self._clock() - self._written < LINE_EVERY_S:
            return
        else:
            self._written = self._clock()
        file.write(f"{one_line(text)}\n")
        file.flush()

    def line_of(self, name: str, step: NamedStep) -> str:
        """The step in words, with its seconds, what it does, and the seconds since the beginning."""
        what, doing = STEPS.get(str(step), str(step)), f", {step.doing}" if step.doing else ""
        total_s = self._clock() - self._began
        before = f"; {total_s:.0f} s in all" if total_s - step.seconds >= 1 else ""
        return f"graphprobe: {name}: {what} … {step.seconds:.0f} s{doing}{before}"

    @property
    def _stream(self) -> IO[str]:
        return self._file if self._file is not None else ranked(sys.stderr)

    def _draw(self, text: str) -> None:
        from rich.console import Console
        from rich.live import Live

        line = Text(text, "dim", no_wrap=True, overflow="ellipsis")
        if self._live is None:
            self._live = Live(
                console=Console(file=self._stream, highlight=False, force_jupyter=False),
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        self._live.update(line, refresh=True)

    def stop(self) -> None:
        """Take the line away; the next `tell` shows it again."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


@contextlib.contextmanager
def shown_in_notebook(
    instead: Callable[[Any], None] | None = None, *, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[Any], None] | None]:
    """What shows the steps of a diagnosis in a notebook, as one line of text that is written over.

    `instead` of it where that is given, and where this is no notebook.
    """
    if instead is not None or not _in_notebook():
        yield instead
        return
    lines, longest = ProgressLine(clock=clock), 0

    def tell(step: NamedStep) -> None:
        nonlocal longest
        text = one_line(lines.line_of("diagnosing", step))
        longest = max(longest, len(text))
        sys.stderr.write(f"\r{text:{longest}}")
        sys.stderr.flush()

    try:
        yield tell
    finally:
        if longest:
            sys.stderr.write(f"\r{'':{longest}}\r")
            sys.stderr.flush()


def _in_notebook() -> bool:
    """Whether the cells of a notebook run in this process; IPython on a terminal is none."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and hasattr(shell, "kernel")
