"""A script that runs one operator again on the inputs that a dump holds. It needs torch and nothing else."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import torch

from graphprobe.probe.dump.session import GraphOp, Values

_TEMPLATE = '''"""Runs {name} again on the inputs in {file}: {why}. Exit code 1 when it happens again."""
import json, math, pathlib, struct, sys
import torch

inf, nan = math.inf, math.nan
data = pathlib.Path(__file__).with_name({file!r}).read_bytes()
length = struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8 : 8 + length])
slots = {{slot["name"]: slot["meta"] for slot in json.loads(header["__metadata__"][{key!r}])["slots"]}}


def value(name):
    begin, end = header[name]["data_offsets"]
    meta, raw = slots[name], bytearray(data[8 + length + begin : 8 + length + end])
    dtype = getattr(torch, meta["dtype"])
    flat = torch.frombuffer(raw, dtype=torch.uint8).view(dtype) if raw else torch.empty(0, dtype=dtype)
    return flat.reshape(meta["shape"])


result = {call}
outputs = result if isinstance(result, (tuple, list)) else [result]
found = 0
for index, output in enumerate(outputs):
    if isinstance(output, torch.Tensor) and (output.is_floating_point() or output.is_complex()):
        wide = output.to(torch.float32) if output.element_size() == 1 else output
        {test}
        print(f"output.{{index}}: {{count}} of {{output.numel()}} elements {what}")
        found += count
sys.exit(1 if found else 0)
'''

_NOT_FINITE = "count = int((~torch.isfinite(wide)).sum())"
_AT_THE_END = "count = int((wide.abs() == torch.finfo(output.dtype).max).sum())"


def repro_of(op: GraphOp, inputs: Values, *, file: str, key: str, why: str, saturated: bool) -> str | None:
    """The script, or None when the op is no plain operator of torch, or has an argument that no text stands for.

    Args:
        inputs: as the engine gave them.
        file: name of the op's file, in the folder that the script is put in.
        key: of the record in the file's metadata.
        why: what happened, in words.
        saturated: whether it is the end of the range that was hit, not an infinity or NaN.
    """
    call = _call(op, inputs)
    if call is None:
        return None
    return _TEMPLATE.format(
        name=op.info.op_name,
        file=file,
        key=key,
        why=why.replace('"', "'"),
        call=call,
        test=_AT_THE_END if saturated else _NOT_FINITE,
        what="at the end of the range" if saturated else "not finite",
    )


def _call(op: GraphOp, inputs: Values) -> str | None:
    arguments = _from_launch(inputs) if op.info.engine == "kernel" else _from_node(inputs)
    function = _function(op)
    if function is None or arguments is None:
        return None
    return f"{function}({', '.join(arguments)})"


def _function(op: GraphOp) -> str | None:
    name = op.facts.names[1] if op.info.engine == "kernel" and len(op.facts.names) > 1 else op.info.target
    if re.fullmatch(r"extern_kernels\.\w+", name):
        short = name.partition(".")[2]
        return f"torch.{short}" if hasattr(torch, short) else None
    if re.fullmatch(r"(aten|prims)\.\w+\.\w+", name):
        return f"torch.ops.{name}"
    return None


def _from_node(inputs: Values) -> list[str] | None:
    """Slots of an FX node: `input.1`, `input.0.2` of a list, `kwarg.dim`."""
    positional: dict[int, Any] = {}
    keywords: dict[str, Any] = {}
    for slot, value in inputs:
        side, _, rest = slot.partition(".")
        name, _, inside = rest.partition(".")
        target: dict[Any, Any] = positional if side == "input" else keywords
        key: Any = int(name) if side == "input" else name
        text = _text(slot, value)
        if text is None or "." in inside:
            return None
        if inside:
            target.setdefault(key, []).append(text)
        else:
            target[key] = text
    if sorted(positional) != list(range(len(positional))):
        return None
    args = [_listed(positional[index]) for index in range(len(positional))]
    return args + [f"{name}={_listed(value)}" for name, value in keywords.items()]


def _from_launch(inputs: Values) -> list[str] | None:
    """Slots of a launch: its buffers `input.0` and so on in order, other arguments by position: `arg.2`, `arg.beta`."""
    buffers = [slot for slot, _ in inputs if slot.startswith("input.")]
    numbered: dict[int, str] = {}
    keywords = []
    for slot, value in inputs:
        side, _, name = slot.partition(".")
        if side == "input":
            continue
        text = _text(slot, value)
        if text is None:
            return None
        if name.isdecimal():
            numbered[int(name)] = text
        else:
            keywords.append(f"{name}={text}")
    args = []
    rest = iter(buffers)
    for index in range(len(buffers) + len(numbered)):
        args.append(numbered[index] if index in numbered else f"value({next(rest)!r})")
    return [*args, *keywords] if numbered.keys() <= set(range(len(args))) else None


def _listed(value: str | list[str]) -> str:
    return value if isinstance(value, str) else f"[{', '.join(value)}]"


def _text(slot: str, value: object) -> str | None:
    """An argument as Python; a tensor is read from the file."""
    if isinstance(value, torch.Tensor):
        return f"value({slot!r})"
    if value is None or isinstance(value, (bool, int, str)):
        return repr(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return str(value)
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if isinstance(value, Sequence):
        parts = [_text(slot, item) for item in value]
        return None if None in parts else f"[{', '.join(part for part in parts if part is not None)}]"
    return None
