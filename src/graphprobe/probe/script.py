"""Run a user's program in this process as `python` would run it, observed."""

from __future__ import annotations

import builtins
import importlib.machinery
import importlib.util
import linecache
import os
import signal
import sys
import threading
import types
import warnings
from types import CodeType, ModuleType, TracebackType

import msgspec

from graphprobe.errors import Interrupted, UsageError, raised_from

LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "torchrun", "accelerate.commands.launch", "deepspeed")


class ScriptTarget(msgspec.Struct, frozen=True):
    """What to run: exactly one of a script, a module (`-m`) or a piece of code (`-c`), and its arguments."""

    kind: str
    target: str
    arguments: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What it is called on the command line, without its arguments."""
        options = {"module": "-m ", "code": "-c "}
        return f"{options.get(self.kind, '')}{' '.join(self.target.split())[:80]}"


class Ended(msgspec.Struct, frozen=True):
    """How the program ended: the exit code, and `Type: message` of the exception that it did not catch.

    `compiling`: that came from torch's compiler.
    `interrupted`: by a signal, whose name is the error.
    """

    code: int
    error: str | None = None
    compiling: bool = False
    interrupted: bool = False

    @property
    def problem(self) -> str | None:
        """What it failed with, in words; None where it ended well."""
        if self.error is not None:
            return f"the script was ended by {(self.error.splitlines() or [''])[0]}"
        return None if self.code == 0 else f"the script ended with exit code {self.code}"


def check(program: ScriptTarget) -> None:
    """Refuse what cannot be run, before anything is made.

    Raises:
        UsageError: no such script or module; code that does not compile; a launcher, whose workers would go unobserved.
    """
    name = os.path.basename(program.target)
    if (program.kind == "module" and program.target in LAUNCHERS) or (program.kind == "script" and name == "torchrun"):
        raise UsageError(
            f"{program.target} starts the program in processes of its own, which would not be observed",
            hint="the other way round: torchrun ... -m graphprobe run SCRIPT (one run folder per rank)",
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is compiled again to be run, and then warns as under python
        if program.kind == "script":
            path = _find_script(program.target)
            _compile_file(os.path.join(path, "__main__.py") if os.path.isdir(path) else path)
        elif program.kind == "module":
            _check_module(program.target)
        else:
            _compile(program.target, "<string>")


def run(program: ScriptTarget) -> Ended:
    """Run it as `__main__`. The exit code is the one that `python` would have ended with.

    An exception that the program does not catch is printed through `sys.excepthook`, without graphprobe's own frames.
    """
    # The packages around a module run while it is looked for, and see this.
    sys.argv = ["-m", *program.arguments]
    try:
        code, main, path_entry = _prepare(program)
    except UsageError:
        raise
    except BaseException as error:
        return _ended_by(error)
    first = {"code": "-c", "script": program.target}.get(program.kind)
    sys.argv = [first or str(main.__file__), *program.arguments]
    sys.path[0] = path_entry
    sys.modules["__main__"] = main
    try:
        exec(code, vars(main))
    except SystemExit as leaving:
        return Ended(_exit_code(leaving))
    except BaseException as error:
        return _ended_by(error)
    return Ended(0)


def wait_for_threads(ended: Ended) -> Ended:
    """Wait for the program's threads as `python` does at its end: pools first learn that no more work comes.

    The idle thread of a pool, Inductor's too, would otherwise never end. Nothing waits after a signal.
    """
    if ended.interrupted:
        return ended
    try:
        for end_pools in reversed(threading._threading_atexits):  # type: ignore[attr-defined]
            end_pools()
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
    except Interrupted as error:
        return _ended_by(error)
    return ended


def _ended_by(error: BaseException) -> Ended:
    if isinstance(error, Interrupted):  # no fault of the program's, and its stack is of no use to anybody
        return Ended(128 + signal.Signals[str(error)], str(error), interrupted=True)
    compiling = raised_from(error).while_compiling
    _print(error)
    return Ended(130 if isinstance(error, KeyboardInterrupt) else 1, _described(error), compiling)


def _described(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # its own __str__ raises; python shows it like this
        return f"{type(error).__name__}: <exception str() failed>"


def _prepare(program: ScriptTarget) -> tuple[CodeType, ModuleType, str]:
    main = types.ModuleType("__main__")
    vars(main).update(__builtins__=builtins, __annotations__={})
    if program.kind == "code":
        main.__loader__ = importlib.machinery.BuiltinImporter
        if sys.version_info >= (3, 13):  # from then on, python shows the lines in tracebacks
            lines = program.target.splitlines(keepends=True)
            linecache.cache["<string>"] = (len(program.target), None, lines, "<string>")
        return _compile(program.target, "<string>"), main, ""
    if program.kind == "script":
        path = _find_script(program.target)
        if os.path.isdir(path):
            full = os.path.join(os.getcwd(), path)
            main.__file__ = file = os.path.join(full, "__main__.py")
            main.__spec__ = spec = importlib.util.spec_from_file_location("__main__", file)
            main.__loader__, main.__package__ = spec.loader if spec is not None else None, ""
            return _compile_file(file), main, full
        # Absolute, as python has it in tracebacks; not normalised, as python has it too.
        full = os.path.join(os.getcwd(), path)
        main.__file__ = full
        main.__loader__ = importlib.machinery.SourceFileLoader("__main__", full)
        vars(main)["__cached__"] = None
        return _compile_file(full), main, os.path.dirname(os.path.realpath(path))
    sys.path[0] = os.getcwd()
    found = _find_module(program.target)
    main.__spec__, main.__loader__, main.__file__ = found, found.loader, found.origin
    main.__package__ = found.parent
    code = found.loader.get_code(found.name)  # type: ignore[union-attr]
    assert code is not None
    return code, main, os.getcwd()


def _find_script(target: str) -> str:
    if not os.path.exists(target):
        raise UsageError(
            f"no script at {target!r} (looked in {os.getcwd()})",
            hint="name a Python file; for a module use -m NAME, for a piece of code -c CODE",
        )
    if os.path.isdir(target) and not os.path.isfile(os.path.join(target, "__main__.py")):
        raise UsageError(f"{target!r} is a folder without a __main__.py", hint="name the script itself")
    return target


def _check_module(target: str) -> None:
    """Find and compile the module without importing the packages around it: those are part of the program."""
    before = sys.path[0]
    sys.path[0] = os.getcwd()
    try:
        first, *rest = target.split(".")
        spec = importlib.util.find_spec(first) if all((first, *rest)) else None
        name = first
        for part in [*rest, "__main__"]:
            if part == "__main__" and (spec is None or spec.submodule_search_locations is None):
                break
            name = f"{name}.{part}"
            inside = spec.submodule_search_locations if spec is not None else None
            spec = importlib.machinery.PathFinder.find_spec(name, inside) if inside is not None else None
        if spec is None or spec.loader is None:
            _find_module(target)  # a package with a path of its own making, or else the right error
        elif not hasattr(spec.loader, "get_code") or spec.loader.get_code(spec.name) is None:
            raise UsageError(
                f"no module {target!r} that can be run: it is not written in Python", hint="as for python -m"
            )
    except (SyntaxError, ValueError) as error:
        raise _no_python(target, error) from error
    finally:
        sys.path[0] = before


def _find_module(target: str) -> importlib.machinery.ModuleSpec:
    """The module, or that of a package to be run; the working directory is the first of the path already."""
    try:
        spec = importlib.util.find_spec(target)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{target}.__main__")
    except (ImportError, ValueError, AttributeError) as error:
        raise UsageError(f"no module named {target!r}: {error}", hint="as for python -m") from error
    if spec is None or spec.loader is None or not hasattr(spec.loader, "get_code"):
        raise UsageError(f"no module {target!r} that can be run", hint="as for python -m")
    return spec


def _compile(source: str | bytes, name: str) -> CodeType:
    try:
        return compile(source, name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise _no_python(name, error) from error


def _compile_file(path: str) -> CodeType:
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    return _compile(source, path)


def _no_python(name: str, error: Exception) -> UsageError:
    if not isinstance(error, SyntaxError):
        return UsageError(f"{name}: {type(error).__name__}: {error}")
    line = (error.text or "").strip()
    return UsageError(
        f"{error.filename or name}, line {error.lineno}: {type(error).__name__}: {error.msg}",
        hint=f"the line is: {line}" if line else "",
    )


def _exit_code(leaving: SystemExit) -> int:
    code = leaving.code
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    sys.stderr.write(f"{code}\n")
    return 1


def _print(error: BaseException) -> None:
    """As the interpreter would: the program's own excepthook, the traceback from the program's first frame on."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__") == __name__:
        trace = trace.tb_next
    error.__traceback__ = trace
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    sys.excepthook(type(error), error, trace)
