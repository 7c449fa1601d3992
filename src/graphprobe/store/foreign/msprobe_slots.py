"""What msprobe's `dump.json` says of one argument or result, as slots of a call."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

from graphprobe.records import TensorMeta
from graphprobe.store.calls import CallDirection, CallSlot, Scalar, SlotRole
from graphprobe.store.foreign.checked import float_of, shape_of
from graphprobe.store.foreign.summary import stats_from_known

NameOf = Callable[[str], str]
"""For the name of a tensor's file, why it is missing; empty when it is there."""

_FIELDS = {"Max": "max", "Min": "min", "Mean": "mean", "Norm": "l2"}
_TENSOR_WORDS = ("shape", "dtype")
_GROUPS: dict[tuple[str, CallDirection], tuple[SlotRole, str]] = {
    ("input_args", "forward"): ("input", "input"),
    ("args", "forward"): ("input", "input"),
    ("input", "forward"): ("input", "input"),
    ("input_kwargs", "forward"): ("input", "kwarg"),
    ("kwargs", "forward"): ("input", "kwarg"),
    ("output", "forward"): ("output", "output"),
    ("parameters", "forward"): ("parameter", "parameter"),
    ("input", "backward"): ("grad_output", "grad_output"),
    ("output", "backward"): ("grad_input", "grad_input"),
    ("parameters_grad", "backward"): ("grad_parameter", "grad_parameter"),
}


def slots_of_group(
    group: str, value: Any, direction: CallDirection, missing: NameOf, *, of_node: bool = False
) -> Iterator[CallSlot]:
    """The slots of `input_args`, `output` and so on; of a group that is not known, none.

    Args:
        group: the key in the record.
        value: what stands there.
        direction: of the call. The inputs of a backward are gradients with respect to the outputs.
        missing: tells why a file is missing.
        of_node: whether the outputs of a backward are those of an autograd node, as they are for an API.
    """
    found = _GROUPS.get((group, direction))
    if found is None:
        return
    role, head = found
    if of_node and role == "grad_input":
        head = "grad_input.node"
    if group == "parameters_grad" and isinstance(value, dict):
        # each parameter has a list of one, which is no sequence of the program
        value = {name: item[0] if isinstance(item, list) and len(item) == 1 else item for name, item in value.items()}
    elif isinstance(value, dict) and _is_leaf(value):  # an output that was no tuple, in older releases
        value = [value]
    yield from _slots(value, role, head, missing)


def _slots(value: Any, role: SlotRole, name: str, missing: NameOf) -> Iterator[CallSlot]:
    if value is None:
        if role == "input":  # None, or an object that msprobe does not describe
            yield CallSlot(name=name, role=role, scalar=Scalar("NoneType", "None"))
        return
    if isinstance(value, list) and value and not _has_tensor(value):
        yield CallSlot(name=name, role=role, scalar=Scalar("list", _plain_text(value)))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _slots(item, role, f"{name}.{index}", missing)
    elif isinstance(value, dict) and _is_leaf(value):
        yield _slot(value, role, name, missing)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _slots(item, role, f"{name}.{key}", missing)


def _has_tensor(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_has_tensor, value))
    if isinstance(value, dict):
        return "dtype" in value if _is_leaf(value) else any(map(_has_tensor, value.values()))
    return False


def _plain_text(value: Any) -> str:
    """A sequence of plain arguments as one text, in square brackets whatever it was: the format tells no tuples."""
    if isinstance(value, list):
        return f"[{', '.join(map(_plain_text, value))}]"
    if isinstance(value, dict) and _is_leaf(value):
        return _scalar(value).text
    return repr(value)


def _is_leaf(value: dict[str, Any]) -> bool:
    return isinstance(value.get("type"), str) and ("value" in value or "shape" in value or len(value) <= 4)


def _slot(item: dict[str, Any], role: SlotRole, name: str, missing: NameOf) -> CallSlot:
    if not all(word in item for word in _TENSOR_WORDS):
        return CallSlot(name=name, role=role, scalar=_scalar(item))
    shape = shape_of(item["shape"] or [])
    if shape is None:
        return CallSlot(name=name, role=role, missing=f"its shape is {str(item['shape'])[:80]}")
    meta = _meta(str(item["dtype"]), shape)
    known = {field: number for key, field in _FIELDS.items() if (number := _number(item.get(key))) is not None}
    digest = item.get("md5")
    file = item.get("data_name")
    file = file if isinstance(file, str) and file not in ("-1", "") and "/" not in file else ""
    why = missing(file) if file else ""
    return CallSlot(
        name=name,
        role=role,
        meta=meta,
        stats=stats_from_known(math.prod(shape), known),
        known=tuple(known),
        digest="" if digest is None else str(digest),
        digest_kind=_kind_of(digest),
        value="" if why else file,
        missing=why,
        requires_grad=grad if isinstance(grad := item.get("requires_grad"), bool) else None,
    )


@functools.lru_cache(maxsize=4096)
def _meta(dtype: str, shape: tuple[int, ...]) -> TensorMeta:
    return TensorMeta(dtype.removeprefix("torch."), shape)


def _kind_of(digest: Any) -> str:
    """msprobe calls any of its checksums `md5`; since release 26 it is a CRC-32, or an exclusive or of words."""
    if digest is None:
        return ""
    text = str(digest)
    return {8: "crc32", 32: "md5"}.get(len(text), "xor") if isinstance(digest, str) else "xor"


def _number(value: Any) -> float | None:
    if type(value) is float:
        return value
    if isinstance(value, str):
        return float(value) if value in ("NaN", "Infinity", "-Infinity", "nan", "inf", "-inf") else None
    return float_of(value) if isinstance(value, (int, float)) else None


def _scalar(item: dict[str, Any]) -> Scalar:
    """As our own dumps tell it: the name of the type without its module, and its `repr` in Python."""
    kind = str(item["type"]).rpartition(".")[2]
    value = item.get("value", item.get("format", item.get("group_ranks")))
    if kind in ("dtype", "ReduceOp"):
        return Scalar(kind, str(value))
    if kind == "memory_format":
        return Scalar(kind, f"torch.{value}")
    if kind == "device":
        name, _, index = str(value).partition(":")
        where = f", index={index}" if index.isdigit() else ""
        return Scalar(kind, f"device(type={name!r}{where})")
    if kind == "Size":
        return Scalar(kind, f"torch.Size({value})")
    if kind == "slice" and isinstance(value, list) and len(value) == 3:
        return Scalar(kind, f"slice({value[0]}, {value[1]}, {value[2]})")
    if kind == "ellipsis":
        return Scalar(kind, "Ellipsis")
    return Scalar(kind, repr(value))
