"""A profile of compile time as it lies on disk: spans, what was compiled, what the caches said."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from graphprobe.errors import UsageError
from graphprobe.records import Int64
from graphprobe.store.files import read_file
from graphprobe.store.schema import UNREADABLE, json_from_value

FORMAT = "graphprobe-profile"
VERSION = 1

Kind = Literal["phase", "pass", "import", "build", "load"]


class Span(msgspec.Struct, frozen=True, omit_defaults=True):
    """One piece of work on one thread, from its beginning to its end.

    Attributes:
        name: torch's name of the phase; `pass.<group>.<name>` for a pass, the module's name for an import.
        begin_ns, end_ns: since the profile began, by a clock that only goes forward.
        cpu_ns: of the processor, by this thread alone; a C++ compiler that it waits for does not count.
        thread: index in the profile's `threads`.
        parent: index of the span around it, -1 for none.
        compile_id: torch's, None outside a compile.
        kind: `build` is a run of the C++ compiler, `load` a library being loaded.
        detail: the file of a build or load; the function that torch times under another name.
        unfinished: True when it was not seen to end: its end is that of the span around it, or of the profile.
    """

    name: str
    begin_ns: Int64
    end_ns: Int64
    cpu_ns: Int64
    thread: Int64 = 0
    parent: Int64 = -1
    compile_id: str | None = None
    kind: Kind = "phase"
    detail: str = ""
    unfinished: bool = False


class Compile(msgspec.Struct, frozen=True, omit_defaults=True):
    """One compile of one function, forward or backward, as torch's own record has it.

    Attributes:
        failure: type of the exception that ended it, None when it came through.
        recompile_reason: the guard that failed, None for a first compile.
        calls: operations in Dynamo's graph.
    """

    compile_id: str | None
    direction: Literal["forward", "backward"] = "forward"
    function: str | None = None
    file: str | None = None
    line: Int64 | None = None
    failure: str | None = None
    recompile_reason: str | None = None
    calls: Int64 | None = None


class CacheEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a graph cache answered: `cache` is `aot_autograd` or `fx_graph`, `state` hit, miss, bypass or disabled."""

    cache: str
    state: str
    compile_id: str | None = None
    reason: str | None = None


class Profile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A profile.

    Attributes:
        program: what was run, empty for a block of a program.
        wall_ns, cpu_ns: from the beginning to the end of the profile; `cpu_ns` of all threads of the process.
        threads: names, in order of appearance.
        exit_code, error: how the program ended, when a program was run.
        notes: what could not be seen, and why.
        own_passes: by setting, the program's function that it names as a pass, with its place.
    """

    graphprobe: str
    torch: str
    python: str
    began_unix_ns: Int64
    wall_ns: Int64
    cpu_ns: Int64
    spans: list[Span]
    compiles: list[Compile]
    caches: list[CacheEvent]
    threads: list[str]
    program: str = ""
    exit_code: Int64 | None = None
    error: str | None = None
    notes: list[str] = []
    own_passes: dict[str, str] = {}


class _File(msgspec.Struct):
    format: str
    version: Int64
    profile: Profile


def write_profile(profile: Profile, path: str | Path) -> None:
    """Write the profile as JSON; whatever lies at `path` is replaced."""
    data = json_from_value(_File(FORMAT, VERSION, profile))
    Path(path).write_bytes(msgspec.json.format(data, indent=1) + b"\n")


def read_profile(path: str | Path) -> Profile:
    """The profile in a file.

    Raises:
        UsageError: there is no such file, or it holds something else, or spans that do not fit together.
    """
    try:
        data = read_file(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    hint = "expected a file that graphprobe profile has written"
    try:
        head = msgspec.json.decode(data)
        if not isinstance(head, dict) or head.get("format") != FORMAT:
            raise UsageError(f"{path} is no profile", hint=hint)
        if head.get("version") != VERSION:
            raise UsageError(f"{path} has version {head.get('version')!r}, and this graphprobe reads {VERSION}")
        profile = msgspec.convert(head, _File).profile
    except UNREADABLE as error:
        raise UsageError(f"{path} is no profile: {error}", hint=hint) from error
    for index, span in enumerate(profile.spans):
        # Parents come first: a tree by construction, whatever a damaged file says.
        if not (-1 <= span.parent < index and 0 <= span.thread < len(profile.threads) and span.end_ns >= span.begin_ns):
            raise UsageError(f"{path} is no profile: span {index} ({span.name}) does not fit the others", hint=hint)
    return profile
