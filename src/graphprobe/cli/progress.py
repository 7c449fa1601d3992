"""One line on stderr that says what is being done: on a terminal, drawn anew and gone at the end; elsewhere nothing."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from graphprobe.report.terminal import Text

if TYPE_CHECKING:
    from rich.live import Live


class Progress:
    """Shows what is being done, and since when, from the first `tell` to `stop`.

    It draws when it is told something and has no thread: programs are forked while it shows, and a child must not
    inherit a lock that is held. Standard output and error stay the program's own; nothing is redirected.
    """

    def __init__(self) -> None:
        self._live: Live | None = None
        self._began = time.monotonic()

    def tell(self, what: str) -> None:
        """Show `what`, on one line as wide as the terminal."""
        if not sys.stderr.isatty():
            return
        from rich.console import Console
        from rich.live import Live

        seconds = time.monotonic() - self._began
        line = Text(f"graphprobe: {what} … {seconds:.0f} s", "dim", no_wrap=True, overflow="ellipsis")
        if self._live is None:
            self._live = Live(
                console=Console(stderr=True, highlight=False),
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

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
