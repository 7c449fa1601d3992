"""How a command ends that did not come to its end: by a signal, for want of an output, or by a fault of our own."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from graphprobe.errors import EXIT_UNDECIDED, GraphprobeError, UsageError
from graphprobe.report.visible import echo

AS_PYTHON = ("run", "profile")
"""Commands whose program finds the process as `python` would have made it: signals, output and all."""

EXIT_SIGNAL = 128
"""What a shell adds to the number of the signal that ended a process."""

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Terminated(KeyboardInterrupt):
    """The process was asked to end (SIGTERM), which is taken as Ctrl-C is: what is known is told first."""


class Signals:
    """Turns SIGTERM into an exception as SIGINT is one, and remembers what came; forked children are left alone."""

    def __init__(self) -> None:
        self.code: int | None = None
        self._pid = os.getpid()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Put the handlers in place of Python's own, and those back at the end."""
        before: dict[signal.Signals, Any] = {}
        try:
            for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
                if signal.getsignal(number) == usual:
                    before[number] = signal.signal(number, self._came)
        except ValueError:  # not the main thread
            pass
        try:
            yield
        finally:
            for number, handler in before.items():
                if signal.getsignal(number) == self._came:
                    signal.signal(number, handler)

    def _came(self, number: int, _: FrameType | None) -> None:
        if os.getpid() != self._pid and number == signal.SIGTERM:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self.code = EXIT_SIGNAL + number
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


def run_command(command: str | None, call: Callable[[], Any]) -> None:
    """`call()`, which leaves by SystemExit, with an exit code that says how it ended; `command`: its name."""
    signals = Signals()
    if command in AS_PYTHON:
        try:
            call()
        except Exception as error:
            raise SystemExit(end_of(error)) from None
        return
    pid = os.getpid()
    with signals.watched():
        try:
            _check_output()
            call()
        except SystemExit as leaving:
            if os.getpid() != pid:
                raise
            code = _flushed(leaving.code)
            raise SystemExit(code if signals.code is None else signals.code) from None
        except GraphprobeError as error:
            raise SystemExit(tell(error)) from None
        except (Exception, KeyboardInterrupt) as error:
            raise SystemExit(_flushed(end_of(error))) from None


def tell(error: GraphprobeError) -> int:
    """Show an error with its hint, wrapped where a terminal is, and return its exit code."""
    if sys.stderr is not None and sys.stderr.isatty():
        from graphprobe.report.terminal import print_lines

        print_lines(error.render().split("\n"), file=sys.stderr)
    else:
        echo(error.render(), err=True)
    return error.exit_code


def end_of(error: BaseException) -> int:
    """Say why a command could not go on, and return its exit code."""
    if isinstance(error, KeyboardInterrupt):
        echo("graphprobe: interrupted", err=True)
        return EXIT_SIGNAL + (signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT)
    if isinstance(error, BrokenPipeError):
        _drop_output()
        return EXIT_SIGNAL + signal.SIGPIPE
    if isinstance(error, OSError) and (error.errno in FULL or error.filename is not None):
        where = error.filename if error.filename is not None else "a file or the output cannot be written"
        said = GraphprobeError(f"{where}: {error.strerror}", slug="no-output")
        tell(said)
        return EXIT_UNDECIDED
    frame = traceback.extract_tb(error.__traceback__)[-1]
    said = GraphprobeError(
        f"graphprobe failed at {os.path.basename(frame.filename)}:{frame.lineno}: {type(error).__name__}: {error}",
        hint=f"this is a fault of graphprobe; please report it with {_written(error)}",
    )
    tell(said)
    return EXIT_UNDECIDED


def _written(error: BaseException) -> str:
    """The file that has the traceback and the command; the traceback itself where there can be none."""
    text = "".join(traceback.format_exception(error))
    try:
        handle, path = tempfile.mkstemp(prefix="graphprobe-error-", suffix=".txt")
        with open(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{' '.join(sys.argv)}\nPython {sys.version}\n\n{text}")
    except OSError:
        return f"this traceback:\n{text}"
    return path


def _check_output() -> None:
    """What the encoding of the output cannot say is replaced; a closed output is refused before anything is done."""
    for stream in (sys.stdout, sys.stderr):
        if stream is sys.stdout and (stream is None or getattr(stream, "closed", False)):
            raise UsageError("the standard output is closed", hint="send it to a file, or to /dev/null")
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None and stream.errors == "strict":
            reconfigure(errors="backslashreplace")


def _flushed(code: Any) -> Any:
    """The exit code, or another one where what was printed last cannot be written."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        _drop_output()
        return end_of(error)
    return code


def _drop_output() -> None:
    """Python flushes at the end once more, and would fail again."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
