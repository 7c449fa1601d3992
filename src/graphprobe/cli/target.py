"""What a command works on: a program with its own arguments, `FILE.py:CALLABLE`, or what is read; and `--backend`."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphprobe.cli.option_rows import Command
from graphprobe.cli.output import word_of_json
from graphprobe.errors import UsageError, nearest

if TYPE_CHECKING:
    from graphprobe.probe.script import ScriptTarget


class TargetCommand(click.Command):
    """Behind a program, `-m MODULE` or `-c CODE` everything is the program's; behind what is read, options may stand.

    Args:
        reads: whether the first word names something that is read, and no program.
        reads_json: files that end in .json are read, too.
    """

    def __init__(
        self, name: str | None, *, reads: Callable[[str], bool] = lambda _: False, reads_json: bool = False, **rest: Any
    ) -> None:
        super().__init__(name, **rest)
        self._reads = reads
        self._reads_json = reads_json

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Finds the first word; what stands behind a program is kept from click with the `--` that it knows."""
        args = list(args)
        end, program = self._first_word(args)
        if program:
            args.insert(end, "--")
        ctx.allow_interspersed_args = not program and end < len(args) and self._reads(args[end])
        if ctx.allow_interspersed_args:
            for index in range(end + 1, len(args)):
                args[index] = word_of_json(args, index, reads=self._reads_json)
        return super().parse_args(ctx, args)

    def _first_word(self, args: list[str]) -> tuple[int, bool]:
        """Where the options end, and whether `-m` or `-c` has named the program before."""
        takes_value = {name for p in self.params if isinstance(p, click.Option) and not p.is_flag for name in p.opts}
        at = 0
        while at < len(args) and args[at].startswith("-") and args[at] not in ("-", "--"):
            args[at] = word_of_json(args, at, reads=self._reads_json)
            option, at = args[at], at + (2 if args[at] in takes_value else 1)
            if option[:2] in ("-m", "-c") and option[:2] in takes_value:
                return at, True
        return at, False


def program_options(command: Command) -> Command:
    """Adds `-m` and `-c`; their values come as `module` and `code`."""
    command = click.option("-c", "code", metavar="CODE", help="Run a piece of code, as python -c does.")(command)
    return click.option("-m", "module", metavar="MODULE", help="Run a module, as python -m does.")(command)


def program_of(module: str | None, code: str | None, words: tuple[str, ...]) -> ScriptTarget:
    """The program that `-m`, `-c` or the first word names, with its arguments; raises `UsageError` where none does."""
    from graphprobe.probe.script import ScriptTarget

    if module is not None:
        return ScriptTarget("module", module, words)
    if code is not None:
        return ScriptTarget("code", code, words)
    if not words:
        raise UsageError("nothing to run", hint="graphprobe run SCRIPT, or -m MODULE, or -c CODE")
    return ScriptTarget("script", words[0], words[1:])


def words_of(module: str | None, code: str | None, words: tuple[str, ...]) -> list[str]:
    """A program, or what else a command works on, as it was typed."""
    named = ["-m", module] if module is not None else ["-c", code] if code is not None else []
    return [*named, *words]


def is_run(target: str) -> bool:
    """Whether it is the folder of a run or of several, and no program."""
    return os.path.isdir(target) and not os.path.isfile(os.path.join(target, "__main__.py"))


def is_saved(target: str) -> bool:
    """Whether it is the file of an exported program, by its name."""
    return target.endswith(".pt2") and os.path.isfile(target)


def callable_of(target: str) -> str | None:
    """`CALLABLE` of `FILE.py:CALLABLE`; None for a script."""
    file, colon, name = target.rpartition(":")
    return name if colon and file and not os.path.exists(target) else None


def check_backend(name: str) -> None:
    """Raises `UsageError` unless torch knows a backend of that name."""
    from graphprobe.internals.dynamo.compile_calls import backend_names

    known = backend_names()
    if name not in known:
        raise UsageError(f"--backend {name}: there is no such backend", hint=nearest(name, known))


@contextmanager
def compiled_with(backend: str | None, dynamic: bool | None = None) -> Iterator[None]:
    """Within the block, what the program gives to torch.compile is compiled like this; None: as the program says."""
    from graphprobe.internals.dynamo.compile_calls import CompileSettings

    overrides: dict[str, Any] = {k: v for k, v in (("backend", backend), ("dynamic", dynamic)) if v is not None}
    if backend is not None:
        overrides |= {"mode": None, "options": None}  # those are for the backend that the program names
    settings = CompileSettings(lambda given: {**given, **overrides})
    if overrides:
        settings.install()
    try:
        yield
    finally:
        settings.remove()


def import_first(module: str) -> None:
    """What `--import` asks for, from the working directory too; raises `UsageError` where that fails."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        importlib.import_module(module)
    except Exception as error:
        raise UsageError(f"--import {module}: {type(error).__name__}: {error}") from error


def call_from_file(file: str, name: str) -> tuple[Any, Any, Any]:
    """The function, its arguments and its keywords that the callable returns, checked."""
    module = _imported(file)
    make = getattr(module, name, None)
    if make is None:
        names = ", ".join(
            n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__
        )
        raise UsageError(f"{file} has no {name!r}", hint=f"it has {names}" if names else "it defines no function")
    if not callable(make):
        raise UsageError(f"{name!r} in {file} is a {type(make).__name__}, not a function")
    try:
        made = make()
    except Exception as error:
        traceback.print_exception(error)
        raise UsageError(f"{name}() in {file} raised {type(error).__name__}: {error}") from error
    shape = isinstance(made, (tuple, list)) and len(made) in (2, 3)
    fn, args, kwargs = (*made, {})[:3] if shape else (None, None, None)
    if not callable(fn) or not isinstance(args, (tuple, list)) or not isinstance(kwargs, dict):
        text = repr(made)
        raise UsageError(
            f"{name}() in {file} returned {text if len(text) <= 80 else text[:79] + '…'}",
            hint="it must return (fn, args) or (fn, args, kwargs): a callable, a tuple or list, and a dict",
        )
    return fn, args, kwargs


def _imported(file: str) -> Any:
    """The file as a module of its own name, with its folder in front of the path."""
    import importlib.util

    path = Path(file)
    if not path.is_file():
        raise UsageError(f"no file at {file!r} (looked in {os.getcwd()})", hint="name it as FILE.py:CALLABLE")
    name = path.stem if path.stem not in sys.modules else f"_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.absolute())
    if spec is None or spec.loader is None:
        raise UsageError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Dynamo finds the globals of a function by the name of its module
    sys.path.insert(0, str(path.absolute().parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        traceback.print_exception(error)
        raise UsageError(f"{file} cannot be imported: {type(error).__name__}: {error}") from error
    return module
