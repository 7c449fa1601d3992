"""The user's frames, files and lines: of code that runs, of an exception, and of a node of a graph."""

from __future__ import annotations

import functools
import linecache
import os
import re
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FrameType

import msgspec
import numpy as np
import torch
from torch.fx import Node

from graphprobe.engine.naming import source_of

_OTHERS = tuple(str(Path(file).parent) + os.sep for file in (torch.__file__, np.__file__))
_OWN = str(Path(__file__).parents[2]) + os.sep
_PYTHON = tuple({os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")})
_PACKAGES = tuple(os.sep + name + os.sep for name in ("site-packages", "dist-packages"))

FRAMES = 8
"""Callers that are kept of a call."""

LAYERS = os.path.join("torch", "nn", "")
"""Whose functions and modules call what their names say."""

OPERATORS = torch.Tensor.backward.__code__.co_filename
"""Which calls a function for a sign, `pow` for `**`."""

FRAME = re.compile(r'File "([^"]*)", line (\d+), in (.*)')


class FramePlace(msgspec.Struct, frozen=True):
    """Where a frame is: its function, and the expression in it that runs; columns are -1 where they are unknown."""

    file: str
    line: int
    end_line: int = -1
    column: int = -1
    end_column: int = -1
    function: str = ""

    @property
    def source(self) -> str:
        """`file:line`."""
        return f"{self.file}:{self.line}"


@functools.lru_cache(maxsize=4096)
def is_users(file: str) -> bool:
    """Whether a file is the user's, or of a package other than torch, numpy and this one."""
    if file.startswith((*_OTHERS, _OWN)) or (file.startswith("<") and not linecache.getlines(file)):
        return False
    real = os.path.realpath(file)
    return not real.startswith(_PYTHON) or any(part in real for part in _PACKAGES)


def is_hidden(name: str, frame: FrameType, frames: Sequence[FramePlace]) -> bool:
    """Whether a call that a frame makes is one of torch's machinery, which the user's line does not show."""
    caller: FrameType | None = frame
    while caller is not None and caller.f_code.co_filename == torch.overrides.__file__:
        caller = caller.f_back
    file = caller.f_code.co_filename if caller is not None else ""
    if is_users(file) or LAYERS in file or OPERATORS in file or not frames:
        return False
    lines = range(frames[0].line, max(frames[0].line, frames[0].end_line) + 1)
    text = " ".join(linecache.getline(frames[0].file, line) for line in lines)
    return re.search(rf"\b{re.escape(name)}\b", text) is None


def places_of(frame: FrameType | None, until: CodeType) -> list[FramePlace]:
    """The user's frames from `frame` outwards to the one that runs `until`, the innermost first."""
    found: list[FramePlace] = []
    while frame is not None and frame.f_code is not until and len(found) < FRAMES:
        if is_users(frame.f_code.co_filename):
            found.append(_place_in(frame.f_code, frame.f_lasti, frame.f_lineno))
        frame = frame.f_back
    return found


def places_raised(error: BaseException) -> list[FramePlace]:
    """The user's frames that an exception has ended, the innermost first."""
    found: list[FramePlace] = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if is_users(code.co_filename):
            found.insert(0, _place_in(code, trace.tb_lasti, trace.tb_lineno))
        trace = trace.tb_next
    return found[:FRAMES]


def place_raised(error: BaseException) -> FramePlace | None:
    """The innermost frame that an exception has ended of the user's code or of a layer of torch's."""
    found, trace = None, error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if is_users(code.co_filename) or LAYERS in code.co_filename:
            found = _place_in(code, trace.tb_lasti, trace.tb_lineno)
        trace = trace.tb_next
    return found


def _place_in(code: CodeType, at: int, line: int) -> FramePlace:
    start, end, column, end_column = _position(code, at)
    return FramePlace(code.co_filename, start or line, end, column, end_column, code.co_qualname)


def _position(code: CodeType, at: int) -> tuple[int, int, int, int]:
    for number, position in enumerate(code.co_positions()):
        if number == at // 2:
            line, *rest = position
            return (line or 0, *(-1 if value is None else value for value in rest))  # type: ignore[return-value]
    return 0, -1, -1, -1


def places_read(error: BaseException) -> list[FramePlace]:
    """The user's frames that Dynamo was reading when it raised, the innermost first; empty where it tells none."""
    places = []
    for entry in reversed(getattr(error, "real_stack", None) or ()):
        if is_users(entry.filename) and entry.lineno is not None:
            start, end = (getattr(entry, name, None) or 0 for name in ("colno", "end_colno"))
            line, start, end = (entry.lineno, start, end) if end else (-1, -1, -1)
            places.append(FramePlace(entry.filename, entry.lineno, line, start, end, entry.name))
    return (places or _told(str(error).partition("from user code:")[2]))[:FRAMES]


def node_places(node: Node) -> list[FramePlace]:
    """The user's frames that a node comes from, the innermost first."""
    return _told(node.stack_trace or "")


def _told(trace: str) -> list[FramePlace]:
    found = FRAME.findall(trace)
    return [FramePlace(f, int(line), function=name) for f, line, name in reversed(found) if is_users(f)]


def users_source(node: Node) -> str | None:
    """`file:line` of the user's innermost line that made a node."""
    places = node_places(node)
    return places[0].source if places else source_of(node)
