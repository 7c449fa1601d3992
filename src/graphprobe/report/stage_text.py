"""The text of a stage without what differs from run to run and means nothing, so that two runs can be compared."""

from __future__ import annotations

import re

from graphprobe.records import Event
from graphprobe.store.files import digest_from_bytes
from graphprobe.store.reader import Run

_ADDED = "\n# What follows was added by graphprobe"
"""Where the code of a backend ends, and what replays it begins."""

_KERNEL = re.compile(r"'''(.*?)'''", re.DOTALL)
_HOOK = re.compile(r"^if __name__ == \"__main__\": .*?  (?=# AOT ID)")
_PLACE_OF_NODE = re.compile(r"^\s*# File: .*\n(?:\n(?=\s*# File: ))?", re.MULTILINE)

_REPLACED: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(?<![\w./])/(?:[\w.+@=~-]+/)+"), ""),  # folders of a path
    (re.compile(r"(\.py\b[\"']?)(?::\d+|, line \d+)"), r"\1"),
    (re.compile(r"(?<=AOT ID: \[')\d+_"), ""),  # counts what the process has compiled
    (re.compile(r"\b0x[0-9a-f]{6,}\b"), "<address>"),
    (re.compile(r"\bc[a-z2-7]{50,52}\b"), "<hash>"),  # how Inductor names files
    (re.compile(r"\b(?:[0-9a-f]{64}|[0-9a-f]{40}|[0-9a-f]{32})\b"), "<hash>"),
    (re.compile(r"\b[0-9A-F]{64}\b"), "<hash>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?"), "<time>"),
)


def plain_text(text: str) -> str:
    """`text` without folders, line numbers of source files, addresses in memory, hashes and times."""
    for pattern, by in _REPLACED:
        text = pattern.sub(by, text)
    return text


def stage_text(run: Run, event: Event) -> str:
    """The event's file in that form; of generated code only the backend's own part, of a graph without source lines.

    Raises:
        ArtifactNotFoundError: the file cannot be read.
    """
    text = run.text(event)
    if event.kind == "code":
        text = _HOOK.sub("", text.partition(_ADDED)[0])
    else:
        text = "\n".join(line for line in _PLACE_OF_NODE.sub("", text).splitlines() if line.strip())
    return plain_text(text).rstrip() + "\n"


def kernels_of(text: str) -> list[str]:
    """The kernels in generated code: what the wrapper has as texts."""
    return _KERNEL.findall(text)


def stage_digest(run: Run, event: Event) -> str:
    """BLAKE2b-128 of `stage_text`."""
    return digest_from_bytes(stage_text(run, event).encode("utf-8", "backslashreplace"))
