"""The plan of a dump: what is dumped of which ops, when and where to. Frozen; what is in it has been checked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

import msgspec

from graphprobe.select import (
    LayerMatcher,
    LayerSelection,
    OpFacts,
    StepSelection,
    layers_from_list,
    name_matches,
    type_matches,
)

Engine = Literal["kernel", "interpreter"]
Mode = Literal["input", "output", "all"]
Data = Literal["tensor", "stats"]
Side = Literal["input", "output"]

ENGINES: tuple[Engine, ...] = ("kernel", "interpreter")
MODES: tuple[Mode, ...] = ("input", "output", "all")
DATA: tuple[Data, ...] = ("tensor", "stats")

POSITION = re.compile(r"(input|output)([0-9]{1,6})?", re.ASCII)
"""An input or output of an op: `input0`, or `input` for all of them."""


class Position(msgspec.Struct, frozen=True):
    """An input or output of an op by its number from 0, or with None all of that side."""

    side: Side
    index: int | None = None


class Blacklisted(msgspec.Struct, frozen=True):
    """Inputs and outputs that are left out, of ops by their name or by their type; without positions, all of them."""

    by: Literal["name", "type"]
    pattern: str
    positions: tuple[Position, ...] = ()

    def applies(self, op: OpFacts) -> bool:
        """Whether the op is meant."""
        return name_matches(self.pattern, op.names) if self.by == "name" else type_matches(self.pattern, op.targets)

    def leaves_out(self, side: Side, index: int | None) -> bool:
        """Whether it covers an input or output of the ops it applies to; None is one without a number, a keyword's."""
        if not self.positions:
            return True
        return any(found.side == side and found.index in (None, index) for found in self.positions)


class NameRange(msgspec.Struct, frozen=True):
    """The ops from one to another, both included, in the order of the graph."""

    begin: str
    end: str


class ModelEntry(msgspec.Struct, frozen=True):
    """What is dumped of some models.

    Attributes:
        model_name: a model's name, or a glob; None stands for every model.
        layers: the ops; None means all, unless there are ranges, which add to them.
        blacklist: what is left out of these ops.
        ranges: ops between two others.
        where: who asked for it: a JSON path, or the option.
    """

    model_name: str | None = None
    layers: LayerSelection | None = None
    blacklist: tuple[Blacklisted, ...] = ()
    ranges: tuple[NameRange, ...] = ()
    where: str = ""

    def names_model(self, names: tuple[str, ...]) -> bool:
        """Whether the entry is for a model that goes by these names; a folder's spelling (`_` for `.`) counts."""
        wanted = self.model_name
        if wanted is None:
            return True
        return any(wanted == name or _folder(wanted) == _folder(name) or fnmatchcase(name, wanted) for name in names)


class WatchEntry(msgspec.Struct, frozen=True):
    """After each op of `layers`, the outputs of `watcher_nodes` are checked.

    Attributes:
        layers: None is every op.
        watcher_nodes: None is every live buffer.
        where: who asked for it.
    """

    layers: LayerSelection | None = None
    watcher_nodes: LayerSelection | None = None
    where: str = ""


class DumpPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that an engine has to know. Several kinds of dump can be on at once, as far as they go together.

    Attributes:
        enabled: False: nothing is dumped and nothing is installed, whatever else is set.
        engine: None lets the backend choose: `kernel` for Inductor, `interpreter` for what generates no code.
        mode: which side of an op is kept.
        data: the values, or their statistics.
        stats: columns of the statistics that are filled, in the order of `STATISTICS`.
        path: absolute; when the plan is enabled it was a directory that could be read and written.
        steps: None is every step.
        models: the dump of models; empty when only other kinds of dump are on.
        watch: entries of the watch mode; empty is off.
        overflow: dump ops that overflow.
        exceptions: on any exception, keep the inputs of the op that failed and the traceback.
        single_ops: also dump ops that run outside compiled graphs.
        quant_dumpable: keep what is before a quantisation dumpable.
        max_bytes: most that may be written; then dumping stops, not the program.
        write_through: each op is on disk before the program goes on.
        config_path: the JSON file that was read, absolute.
        sources: by setting, who set it: `argument`, `context`, `file:<path>`, `env:<NAME>` or `default`.
        warnings: what was asked for and will not happen, or not as asked, one sentence each; to be shown to the user.
    """

    enabled: bool
    engine: Engine | None
    mode: Mode
    data: Data
    stats: tuple[str, ...]
    path: str
    steps: StepSelection | None
    models: tuple[ModelEntry, ...]
    watch: tuple[WatchEntry, ...]
    overflow: bool
    exceptions: bool
    single_ops: bool
    quant_dumpable: bool
    max_bytes: int
    write_through: bool
    config_path: str | None
    sources: dict[str, str]
    warnings: tuple[str, ...]

    @property
    def narrowed(self) -> bool:
        """Whether an option or the file names ops or models: then `scope.data_dump` adds to them, else it selects."""
        return any(entry != ModelEntry(where=entry.where) for entry in self.models)

    def due(self, step: int) -> bool:
        """Whether a step is dumped."""
        return self.enabled and (self.steps is None or step in self.steps)

    def entries_for(self, *names: str) -> tuple[ModelEntry, ...]:
        """The entries for a model that goes by these names; empty if none of its ops is dumped."""
        return tuple(entry for entry in self.models if entry.names_model(names))

    def unmatched_models(self, names: tuple[str, ...]) -> tuple[ModelEntry, ...]:
        """The entries whose model is none of those that ran, by all the names they went by."""
        return tuple(entry for entry in self.models if not entry.names_model(names))


def _folder(name: str) -> str:
    return name.translate(str.maketrans("./\\ ", "____"))


def model_entries(entries: Sequence[Mapping[str, Any]]) -> tuple[ModelEntry, ...]:
    """The entries of a dump of models."""
    return tuple(
        ModelEntry(
            model_name=entry.get("model_name"),
            layers=_layers(entry, "layer"),
            blacklist=_blacklist(entry, "name") + _blacklist(entry, "type"),
            ranges=tuple(NameRange(found["begin"], found["end"]) for found in entry.get("opname_range", ())),
            where=f"$.dump.dump_list[{at}]",
        )
        for at, entry in enumerate(entries)
    )


def watch_entries(entries: Sequence[Mapping[str, Any]] | None) -> tuple[WatchEntry, ...]:
    """The entries of the watch mode; without any, everything is watched."""
    if not entries:
        return (WatchEntry(where="$.dump.dump_scene"),)
    return tuple(
        WatchEntry(_layers(entry, "layer"), _layers(entry, "watcher_nodes"), f"$.dump.dump_list[{at}]")
        for at, entry in enumerate(entries)
    )


def _layers(entry: Mapping[str, Any], key: str) -> LayerSelection | None:
    return layers_from_list(entry[key]) if key in entry else None


def _blacklist(entry: Mapping[str, Any], by: Literal["name", "type"]) -> tuple[Blacklisted, ...]:
    return tuple(
        Blacklisted(by, found["name"].strip(), tuple(_position(text) for text in found.get("pos", ())))
        for found in entry.get(f"op{by}_blacklist", ())
    )


def _position(text: str) -> Position:
    match = POSITION.fullmatch(text)
    assert match is not None  # `document` has refused what is none
    side: Literal["input", "output"] = "input" if match[1] == "input" else "output"
    return Position(side, None if match[2] is None else int(match[2]))


class Chosen(msgspec.Struct, frozen=True):
    """An op that is dumped; `blacklists` has for each entry that selected it what the entry leaves out."""

    blacklists: tuple[tuple[Blacklisted, ...], ...]

    def keeps(self, side: Side, index: int | None) -> bool:
        """Whether an input or output is dumped: one that any entry wants; `index` is None for a keyword argument."""
        return any(not any(found.leaves_out(side, index) for found in left_out) for left_out in self.blacklists)


class OpChooser:
    """Chooses the ops of one model's graphs, and can tell afterwards what was named and never found."""

    def __init__(self, entries: Sequence[ModelEntry]) -> None:
        self._entries = [(entry, LayerMatcher(entry.layers) if entry.layers else None) for entry in entries]
        self._ranges_found: set[tuple[int, NameRange]] = set()
        self._backwards: set[tuple[int, NameRange]] = set()
        self.left_out = False
        """Whether a blacklist has left out an op that an entry selects."""

    def choose(self, ops: Sequence[OpFacts]) -> list[Chosen | None]:
        """For each op of one graph, in the order it runs, how it is dumped; None if it is not."""
        blacklists: list[list[tuple[Blacklisted, ...]]] = [[] for _ in ops]
        for number, (entry, matcher) in enumerate(self._entries):
            found = matcher.choose(ops) if matcher else [{}] * len(ops)
            ranged = self._in_ranges(number, entry.ranges, ops)
            everything = matcher is None and not entry.ranges
            for at, op in enumerate(ops):
                if not (everything or found[at] or at in ranged):
                    continue
                left_out = tuple(item for item in entry.blacklist if item.applies(op))
                if all(item.positions for item in left_out):
                    blacklists[at].append(left_out)
                else:
                    self.left_out = True
        return [Chosen(tuple(left_out)) if left_out else None for left_out in blacklists]

    def complaints(self) -> list[str]:
        """One sentence for each name that selected nothing in any graph so far, or two kinds of things in two."""
        result = []
        for number, (entry, matcher) in enumerate(self._entries):
            result += [f"{entry.where}: {text}" for text in (matcher.complaints() if matcher else ())]
            for found in entry.ranges:
                if (number, found) in self._ranges_found:
                    continue
                backwards = (number, found) in self._backwards
                why = "runs backwards" if backwards else "has an end that no graph has"
                result.append(f"{entry.where}: the range from {found.begin!r} to {found.end!r} {why}")
        return result

    def _in_ranges(self, number: int, ranges: tuple[NameRange, ...], ops: Sequence[OpFacts]) -> set[int]:
        chosen: set[int] = set()
        for found in ranges:
            begin, end = _place_in(found.begin, ops), _place_in(found.end, ops)
            if begin is None or end is None:
                continue
            (self._ranges_found if begin <= end else self._backwards).add((number, found))
            chosen.update(range(begin, end + 1))
        return chosen


def _place_in(name: str, ops: Sequence[OpFacts]) -> int | None:
    """The first op of that name, else the first in another case."""
    exact = next((at for at, op in enumerate(ops) if name in op.names), None)
    if exact is not None:
        return exact
    folded = name.lower()
    return next((at for at, op in enumerate(ops) if any(other.lower() == folded for other in op.names)), None)
