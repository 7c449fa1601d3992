"""How a captured stage is written: text, ONNX text, and Python files that run on their own."""

from __future__ import annotations

import msgspec

from graphprobe.internals.ir.records import IRBuffer, IRGraph, IRNode, NodeKind, NodeOrigin

__all__ = ["IRBuffer", "IRGraph", "IRNode", "NodeKind", "NodeOrigin", "Script"]


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
