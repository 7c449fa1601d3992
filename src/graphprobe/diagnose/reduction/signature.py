"""When two failures are the same: exceptions by type and normalised message, differences by kind, deaths by signal.

A signature is a text that begins with the kind of finding it stands for.
"""

from __future__ import annotations

import re

from graphprobe.errors import Raised
from graphprobe.findings import Kind, kind_of_death

HANG = "hang"
MEMORY = "memory"

_MEMORY = re.compile(
    r"can't allocate memory|Cannot allocate memory|bad_alloc|MemoryError|out of memory|OutOfMemoryError|"
    r"virtual memory exhausted"
)
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_CHANGING = (
    (r"\b(?:cpp|triton|extern)_\w*fused\w*", "KERNEL"),
    (r"(?:<[^<>\s]*>|(?:/[\w.+@~-]+)+/?)", "PATH"),
    (r"\b0x[0-9a-fA-F]+\b", "N"),
    (r"\b[a-z]{31,}\b|\bc[a-z2-7]{30,}\b", "NAME"),
    (r"\d+(?:\.\d+)?(?:e[+-]?\d+)?", "N"),
    (r"\s+", " "),
)
"""What differs from run to run in a message, in the order in which it is replaced, and the word for it."""
_ERROR = re.compile(r"\b(?:fatal )?error: (.*)")
_TARGET = re.compile(r"^\s*target: (\S+)", re.M)
LONGEST = 300


def of_exception(raised: Raised, *, compiling: bool) -> str:
    """Identity of an exception: when it comes, its type, its first line without what differs from run to run, the op.

    Args:
        compiling: it comes from a compilation.
    """
    kind: Kind = "crash_compile" if compiling else "crash_runtime"
    if _MEMORY.search(f"{raised.type}: {raised.message}"):
        return f"{kind} {MEMORY}"
    text = _ANSI.sub("", raised.message)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    head = lines[:1]
    if head and head[0].endswith(":") and len(lines) > 1:  # a wrapper's line: what it wraps comes next
        head = lines[:2]
    compiler = _ERROR.search(text)
    if compiler is not None and not any(compiler.group(1) in line for line in head):
        head.append(compiler.group(1))
    head += [f"at {target}" for target in dict.fromkeys(_TARGET.findall(text))][:1]
    return f"{kind} {raised.type}: {normalised(' | '.join(head))}"


def normalised(text: str) -> str:
    """A message without numbers, addresses, paths and generated names."""
    for pattern, word in _CHANGING:
        text = re.sub(pattern, word, text)
    return text[:LONGEST]


def of_death(signal: str | None) -> str:
    """Identity of the end of a process: by this signal, or None for its time."""
    return HANG if signal is None else f"{kind_of_death(signal)} {signal}"


def kind_of(signature: str) -> Kind:
    """The kind of a failure, which every signature begins with."""
    return signature.split(" ", 1)[0]  # type: ignore[return-value]


def needs_values(signature: str) -> bool:
    """Whether a failure is one that only shows when values, dtypes, shapes, … are compared."""
    return kind_of(signature) not in ("crash_compile", "crash_runtime", "segfault", "hang")
