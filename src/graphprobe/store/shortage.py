"""What every place where a dump ends up does about failures: count them, and after a full disk try again later."""

from __future__ import annotations

import threading
import time
from typing import ClassVar

from graphprobe.store.files import ByteBudget, is_no_space
from graphprobe.store.manifest import ManifestFile
from graphprobe.store.writer import RETRY_SECONDS, SAVE_SECONDS


class CountsShortage:
    """Nothing is raised into the program: what could not be written is counted in the manifest's `missing`.

    Attributes:
        noun: what is counted, unless `count` is told otherwise.
        lock: held around all that several threads may do.
        stopped: why nothing more will be written, e.g. because the budget was reached; None as long as something is.
    """

    noun: ClassVar[str]

    def __init__(self, file: ManifestFile, max_bytes: int | None) -> None:
        self.lock = threading.RLock()
        self.stopped: str | None = None
        self._file = file
        self._budget = ByteBudget(max_bytes, overhead_bytes=file.overhead_bytes)
        self._retry_at: float | None = None
        self._full_reason = ""

    def refuses(self, name: str) -> bool:
        """Whether nothing can be written now, which is then counted for `name`."""
        if self.stopped is not None:
            self.count(self.stopped, name)
            return True
        with self.lock:
            if self._retry_at is None:
                return False
            if time.monotonic() >= self._retry_at:
                if self._file.restore_reserve():
                    self._retry_at = None
                    return False
                self._retry_at = time.monotonic() + RETRY_SECONDS
            self.count(self._full_reason, name)
            return True

    def count(self, reason: str, name: str, *, noun: str | None = None) -> None:
        """Count one more thing that is missing; see `ManifestFile.count_missing`."""
        with self.lock:
            new = self._file.count_missing(reason, noun=noun or self.noun, first=name)
            self.save(unless_newer_than_s=0.0 if new else SAVE_SECONDS)

    def save(self, *, unless_newer_than_s: float = 0.0) -> None:
        """Rewrite the manifest, if that was not done lately."""
        with self.lock:
            if self._file.save(unless_newer_than_s=unless_newer_than_s):
                self._budget.overhead_bytes = self._file.overhead_bytes
            if self._file.full_reason is not None:
                self._full_reason, self._file.full_reason = self._file.full_reason, None
                self._retry_at = time.monotonic() + RETRY_SECONDS

    def _count_error(self, error: Exception, name: str, *, times: int = 1, noun: str | None = None) -> None:
        reason = self._reason(error)
        with self.lock:
            if is_no_space(error):
                self._retry_at = time.monotonic() + RETRY_SECONDS
                self._full_reason = reason
                self._file.drop_reserve()
            for _ in range(times):
                self.count(reason, name, noun=noun)

    def _reason(self, error: Exception) -> str:
        return (error.strerror if isinstance(error, OSError) else None) or f"{type(error).__name__}: {error}"


def ended_early(state: str | None, stopped: str | None) -> str:
    """What is to be said of a dump that ended before its program did; empty of one that did not, or that still runs."""
    if stopped:
        return f"the dump ended early: {stopped}; nothing is known of what came after"
    return "the process was killed: the last calls may be missing" if state == "killed" else ""
