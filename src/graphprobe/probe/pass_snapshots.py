"""One direction of one model: its graph, the graph after each pass that changed it, and every pass as an event.

Whether a pass changed a graph is asked of identities first, which is many times cheaper than a fingerprint.
"""

from __future__ import annotations

import threading
import time
import traceback
from typing import Any

import msgspec

from graphprobe.engine.subgraph import attribute
from graphprobe.internals.context import Frame
from graphprobe.probe.formats import Script
from graphprobe.probe.formats.fx_text import META_KEYS, fingerprint_from, graph_text, node_marks, node_names
from graphprobe.probe.graph_facts import GraphFacts, Runs
from graphprobe.records import Direction, Kind, Where
from graphprobe.store import layout
from graphprobe.store.writer import RunWriter, WrittenFile

UNOBSERVED = "unobserved_changes"
"""Pass name of changes made where the compiler announces no pass."""

NESTED = "changes_in_nested_graphs"
"""Pass name of the new text of a graph of which only nested graphs have changed, whose own series tell how."""


class Snapshot(msgspec.Struct):
    """A graph as it last was.

    Attributes:
        print: its fingerprint.
        text: with the graphs nested in it.
        own: its fingerprint without the graphs nested in it.
        names: of all nodes.
        graphs: its nodes among the records of the model.
        file: the file that holds the text; None: not written.
        nested: graphs nested in it that have changed since in their own series.
    """

    print: bytes
    text: str
    own: bytes
    names: tuple[str, ...]
    graphs: Runs
    file: WrittenFile | None = None
    nested: set[str] = msgspec.field(default_factory=set)

    @property
    def path(self) -> str | None:
        return self.file.path if self.file is not None else None


PassStarted = tuple[Snapshot, int, str | None]
"""From the start of a pass to its end: the last snapshot, the time in nanoseconds, which nested graph it works on."""


class Trail:
    """Numbers and writes the graphs of one direction. Files are numbered from 000 without gaps.

    Nested graphs (branches of `cond`, bodies of loops) have a snapshot each, told apart by their attribute name.
    """

    def __init__(self, writer: RunWriter, where: Where, facts: GraphFacts) -> None:
        assert where.direction is not None
        self._writer = writer
        self._facts = facts
        self._where = where
        self._direction: Direction = where.direction
        self._lock = threading.RLock()
        self._number = 0
        self._last: dict[str | None, Snapshot] = {}
        self._watches: dict[str | None, GraphWatch] = {}
        self._root: Any = None
        self._started: Any = None
        self._told: set[tuple[int, str]] = set()

    def graph(self, gm: Any, *, phase: str, made_by: str | None = None) -> None:
        """The graph itself, and what made it, if that is known; the second time only what changed since is written."""
        with self._lock:
            first = self._root is None
            self._root = gm
            if not first:
                self._catch_up(gm, None, phase, by=made_by)
                return
            self._watch(None).look(gm)
            snapshot = self._snapshot_of(gm)
            self._last[None] = snapshot
            name = layout.graph_name(self._direction)
            snapshot.file = self._write(layout.graph_file(self._where, number=self._number), snapshot)
            nodes = len(snapshot.names)
            message = f"by {made_by}" if made_by is not None else None
            self._event("graph", name, phase=phase, file=snapshot.file, nodes_after=nodes, message=message)

    def phase_begins(self, frame: Frame, gm: Any) -> str | None:
        """Catch changes that were made since the last snapshot, and learn which object is the graph now.

        Returns the name of the nested graph that this is, None for the graph itself.
        """
        with self._lock:
            if frame.root is not None and frame.subgraph is None and frame.root is not self._started:
                self._started = frame.root
                self._is_now(frame.root, frame)
            label = self._label(frame, gm)
            if label is not None and label == frame.subgraph and frame.root is not None:
                inside = _path_of(gm, frame.root)
                label += f".{inside}" if inside is not None else ""
            if label is None:
                self._is_now(gm, frame)
            else:
                self._catch_up(gm, label, f"before_{frame.phase}")
            return label

    def _is_now(self, gm: Any, frame: Frame) -> None:
        """`gm` is the graph itself."""
        if self._root is None:
            self.graph(gm, phase=frame.phase or "")
            return
        self._root = gm
        self._catch_up(gm, None, f"before_{frame.phase}")

    def phase_ends(self, frame: Frame, gm: Any, error: BaseException | None) -> None:
        """Changes of passes that announce themselves to nobody."""
        with self._lock:
            label = self._label(frame, gm)
            if error is not None:
                self.failed(frame, frame.phase or "compile", error, label=label)
                return
            if label is None:
                self._root = gm
            self._catch_up(gm, label, frame.phase or "")

    def pass_begins(self, frame: Frame, gm: Any, name: str) -> PassStarted:
        with self._lock:
            label = self._label(frame, gm)
            if label is None and self._root is None:
                self.graph(gm, phase=frame.phase or "")
            last = self._catch_up(gm, label, f"before_{name}")
            return last, time.perf_counter_ns(), label

    def pass_ends(
        self, frame: Frame, gm: Any, name: str, started: PassStarted, error: BaseException | None, subsystem: str | None
    ) -> None:
        last, started_ns, label = started
        elapsed = time.perf_counter_ns() - started_ns
        with self._lock:
            if error is not None:
                self.failed(frame, name, error, label=label, elapsed_ns=elapsed)
                return
            snapshot = self._snapshot(gm, label, name)
            changed = snapshot.text != last.text
            self._event(
                "pass",
                name,
                phase=frame.phase,
                label=label,
                pass_name=name,
                changed=changed,
                file=snapshot.file if changed else None,
                before=last.path,
                elapsed_ns=elapsed,
                subsystem=subsystem,
                **_counts(last.names, snapshot.names),
            )

    def failed(
        self,
        frame: Frame,
        name: str,
        error: BaseException,
        *,
        label: str | None = None,
        elapsed_ns: int | None = None,
        graph: str | None = None,
        graphs: Runs = (),
    ) -> None:
        """The graph as it was before a pass or stage that raised, with the traceback; once for each error.

        `graph` is its text, `graphs` its records, where the direction has none of its own yet: the backend raised
        before AOTAutograd.
        """
        with self._lock:
            if self.has_told(error):
                return
            self._told.add(_identity(error))
            last = self._last.get(label) or self._last.get(None)
            trace = "".join(traceback.format_exception(error))
            head = "".join(f"# {line}\n" for line in f"{name} raised:\n{trace}".splitlines())
            seen = graph or (last.text if last is not None else "# (none was seen)")
            path = layout.failure_file(self._where, name, number=self._number, aot=graph is None)
            file = self._writer.write_text(path, f"{head}\n# The graph before it:\n{seen}\n")
            self._number += file is not None
            self._facts.write(file, graphs if graph is not None or last is None else last.graphs)
            message = f"{type(error).__name__}: {error}"
            self._event(
                "failure",
                name,
                phase=frame.phase,
                label=label,
                pass_name=name,
                file=file,
                elapsed_ns=elapsed_ns,
                message=message,
            )

    def has_told(self, error: BaseException) -> bool:
        """Whether the error, or one that it was raised from, has left its file already."""
        with self._lock:
            return any(_identity(one) in self._told for one in _chain(error))

    @property
    def text(self) -> str:
        """The graph as last seen."""
        with self._lock:
            last = self._last.get(None)
            return last.text if last is not None else ""

    def settle(self) -> None:
        """Let go of the graph and of what is known about it; its files stay, and numbers go on from there."""
        with self._lock:
            self._root = self._started = None
            self._last.clear()
            self._watches.clear()

    def write_numbered(self, path_from_number: Any, text: str) -> WrittenFile | None:
        """Write a file that takes the direction's next number; `path_from_number(number)` names it."""
        with self._lock:
            file = self._writer.write_text(path_from_number(self._number), text)
            self._number += file is not None
            return file

    def write_beside(self, script: WrittenFile | None, view: Script, *, phase: str) -> None:
        """The data file that a generated script reads on start, if it has one, and was written itself."""
        if script is None or view.constants is None:
            return
        folder, _, base = script.path.rpartition("/")
        name = view.constants_name.format(stem=base.rpartition(".")[0])
        file = self._writer.write_bytes(f"{folder}/{name}", view.constants)
        self._event("inputs", name, phase=phase, file=file)

    def _label(self, frame: Frame, gm: Any) -> str | None:
        """Attribute name of a nested graph module, None for the graph itself."""
        found = None if self._root is None else _path_of(gm, self._root)
        if found is None and frame.subgraph is not None and gm is not self._root:
            return frame.subgraph
        return found

    def _catch_up(self, gm: Any, label: str | None, stage: str, *, by: str | None = None) -> Snapshot:
        """Write the graph if it is not as last seen; `by`: what has changed it, if that is known."""
        last = self._last.get(label)
        if last is None:
            # A nested graph is part of the outer one's text: a file of its own only once a pass changes it.
            self._watch(label).look(gm)
            self._last[label] = self._snapshot_of(gm)
            return self._last[label]
        name = NESTED if last.nested and _own_print(gm) == last.own else UNOBSERVED
        now = self._snapshot(gm, label, by or f"{name}_{stage}")
        if now is not last:
            self._event(
                "pass",
                by or name,
                phase=stage,
                label=label,
                pass_name=by,
                changed=True,
                file=now.file,
                before=last.path,
                **_counts(last.names, now.names),
            )
        return now

    def _snapshot(self, gm: Any, label: str | None, name: str) -> Snapshot:
        """The last snapshot if it shows the graph as it is, else a new one, written.

        Three looks, each dearer and surer than the one before: identities, fingerprint, text. The fingerprint may see
        what the text does not show; what nobody can see is no change.
        """
        last = self._last.get(label)
        if not self._watch(label).look(gm) and last is not None:
            return last
        marks = node_marks(gm)
        print_ = fingerprint_from(marks)
        if last is not None and last.print == print_:
            return last
        text = graph_text(gm)
        if last is not None and last.text == text:
            last.print = print_
            return last
        if last is not None and last.file is None and label is not None:
            path = layout.pass_file(self._where, f"start__{label}", number=self._number)
            last.file = self._write(path, last)
            self._event("graph", label, phase=None, label=label, file=last.file, nodes_after=len(last.names))
        snapshot = self._snapshot_of(gm, marks=marks, text=text)
        for around, outer in self._last.items():
            if label is not None and (around is None or label.startswith(f"{around}.")):
                outer.nested.add(label)
        suffix = f"__{label}" if label is not None else ""
        path = layout.pass_file(self._where, f"{name}{suffix}", number=self._number)
        snapshot.file = self._write(path, snapshot)
        self._last[label] = snapshot
        return snapshot

    def _watch(self, label: str | None) -> GraphWatch:
        return self._watches.setdefault(label, GraphWatch())

    def _write(self, path: str, snapshot: Snapshot) -> WrittenFile | None:
        file = self._writer.write_text(path, snapshot.text)
        self._number += file is not None
        self._facts.write(file, snapshot.graphs)
        return file

    def _snapshot_of(self, gm: Any, *, marks: dict[int, list[str]] | None = None, text: str | None = None) -> Snapshot:
        marks = node_marks(gm) if marks is None else marks
        return Snapshot(
            fingerprint_from(marks),
            text if text is not None else graph_text(gm),
            _own_print(gm, marks),
            tuple(node_names(gm)),
            self._facts.take(gm, marks),
        )

    def _event(
        self,
        kind: Kind,
        name: str,
        *,
        phase: str | None,
        label: str | None = None,
        pass_name: str | None = None,
        **fields: Any,
    ) -> None:
        where = msgspec.structs.replace(self._where, phase=phase, subgraph=label, pass_name=pass_name)
        self._writer.event(where=where, kind=kind, name=name, **fields)


def _own_print(gm: Any, marks: dict[int, list[str]] | None = None) -> bytes:
    """The fingerprint of a graph without those nested in it."""
    return fingerprint_from({0: (node_marks(gm) if marks is None else marks)[id(gm)]})


def _counts(before: tuple[str, ...], after: tuple[str, ...]) -> dict[str, Any]:
    """Of an event: how many nodes there were and are, and which came and went."""
    old, new = set(before), set(after)
    return {
        "nodes_before": len(before),
        "nodes_after": len(after),
        "added": tuple(name for name in after if name not in old),
        "removed": tuple(name for name in before if name not in new),
    }


def _path_of(gm: Any, root: Any) -> str | None:
    """Attribute name of a nested graph module, None where it is not inside."""
    return next((name for name, module in root.named_modules() if module is gm and name), None)


def _identity(error: BaseException) -> tuple[int, str]:
    """Tells errors apart without keeping one alive: its traceback holds the program's tensors."""
    return id(error), f"{type(error).__name__}: {error}"


def _chain(error: BaseException) -> list[BaseException]:
    """The error and everything it was raised from: torch wraps what a backend raises."""
    found: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and not any(current is one for one in found):
        found.append(current)
        current = current.__cause__ or current.__context__
    return found


class GraphWatch:
    """Remembers the objects that a graph is made of.

    FX gives a node new argument tuples whenever its arguments change, so where every object is the very one that was
    there before, nothing has changed. Where one is not, something may have: then a fingerprint has to tell. The objects
    are kept alive, so that an identity cannot come back in another object.
    """

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: list[tuple[Any, ...]] | None = None

    def look(self, gm: Any) -> bool:
        """False if nothing can have changed since the last look; True also for the first."""
        now: list[tuple[Any, ...]] = []
        _collect(gm, now, set())
        before, self._seen = self._seen, now
        if before is None or len(before) != len(now):
            return True
        for old, new in zip(before, now, strict=True):
            # Compared one by one with `is`: `==` on nodes, tensors or arrays would compute something.
            for left, right in zip(old, new, strict=True):
                if left is not right:
                    return True
        return False


def _collect(gm: Any, into: list[tuple[Any, ...]], seen: set[int]) -> None:
    seen.add(id(gm))
    modules = gm._modules
    for node in gm.graph.nodes:
        meta = node.meta
        held = attribute(gm, node.target) if node.op == "get_attr" else None
        seen_now = [meta.get(key) for key in META_KEYS]
        into.append((node, node.name, node.op, node.target, node._args, node._kwargs, held, *seen_now))
    for nested in modules.values():
        if hasattr(nested, "graph") and id(nested) not in seen:
            _collect(nested, into, seen)
