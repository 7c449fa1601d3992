"""Which ops a layer selection means, and which of its tokens mean none."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Literal

import msgspec

from graphprobe.select.layers import LayerSelection, LayerToken, op_types, target_forms

How = Literal["name", "glob", "target", "module", "source", "name_ignoring_case", "type"]
_WEAKNESS = {"name_ignoring_case": 1, "type": 2}
_MAX_SUGGESTIONS = 20
_MAX_REMEMBERED = 20_000


class OpFacts(msgspec.Struct, frozen=True):
    """What is known of one op, or of one launch and the nodes it computes.

    Attributes:
        names: FX node names, and the names of the kernel and of its buffers.
        targets: operators, as `str(node.target)` gives them: `aten.add.Tensor`.
        modules: qualified module paths without a root name: `blocks.3.mlp`.
        sources: source lines as (file, line), the file with `/`, absolute or not.
    """

    names: tuple[str, ...]
    targets: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    sources: tuple[tuple[str, int], ...] = ()


class Match(msgspec.Struct, frozen=True):
    """A token that selects an op, and as what: its name, its operator, the module it is in, ..."""

    token: str
    how: How


class Unmatched(msgspec.Struct, frozen=True):
    """A token that selected nothing, and names that look like it."""

    token: str
    near: tuple[str, ...]


class LayerMatcher:
    """Matches the ops of a program against a selection, and remembers which tokens were of use.

    A token selects an op by, in this order: its exact name, a glob, its operator (with or without the overload), a
    module it is in, or a source line of it; else its name in another case (`Add_1`); else its type in any case (`Add`
    for `aten.add.Tensor`). A weaker way counts only where no op of the graph is selected in a stronger one.
    """

    def __init__(self, selection: LayerSelection) -> None:
        self._tokens = selection.tokens
        self._literals = {token.text: at for at, token in enumerate(self._tokens) if token.kind == "literal"}
        self._literals_at = frozenset(self._literals.values())
        self._folded: dict[str, list[int]] = {}
        for text, at in self._literals.items():
            self._folded.setdefault(text.lower(), []).append(at)
        self._others = [(at, token) for at, token in enumerate(self._tokens) if token.kind != "literal"]
        self._used: set[int] = set()
        self._named: dict[int, str] = {}
        """By position of a token that named something in some graph, the name that it has there."""
        self._typed: dict[int, str] = {}
        """By position of a token that meant a type in some graph, the operator of the first op so selected."""
        self._seen: dict[str, None] = {}

    def match(self, op: OpFacts) -> tuple[Match, ...]:
        """The tokens that select an op which belongs to no graph, each in the strongest way it does."""
        return self.choose([op])[0]

    def choose(self, ops: Sequence[OpFacts]) -> list[tuple[Match, ...]]:
        """For each op of one graph the tokens that select it, in the order they were written; empty if none does."""
        found = [self._ways(op) for op in ops]
        best: dict[int, int] = {}
        for ways in found:
            for at, how in ways.items():
                weakness = _WEAKNESS.get(how, 0)
                best[at] = min(weakness, best.get(at, weakness))
        self._used |= best.keys()
        self._note_meanings(ops, found, best)
        for op in ops:
            if len(self._seen) < _MAX_REMEMBERED:
                self._seen.update(dict.fromkeys((*op.names, *op.modules, *op.targets)))
        return [
            tuple(
                Match(self._tokens[at].text, how)
                for at, how in sorted(ways.items())
                if _WEAKNESS.get(how, 0) == best[at]
            )
            for ways in found
        ]

    def unmatched(self) -> list[Unmatched]:
        """The tokens that have selected nothing so far, with similar names among what was there."""
        left = [token for at, token in enumerate(self._tokens) if at not in self._used]
        by_folded = {name.lower(): name for name in self._seen} if left else {}
        result = []
        for number, token in enumerate(left):
            text = token.text.lower()
            near = difflib.get_close_matches(text, by_folded, n=3) if number < _MAX_SUGGESTIONS else []
            result.append(Unmatched(token.text, tuple(by_folded[name] for name in near)))
        return result

    def complaints(self) -> list[str]:
        """What the user should know of the tokens, a sentence each: one of no use, one that meant two things."""
        result = []
        for left in self.unmatched():
            near = f"; similar: {', '.join(left.near)}" if left.near else ""
            result.append(f"{left.token!r} matched no op{near}")
        for at in sorted(self._named & self._typed.keys()):
            text, name, target = self._tokens[at].text, self._named[at], self._typed[at]
            result.append(
                f"{text!r} names an op or a module in one graph; another has none of that name, and there it selected "
                f"every op of that type: {target} means the type in each graph, {name[:-1]}[{name[-1]}] the name"
            )
        return result

    def _note_meanings(self, ops: Sequence[OpFacts], found: Sequence[dict[int, How]], best: dict[int, int]) -> None:
        """Which tokens have named something, and which have meant a type: one that does both is no name to rely on."""
        for op, ways in zip(ops, found, strict=True):
            for at, how in ways.items():
                if at not in self._literals_at or _WEAKNESS.get(how, 0) != best[at]:
                    continue
                text = self._tokens[at].text.lower()
                if how == "type":
                    target = next(t for t in op.targets if text in map(str.lower, op_types(t)))
                    self._typed.setdefault(at, target_forms(target)[-1])
                elif at not in self._named:
                    self._named[at] = next((name for name in op.names if name.lower() == text), self._tokens[at].text)

    def _ways(self, op: OpFacts) -> dict[int, How]:
        """By position of the token, the strongest way in which it selects the op."""
        ways: dict[int, How] = {}
        for how, name in _exact_names(op):
            if name in self._literals:
                ways.setdefault(self._literals[name], how)
        for at, token in self._others:
            if token.kind == "source":
                if any(_is_at(token, file, line) for file, line in op.sources):
                    ways[at] = "source"
            elif any(fnmatchcase(name, token.text) for _, name in _exact_names(op)):
                ways[at] = "glob"
        for name in op.names:
            for at in self._folded.get(name.lower(), ()):
                ways.setdefault(at, "name_ignoring_case")
        for target in op.targets:
            for kind in op_types(target):
                for at in self._folded.get(kind.lower(), ()):
                    ways.setdefault(at, "type")
        return ways


def _exact_names(op: OpFacts) -> Iterator[tuple[How, str]]:
    for name in op.names:
        yield "name", name
    for target in op.targets:
        for form in target_forms(target):
            yield "target", form
    for module in op.modules:
        parts = module.split(".")
        for length in range(len(parts), 0, -1):
            yield "module", ".".join(parts[:length])


def _is_at(token: LayerToken, file: str, line: int) -> bool:
    if token.first is not None and token.last is not None and not token.first <= line <= token.last:
        return False
    if file == token.file or file.endswith("/" + token.file):
        return True
    return fnmatchcase(file, token.file) or fnmatchcase(file, "*/" + token.file)
