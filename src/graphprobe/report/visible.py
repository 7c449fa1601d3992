"""Where commands print: what would steer a terminal is shown, as `\\x1b`, and not sent.

Names and texts come from files and programs of others. An escape sequence in one could set the title, hide lines or
forge a verdict; a bidirectional mark could turn a path around.
"""

from __future__ import annotations

import re
import sys

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
    write(visible(str(text)) + ("\n" if nl else ""), err=err)


def write(text: str, *, err: bool = False) -> None:
    """Send `text` as it is; what the stream cannot encode is spelled out."""
    stream = sys.stderr if err else sys.stdout
    if stream is None:
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


def _spelled(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 0x20 else f"\\u{number:04x}"
