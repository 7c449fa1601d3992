"""How a captured stage is written: text, ONNX text, and Python files that run on their own."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

GUARD = (
    'if __name__ == "__main__": import os, sys, traceback; sys.excepthook = lambda *error: (traceback.print_exception('
    "*error), sys.stdout.flush(), os._exit(130 if error[0] is KeyboardInterrupt else 125))"
)
"""First line of a generated script. What keeps it from being loaded, a lack of torch or a kernel that does not compile,
decides nothing; 1, Python's own exit code for that, would say that it had."""


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """A generated Python file and what must lie beside it.

    Attributes:
        source: the file's text.
        constants: bytes of the safetensors file that it reads on start, or None when it needs none.
        constants_name: that file's name; `{stem}` stands for the script's stem.
        problems: what cannot be reproduced in another process, one line each. When it is not empty, running the file
            prints these lines and exits 125.
    """

    source: str
    constants: bytes | None = None
    constants_name: str = "{stem}.constants.safetensors"
    problems: tuple[str, ...] = ()


def assembled(
    notes: Sequence[str],
    imports: Collection[str],
    parts: Sequence[str],
    *,
    first: Sequence[str] = (),
    lines: Sequence[str] = (),
    gap: str = "\n\n",
) -> str:
    """A script: comments, imports between lines that come first and others, then its parts; `gap` is between these."""
    ordered = sorted(imports, key=lambda line: ("torch" in line, line.startswith("from"), line))
    comments = [f"# {line}".rstrip() for note in notes for line in note.splitlines() or [""]]
    head = "\n".join([*comments, *first, *ordered, *lines])
    return gap.join(part.strip("\n") for part in (head, *parts) if part.strip()) + "\n"
