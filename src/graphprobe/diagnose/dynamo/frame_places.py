"""The user's frames, files and lines: of code that runs, and of a node of a graph."""

from __future__ import annotations

import functools
import itertools
import linecache
import os
import re
import sysconfig
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

import numpy as np
import torch
from torch.fx import Node

from graphprobe.engine.naming import LINE, source_of

_OTHERS = tuple(str(Path(file).parent) + os.sep for file in (torch.__file__, np.__file__))
_OWN = str(Path(__file__).parents[2]) + os.sep
_PYTHON = tuple({os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")})
_PACKAGES = tuple(os.sep + name + os.sep for name in ("site-packages", "dist-packages"))

FRAMES = 8
"""Callers that are kept of a call."""

LAYERS = os.path.join("torch", "nn", "")
"""Whose functions and modules call what their names say."""


class FramePlace(NamedTuple):
    """Where a frame is: its function, and the expression in it that runs; -1 where its column is not known."""

    file: str
    line: int
    column: int
    function: str

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


def places_of(frame: FrameType | None, until: CodeType) -> list[FramePlace]:
    """The user's frames from `frame` outwards to the one that runs `until`, the innermost first."""
    found: list[FramePlace] = []
    while frame is not None and frame.f_code is not until and len(found) < FRAMES:
        if is_users(frame.f_code.co_filename):
            found.append(_place_in(frame.f_code, frame.f_lasti, frame.f_lineno))
        frame = frame.f_back
    return found


def _place_in(code: CodeType, at: int, line: int) -> FramePlace:
    start, _, column, _ = next(itertools.islice(code.co_positions(), at // 2, None), (None, None, None, None))
    return FramePlace(code.co_filename, start or line, -1 if column is None else column, code.co_qualname)


def users_source(node: Node) -> str | None:
    """`file:line` of the user's innermost line that made a node."""
    places = [f"{file}:{line}" for file, line in LINE.findall(node.stack_trace or "") if is_users(file)]
    return places[-1] if places else source_of(node)


def text_raised(error: BaseException) -> str:
    """What is called where an exception was raised: in the user's code, or in a layer of torch's."""
    text, trace = "", error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if is_users(code.co_filename) or LAYERS in code.co_filename:
            place = _place_in(code, trace.tb_lasti, trace.tb_lineno)
            line = linecache.getline(place.file, place.line).encode()[max(0, place.column) :].decode("utf-8", "replace")
            called = re.match(r"[\w.]+(?=\()", line)
            text = called[0] if called is not None else text
        trace = trace.tb_next
    return text
