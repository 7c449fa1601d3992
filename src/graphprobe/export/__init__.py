"""What lies on disk, in the forms of other tools: traces, ONNX, Model Explorer, TensorBoard, Parquet."""

from __future__ import annotations

from graphprobe.callable_package import make_callable

make_callable(__name__, "graphprobe.export.forms")
