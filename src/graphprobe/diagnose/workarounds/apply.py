"""Runs a script with workarounds in force, and its files as they are."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphprobe.errors import UsageError
from graphprobe.findings import Workaround
from graphprobe.internals.dynamo.compile_calls import CompileCalls, CompileSettings
from graphprobe.probe import script
from graphprobe.store.diagnosis_file import dossiers_in, read_diagnosed

if TYPE_CHECKING:
    from graphprobe.diagnose.workarounds.edits import PieceEdit

FOLDER = "graphprobe-diagnosis"


def workarounds_in(folder: Path | None) -> tuple[Path, list[Workaround]]:
    """The workarounds of a diagnosis, each once, and the folder that has them; None: the newest one here.

    Raises:
        UsageError: there is no diagnosis, or none of its findings has a workaround.
    """
    newest = max((one for one in Path(FOLDER).glob("*") if dossiers_in(one)), default=Path(FOLDER))
    folder = folder or newest
    findings = [finding for one in read_diagnosed(folder).diagnoses for finding in one.findings]
    found = [one for finding in findings for one in finding.workarounds]
    if not found:
        raise UsageError(f"{folder} has no workaround", hint="graphprobe diagnose SCRIPT tries some")
    return folder, [one for i, one in enumerate(found) if one.code not in {other.code for other in found[:i]}]


class InForce:
    """Workarounds in a program that is about to run.

    Attributes:
        used: how often each was put in force, by its code.
    """

    def __init__(self, workarounds: Sequence[Workaround]) -> None:
        self.used = dict.fromkeys((one.code for one in workarounds), 0)
        self._edits = [one for one in workarounds if one.kind == "uncompiled"]
        self._arguments = {one.code: given for one in workarounds if (given := arguments_in(one.code))}
        others = self._arguments.keys() | {one.code for one in self._edits}
        self._heads = [one.code for one in workarounds if one.code not in others]

    def run(self, program: script.ScriptTarget) -> script.Ended:
        """Run the program to its end."""
        script.check(program)
        watches: list[Any] = [CompileSettings(self._changed, imported=self._begin)]
        watches += [CompileCalls(lambda *_: self._edit())] if self._edits else []
        for watch in watches:
            watch.install()
        try:
            return script.wait_for_threads(script.run(program))
        finally:
            for watch in watches:
                watch.remove()

    def _begin(self) -> None:
        for code in self._heads:
            exec(code, {"__name__": "__main__"})
            self.used[code] += 1

    def _changed(self, given: dict[str, Any]) -> dict[str, Any]:
        for code, arguments in self._arguments.items():
            if {"mode", "options", "backend"} & arguments.keys():
                given = {name: value for name, value in given.items() if name not in ("mode", "options")}
            given = {**given, **arguments}
            self.used[code] += 1
        return given

    def _edit(self) -> None:
        """Write the edits into the functions of the program, before the first call of one that is compiled."""
        from graphprobe.diagnose.workarounds.edits import put_in

        made = {one.code: edit_from(one) for one in self._edits if not self.used[one.code]}
        if made and all(made.values()):
            put_in([edit for edit in made.values() if edit is not None])
            self.used.update(dict.fromkeys(made, 1))


def arguments_in(code: str) -> dict[str, Any]:
    """The arguments that a workaround passes to `torch.compile`; none where it is another one."""
    if not code.startswith("torch.compile(…, "):
        return {}
    call: Any = ast.parse(code.replace("…, ", "", 1), mode="eval").body
    return {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}


def edit_from(workaround: Workaround) -> PieceEdit | None:
    """The edit that a workaround describes, if a function of this process has its lines; else None."""
    from graphprobe.analysis.breaks_edits import codes_in
    from graphprobe.diagnose.dynamo.experiment import functions_run
    from graphprobe.diagnose.workarounds.edits import PieceEdit

    helper, _, rest = workaround.code.rpartition("\n\n# line")
    numbers = re.findall(r"\d+", rest.partition(":\n")[0])
    file, (first, last) = (workaround.place or "").rpartition(":")[0], (int(numbers[0]), int(numbers[-1]))
    lines = linecache.getlines(file)
    codes = [*codes_in(compile("".join(lines), file, "exec", dont_inherit=True))]
    around = [c for c in codes if c.co_firstlineno <= first and last <= max(n for _, _, n in c.co_lines() if n)]
    for code in sorted(around, key=lambda code: -code.co_firstlineno):
        key = (code.co_qualname, code.co_firstlineno)
        if functions_run([(file, *key)]):
            end = len(lines[last - 1].rstrip("\n").encode())
            return PieceEdit(file, key, (first, 0), (last, end), rest.partition(":\n")[2], helper)
    return None
