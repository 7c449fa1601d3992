"""Where commands print: what would steer a terminal is shown, as `\\x1b`, and not sent.

Names and texts come from files and programs of others. An escape sequence in one could set the title, hide lines or
forge a verdict; a bidirectional mark could turn a path around.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphprobe.records import TensorMeta, TensorStats

_STEERS = re.compile(
    "\r(?!\n)"
    "|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"  # C0 but for tab and line end, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks, embeddings, overrides and isolates of direction
    "\u2028\u2029\ud800-\udfff]"  # line ends that are none to others, halves of pairs
)


def visible(text: str) -> str:
    """`text` with each character that steers a terminal spelled out: `\\x1b`, `\\u202e`.

    Tabs and line ends stay. JSON stays JSON: what it may hold raw becomes an escape of its own.
    """
    return _STEERS.sub(_spelled, text)


def one_line(text: str) -> str:
    """`visible`, with line ends spelled out too: a name of somebody else begins no line."""
    return visible(text).replace("\r\n", "\\r\\n").replace("\n", "\\n")


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print to standard output, or error; every command prints by this, or by a console of `terminal.console_for`."""
    write(visible(str(text)) + ("\n" if nl else ""), err=err, stream=ranked(sys.stderr if err else sys.stdout))


class Ranked:
    """A stream on which each line begins with the rank of the process."""

    def __init__(self, stream: Any, rank: str) -> None:
        self._stream, self._lead, self._begins = stream, f"[rank {rank}] ", True

    def write(self, text: str) -> None:
        """See the stream's; whole lines of several ranks do not mix."""
        lines = text.splitlines(keepends=True)
        begins = [self._begins, *(line.endswith("\n") for line in lines)]
        self._begins = begins[-1]
        self._stream.write("".join(self._lead * first + line for first, line in zip(begins, lines, strict=False)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def ranked(stream: Any) -> Any:
    """The stream, which says the rank where there are several: as torchrun has set the environment."""
    rank = os.environ.get("RANK", "")
    several = rank.isdecimal() and os.environ.get("WORLD_SIZE", "1") != "1"
    return Ranked(stream, rank) if several and stream is not None else stream


def write(text: str, *, err: bool = False, stream: Any = None) -> None:
    """Send `text` as it is; what the stream cannot encode is spelled out."""
    stream = stream or (sys.stderr if err else sys.stdout)
    if stream is None:
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


def _spelled(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 0x20 else f"\\u{number:04x}"


def print_tensor(
    name: str, meta: TensorMeta, stats: TensorStats | None, first: Sequence[object], *, lacking: str = ""
) -> None:
    """Write `h: float32 (2, 3) cpu  min 0  max 5  mean 2.5  nan 0  inf 0  [0, 1, 2, …]` to standard output, at once.

    Args:
        name: may be empty.
        meta: dtype, shape and device.
        stats: min, max and mean are those of the finite elements; None where there are none.
        first: the first elements, row-major.
        lacking: why there are no statistics.
    """
    parts = [f"{meta.dtype} {tuple(meta.shape)} {meta.device}"]
    if stats is None:
        parts.append(f"no statistics: {lacking}")
    else:
        infinite = stats.positive_inf + stats.negative_inf
        shown = {"min": stats.min, "max": stats.max, "mean": stats.mean, "nan": stats.nan, "inf": infinite}
        parts += [f"{key} {_number(value)}" for key, value in shown.items()]
    if first:
        more = ", …" if stats is not None and len(first) < stats.count else ""
        parts.append(f"[{', '.join(_number(value) for value in first)}{more}]")
    print(visible(f"{name}: " * bool(name) + "  ".join(parts)), flush=True)


def _number(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float | complex) else str(value)
