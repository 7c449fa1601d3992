"""Functions and classes that were made inside of functions, and what they take from there."""

from __future__ import annotations

import ast
import dis
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from graphprobe.diagnose.program_text.plain_values import Unwritable
from graphprobe.probe.frames.encoding import Encoded

LOCALS = "<locals>."


@dataclass
class Member:
    """One of them: its number among the objects, its name and text, what it takes by name."""

    number: int
    name: str
    node: ast.stmt | ast.Lambda
    takes: dict[str, Encoded]


@dataclass
class FunctionGroup:
    """Those that one call of a function made: a name means the same in all of them.

    Attributes:
        module: name of their module.
        maker: name of the function around them.
        members: in the order of the text.
        given: what they take and is none of them, by name.
    """

    module: str
    maker: str
    members: list[Member] = field(default_factory=list)
    given: dict[str, Encoded] = field(default_factory=dict)

    def fits(self, member: Member) -> bool:
        """Whether the member's names mean here what they mean to it."""
        means: dict[str, Any] = {}
        for other in self.members:
            means |= other.takes | {other.name: {"ref": other.number}}
        mine = member.takes | {member.name: {"ref": member.number}}
        return all(means.get(name, value) == value for name, value in mine.items())

    def close(self) -> None:
        """All members are there."""
        self.members.sort(key=lambda member: (member.node.lineno, member.node.col_offset))
        names = {member.name: member.number for member in self.members}
        for member in self.members:
            self.given |= {name: value for name, value in member.takes.items() if name not in names}


def is_local(record: Mapping[str, Any]) -> bool:
    """Whether it is a function or class that stands directly in a function."""
    name = record.get("qualname", "")
    return record.get("kind") in ("function", "class") and LOCALS in name and "." not in name.rpartition(LOCALS)[2]


def closure_groups(
    objects: Sequence[Mapping[str, Any]],
    node_of: Callable[[Mapping[str, Any]], ast.stmt | ast.Lambda],
    live: Callable[[int], Any],
) -> dict[int, FunctionGroup]:
    """The group of each, by its number.

    Raises:
        Unwritable: two groups would have to share a variable that one of them sets.
    """
    found: dict[int, FunctionGroup] = {}
    groups: list[FunctionGroup] = []
    users: dict[int, set[int]] = {}
    for number, record in enumerate(objects):
        if not is_local(record):
            continue
        name, takes = record["qualname"].rpartition(LOCALS)[2], _takes(objects, record)
        name = f"function_{number}" if name == "<lambda>" else name
        member = Member(number, name, node_of(record), takes)
        prefix = record["qualname"].rpartition(f".{LOCALS}")[0]
        alike = [g for g in groups if (g.module, g.maker) == (record["module"], prefix)]
        group = next((g for g in alike if g.fits(member)), None)
        if group is None:
            group = FunctionGroup(record["module"], prefix)
            groups.append(group)
        group.members.append(member)
        found[number] = group
        for cell in record["closure"] if record["kind"] == "function" else ():
            users.setdefault(cell["ref"], set()).add(number)
    for cell, numbers in users.items():
        if len({id(found[n]) for n in numbers}) > 1 and any(_sets(live(n), live(cell)) for n in numbers):
            raise Unwritable("a function sets a variable that others made elsewhere share")
    for group in groups:
        group.close()
    return found


def _takes(objects: Sequence[Mapping[str, Any]], record: Mapping[str, Any]) -> dict[str, Encoded]:
    if record["kind"] == "class":
        return dict(record["closure"])
    found = {}
    for name, cell in zip(record["free"], record["closure"], strict=True):
        held = objects[cell["ref"]]
        if "value" not in held:
            raise Unwritable(f"{record['qualname']} takes {name} from the function around it, where it has no value")
        found[name] = held["value"]
    return found


def _sets(function: FunctionType, cell: Any) -> bool:
    """Whether a function gives the variable in a cell another value."""
    names = {n for n, c in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True) if c is cell}
    return any(i.opname == "STORE_DEREF" and i.argval in names for i in dis.get_instructions(function.__code__))
