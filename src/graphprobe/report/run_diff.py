"""Two runs of one program, held against each other: the first stage or pass, and the settings, in which they differ."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from operator import attrgetter
from typing import Literal, TypeVar

import msgspec

from graphprobe.errors import ArtifactNotFoundError
from graphprobe.records import Direction, Event
from graphprobe.report.document import counted
from graphprobe.store.files import digest_from_bytes
from graphprobe.store.layout import bare_address
from graphprobe.store.reader import Model, Run

COMPARED = ("graph", "pass", "failure", "ir", "code")
"""Kinds of events; what else a run has is no stage of the compiler, or is read from one."""

STAGE = attrgetter("kind", "name", "where.graph", "where.pass_name", "where.subgraph")
"""What two events of one stage have in common."""

ORDER: tuple[Direction | None, ...] = (None, "traced", "pre_grad", "joint", "forward", "backward")
"""The directions as the compiler goes through them; None for Dynamo's graph."""

LISTED = 5
"""Names in a line that has more."""

ItemT = TypeVar("ItemT")

_ADDED = "\n# What follows was added by graphprobe"
"""Where the code of a backend ends, and what replays it begins."""

_KERNEL = re.compile(r"'''(.*?)'''", re.DOTALL)
_HOOK = re.compile(r"^if __name__ == \"__main__\": .*?  (?=# AOT ID)")
_PLACE_OF_NODE = re.compile(r"^\s*# File: .*\n(?:\n(?=\s*# File: ))?", re.MULTILINE)

_REPLACED: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(?<![\w./])/(?:[\w.+@=~-]+/)+"), ""),  # folders of a path
    (re.compile(r"(\.py\b[\"']?)(?::\d+|, line \d+)"), r"\1"),
    (re.compile(r"(?<=AOT ID: \[')\d+_"), ""),  # counts what the process has compiled
    (re.compile(r"\b0x[0-9a-f]{6,}\b"), "<address>"),
    (re.compile(r"\bc[a-z2-7]{50,52}\b"), "<hash>"),  # how Inductor names files
    (re.compile(r"\b(?:[0-9a-f]{64}|[0-9a-f]{40}|[0-9a-f]{32})\b"), "<hash>"),
    (re.compile(r"\b[0-9A-F]{64}\b"), "<hash>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?"), "<time>"),
)


class Setting(msgspec.Struct, frozen=True):
    """A setting of the compilers with another value in each run."""

    name: str
    a: str
    b: str


class StageDifference(msgspec.Struct, frozen=True):
    """Where two compiles of one function part.

    Attributes:
        stage: the address below the model: `forward/after:fuse`, `forward/code`.
        phase: which part of the compiler made it, as the events say.
        a, b: addresses in the two runs; empty where one has no such stage.
        digest_a, digest_b: of the normalised texts; empty where there is none.
    """

    function: str
    stage: str
    phase: str
    what: str
    a: str = ""
    b: str = ""
    digest_a: str = ""
    digest_b: str = ""


class RunDiff(msgspec.Struct, frozen=True):
    """What differs between runs A and B.

    Attributes:
        torch_a, torch_b: versions; empty where they are not known.
        compared: stages that both have.
        differences: of each compiled function the first; the first of all stands first.
        settings_only_a, settings_only_b: names that the other torch does not know.
        passes_only_a, passes_only_b: passes that ran in one only, and changed nothing there.
        left_out: what could not be compared, and why.
    """

    torch_a: str
    torch_b: str
    compared: int
    differences: tuple[StageDifference, ...] = ()
    settings: tuple[Setting, ...] = ()
    settings_only_a: tuple[str, ...] = ()
    settings_only_b: tuple[str, ...] = ()
    passes_only_a: tuple[str, ...] = ()
    passes_only_b: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def outcome(self) -> Literal["same", "different", "undecided"]:
        """`undecided` where nothing differs, and something, or all, could not be compared."""
        names = (self.settings_only_a, self.settings_only_b, self.passes_only_a, self.passes_only_b)
        if self.differences or self.settings or any(names):
            return "different"
        return "undecided" if self.left_out or not self.compared else "same"


def diff_runs(a: Run, b: Run) -> RunDiff:
    """Compare stage by stage, in the order of the compiler."""
    return _Comparison(a, b).result()


class _Comparison:
    def __init__(self, a: Run, b: Run) -> None:
        self.a, self.b = a, b
        self.addresses = [{event.seq: address for address, event in run.artifacts().items()} for run in (a, b)]
        self.compared = 0
        self.left_out: list[str] = []
        self.only_a: dict[str, None] = {}
        self.only_b: dict[str, None] = {}

    def result(self) -> RunDiff:
        pairs = _aligned(self.a.models(), self.b.models(), _name)
        differences = [found for one, other in pairs if (found := self._model(one, other)) is not None]
        settings, only_a, only_b = self._settings(pairs)
        for run in (self.a, self.b):
            self.left_out += [f"{run.run_dir.name}: {text}" for text in (*run.problems, *run.manifest.missing)]
        return RunDiff(
            torch_a=self.a.manifest.torch or "",
            torch_b=self.b.manifest.torch or "",
            compared=self.compared,
            differences=tuple(differences),
            settings=settings,
            settings_only_a=only_a,
            settings_only_b=only_b,
            passes_only_a=tuple(self.only_a),
            passes_only_b=tuple(self.only_b),
            left_out=tuple(dict.fromkeys(self.left_out)),
        )

    def _model(self, one: Model | None, other: Model | None) -> StageDifference | None:
        if one is None or other is None:
            model, side = (one, "A") if one is not None else (other, "B")
            assert model is not None
            where = f"model__{model.number}"
            a, b = (where, "") if side == "A" else ("", where)
            return StageDifference(_name(model), where, "dynamo", f"only {side} compiles it", a, b)
        for first, second in _aligned(_stages(one), _stages(other), STAGE):
            found = self._stage(_name(one), first, second)
            if found is not None:
                return found
        return None

    def _stage(self, function: str, one: Event | None, other: Event | None) -> StageDifference | None:
        event = one if one is not None else other
        assert event is not None
        what = ""
        if one is None or other is None:
            side, seen = ("A", self.only_a) if other is None else ("B", self.only_b)
            if event.kind == "pass" and event.changed is False:
                seen[event.where.pass_name or event.name] = None
                return None
            what = (
                f"only {side} has it"
                if event.kind != "pass"
                else f"the pass runs in {side} only, and changes the graph"
            )
        elif (one.path is None) != (other.path is None):
            self.compared += 1
            what = f"the pass changes the graph in {'A' if other.path is None else 'B'} only"
        digest_a, digest_b = self._digest(self.a, one), self._digest(self.b, other)
        if one is not None and other is not None and not what:
            if digest_a is None or digest_b is None:
                return None
            self.compared += 1
            if digest_a == digest_b:
                return None
            what = self._of_code(one, other) if event.kind == "code" else "the graph differs"
            what = f"{what} after the pass" if event.kind == "pass" else what
        stage = bare_address(event).partition("/")[2]
        a, b = (
            "" if side is None else known.get(side.seq, bare_address(side))
            for side, known in zip((one, other), self.addresses, strict=True)
        )
        return StageDifference(function, stage, event.where.phase or "", what, a, b, digest_a or "", digest_b or "")

    def _of_code(self, one: Event, other: Event) -> str:
        kernels = [kernels_of(stage_text(run, event)) for run, event in ((self.a, one), (self.b, other))]
        same = kernels[0] and kernels[0] == kernels[1]
        return "the kernels are the same, the wrapper differs" if same else "the generated code differs"

    def _digest(self, run: Run, event: Event | None) -> str | None:
        """Empty for a stage that left no file; None where its file cannot be read."""
        if event is None or event.path is None:
            return ""
        try:
            return digest_from_bytes(stage_text(run, event).encode("utf-8", "backslashreplace"))
        except ArtifactNotFoundError as error:
            self.left_out.append(str(error))
            return None

    def _settings(
        self, pairs: Sequence[tuple[Model | None, Model | None]]
    ) -> tuple[tuple[Setting, ...], tuple[str, ...], tuple[str, ...]]:
        """The settings with other values, and the names that one of them alone has."""
        first, second = self.a.compiler_settings(), self.b.compiler_settings()
        if first is None or second is None:
            lacking = [run.run_dir.name for run, found in ((self.a, first), (self.b, second)) if found is None]
            self.left_out.append(f"the compilers' settings: {' and '.join(lacking)} has none that can be read")
            return (), (), ()
        found: dict[str, Setting] = {}
        for one, other in [(None, None), *pairs]:
            # What mode and options of a torch.compile set is known of its model.
            a = first | (one.compile.get("settings", {}) if one is not None and other is not None else {})
            b = second | (other.compile.get("settings", {}) if one is not None and other is not None else {})
            for name in a.keys() & b.keys():
                if "cache" not in name and plain_text(a[name]) != plain_text(b[name]):
                    found.setdefault(name, Setting(name, a[name], b[name]))
        only = [tuple(sorted(left.keys() - right.keys())) for left, right in ((first, second), (second, first))]
        return tuple(found[name] for name in sorted(found)), only[0], only[1]


def _name(model: Model) -> str:
    return str(model.compile.get("function") or "a graph")


def _stages(model: Model) -> list[Event]:
    """The events of the model that are stages, one direction after the other."""
    found = [event for event in model.events if event.kind in COMPARED]
    return sorted(found, key=lambda event: (event.where.piece or 0, ORDER.index(event.where.direction), event.seq))


def _aligned(
    a: Sequence[ItemT], b: Sequence[ItemT], key: Callable[[ItemT], Hashable]
) -> list[tuple[ItemT | None, ItemT | None]]:
    """Pairs of items with one key, in an order that both have; None beside what has no counterpart."""
    found: list[tuple[ItemT | None, ItemT | None]] = []
    matcher = difflib.SequenceMatcher(None, list(map(key, a)), list(map(key, b)), autojunk=False)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            found += zip(a[i1:i2], b[j1:j2], strict=True)
        else:
            found += [(item, None) for item in a[i1:i2]]
            found += [(None, item) for item in b[j1:j2]]
    return found


def told(diff: RunDiff) -> Iterator[str]:
    """The lines above the verdict."""
    if diff.torch_a != diff.torch_b:
        yield f"torch: {diff.torch_a or 'unknown'} in A, {diff.torch_b or 'unknown'} in B"
    for setting in diff.settings:
        yield f"setting: {setting.name}: {setting.a} in A, {setting.b} in B"
    for what, names_a, names_b in (
        ("settings known", diff.settings_only_a, diff.settings_only_b),
        ("passes that ran, and changed nothing", diff.passes_only_a, diff.passes_only_b),
    ):
        for side, names in (("A", names_a), ("B", names_b)):
            if names:
                yield f"{what}, in {side} only: {len(names)}: {_some(names)}"
    for difference in diff.differences:
        yield f"{difference.function}: differs first at {difference.stage}: {difference.what}"
    for text in diff.left_out:
        yield f"not compared: {text}"


def verdict(diff: RunDiff) -> str:
    """The answer in one line."""
    stages = counted(diff.compared, "stage")
    if diff.outcome == "same":
        return f"SAME: at every stage, of {diff.compared:,}; so are the settings of the compilers"
    if diff.outcome == "undecided":
        return (
            f"UNDECIDED: {stages} compared, none differs; {counted(len(diff.left_out), 'thing')} could not be compared"
        )
    causes = _some([setting.name for setting in diff.settings])
    if not diff.differences:
        also = [f"{counted(len(diff.settings), 'setting')} ({causes})"] if causes else []
        also += ["the names of settings"] if diff.settings_only_a or diff.settings_only_b else []
        also += ["the passes that ran"] if diff.passes_only_a or diff.passes_only_b else []
        return f"DIFFERENT: {' and '.join(also)}; no graph and no generated code differs, in {stages}"
    first = diff.differences[0]
    return (
        f"DIFFERENT: {first.function} differs first at {first.stage}: {first.what}"
        f"{f'; settings that differ: {causes}' if causes else ''}"
    )


def _some(names: Sequence[str]) -> str:
    rest = len(names) - LISTED
    return ", ".join(names[:LISTED]) + (f" and {rest} more" if rest > 0 else "")


def plain_text(text: str) -> str:
    """`text` without folders, line numbers of source files, addresses in memory, hashes and times."""
    for pattern, by in _REPLACED:
        text = pattern.sub(by, text)
    return text


def stage_text(run: Run, event: Event) -> str:
    """The event's file in that form; of generated code only the backend's own part, of a graph without source lines.

    Raises:
        ArtifactNotFoundError: the file cannot be read.
    """
    text = run.text(event)
    if event.kind == "code":
        text = _HOOK.sub("", text.partition(_ADDED)[0])
    else:
        text = "\n".join(line for line in _PLACE_OF_NODE.sub("", text).splitlines() if line.strip())
    return plain_text(text).rstrip() + "\n"


def kernels_of(text: str) -> list[str]:
    """The kernels in generated code: what the wrapper has as texts."""
    return _KERNEL.findall(text)
