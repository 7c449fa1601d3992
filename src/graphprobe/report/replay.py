"""A replay of a recorded frame, in words. The verdict itself comes from the record's own `replay.py`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from graphprobe.store.frame_record import FrameRecord

VERDICTS = {"reproduced": "REPRODUCED", "gone": "GONE"}


def replay_lines(folder: str, record: FrameRecord, result: Mapping[str, Any]) -> list[str]:
    """What was recorded, what happened now, and the verdict.

    Args:
        result: `verdict`, `text`, `error`, `differences`, `caveats`, `seconds`, as `replay.py --json` writes them.
    """
    lines = [f"record    {folder}", f"frame     {record.function} ({_place(record.file, record.line)})"]
    lines.append(f"recorded  {record.failure.type}: {_first_line(record.failure.message)}")
    user = record.user_line
    if user is not None:
        text = f": {user.text}" if user.text else ""
        lines.append(f"          {_place(user.file, user.line)} in {user.function}{text}")
    error = result.get("error")
    if error is not None:
        lines.append(f"now       {error['type']}: {_first_line(error['message'])}")
        if error.get("line"):
            line = error["line"]
            lines.append(f"          {_place(line['file'], line['line'])} in {line['function']}")
    lines += [f"different {line}" for line in result.get("differences", ())]
    lines += _caveats(result.get("caveats", ()), result.get("verdict") == "reproduced")
    seconds = result.get("seconds")
    took = f" ({seconds:.1f} s)" if isinstance(seconds, int | float) else ""
    lines.append(f"{VERDICTS.get(str(result.get('verdict')), 'CANNOT DECIDE')}: {result.get('text')}{took}")
    return lines


def _caveats(caveats: Sequence[str], reproduced: bool) -> list[str]:
    """All of them where they may explain something, else how many there are."""
    if reproduced and len(caveats) > 3:
        return [f"not recorded: {len(caveats)} values or settings, which did not matter"]
    return [f"not recorded: {line}" for line in caveats]


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def _place(file: str, line: int) -> str:
    relative = os.path.relpath(file) if os.path.isabs(file) else file
    return f"{file if relative.startswith('..') else relative}:{line}"
