"""How a command ends that did not come to its end: by a signal, for want of an output, or by a fault of our own."""

from __future__ import annotations

import atexit
import contextlib
import errno
import faulthandler
import os
import select
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import IO, TYPE_CHECKING, Any

from graphprobe.errors import EXIT_UNDECIDED, GraphprobeError, Interrupted, UsageError
from graphprobe.report.visible import echo

if TYPE_CHECKING:
    from graphprobe.probe.script import Ended

EXIT_SIGNAL = 128
"""What a shell adds to the number of the signal that ended a process."""

ENDING = tuple(signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that ask a command to end."""

AS_PYTHON = {"run": (), "profile": ENDING[1:], "watch": ENDING[1:]}
"""Commands whose program ends the process as it ends `python`, with the signals that they take all the same."""

END_S, TELL_S, THREADS_S = 3.0, 1.0, 0.5
"""What is left after a signal to a command, then to what tells what is known; to threads once the command has ended."""

TWICE_S = 0.5
"""Two signals that come so soon are one: `timeout` sends it to a process and to its group."""

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class ByKeyboardInterrupt(SystemExit):
    """The program has ended by a KeyboardInterrupt that it did not catch, and which was shown."""


def exit_as(ended: Ended) -> SystemExit:
    """What ends this process as the program has ended."""
    own = ended.error is not None and ended.error.startswith(KeyboardInterrupt.__name__)
    return ByKeyboardInterrupt(ended.code) if own else SystemExit(ended.code)


@dataclass
class AtSignal:
    """What a command does when a signal comes: `stop` ends its work, told why; None raises `Interrupted`.

    `known` tells what is known, told why. It is called where the command does not end in time, on a thread of its own,
    and where it must end at once.
    """

    stop: Callable[[str], None] | None = None
    known: Callable[[str], None] = lambda why: None


class Signals:
    """Turns the signals that end a process into an exception as SIGINT is one, and ends what does not end by that.

    A thread of its own sees to the second: a program may catch the exception, wait for a thread of its own that never
    ends, or be in the middle of C++. Forked children are left alone, and so are handlers of the program: where it has
    one, a signal only stops what the command does beside it.
    """

    current: Signals | None = None

    def __init__(self) -> None:
        self.code: int | None = None
        self.ways = [AtSignal()]
        self._before: dict[signal.Signals, Any] = {}

    @contextlib.contextmanager
    def watched(self, numbers: Sequence[signal.Signals] = ENDING, *, alone: bool) -> Iterator[None]:
        """Put the handlers in place of Python's own; `alone`: nothing but the command runs in this process.

        Then they stay, for threads of the program and atexit come after the command; a signal ends these at once.
        """
        if threading.current_thread() is not threading.main_thread() or Signals.current is not None or not numbers:
            yield
            return
        usual = {signal.SIGINT: signal.default_int_handler}
        for number in numbers:
            if signal.getsignal(number) == usual.get(number, signal.SIG_DFL):
                self._before[number] = signal.signal(number, self._came)
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        threading.Thread(target=self._guard, args=(reader,), name="graphprobe-signals", daemon=True).start()
        atexit.register(self._leave)  # comes last
        Signals.current = self
        try:
            yield
        finally:
            if alone:
                self.ways.append(AtSignal(self._over, self.ways[-1].known))
                self._wait_for_threads()
            else:
                atexit.unregister(self._leave)
                self.restore()
                signal.set_wakeup_fd(wakeup)
                os.close(writer)
                Signals.current = None

    def restore(self) -> None:
        """Put the handlers back that the program has left in place."""
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._came:
                signal.signal(number, handler)

    def _came(self, number: int, _: FrameType | None) -> None:
        if self.code is None:
            self.code = EXIT_SIGNAL + number
            # What is raised while C++ of torch is being loaded can end the process by SIGABRT.
            if "torch" in sys.modules and not _is_imported("torch"):
                self._over(_why(number))
            self._stop(number)

    def _stop(self, number: int) -> None:
        name, stop = signal.Signals(number).name, self.ways[-1].stop
        if stop is not None:
            stop(_why(number))
        elif threading.current_thread() is threading.main_thread():
            raise Interrupted(name)

    def _wait_for_threads(self) -> None:
        """After a signal, end without the threads of the program that go on, for which the interpreter would wait."""
        until = time.monotonic() + THREADS_S
        for thread in threading.enumerate() if self.code is not None else ():
            if not thread.daemon and thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))
                if thread.is_alive():
                    self._over("")

    def _over(self, why: str) -> None:
        with contextlib.suppress(Exception):
            self.ways[-1].known(why)
        self._leave()

    def _guard(self, reader: int) -> None:
        """Read the signals of this process, whoever handles them; a second one, or the time, ends it."""
        came, code = 0.0, 0
        while True:
            now = time.monotonic()
            ready, _, _ = select.select([reader], [], [], max(0.0, came + END_S - now) if came else None)
            numbers = os.read(reader, 64) if ready else b""
            if ready and not numbers:  # the command has ended
                os.close(reader)
                return
            if not ready:
                self._end(code, tell=True)
            for number in numbers:
                if number not in self._before:
                    continue
                if signal.getsignal(number) != self._came:
                    self._stop(number)
                elif not came:
                    came, code = time.monotonic(), EXIT_SIGNAL + number
                elif time.monotonic() - came > TWICE_S:
                    self._end(code, tell=False)

    def _end(self, code: int, *, tell: bool) -> None:
        self.code = code
        if tell:
            teller = threading.Thread(target=self._tell, args=(_why(code - EXIT_SIGNAL),), daemon=True)
            teller.start()
            teller.join(TELL_S)
        self._leave(flush=False)

    def _tell(self, why: str) -> None:
        self.ways[-1].known(why)
        stacks = _written(lambda file: faulthandler.dump_traceback(file, all_threads=True))
        echo(f"graphprobe: interrupted before it ended by itself; where it was is in {stacks}", err=True)
        sys.stdout.flush()

    def _leave(self, *, flush: bool = True) -> None:
        """End, with all that this process has started."""
        if self.code is None:
            return
        for stream in (sys.stdout, sys.stderr) if flush else ():
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        with contextlib.suppress(Exception):
            if _is_imported("torch"):  # before that neither we nor the program's compiled code has started any
                from graphprobe.engine.forked_child import descendants, end_group

                for process in descendants(os.getpid()):
                    end_group(process, started=())
        os._exit(self.code)


def _is_imported(module: str) -> bool:
    """Whether a module is there, and its import is over."""
    found = sys.modules.get(module)
    return found is not None and not getattr(found.__spec__, "_initializing", False)


def _why(number: int) -> str:
    return f"interrupted by {signal.Signals(number).name}"


@contextlib.contextmanager
def at_signal(way: AtSignal, *, stays: bool = False) -> Iterator[None]:
    """Within the block, signals have this effect, where a command of ours runs in this process.

    `stays`: behind it, too, while the program's threads and what it has left to atexit end.
    """
    ways = Signals.current.ways if Signals.current is not None else []
    ways.append(way)
    try:
        yield
    finally:
        if not stays:
            ways.remove(way)


def check_signals() -> None:
    """Raise `Interrupted` if a signal has come, which ended what was called before."""
    code = Signals.current.code if Signals.current is not None else None
    if code is not None:
        raise Interrupted(signal.Signals(code - EXIT_SIGNAL).name)


def _forked() -> None:
    if Signals.current is not None:
        Signals.current.restore()
        signal.set_wakeup_fd(-1)
        Signals.current = None


os.register_at_fork(after_in_child=_forked)


def run_command(command: str | None, call: Callable[[], Any], *, alone: bool = False) -> None:
    """`call()`, which leaves by SystemExit, with an exit code that says how it ended; `command`: its name.

    `alone`: the process is the command's.
    """
    signals = Signals()
    if command in AS_PYTHON:
        try:
            with signals.watched(AS_PYTHON[command], alone=alone):
                call()
        except ByKeyboardInterrupt:
            sys.excepthook = lambda *_: None  # python ends itself by SIGINT then, as it would have without us
            raise KeyboardInterrupt from None
        except Exception as error:
            raise SystemExit(end_of(error)) from None
        return
    pid = os.getpid()
    with signals.watched(alone=alone):
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
        return EXIT_SIGNAL + (signal.Signals[str(error)] if isinstance(error, Interrupted) else signal.SIGINT)
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
        hint=f"this is a fault of graphprobe; please report it with {_written_error(error)}",
    )
    tell(said)
    return EXIT_UNDECIDED


def _written_error(error: BaseException) -> str:
    """The file that has the traceback and the command; the traceback itself where there can be none."""
    text = "".join(traceback.format_exception(error))
    return _written(lambda file: file.writelines([text])) or f"this traceback:\n{text}"


def _written(write: Callable[[IO[str]], None]) -> str | None:
    """A new file that says what was called, and what `write` adds to that; None where there can be none."""
    try:
        handle, path = tempfile.mkstemp(prefix="graphprobe-error-", suffix=".txt")
        with open(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{' '.join(sys.argv)}\nPython {sys.version}\n\n")
            file.flush()
            write(file)
    except OSError:
        return None
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
