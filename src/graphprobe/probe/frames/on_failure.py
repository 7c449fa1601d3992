"""Watches for frames that fail to trace, and has them recorded; torch is not imported before one does."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from typing import Any

from graphprobe.internals.dynamo.frame_failures import FailedFrame, FrameFailures, asked_by_torch
from graphprobe.records import Where
from graphprobe.settings import Settings
from graphprobe.store import frame_record, layout
from graphprobe.store.writer import RunWriter

MOST_RECORDS = 50
"""Of one run; the same failure at the same line is recorded once."""
TEXTS_BYTES = 4 * 1024**2
"""Kept free of tensor data, for the texts of a record."""


class FrameWatch:
    """Writes the record of each frame that fails to trace into the run, while it is installed.

    Args:
        settings: `record_frames` asks for records; torch's own switch is looked at when a frame fails.
        writer: of the run that it was made for.
        here: the session of this process, which may be a forked child; None where it has none.
        on_error: told what it raised itself, after which it is off.
    """

    def __init__(
        self,
        settings: Settings,
        writer: RunWriter,
        here: Callable[[], Any],
        on_error: Callable[[str, BaseException], None],
    ) -> None:
        self._settings, self._own_writer, self._here = settings, writer, here
        self._seen: set[tuple[Any, ...]] = set()
        self._numbers = itertools.count()
        self._failures = FrameFailures(self._on_failure, lambda error: on_error("record of a frame", error))

    def install(self) -> None:
        """From now on."""
        self._failures.install()

    def remove(self) -> list[str]:
        """Take it out; returns what somebody else has replaced since."""
        if self._wanted() and not self._own_writer.forked:
            for address in self._failures.missing:
                self._own_writer.missing(f"this torch lacks {address}: no records of frames that fail to trace")
        return self._failures.remove()

    def _wanted(self) -> bool:
        return self._settings.record_frames or asked_by_torch()

    def _on_failure(self, frame: FailedFrame) -> None:
        session = self._here() if self._wanted() else None
        if session is None:
            return
        writer = session.writer
        line = frame.stack[-1][:3] if frame.stack else None
        code = frame.code
        key = (code.co_filename, code.co_firstlineno, code.co_name, type(frame.error).__name__, line)
        if key in self._seen:
            return
        self._seen.add(key)
        if len(self._seen) > MOST_RECORDS:
            writer.missing(f"more than {MOST_RECORDS} frames failed to trace; the others are not recorded")
            return
        where = f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno})"
        recorder = importlib.import_module("graphprobe.probe.frames.recorder")
        try:
            left = self._settings.max_bytes - writer.manifest.collected_bytes - TEXTS_BYTES
            files = recorder.record_files(frame, most_bytes=max(0, left))
        except recorder.NotRecordable as reason:
            writer.missing(f"the frame {where} failed to trace and is not recorded: {reason}")
            return
        self._write(writer, frame, files, where)

    def _write(self, writer: RunWriter, frame: FailedFrame, files: dict[str, bytes], where: str) -> None:
        """`record.json` comes last: a folder without it is no record."""
        number = next(self._numbers)
        folder = f"{frame_record.FRAMES}/{number:03d}_{layout.file_name_from_pass(frame.code.co_name)}"
        last = None
        for name in sorted(files, key=lambda name: name == frame_record.RECORD):
            last = writer.write_bytes(f"{folder}/{name}", files[name])
            if last is None:
                return  # the budget or the disk; the writer has said so
        text = f"{type(frame.error).__name__}: {str(frame.error).strip().partition(chr(10))[0]}"
        writer.event(where=Where(phase="dynamo"), kind="failure", name="frame", file=last, message=text)
        writer.note(f"the frame {where} failed to trace; recorded in {folder}")
