"""The data of the view `flame`: where compile time went, equal stacks of steps merged into one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from graphprobe.analysis.recompiles import function_name
from graphprobe.analysis.steps import COMPONENTS
from graphprobe.analysis.timing import Profile
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


Names = Mapping[str | None, tuple[str, str]]
"""Name and place of what each compile id compiled."""


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

    def function(self, names: Names, compile_id: str | None, sources: Sources) -> Box:
        """The box of what a compile id compiled."""
        name, place = names.get(compile_id, (f"compile {compile_id or '?'}", ""))
        return self.add(self.root, name, "function", sources.linked(place))

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
    beside: list[str] = []
    beside_ns = 0
    open_steps: dict[int | None, list[tuple[StepRecord, Box]]] = {}
    functions = _functions(steps)
    for step in steps:
        stack = open_steps.setdefault(step.thread, [])
        while stack and (stack[-1][0].end_ns or step.begin_ns) <= step.begin_ns and stack[-1][0].end_ns is not None:
            stack.pop()
        took = max(0, (step.end_ns or step.begin_ns) - step.begin_ns)
        if step.component == _RUN:
            continue
        if not stack and step.compile_id is None:
            # A thread that only builds, while another one waits for it: no time of compiling.
            beside.append(step.name)
            beside_ns += took
            continue
        parent = stack[-1][1] if stack else tree.function(functions, step.compile_id, sources)
        component = COMPONENTS.get(step.component, step.component)
        box = tree.add(parent, _NAMES.get((step.component, step.name), step.name), component)
        box.ns += took
        box.count += 1
        if not stack:
            parent.ns += took
            parent.count += 1
        stack.append((step, box))
    steps_said, names = counted(len(beside), "step"), ", ".join(dict.fromkeys(beside))
    said = f"Beside it, threads of their own spent {beside_ns / 1e9:.1f} s in {steps_said}: {names}."
    return tree.finished(), said if beside else ""


def tree_from_profile(profile: Profile, sources: Sources) -> Box:
    """Of the spans of a profile: compile ids with their functions, and below them the spans inside each other."""
    tree = _Tree()
    names: Names = {
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
            parent = tree.function(names, span.compile_id, sources)
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


def _functions(steps: Iterable[StepRecord]) -> Names:
    """From the detail of Dynamo's step: `f (file.py:12)`."""
    found: dict[str | None, tuple[str, str]] = {}
    for step in steps:
        if step.component == "dynamo" and step.name == "trace" and step.compile_id not in found:
            name, bracket, place = step.detail.rpartition(" (")
            found[step.compile_id] = (
                f"{name or step.detail}  [{step.compile_id}]",
                place.rstrip(")") if bracket else "",
            )
    return found
