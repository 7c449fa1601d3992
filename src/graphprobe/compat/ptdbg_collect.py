"""From ON to OFF: what `graphprobe.dump` collects in between, written in ptdbg's layout at the end."""

from __future__ import annotations

import logging
import shutil
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from graphprobe.compat.ptdbg_arguments import Scope
from graphprobe.errors import GraphprobeWarning
from graphprobe.store.foreign.names import PtdbgName

if TYPE_CHECKING:
    from graphprobe.store.foreign.ptdbg_write import WrittenName

logger = logging.getLogger("graphprobe")


class Selected:
    """Which calls a scope takes, asked in the order of execution; remembers which of its names were met."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._met: set[str] = set()
        self._others: dict[int, str] = {}

    def __call__(self, call: WrittenName) -> bool:
        scope = self._scope
        for name, text in zip(scope.names, scope.texts, strict=True):
            if _is(name, text, call):
                self._met.add(text)
            elif not name.counted and name.number == call.number:
                self._others[call.number] = call.text
        if scope.mode == 2:
            return any(_is(name, text, call) for name, text in zip(scope.names, scope.texts, strict=True))
        if scope.mode in (3, 4):
            first, last = sorted(name.number for name in scope.names)
            directions = {_direction(text) for text in scope.texts}
            wanted = len(directions) > 1 or None in directions or call.direction in directions
            return wanted and first <= call.number <= last
        return True

    def unmet(self) -> list[str]:
        """Names of the scope that no call had, in words."""
        found = []
        for name, text in zip(self._scope.names, self._scope.texts, strict=True):
            if text not in self._met:
                other = self._others.get(name.number)
                found.append(f"no call was {text}" + (f"; call {name.number} was {other}" if other else ""))
        return found


def _direction(text: str) -> str | None:
    return next((word for word in ("forward", "backward") if text.endswith(f"_{word}")), None)


def _is(name: PtdbgName, text: str, call: WrittenName) -> bool:
    number = call.api_index if name.counted else call.number
    same = (name.kind, name.name, name.number) == (call.kind, call.name, number)
    return same and _direction(text) in (None, call.direction)


def file_of_rank(pkl: Path) -> Path:
    """The text of this rank: in a folder `rank<N>` beside `pkl` where there are several, so that none is replaced."""
    import torch

    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return pkl
    if torch.distributed.get_world_size() == 1:
        return pkl
    folder = pkl.parent / f"rank{torch.distributed.get_rank()}"
    folder.mkdir(exist_ok=True)
    return folder / pkl.name


class Collecting:
    """One ON. What is collected lies beside the text until OFF, in a folder that any graphprobe command can read."""

    def __init__(self, pkl: Path, scope: Scope, dump_step: int) -> None:
        """Begin. Raises UsageError while another dump runs."""
        from graphprobe.probe.api.dump import dump
        from graphprobe.store.foreign.ptdbg_write import timestamped

        pkl = file_of_rank(pkl)
        self._pkl, self._scope, self._dump_step = pkl, scope, dump_step
        self.folder = timestamped(pkl.with_name(f"{pkl.stem}_collected"))
        try:
            if scope.mode == 4:
                self._dumper = dump(self.folder, mode="stack", optimizer="off", step_at="hand")
            else:
                sample = dump_step if dump_step > 1 else None
                stack = scope.mode != 1
                self._dumper = dump(
                    self.folder, data="tensor", sample=sample, stack=stack, optimizer="off", step_at="hand"
                )
            self._dumper.start()
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def finish(self) -> Path:
        """End, and write the files. Returns the folder of the values. Raises OSError; what was collected stays then."""
        from graphprobe.store.api_reader import open_api_dump
        from graphprobe.store.foreign.ptdbg_write import write_ptdbg

        self._dumper.close()
        found = open_api_dump(self.folder)
        selected = Selected(self._scope)
        folder = write_ptdbg(
            found,
            self._pkl,
            dump_step=self._dump_step,
            stacks=self._scope.mode != 1,
            values=self._scope.mode != 4,
            select=selected,
        )
        for text in (*selected.unmet(), *found.problems()):
            warnings.warn(text, GraphprobeWarning, stacklevel=4)
        shutil.rmtree(self.folder)
        logger.info("ptdbg: wrote %s and %s", self._pkl, folder)
        return folder
