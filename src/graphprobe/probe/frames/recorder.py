"""The files of a record: what a frame that failed to trace was given, and the script that traces it again."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import msgspec
import torch

import graphprobe
from graphprobe.engine import replay
from graphprobe.engine.values import capture, safetensors_bytes
from graphprobe.internals.dynamo.frame_failures import FailedFrame
from graphprobe.internals.quiet import quiet
from graphprobe.probe.formats import GUARD
from graphprobe.probe.frames import replaying
from graphprobe.program_text import rebuild
from graphprobe.program_text.encoding import Encoder
from graphprobe.program_text.program import CodeRecorder
from graphprobe.program_text.sources import NotRecordable
from graphprobe.store import frame_record
from graphprobe.store.frame_record import Failure, FrameRecord, UserLine
from graphprobe.store.schema import is_json, json_from_value

OWN = ((rebuild.__file__, "rebuild"), (replaying.__file__, "replaying"))
"""Modules whose code a record holds beside that of `engine.replay`, each with its mark."""


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
    programs: list[CodeRecorder] = []

    def program(encoder: Encoder) -> CodeRecorder:
        programs.append(CodeRecorder(encoder))
        return programs[0]

    encoder = Encoder(program)
    code = frame.code
    function = programs[0].frame_function(code, frame.globals, frame.closure)
    described = _call(code, frame, encoder) | {"function": function}
    dynamic = {
        str(i): dims for value, dims in frame.dynamic for i, tensor in enumerate(encoder.tensors) if tensor is value
    }
    modules = programs[0].complete()
    captured = capture(encoder.tensors, rng=False)
    notes += _trim(captured.doc, captured.tensors, most_bytes)
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
        modules=modules,
        frame=described,
        objects=encoder.objects,
        tensors=captured.doc,
        dynamic=dynamic,
        placeholders=encoder.placeholders,
        notes=notes,
    )
    return {
        **{path: text.encode("utf-8", "backslashreplace") for path, text in programs[0].texts().items()},
        frame_record.VALUES: safetensors_bytes(captured.tensors, {"format": "pt"}),
        frame_record.REPLAY: replay_script(record).encode(),
        frame_record.RECORD: msgspec.json.format(json_from_value(record), indent=1),
    }


def _call(code: Any, frame: FailedFrame, encoder: Encoder) -> dict[str, Any]:
    count = code.co_argcount + code.co_kwonlyargcount
    names = list(code.co_varnames[:count])
    extra = [bool(code.co_flags & flag) for flag in (0x04, 0x08)]  # *args, **kwargs
    rest = list(code.co_varnames[count : count + sum(extra)])
    lacking = [name for name in (*names, *rest) if name not in frame.locals]
    if lacking:
        raise NotRecordable(f"its arguments {', '.join(lacking)} are gone")
    varargs = rest.pop(0) if extra[0] else None
    varkw = rest.pop(0) if extra[1] else None
    names += [name for name in (varargs, varkw) if name is not None]
    arguments = {name: encoder.encode(frame.locals[name], name) for name in names}
    return {"arguments": arguments, "varargs": varargs, "varkw": varkw}


def _trim(doc: dict[str, Any], tensors: dict[str, torch.Tensor], most_bytes: int | None) -> list[str]:
    """Leaves out the largest storages where all are too many."""
    total = sum(tensor.numel() for tensor in tensors.values())
    left_out = 0
    for name in sorted(tensors, key=lambda name: -tensors[name].numel()):
        if most_bytes is None or total <= most_bytes:
            break
        total -= tensors[name].numel()
        left_out += 1
        del tensors[name]
        doc["storages"][name]["without_data"] = True
    if not left_out:
        return []
    return [f"{left_out} storages are recorded without their values, zeros in a replay: more than {most_bytes} bytes"]


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
    head = f"""# A frame that torch.compile could not trace: {_one_line(record.function)}, {_one_line(place)}
# Run it with `python replay.py`; it needs torch and the files beside it. The program's text is in source/.
# It exits 1 while the frame fails as recorded, 0 when it is traced, 125 when it cannot tell.

from __future__ import annotations

{GUARD}
import gc

gc.disable()  # what is imported stays, and need not be looked through for garbage again and again, nor at exit
import torch._dynamo

gc.freeze()
gc.enable()
"""
    tail = """
if __name__ == "__main__":
    sys.exit(replay_frame(Path(__file__).resolve().parent))
"""
    own = [replay.embedded(file=file, mark=mark) for file, mark in OWN]
    return "\n\n".join([head, replay.embedded(), *own, tail])


def _one_line(text: str) -> str:
    return " ".join(text.split())
