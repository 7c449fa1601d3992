"""Changes of a program that may keep a fault out, the cheapest first, each with the text that makes it."""

from __future__ import annotations

import ast
import linecache
from collections import ChainMap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Literal

import msgspec

from graphprobe.diagnose.dynamo.python_source import source_at
from graphprobe.diagnose.settings import Compilation
from graphprobe.diagnose.workarounds.edits import PieceEdit, put_in
from graphprobe.engine.naming import is_library
from graphprobe.findings import Finding, Stage
from graphprobe.internals.dynamo.compile_calls import Compiled, mode_names
from graphprobe.internals.leave_out import (
    INDUCTOR,
    LeftOut,
    fallback_text,
    known_op,
    own_switches,
    settings_for,
    without_pass,
)

LITE = "lite"
"""The mode in which each operation is its own kernel."""

FILTER = "guard_filter_fn"
"""The option of `torch.compile` that drops guards."""

MOST_OPS = 4
"""Operations that become fallbacks together: the accused one, and those that may be it instead."""


Pieces = Callable[[], Sequence[PieceEdit]]


class WayAround(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a program.

    Attributes:
        kind: as of a `Workaround`.
        head: statements that run before anything is compiled.
        arguments: of `torch.compile`, in the place of the program's; `options` and `mode` exclude each other.
        edit: of the program's code.
    """

    kind: Literal["setting", "fallback", "uncompiled", "backend"]
    head: str = ""
    arguments: dict[str, Any] = {}
    edit: PieceEdit | None = None

    @property
    def code(self) -> str:
        """What to write."""
        if self.edit is not None:
            return self.edit.text
        given = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return self.head or f"torch.compile(…, {given})"

    @property
    def words(self) -> str:
        """The same in one line."""
        if self.edit is not None:
            return f"line {self.edit.begin[0]} with {self.edit.call.partition(' = ')[2] or self.edit.call}"
        if self.head and self.kind == "fallback":
            return f"torch's own kernel of {self.head.partition('[')[2].partition(']')[0]}"
        return self.code.partition("\n")[2] if self.head else self.code

    def place(self, finding: Finding, called_from: str | None) -> str | None:
        """`file:line` where to write it: the line of the piece, of the call of `torch.compile`, or the first line."""
        if self.edit is not None:
            return self.edit.place
        own = finding.line if finding.line and not is_library(finding.line) else None
        files = [line.rpartition(":")[0] for line in (own, called_from) if line]
        compiling = [f"{file}:{line}" for file in files if (line := _compiling_line(file)) is not None]
        return next(iter([*compiling * bool(self.arguments), *(f"{file}:1" for file in files)]), None)


Change = Sequence[WayAround]
"""Changes that are made together."""

Ways = Callable[[Finding, Compilation, Pieces], Iterator[Change]]


def _compiling_line(file: str) -> int | None:
    """The line that calls `torch.compile`, if there is one such line."""
    source = source_at(file) if linecache.getlines(file) else None
    calls = [n for n in ast.walk(source.tree) if isinstance(n, ast.Call)] if source is not None else []
    lines = {n.lineno for n in calls if source is not None and source.dotted(n.func) == "torch.compile"}
    return lines.pop() if len(lines) == 1 else None


def setting(given: Sequence[LeftOut], compilation: Compilation) -> list[WayAround]:
    """Settings as candidates; those that the program passes to `torch.compile`, which wins, are changed there."""
    options = {
        one.name: one.value for one in given if one.module == INDUCTOR and one.name in compilation.inductor_settings
    }
    found = [one for one in given if one.module != INDUCTOR or one.name not in options]
    made = [WayAround(kind="setting", head=f"import {one.module}\n{one.statement}") for one in found]
    if options:
        made.append(WayAround(kind="setting", arguments={"options": options}))
    return made


def joined(change: Change, compilation: Compilation) -> Change:
    """A change as it is to be written: `options` of `torch.compile` are all in one, the program's own among them."""
    options = [one.arguments["options"] for one in change if "options" in one.arguments]
    if not options:
        return change
    every = dict(ChainMap(*options, dict(compilation.inductor_settings)))
    others = [one for one in change if "options" not in one.arguments]
    return [*others, WayAround(kind="setting", arguments={"options": every})]


def fallback(names: Sequence[str]) -> list[WayAround]:
    """Operations as torch's own kernels; nothing where Inductor has no other way to compute them."""
    ops = [op for name in dict.fromkeys(names) if (op := known_op(name)) is not None]
    text = fallback_text(ops[:MOST_OPS]) if ops else ""
    return [WayAround(kind="fallback", head=text)] if text else []


def _fallbacks(finding: Finding, compilation: Compilation, pieces: Pieces) -> Iterator[Change]:
    yield fallback([finding.op] if finding.op else [])
    yield fallback([*filter(None, [finding.op]), *finding.also])


def _settings(finding: Finding, compilation: Compilation, pieces: Pieces) -> Iterator[Change]:
    if compilation.dynamic:
        yield [WayAround(kind="setting", arguments={"dynamic": False})]
    yield from (setting(group, compilation) for group in settings_for(finding.stage))


def _guards(finding: Finding, compilation: Compilation, pieces: Pieces) -> Iterator[Change]:
    if compilation.guard_filter is not None:
        yield [WayAround(kind="setting", arguments={"options": {FILTER: None}})]


def _entries(finding: Finding, compilation: Compilation, pieces: Pieces) -> Iterator[Change]:
    yield from (setting(group, compilation) for group in settings_for("entries") if compilation.entries)


def _memory(finding: Finding, compilation: Compilation, pieces: Pieces) -> Iterator[Change]:
    yield from (setting(group, compilation) for group in settings_for("memory"))


def _own(finding: Finding, compilation: Compilation, pieces: Pieces) -> Iterator[Change]:
    """What the program itself has switched on."""
    switches = [LeftOut(INDUCTOR, n, False) for n, value in compilation.inductor_settings.items() if value is True]
    yield from (setting([one], compilation) for one in (*switches, *own_switches()))


def _pass(finding: Finding, compilation: Compilation, pieces: Pieces) -> Iterator[Change]:
    left_out = without_pass(finding.pass_.partition(" (")[0]) if finding.pass_ and finding.backend is None else None
    yield setting([left_out], compilation) if left_out is not None else []


def _lite(finding: Finding, compilation: Compilation, pieces: Pieces) -> Iterator[Change]:
    yield [WayAround(kind="fallback", arguments={"mode": LITE})] if LITE in mode_names() else []


def _pieces(finding: Finding, compilation: Compilation, pieces: Pieces) -> Iterator[Change]:
    yield from ([WayAround(kind="uncompiled", edit=edit)] for edit in pieces())


def _backends(finding: Finding, compilation: Compilation, pieces: Pieces) -> Iterator[Change]:
    names = ("aot_eager", "eager") if compilation.backend != "aot_eager" else ("eager",)
    yield from ([WayAround(kind="backend", arguments={"backend": name})] for name in names)


_BEHIND_OWN: tuple[Ways, ...] = (_fallbacks, _settings, _lite, _pieces, _backends)
_PASSES: tuple[Ways, ...] = (_pass, _own, _settings, _lite, _pieces, _backends)

ORDER: Mapping[Stage, tuple[Ways, ...]] = {
    "dynamo": (_guards, _settings, _pieces, _backends),
    "trace": (),
    "pass": (),
    "backend": (_pieces, _backends),
    "aot": (_settings, _lite, _pieces, _backends),
    "decomposition": (_fallbacks, _lite, _pieces, _backends),
    "pre_grad": _PASSES,
    "joint": _PASSES,
    "post_grad": _PASSES,
    "lowering": (_own, *_BEHIND_OWN),
    "codegen": (_own, _memory, *_BEHIND_OWN),
    "runtime": (_entries, _guards, _settings, _fallbacks, _lite, _pieces, _backends),
    "unknown": (_settings, _lite, _pieces, _backends),
}
"""By stage, the kinds of changes in the order in which they are tried: the cheapest loss first."""


def candidates(
    finding: Finding, compilation: Compilation, pieces: Pieces, useless: Collection[str]
) -> Iterator[Change]:
    """The changes that may help against a finding, each once, in the order in which they are tried.

    Args:
        pieces: edits of the program that leave what is accused uncompiled; called when their turn comes.
        useless: backends that are known to be wrong, and modes that do not come into it.
    """
    inductor: Collection[Ways] = (_guards, _pieces, _backends) if not compilation.is_inductor else ORDER[finding.stage]
    seen: list[Change] = []
    for way in (one for one in ORDER[finding.stage] if one in inductor):
        for change in way(finding, compilation, pieces):
            named = {one.arguments.get("backend") or one.arguments.get("mode") for one in change}
            if change and change not in seen and not named & set(useless):
                seen.append(change)
                yield change


def together(each: Sequence[Iterator[Change]], most: int) -> Iterator[Change]:
    """Changes for several findings: the first that may help against each, then the first two of each, and so on.

    For one finding these are its changes as they are. What changes the whole program is tried alone.
    """
    if len(each) == 1:
        yield from islice(each[0], most)
        return
    known: list[WayAround] = []
    alone: list[Change] = []
    for _ in range(most):
        latest = [change for one in each if (change := next(one, None)) is not None]
        if not latest:
            return
        new = [one for change in latest if not _is_of_all(change) for one in change if one not in known]
        known += [one for i, one in enumerate(new) if one not in new[:i]]
        if new:
            yield list(known)
        for change in latest:
            if _is_of_all(change) and change not in alone:
                alone.append(change)
                yield change


def _is_of_all(change: Change) -> bool:
    return any(name in one.arguments for one in change for name in ("mode", "backend"))


def changed(compilation: Compilation, change: Change) -> Compilation:
    """How the program is compiled with the arguments of a change."""
    for one in change:
        given = dict(one.arguments)
        mode, options = given.pop("mode", None), {**compilation.inductor_settings, **given.pop("options", {})}
        given["guard_filter"] = options.pop(FILTER, compilation.guard_filter)
        if mode is not None:
            options = Compiled(print, "inductor", given.get("dynamic"), mode=mode).inductor_settings()
        given["inductor_settings"] = {} if given.get("backend", "inductor") != "inductor" else options
        compilation = replace(compilation, **given)
    return compilation


def put_in_force(change: Change) -> None:
    """Run what a change has to run in this process, and write its edits into the program; for good.

    Raises:
        Exception: a statement of it raises.
    """
    for one in change:
        exec(one.head, {"__name__": "__main__"})
    put_in([one.edit for one in change if one.edit is not None])
