"""What functions of the program are called, by their frames."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FrameType

from graphprobe.engine.naming import short_place
from graphprobe.program_text.sources import is_own


def own_function() -> Callable[[FrameType], str | None]:
    """What a frame's function is called, `name (file:line)`, if it is of the program."""
    known: dict[CodeType, str | None] = {}

    def name_of(frame: FrameType) -> str | None:
        code = frame.f_code
        if code not in known:
            module = frame.f_globals.get("__name__")
            own = isinstance(module, str) and not code.co_filename.startswith("<") and is_own(module)
            name = code.co_qualname.replace("<locals>.", "")
            known[code] = f"{name} ({short_place(code.co_filename, code.co_firstlineno)})" if own else None
        return known[code]

    return name_of
