"""The data of the view `flame`: where compile time went, equal stacks of steps merged into one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from graphprobe.analysis.recompiles import function_name
from graphprobe.analysis.steps import COMPONENTS
from graphprobe.analysis.timing_records import Profile
from graphprobe.report.document import Note, Section, counted
from graphprobe.report.html.sources import Sources
from graphprobe.store.step_file import StepRecord

MOST_NODES = 6_000
"""Of the tree; the smallest boxes beyond are left out, and counted."""

_NAMES = {
    ("dynamo", "trace"): "trace the Python code",
    ("backend", "compile"): "compile the graph",
    ("inductor", "compile"): "compile with Inductor",
}
"""Names that need more words where they stand alone."""

_RUN = "run"
"""Component of steps that run what was compiled: no time of compiling."""


class Box(msgspec.Struct, omit_defaults=True):
    """One box: equal steps in equal surroundings.

    Attributes:
        name: what is done.
        kind: who works: a component, or the kind of a span.
        ns: wall time, with what is inside.
        count: how many steps.
        place: `file:line`, where one is known.
        inside: the boxes in it, the longest first.
        left: boxes in it that are left out, being too small.
    """

    name: str
    kind: str = ""
    ns: int = 0
    count: int = 0
    place: str = ""
    inside: list[Box] = []
    left: int = 0


class _Tree:
    """Merges: a box for each name under one parent."""

    def __init__(self) -> None:
        self.root = Box("compiling")
        self._children: dict[int, dict[str, Box]] = {}

    def add(self, parent: Box, name: str, kind: str, place: str = "") -> Box:
        under = self._children.setdefault(id(parent), {})
        box = under.get(name)
        if box is None:
            box = under[name] = Box(name, kind, place=place, inside=[])
            parent.inside.append(box)
        return box

    def finished(self) -> Box:
        """The tree in the order of time, no larger than `MOST_NODES`."""
        if self.root.ns == 0:
            self.root.ns = sum(box.ns for box in self.root.inside)
            self.root.count = sum(box.count for box in self.root.inside)
        sizes: list[int] = []
        stack = [self.root]
        while stack:
            box = stack.pop()
            box.inside.sort(key=lambda one: -one.ns)
            sizes.append(box.ns)
            stack += box.inside
        if len(sizes) > MOST_NODES:
            limit = sorted(sizes, reverse=True)[MOST_NODES]
            stack = [self.root]
            while stack:
                box = stack.pop()
                kept = [one for one in box.inside if one.ns > limit]
                box.left = len(box.inside) - len(kept)
                box.inside = kept
                stack += kept
        return self.root


class _Beside:
    """Steps of threads that only build: they run while another thread waits for them, and are no time of compiling."""

    def __init__(self) -> None:
        self._ns = self._count = 0
        self._names: dict[str, None] = {}

    def takes(self, step: StepRecord, took: int) -> bool:
        if step.compile_id is not None:
            return False
        self._ns += took
        self._count += 1
        self._names[step.name] = None
        return True

    def told(self) -> str:
        if not self._count:
            return ""
        steps, names = counted(self._count, "step"), ", ".join(self._names)
        return f"Beside it, threads of their own spent {self._ns / 1e9:.1f} s in {steps}: {names}."


def flame_section(root: Box, note: str = "") -> Section | None:
    """The section of a tree; None where no time was spent."""
    if not root.ns:
        return None
    return Section("flame", "Compile time", "flame", root, Note(note), f"{root.ns / 1e9:.1f} s")


def tree_from_steps(steps: Sequence[StepRecord], sources: Sources) -> tuple[Box, str]:
    """Of the steps of a run: functions, and below them the steps inside each other.

    Steps of one thread lie inside each other. A step that did not end has no time of its own; what is inside counts.

    Returns:
        the tree, and a sentence on what threads did beside it that compile nothing of their own: they build C++.
    """
    tree = _Tree()
    beside = _Beside()
    open_steps: dict[int | None, list[tuple[StepRecord, Box]]] = {}
    functions = _functions(steps)
    for step in steps:
        stack = open_steps.setdefault(step.thread, [])
        while stack and (stack[-1][0].end_ns or step.begin_ns) <= step.begin_ns and stack[-1][0].end_ns is not None:
            stack.pop()
        took = max(0, (step.end_ns or step.begin_ns) - step.begin_ns)
        if step.component == _RUN or (not stack and beside.takes(step, took)):
            continue
        if stack:
            parent = stack[-1][1]
        else:
            name, place = functions.get(step.compile_id, (f"compile {step.compile_id or '?'}", ""))
            place = sources.short(place)
            sources.link(place)
            parent = tree.add(tree.root, name, "function", place)
        component = COMPONENTS.get(step.component, step.component)
        box = tree.add(parent, _NAMES.get((step.component, step.name), step.name), component)
        box.ns += took
        box.count += 1
        if not stack:
            parent.ns += took
            parent.count += 1
        stack.append((step, box))
    return tree.finished(), beside.told()


def tree_from_profile(profile: Profile, sources: Sources) -> Box:
    """Of the spans of a profile: compile ids with their functions, and below them the spans inside each other."""
    tree = _Tree()
    names = {
        compiled.compile_id: (
            f"{function_name(compiled.function or '?')}  [{compiled.compile_id}]",
            f"{compiled.file}:{compiled.line}" if compiled.file else "",
        )
        for compiled in reversed(profile.compiles)
    }
    boxes: list[Box] = []
    outside = Box("not compiling")
    for span in profile.spans:
        took = span.end_ns - span.begin_ns
        if span.parent >= 0:
            parent = boxes[span.parent]
        elif span.kind not in ("phase", "pass"):
            # Imports before the first compile, and builds on other threads: told beside the flame, as in the text.
            parent = outside
        else:
            name, place = names.get(span.compile_id, (f"compile {span.compile_id or '?'}", ""))
            place = sources.short(place)
            sources.link(place)
            parent = tree.add(tree.root, name, "function", place)
            parent.ns += took
            parent.count += 1
        box = tree.add(parent, span.name, span.kind)
        box.ns += took
        box.count += 1
        boxes.append(box)
    return tree.finished()


def largest(root: Box, most: int = 8) -> list[tuple[str, str, int, int]]:
    """The names with the most time of their own: name, kind, ns, count; what a flame shows, as a list."""
    own: dict[tuple[str, str], list[int]] = {}
    stack: list[Box] = list(root.inside)
    while stack:
        box = stack.pop()
        stack += box.inside
        found = own.setdefault((box.name, box.kind), [0, 0])
        found[0] += max(0, box.ns - sum(one.ns for one in box.inside))
        found[1] += box.count
    rows = [(name, kind, ns, count) for (name, kind), (ns, count) in own.items() if ns]
    return sorted(rows, key=lambda row: -row[2])[:most]


def _functions(steps: Iterable[StepRecord]) -> dict[str | None, tuple[str, str]]:
    """Name and place of what each compile id compiled, from the detail of Dynamo's step: `f (file.py:12)`."""
    found: dict[str | None, tuple[str, str]] = {}
    for step in steps:
        if step.component == "dynamo" and step.name == "trace" and step.compile_id not in found:
            name, bracket, place = step.detail.rpartition(" (")
            found[step.compile_id] = (
                f"{name or step.detail}  [{step.compile_id}]",
                place.rstrip(")") if bracket else "",
            )
    return found
