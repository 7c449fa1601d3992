"""Every error graphprobe raises: a slug (stable name), what happened, and what to do about it."""

from __future__ import annotations

import difflib
import errno
import re
import traceback
from collections.abc import Iterable
from dataclasses import dataclass

EXIT_OK = 0
EXIT_FOUND = 1
EXIT_USAGE = 2
EXIT_UNDECIDED = 125


_HINT = "hint: "

COMPILER_ERROR = re.compile(r":\d+(?::\d+)?: (?:fatal )?error: (?P<error>.+)(?:\n +\d+ \| +(?P<line>.+))?")
"""What a C++ compiler says of an error, and the line that it quotes below."""

WRAPPED = re.compile(r": got (?P<reason>\w+\(.+\))\s*$", re.MULTILINE)
"""The exception that an operator raised on fake tensors, behind its name and arguments, which may be long."""

COMPILING = re.compile(r"_compile_fx_inner|convert_frame\.py|compile_to_module|_compile_fx_main|fx_codegen_and_compile")
"""In a stack: something was being compiled."""


class GraphprobeError(Exception):
    """Base of all graphprobe errors.

    Attributes:
        slug: stable, hyphenated name; `docs/messages/<slug>.md` explains it.
        hint: what the user can do, one sentence, or an empty string.
        exit_code: what the command line exits with when the error ends it.
    """

    slug: str = "internal"
    exit_code: int = EXIT_UNDECIDED

    def __init__(self, message: str, *, hint: str = "", slug: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        if slug is not None:
            self.slug = slug
        if hint:
            self.add_note(f"{_HINT}{hint}")  # so that a traceback has it as well

    def render(self) -> str:
        """The message as the terminal shows it: `error[slug]: message` and the hint on a line of its own."""
        text = f"error[{self.slug}]: {self}"
        return f"{text}\n  hint: {self.hint}" if self.hint else text


def last_line(trace: str) -> str:
    """What a traceback says the error is: its last line, the hint left out."""
    lines = trace.strip().splitlines()
    return next((line for line in reversed(lines) if not line.startswith(_HINT)), "")


def nearest(name: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """A hint: the known name that was probably meant; else `otherwise`, or all of them."""
    candidates = list(known)
    near = difflib.get_close_matches(name[:100], candidates, n=1, cutoff=0.5)
    if near:
        return f"did you mean {near[0]!r}?"
    if otherwise is not None:
        return otherwise
    return "known: " + ", ".join(candidates) if candidates else ""


def lacks_room(error: BaseException | None) -> bool:
    """Whether a disk is full or read-only: a want of the machine, and no mistake in what was asked for."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class Interrupted(KeyboardInterrupt):
    """A signal asks the command to end, which says first what is known. Its text is the name of the signal."""


class UsageError(GraphprobeError):
    """A wrong argument, option, file name or combination: the caller can mend it."""

    slug = "usage"
    exit_code = EXIT_USAGE


class SettingError(UsageError):
    """A setting has a value that it cannot take."""

    slug = "bad-setting"


class DumpConfigError(SettingError):
    """A dump was asked for in a way that cannot be done: a JSON file is wrong, or settings exclude each other.

    Attributes:
        where: the fault's place: a JSON path such as `$.dump.dump_list[1].layer[0]`, or the name of an option.
    """

    slug = "dump-config-value"

    def __init__(self, message: str, *, where: str, slug: str, hint: str = "") -> None:
        super().__init__(message, hint=hint, slug=slug)
        self.where = where

    @property
    def kind(self) -> str:
        """`type` (or missing), `choice`, `value` (or path), `syntax` or `conflict`."""
        return self.slug.removeprefix("dump-config-")


class RunNotFoundError(UsageError):
    """No run lies where the user pointed."""

    slug = "run-not-found"


class ArtifactNotFoundError(UsageError):
    """The run has no artifact under that address."""

    slug = "artifact-not-found"


class SchemaError(GraphprobeError):
    """A file of a run was written by a newer or an unknown schema."""

    slug = "schema"


class NotComparableError(GraphprobeError):
    """Two dumps hold different kinds of things, so that nothing can be said of their difference."""

    slug = "not-comparable"


class UnsupportedTorchError(GraphprobeError):
    """The installed torch lacks a name that the asked-for capability stands on."""

    slug = "unsupported-torch"


class GraphprobeWarning(UserWarning):
    """Something the user should know about what was, or could not be, collected."""


@dataclass(frozen=True)
class Raised:
    """An exception as a record: its class by qualified name, its text, and the formatted traceback."""

    type: str
    message: str
    trace: str

    @property
    def line(self) -> str:
        """The class and the first two lines of the text, in one; of what wraps another exception, that."""
        return f"{self.type.rpartition('.')[2]}: {'; '.join(self._first_lines)}"

    @property
    def short(self) -> str:
        """The class by qualified name, the first two lines of the text, and the first error of a compiler in it.

        Of the text two lines, for a wrapper's first line often says only that there is a second.
        """
        text = " ".join(line.strip() for line in self._first_lines)[:240].strip()
        error = COMPILER_ERROR.search(self.message)
        if error is not None and error["error"] not in text:
            text += f": {error['error'].strip()}" + (f", in `{error['line'].strip()}`" if error["line"] else "")
        return f"{self.type}: {text}"

    @property
    def _first_lines(self) -> list[str]:
        first, *others = self.message.strip().splitlines() or [""]
        wrapped = WRAPPED.search(self.message)
        return [f"{first}: got {wrapped['reason']}"] if wrapped is not None and others else [first, *others[:1]]

    @property
    def log(self) -> str:
        """The traceback; of what quotes another compiler's errors, its own text, which is a log already."""
        quotes = ": error: " in self.message
        return self.trace if self.trace and not quotes else f"{self.type}: {self.message}"

    @property
    def while_compiling(self) -> bool:
        """Whether it came from a compilation, by its type or its traceback."""
        of_compiler = self.type.startswith("torch._dynamo.") or self.type.endswith("InductorError")
        return of_compiler or bool(COMPILING.search(self.trace))


def raised_from(error: BaseException) -> Raised:
    """The record of an exception."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        message = str(error)
    except Exception:
        message = "(its text cannot be had)"
    return Raised(name, message, "".join(traceback.format_exception(error)))
