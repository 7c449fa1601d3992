"""Where in the program a call stands: frames of torch and of graphprobe are left out."""

from __future__ import annotations

import linecache
import os
import sys
from types import CodeType, FrameType

import torch

import graphprobe

_HIDDEN = tuple(os.path.dirname(os.path.abspath(module.__file__ or "")) + os.sep for module in (torch, graphprobe))
_HIDDEN_FILES = ("<frozen", "<string>/torch", "<eval_with_key>")
MAX_FRAMES = 64


class Frames:
    """Names files as a reader knows them: relative to the working directory where they lie in it."""

    def __init__(self) -> None:
        self._files: dict[int, tuple[str, CodeType]] = {}
        """By identity, since the hash of a code object goes through all of its constants; it is kept for that."""
        self._folder = os.getcwd() + os.sep

    def source(self, frame: FrameType | None) -> str:
        """`file.py:12` of the innermost frame of the program; empty without one."""
        files = self._files
        while frame is not None:
            code = frame.f_code
            known = files.get(id(code))
            file = known[0] if known is not None else self._learn(code)
            if file:
                return f"{file}:{frame.f_lineno}"
            frame = frame.f_back
        return ""

    def stack(self, frame: FrameType | None) -> tuple[str, ...]:
        """`file.py:12 in forward: x = self.fc(x)` of each frame of the program, outermost last."""
        lines: list[str] = []
        while frame is not None and len(lines) < MAX_FRAMES:
            code = frame.f_code
            known = self._files.get(id(code))
            file = known[0] if known is not None else self._learn(code)
            if file:
                text = linecache.getline(code.co_filename, frame.f_lineno).strip()
                lines.append(f"{file}:{frame.f_lineno} in {code.co_name}" + (f": {text}" if text else ""))
            frame = frame.f_back
        return tuple(lines)

    def _learn(self, code: CodeType) -> str:
        path = code.co_filename
        if path.startswith((*_HIDDEN, *_HIDDEN_FILES)) or path in _STANDARD:
            file = ""
        else:
            file = path.removeprefix(self._folder)
        self._files[id(code)] = (file, code)
        return file


_STANDARD = frozenset({os.path.join(os.path.dirname(os.__file__), name) for name in ("contextlib.py", "functools.py")})


def in_recomputation(frame: FrameType | None) -> bool:
    """Whether a frame of `torch.utils.checkpoint` is below: what runs then was run before."""
    while frame is not None:
        if frame.f_code.co_filename == _CHECKPOINT:
            return True
        frame = frame.f_back
    return False


_CHECKPOINT = str(getattr(sys.modules.get("torch.utils.checkpoint"), "__file__", "")) or os.path.join(
    os.path.dirname(torch.__file__), "utils", "checkpoint.py"
)
