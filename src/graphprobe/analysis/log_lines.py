"""Lines of logs, ours and torch's: split into records, told by component and level."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path

import msgspec

from graphprobe.errors import UsageError
from graphprobe.store import layout
from graphprobe.store.files import read_file
from graphprobe.store.reader import Run

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}

LOGGERS = {
    "dynamo": ("torch._dynamo", "torch.fx.experimental"),
    "aot": ("torch._functorch",),
    "inductor": ("torch._inductor",),
    "fx": ("torch.fx",),
}
"""Which loggers of `debug.log` belong to a component, for a run without a file of its own for it."""

_OWN = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) ([A-Z]+) (\S+) (\S+:\d+)\] (?:\[(!?[\d/_-]+)\] )?(.*)", re.S)
_TORCH = re.compile(
    r"(?:\[rank(\d+)\]:)?([VIWEC])(\d{4} \d\d:\d\d:\d\d)\.(\d{6}) (\d+) (\S+):(\d+)\]"
    r"(?: \[(!?[\d/_-]+)\])?(?: \[__(\w+)\])? ?(.*)",
    re.S,
)
_LETTERS = {"V": "debug", "I": "info", "W": "warning", "E": "error", "C": "critical"}


class LogRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One record; `text` may have several lines.

    Attributes:
        line: number of its first line, from 1.
        text: the message, without what stands before it.
        raw: as it stands in the file.
        level: `debug` to `critical`, None for text that is no log line.
        logger: the logger, or of torch's format the source file.
        time_ns: wall clock; a log of torch says no year, so only differences mean something. None without a time.
        process: rank and process id, as far as the line says.
        compile_id: torch's id of the compile, with `_N` behind it for another attempt.
        artifact: of torch's format, the artifact.
    """

    line: int
    text: str
    raw: str
    level: str | None = None
    logger: str | None = None
    time_ns: int | None = None
    process: str = ""
    compile_id: str | None = None
    artifact: str | None = None


def records_from_text(text: str) -> list[LogRecord]:
    """The records of a log; lines that begin none belong to the one before, or are a record of their own."""
    found: list[LogRecord] = []
    for number, line in enumerate(text.splitlines(), start=1):
        record = _begun(number, line)
        before = found[-1] if found else None
        if record is None and before is not None and (before.level is None or _OWN.match(before.raw)):
            found[-1] = msgspec.structs.replace(before, text=f"{before.text}\n{line}", raw=f"{before.raw}\n{line}")
        else:
            found.append(record or LogRecord(number, line, line))
    return found


def records_from_file(path: Path, *, below: Path | None = None) -> list[LogRecord]:
    """The records of a log; raises UsageError where it cannot be read, or is a link that leads out of `below`."""
    try:
        return records_from_text(read_file(path, below=below).decode("utf-8", "replace"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error


def component_records(run: Run, component: str | None) -> list[LogRecord]:
    """The records of one component of a run, from its file or else from `debug.log`; of all for None.

    Raises:
        UsageError: the run has no such log; the message lists those it has.
    """
    if component is not None:
        path = run.tool_dir / layout.log_file(component)
        if path.is_file():
            return records_from_file(path, below=run.tool_dir)
        if component not in LOGGERS:
            known = sorted({*LOGGERS, *files_of(run)})
            raise UsageError(
                f"the run has no log {component!r}",
                hint=f"it has {', '.join(known)}; graphprobe run --logs +NAME collects another",
            )
    main = run.tool_dir / layout.LOG
    records = records_from_file(main, below=run.tool_dir) if main.exists() else []
    if component is None:
        return records
    return [record for record in records if _below(record.logger or "", LOGGERS[component])]


def text_records(records: Iterable[LogRecord], component: str) -> list[LogRecord]:
    """The records of one component or artifact in a log of torch."""
    families = LOGGERS.get(component, (component,))
    folders = tuple(family.replace(".", "/") for family in families)
    return [
        record
        for record in records
        if record.artifact == component
        or (
            record.artifact is None and (_below(record.logger or "", families) or _inside(record.logger or "", folders))
        )
    ]


def at_least(records: Iterable[LogRecord], level: str) -> Iterator[LogRecord]:
    """Those of `level` or worse; text that is no log line is none."""
    for record in records:
        if record.level is not None and LEVELS.get(record.level, 0) >= LEVELS[level]:
            yield record


def files_of(run: Run) -> list[str]:
    """Names of the logs that have a file of their own."""
    return sorted(path.stem for path in (run.tool_dir / layout.LOGS).glob("*.log"))


def _begun(number: int, line: str) -> LogRecord | None:
    own = _OWN.fullmatch(line)
    if own is not None:
        when, level, logger, _, compile_id, text = own.groups()
        moment = datetime.strptime(when, "%Y-%m-%d %H:%M:%S,%f").timestamp()
        return LogRecord(number, text, line, level.lower(), logger, int(moment * 1e9), "", compile_id)
    theirs = _TORCH.fullmatch(line)
    if theirs is None:
        return None
    rank, letter, when, micro, pid, file, _, compile_id, artifact, text = theirs.groups()
    try:
        # A leap year, so that the 29th of February is a day.
        moment = datetime.strptime(f"2000{when}", "%Y%m%d %H:%M:%S").timestamp()
    except ValueError:
        return None
    process = f"rank {rank}, process {pid}" if rank is not None else f"process {pid}"
    time_ns = int(moment) * 10**9 + int(micro) * 1000
    return LogRecord(number, text, line, _LETTERS[letter], file, time_ns, process, compile_id, artifact)


def _below(name: str, families: tuple[str, ...]) -> bool:
    return any(name == family or name.startswith(family + ".") for family in families)


def _inside(path: str, folders: tuple[str, ...]) -> bool:
    return any(f"/{folder}/" in f"/{path}" or path.endswith(f"{folder}.py") for folder in folders)
