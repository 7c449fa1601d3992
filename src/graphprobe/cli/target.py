"""What a command works on: a program with its own arguments, `FILE.py:CALLABLE`, or what is read; and `--backend`."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphprobe.cli.shared_options import word_of_json
from graphprobe.errors import UsageError, nearest

if TYPE_CHECKING:
    from graphprobe.probe.script import ScriptTarget


PROGRAMS = {
    "-m": ("module", "Run a module, as python -m does."),
    "-c": ("code", "Run a piece of code, as python -c does."),
}
"""The options that name a program: what it is, and their help."""


@dataclass(frozen=True)
class TypedTarget:
    """What a command works on.

    Attributes:
        named: a program, as `-m` and a module or `-c` and code; empty where no option names one.
        words: what comes behind that, or behind the options.
    """

    named: tuple[str, ...]
    words: tuple[str, ...]

    @property
    def first(self) -> str:
        """The first word where no option names a program; empty where there is none."""
        return "" if self.named else next(iter(self.words), "")

    @property
    def typed(self) -> list[str]:
        """All of it, as it was typed."""
        return [*self.named, *self.words]

    def program(self) -> ScriptTarget:
        """The program with its arguments; raises `UsageError` where none is named."""
        from graphprobe.probe.script import ScriptTarget

        if self.named:
            option, program = self.named
            return ScriptTarget(PROGRAMS[option][0], program, self.words)
        if not self.words:
            raise UsageError("nothing to run", hint="graphprobe run SCRIPT, or -m MODULE, or -c CODE")
        return ScriptTarget("script", self.words[0], self.words[1:])

    def refuse_arguments(self) -> None:
        """Raises `UsageError` where there are words behind the first, which takes none."""
        if self.words[1:]:
            raise UsageError(f"{self.first} takes no arguments, and got {' '.join(self.words[1:])!r}")


class TargetCommand(click.Command):
    """Behind a program, `-m MODULE` or `-c CODE` everything is the program's; behind what is read, options may stand.

    All this comes as `target`, a `TypedTarget`.

    Args:
        takes: the words, as the help shows them.
        reads: whether the first word names something that is read, and no program.
        reads_json: files that end in .json are read, too.
    """

    def __init__(
        self,
        name: str | None,
        *,
        takes: str,
        reads: Callable[[str], bool] = lambda _: False,
        reads_json: bool = False,
        **rest: Any,
    ) -> None:
        super().__init__(name, **rest)
        for option, (kind, said) in PROGRAMS.items():
            self.params.append(click.Option([option, kind], metavar=kind.upper(), help=said))
        self.params.append(click.Argument(["words"], nargs=-1, type=click.UNPROCESSED, metavar=takes))
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
        rest = super().parse_args(ctx, args)
        given = [(option, ctx.params.pop(kind)) for option, (kind, _) in PROGRAMS.items()]
        named = next(((option, value) for option, value in given if value is not None), ())
        ctx.params["target"] = TypedTarget(named, ctx.params.pop("words"))
        return rest

    def _first_word(self, args: list[str]) -> tuple[int, bool]:
        """Where the options end, and whether `-m` or `-c` has named the program before."""
        takes_value = {name for p in self.params if isinstance(p, click.Option) and not p.is_flag for name in p.opts}
        at = 0
        while at < len(args) and args[at].startswith("-") and args[at] not in ("-", "--"):
            args[at] = word_of_json(args, at, reads=self._reads_json)
            option, at = args[at], at + (2 if args[at] in takes_value else 1)
            if option[:2] in PROGRAMS:
                return at, True
        return at, False


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


def check_backend(name: str | None) -> None:
    """Raises `UsageError` where one is named that torch does not know."""
    if name is None:
        return
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
