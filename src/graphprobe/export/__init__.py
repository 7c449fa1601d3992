"""What is on disk, in the forms of other tools: traces, ONNX, Model Explorer."""

from __future__ import annotations

from graphprobe.faces import make_callable

make_callable(__name__, "graphprobe.export.forms")
