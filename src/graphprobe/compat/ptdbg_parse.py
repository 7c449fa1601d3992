"""`parse` of ptdbg: one call of a dump, in words."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from graphprobe.errors import UsageError
from graphprobe.store.calls import Call, CallSlot
from graphprobe.store.foreign.names import PtdbgName, ptdbg_name

_FIELDS = ("max", "min", "mean", "l2")


def lines_of_call(pkl: Any, text: Any) -> Iterator[str]:
    """The lines to print of each call that `text` names.

    Raises:
        UsageError: there is no such file or no such call in it, or the file is a pickle.
    """
    if not isinstance(pkl, str | os.PathLike) or not Path(pkl).is_file():
        raise UsageError(f"pkl={pkl!r}: there is no such file", hint='parse("./npu_dump.pkl", "21_Torch_norm")')
    wanted = ptdbg_name(text) if isinstance(text, str) else None
    if wanted is None or wanted.side or wanted.is_stack:
        raise UsageError(
            f"module_name={text!r}: expected the name of a call", hint='e.g. "21_Torch_norm" or "21_Torch_norm_forward"'
        )
    from graphprobe.store.foreign.ptdbg import PtdbgDump

    dump = PtdbgDump(Path(pkl))
    found, near = False, ""
    for call in dump.calls(dump.ranks()[0], 0):
        name = ptdbg_name(call.label)
        if name is None:
            continue
        if _is(name, wanted, text):
            found = True
            yield from _lines(call)
        elif not near and name.number == wanted.number and name.counted == wanted.counted:
            near = call.label
    if not found:
        raise UsageError(
            f"{pkl} has no call {text}" + (f"; call {wanted.number} is {near}" if near else ""),
            hint="the names are the first items of its lines",
        )


def _is(name: PtdbgName, wanted: PtdbgName, text: str) -> bool:
    same = (name.kind, name.name, name.number, name.counted) == (
        wanted.kind,
        wanted.name,
        wanted.number,
        wanted.counted,
    )
    either = not text.endswith(("_forward", "_backward"))
    return same and (either or name.direction == wanted.direction)


def _lines(call: Call) -> Iterator[str]:
    yield call.label
    if call.stack:
        yield "  stack, innermost first:"
        yield from (f"    {frame}" for frame in call.stack)
    for slot in call.slots:
        yield f"  {slot.name}: {_described(slot)}"


def _described(slot: CallSlot) -> str:
    if slot.meta is None:
        return "" if slot.scalar is None else f"{slot.scalar.type} {slot.scalar.text}"
    text = f"{slot.meta.dtype} {list(slot.meta.shape)}"
    for name in _FIELDS:
        if name in slot.known and slot.stats is not None:
            text += f" {name} {getattr(slot.stats, name):.6g}"
    return text
