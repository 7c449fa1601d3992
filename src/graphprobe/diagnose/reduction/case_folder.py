"""What a reduction keeps on disk: the original case, every answer, and at any moment the best case as a repro."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
from pathlib import Path

import msgspec
from torch.fx import GraphModule

from graphprobe.diagnose.case import Case
from graphprobe.diagnose.dossier.template import Repro
from graphprobe.diagnose.dossier.writer import write_dossier
from graphprobe.diagnose.exceptions import Culprit
from graphprobe.engine.naming import module_of, op_of, source_of
from graphprobe.engine.subgraph import CALLS, is_item
from graphprobe.errors import UsageError
from graphprobe.findings import Finding
from graphprobe.store.files import read_file, replace_file
from graphprobe.store.schema import UNREADABLE

ORIGINAL, REPRO, JOURNAL = "original", "repro", "journal.jsonl"
STATE, NODES = "reduction.json", "nodes.json"
CASE_SCHEMA = 1

AT_FDCWD, RENAME_EXCHANGE = -100, 2
"""Of `renameat2`: paths count from the working directory; the two change places."""


class State(msgspec.Struct, kw_only=True):
    """`reduction.json`.

    Attributes:
        check, fail_regex: as they were given.
    """

    schema: int = CASE_SCHEMA  # of this file
    identity: str  # of the case and of what it is asked
    signature: str = ""  # of the failure that is looked for; empty until it is known
    check: str | None = None
    fail_regex: str | None = None


def is_reduction(folder: Path) -> bool:
    """Whether a reduction was begun in this folder."""
    return (folder / STATE).is_file()


def is_new(folder: Path, *, resume: bool) -> bool:
    """Whether nothing is at `folder` yet, so that a reduction begins there; else one goes on.

    Raises:
        UsageError: something is there already, or with `resume` no reduction to go on with.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return True
    if not resume:
        hint = "--resume goes on with it." if is_reduction(folder) else "Name a folder that is new or empty."
        raise UsageError(f"{folder} holds something already", hint=hint)
    if not is_reduction(folder):
        raise UsageError(
            f"{folder} holds no reduction to go on with", hint="name the folder of one, or leave --resume out"
        )
    return False


def read_state(folder: Path) -> State:
    """What the folder is a reduction of; raises UsageError when that cannot be read."""
    file = folder / STATE
    try:
        state = msgspec.json.decode(read_file(file), type=State)
    except (OSError, *UNREADABLE) as error:
        raise UsageError(f"{file} cannot be read: {error}", hint="Begin anew in another folder.") from error
    if state.schema != CASE_SCHEMA:
        raise UsageError(f"{file} has schema {state.schema}, this version reads {CASE_SCHEMA}")
    return state


class CaseFolder:
    """The folder of one reduction.

    Attributes:
        path: of it.
        state: what `reduction.json` holds.
    """

    def __init__(self, path: Path, state: State) -> None:
        self.path, self.state = path, state

    @classmethod
    def open(cls, path: Path, case: Case, state: State, *, resume: bool) -> CaseFolder:
        """A new folder with the original case in it; with `resume` that of a reduction that was begun, if there is one.

        Raises:
            UsageError: something is there already; with `resume`, what is of another case or question, or no reduction.
        """
        if is_new(path, resume=resume):
            path.mkdir(parents=True, exist_ok=True)
            folder = cls(path, state)
            folder.save_state()  # first: from now on it is known what this folder is, even if the process is killed
        else:
            folder = cls(path, read_state(path))
            # The question that was asked now counts: a folder of somebody else runs no command of its own.
            if msgspec.structs.replace(folder.state, signature=state.signature) != state:
                raise UsageError(
                    f"{path} holds a reduction of another case, or with another --check or --fail-regex",
                    hint="Resume with what it was begun with, or begin anew in another folder.",
                )
            clear_leftovers(path)
        if not (path / ORIGINAL).exists():
            folder._save_original(case)
        return folder

    def _save_original(self, case: Case) -> None:
        fresh = self.path / f".{ORIGINAL}.new"
        shutil.rmtree(fresh, ignore_errors=True)
        places = {n.name: [module_of(n), source_of(n)] for n in case.graph.graph.nodes if module_of(n) or source_of(n)}
        replace_file(self.path / NODES, json.dumps(places).encode())
        write_dossier(fresh, case, finding_of(case, "the case before it was reduced"))
        os.rename(fresh, self.path / ORIGINAL)

    def save_state(self) -> None:
        """Write `reduction.json`."""
        replace_file(self.path / STATE, msgspec.json.format(msgspec.json.encode(self.state)) + b"\n")

    def found(self, signature: str) -> None:
        """Note which failure is looked for."""
        if signature != self.state.signature:
            self.state.signature = signature
            self.save_state()

    def save_repro(self, case: Case, finding: Finding, shown: Repro | None = None) -> list[str]:
        """Put the dossier of a case in the place of the one before; returns why it cannot be run, one line each.

        `shown`: a short repro that shows the fault.

        At any moment a whole one is there, where the file system can exchange two folders.
        """
        target, fresh = self.path / REPRO, self.path / f".{REPRO}.new"
        shutil.rmtree(fresh, ignore_errors=True)
        problems = write_dossier(fresh, case, finding, shown=shown)
        if not target.exists():
            os.rename(fresh, target)
        elif exchange(fresh, target):
            shutil.rmtree(fresh, ignore_errors=True)
        else:
            old = self.path / f".{REPRO}.old"
            os.rename(target, old)
            os.rename(fresh, target)
            shutil.rmtree(old, ignore_errors=True)
        return problems


def exchange(a: Path, b: Path) -> bool:
    """Let two paths change places in one step; False where that is not possible."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    if rename is None:
        return False
    return int(rename(AT_FDCWD, os.fsencode(a), AT_FDCWD, os.fsencode(b), RENAME_EXCHANGE)) == 0


def clear_leftovers(path: Path) -> None:
    """After a process was killed: the last whole repro in its place, nothing else beside it."""
    target = path / REPRO
    for name in (f".{REPRO}.old", f".{REPRO}.new"):
        leftover = path / name
        if leftover.is_dir() and not target.exists():
            os.rename(leftover, target)
        shutil.rmtree(leftover, ignore_errors=True)


def finding_of(case: Case, reason: str, *, rate: float = 1.0) -> Finding:
    """What there is to say of a reduced case, for its dossier."""
    calls = [n for n in case.graph.graph.nodes if n.op in CALLS and not is_item(n)]
    alone = calls[0] if len(calls) == 1 else None
    also = list(dict.fromkeys(op_of(n) for n in calls)) if alone is None and len(calls) <= 8 else []
    found = Finding(kind=case.kind, stage="unknown", also=also, flaky_rate=rate, reason=reason)  # type: ignore[arg-type]
    return found if alone is None else Culprit.at(alone).told_in(found)


def origins_into(graph: GraphModule, folder: Path) -> None:
    """Give the nodes of a rebuilt graph the modules and source lines that were noted."""
    try:
        noted = json.loads(read_file(folder / NODES))
    except (OSError, ValueError):
        return
    for node in graph.graph.nodes:
        module, source = noted.get(node.name, (None, None))
        if module:
            node.meta["nn_module_stack"] = {module: (module, "")}
        if source:
            file, _, line = source.rpartition(":")
            node.meta["stack_trace"] = f'File "{file}", line {line}, in <module>\n'
