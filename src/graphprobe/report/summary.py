"""The last lines of `graphprobe run`: what was collected, where, and what is missing."""

from __future__ import annotations

import os
from pathlib import Path

from graphprobe.settings import text_from_size
from graphprobe.store.reader import Run


def summary_lines(run: Run, base: Path) -> list[str]:
    """Plain lines: what is missing or worth knowing, at the end how much was collected, and where (from `base`)."""
    manifest = run.manifest
    who = f"rank {manifest.rank}: " if manifest.world_size > 1 else ""
    if manifest.models == 0 and not manifest.missing:
        lines = [f"graphprobe: {who}nothing was compiled in this process, so nothing was collected"]
    else:
        plural = "" if manifest.models == 1 else "s"
        predicted = (
            f", {text_from_size(manifest.predicted_bytes)} predicted" if manifest.predicted_bytes is not None else ""
        )
        lines = [
            f"graphprobe: {who}{manifest.models} compiled graph{plural}, {manifest.collected_files} files, "
            f"{text_from_size(manifest.collected_bytes)}{predicted}"
        ]
    lines.append(f"graphprobe: in {os.path.relpath(run.run_dir, base)}")
    before: list[str] = []
    if manifest.caches_bypassed:
        before.append(f"graphprobe: bypassed while compiling: {', '.join(manifest.caches_bypassed)}")
    before += [f"graphprobe: note: {note}" for note in manifest.notes]
    before += [f"graphprobe: missing: {entry}" for entry in manifest.missing]
    return before + lines
