"""The files of a record: what a frame that failed to trace was given, and the script that traces it again."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from types import FunctionType
from typing import Any

import msgspec
import torch

import graphprobe
from graphprobe.engine import replay
from graphprobe.engine.values import safetensors_bytes
from graphprobe.internals.dynamo.frame_failures import FailedFrame
from graphprobe.internals.quiet import quiet
from graphprobe.probe.formats import GUARD, assembled
from graphprobe.probe.frames import replaying
from graphprobe.probe.frames.replaying import DYNAMIC, FUNCTION
from graphprobe.program_text import loading
from graphprobe.program_text.plain_values import Unwritable
from graphprobe.program_text.sources import NotRecordable
from graphprobe.program_text.text import FUTURE, placed_text
from graphprobe.store import frame_record
from graphprobe.store.frame_record import Failure, FrameRecord, UserLine
from graphprobe.store.schema import is_json, json_from_value

OWN = ((loading.__file__, "loading"), (replaying.__file__, "replaying"))
"""Modules whose code a record holds beside that of `engine.replay`, each with its mark."""

_QUICK = """\
import gc

gc.disable()  # what is imported stays, and need not be looked through for garbage again and again, nor at exit
import torch._dynamo

gc.freeze()
gc.enable()"""
_MAIN = """\
if __name__ == "__main__":
    sys.exit(replay_frame(Path(__file__).resolve().parent))"""


def record_files(frame: FailedFrame, *, most_bytes: int | None = None) -> dict[str, bytes]:
    """The files of a record, by path in its folder.

    Args:
        most_bytes: of tensor data; what goes beyond is recorded by shape alone. None is no bound.

    Raises:
        NotRecordable: the text of the function is not to be had, or the frame leads to too much.
    """
    if frame.is_continuation:
        raise NotRecordable(
            "it is the rest of a function behind a graph break; with fullgraph=True the whole is recorded"
        )
    state, notes = torch_state(frame.settings)
    try:
        with quiet():
            return _record_files(frame, state, notes, most_bytes)
    except RecursionError as error:
        raise NotRecordable("its values are nested too deeply") from error


def _record_files(
    frame: FailedFrame, state: dict[str, Any], notes: list[str], most_bytes: int | None
) -> dict[str, bytes]:
    code = frame.code
    function = FunctionType(code, frame.globals, code.co_name, None, frame.closure or None)
    try:
        text = placed_text({FUNCTION: function, **_arguments(frame), DYNAMIC: frame.dynamic})
    except Unwritable as reason:
        raise NotRecordable(str(reason)) from reason
    lost = next((entry["reason"] for entry in text.lost if entry["path"] == FUNCTION), None)
    if lost is not None:
        raise NotRecordable(lost)
    zeros = _trim(text.stored, most_bytes)
    if zeros:
        notes.append(
            f"{len(zeros)} tensors are recorded without their values, zeros in a replay: more than {most_bytes} bytes"
        )
    notes += [f"{name} was symbolic because of earlier calls, and is not so in a replay" for name in frame.unresolved]
    record = FrameRecord(
        function=code.co_qualname,
        file=code.co_filename,
        line=code.co_firstlineno,
        fullgraph=frame.fullgraph,
        failure=Failure(
            type=f"{type(frame.error).__module__}.{type(frame.error).__qualname__}",
            message=str(frame.error),
            stack=[UserLine(*entry) for entry in frame.stack],
            suppressed=frame.suppressed,
        ),
        versions={
            "torch": str(torch.__version__),
            "python": platform.python_version(),
            "graphprobe": graphprobe.__version__,
        },
        settings=state,
        zeros=zeros,
        placeholders=text.lost,
        notes=notes,
    )
    return {
        frame_record.PROGRAM: text.text.encode("utf-8", "backslashreplace"),
        frame_record.VALUES: safetensors_bytes(text.stored, {"format": "pt"}),
        frame_record.REPLAY: replay_script(record).encode(),
        frame_record.RECORD: msgspec.json.format(json_from_value(record), indent=1),
    }


def _arguments(frame: FailedFrame) -> dict[str, Any]:
    code = frame.code
    count = code.co_argcount + code.co_kwonlyargcount
    names = code.co_varnames[: count + bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)]  # *args, **kwargs
    lacking = [name for name in names if name not in frame.locals]
    if lacking:
        raise NotRecordable(f"its arguments {', '.join(lacking)} are gone")
    return {name: frame.locals[name] for name in names}


def _trim(tensors: dict[str, torch.Tensor], most_bytes: int | None) -> list[str]:
    """Leaves out the largest tensors where all are too many; their names."""
    total = sum(tensor.numel() for tensor in tensors.values())
    left_out = []
    for name in sorted(tensors, key=lambda name: -tensors[name].numel()):
        if most_bytes is None or total <= most_bytes:
            break
        total -= tensors.pop(name).numel()
        left_out.append(name)
    return left_out


def torch_state(dynamo: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """What `replaying.configured` sets again, and a line for each setting that JSON cannot hold."""
    kept = {name: value for name, value in dynamo.items() if is_json(value)}
    notes = [
        f"torch._dynamo.config.{name} is {value!r:.80}, which is not recorded"
        for name, value in dynamo.items()
        if name not in kept
    ]
    state = {
        "grad_enabled": torch.is_grad_enabled(),
        "inference_mode": torch.is_inference_mode_enabled(),
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "default_device": str(torch.get_default_device()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "autocast": {
            device: str(torch.get_autocast_dtype(device)).removeprefix("torch.")
            for device in ("cpu", "cuda")
            if torch.is_autocast_enabled(device)
        },
        "dynamo": kept,
    }
    return state, notes


def replay_script(record: FrameRecord) -> str:
    """The text of `replay.py`."""
    line = record.user_line
    place = f"{line.file}:{line.line}" if line is not None else f"{record.file}:{record.line}"
    notes = [
        f"A frame that torch.compile could not trace: {_one_line(record.function)}, {_one_line(place)}",
        "Run it with `python replay.py`; it needs torch and the files beside it. The program is in program.py.",
        "It exits 1 while the frame fails as recorded, 0 when it is traced, 125 when it cannot tell.",
    ]
    own = [replay.embedded(file=file, mark=mark) for file, mark in OWN]
    return assembled(notes, [], [_QUICK, replay.embedded(), *own, _MAIN], first=["", FUTURE, "", GUARD])


def _one_line(text: str) -> str:
    return " ".join(text.split())
