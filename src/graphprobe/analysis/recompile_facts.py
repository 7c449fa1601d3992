"""What is noted of a recompilation when it happens: which guards failed, for whom, and how full the cache was."""

from __future__ import annotations

import msgspec

from graphprobe.records import Int64


class CodeLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the program; `function` is the one it lies in."""

    file: str
    line: Int64
    function: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f" in {self.function}" if self.function else "")


class FailedGuard(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why one compiled version of the function did not fit the call.

    Attributes:
        entry: compile id of that version.
        text: the first guard of it that failed, in torch's words.
        where: the program's line that made the guard necessary.
        where_from: `torch` when torch knew the line; `first use` when it is the first line that reads the variable.
        actual: the value that the call came with, as text; None where it could not be read without running code.
        owner: for whom that version was compiled, as `Recompile.owner`; None where that was not noted.
        same_owner: it was the very object that this call is for; None where neither has one.
    """

    entry: str
    text: str
    where: CodeLine | None = None
    where_from: str | None = None
    actual: str | None = None
    owner: str | None = None
    same_owner: bool | None = None


class Recompile(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One call that no compiled version of its function fitted.

    Attributes:
        compile_id: torch's id of the compile that followed; of the one that was refused when a limit was hit.
        function, file, line: the function, and the line of its `def`.
        guards: one for each compiled version that there was, the latest used first.
        caller: the program's line that called it.
        thread: name of the thread.
        versions, limit: compiled versions before this one, and how many torch allows (`recompile_limit`).
        all_versions, accumulated_limit: the same over all regions of `isolate_recompiles`.
        limit_hit: the limit that was reached, so that this call ran uncompiled or raised; None otherwise.
        dynamic: as `torch.compile` was told.
        automatic_dynamic: whether torch makes a size dynamic after its first change.
        first_argument: name of the function's first argument, such as `self`; `args[0]` where it has `*args` alone.
        other_instance: that argument is an object for which nothing had been compiled yet.
        owner: the class of that argument where it is an instance of the program's; else the functions or modules that
            the function takes from around it, as a decorator does. None where it has neither.
        free_variables: names that the function takes from an enclosing function.
        time_ns: wall clock, since the epoch.
    """

    function: str
    file: str
    line: Int64
    guards: tuple[FailedGuard, ...] = ()
    compile_id: str | None = None
    caller: CodeLine | None = None
    thread: str = ""
    versions: Int64 | None = None
    limit: Int64 | None = None
    all_versions: Int64 | None = None
    accumulated_limit: Int64 | None = None
    limit_hit: str | None = None
    dynamic: bool | None = None
    automatic_dynamic: bool = True
    first_argument: str | None = None
    other_instance: bool = False
    owner: str | None = None
    free_variables: tuple[str, ...] = ()
    time_ns: Int64 = 0
