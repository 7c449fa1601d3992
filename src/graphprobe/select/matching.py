"""Matches ops by name, glob, operator, module path or source line, and names tokens of `dump_layer` without a match."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Literal

import msgspec

from graphprobe.errors import SettingError

MAX_TEXT = 1_000_000
"""Longest text that is read, in characters."""

_SOURCE = re.compile(r"(?P<file>.*\.py)(?::(?P<lines>.*))?", re.DOTALL)
_LINES = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", re.ASCII)
_HINT = "an op's name, a glob, an operator such as aten.add, a module path such as blocks.3.mlp, or file.py:12"

How = Literal["name", "glob", "target", "module", "source", "name_ignoring_case", "type"]
_WEAKNESS = {"name_ignoring_case": 1, "type": 2}
_MAX_SUGGESTIONS = 20
_MAX_REMEMBERED = 20_000


class LayerToken(msgspec.Struct, frozen=True):
    """One item of a layer list.

    Attributes:
        text: as it was written, with `aten::add` as `aten.add` and without a leading `torch.ops.`.
        kind: `source` for `file.py`, `file.py:12` and `file.py:12-20`; `glob` if it has one of `*?[`; else `literal`.
        file: for `source`, the file; it may begin with folders.
        first, last: for `source`, the lines, both included, from 1; None stands for the whole file.
    """

    text: str
    kind: Literal["literal", "glob", "source"]
    file: str = ""
    first: int | None = None
    last: int | None = None


class LayerSelection(msgspec.Struct, frozen=True):
    """A union of tokens; `LayerMatcher` tells which ops they select."""

    tokens: tuple[LayerToken, ...]

    def __str__(self) -> str:
        return " ".join(token.text for token in self.tokens)


def layers_from_text(text: str) -> LayerSelection:
    """The selection that `text` names: tokens separated by white space; one that stands twice counts once.

    Raises:
        SettingError: no token, one that nothing can match, or a text longer than `MAX_TEXT`.
    """
    if len(text) > MAX_TEXT:
        raise SettingError(f"{len(text)} characters are too many for a list of ops", hint=f"at most {MAX_TEXT}")
    words = text.split()
    if not words:
        raise SettingError("no op is named", hint=_HINT)
    return LayerSelection(tuple({token.text: token for token in map(token_from_text, words)}.values()))


def layers_from_list(entries: Sequence[str]) -> LayerSelection:
    """The selection of a list with one token an entry; a file's path may then contain spaces.

    Raises:
        SettingError: as for `layers_from_text`; and an entry that stands twice.
    """
    tokens: dict[str, LayerToken] = {}
    for entry in entries:
        token = token_from_text(entry.strip())
        if token.text in tokens:
            raise SettingError(f"{_shown(entry)} stands twice", hint="name it once")
        tokens[token.text] = token
    if not tokens:
        raise SettingError("no op is named", hint=_HINT)
    return LayerSelection(tuple(tokens.values()))


def token_from_text(text: str) -> LayerToken:
    """One token.

    Raises:
        SettingError: it is empty, or nothing can have such a name.
    """
    if not text or not text.isprintable():
        raise SettingError(f"{_shown(text)} is no name of an op", hint=_HINT)
    source = _SOURCE.fullmatch(text)
    if source:
        return _source_token(text, source["file"], source["lines"])
    text = text.replace("::", ".").removeprefix("torch.ops.")
    bad = next((character for character in text if character in ",;|:\"'\\ " or character.isspace()), None)
    if bad is not None or not text:
        more = "several are separated by spaces, or are entries of a list" if bad else _HINT
        raise SettingError(f"{_shown(text)} is no name of an op: it contains {bad!r}", hint=more)
    return LayerToken(text, "glob" if any(character in "*?[" for character in text) else "literal")


def name_matches(pattern: str, names: Iterable[str]) -> bool:
    """Whether one of an op's names is `pattern`, in any case, or matches it as a glob."""
    folded = pattern.lower()
    return any(name.lower() == folded or fnmatchcase(name, pattern) for name in names)


def type_matches(pattern: str, targets: Iterable[str]) -> bool:
    """Whether an op's operator or type is `pattern`: `aten.add.Tensor`, `aten.add`, or `add` in any case, or a glob."""
    folded = pattern.replace("::", ".").removeprefix("torch.ops.").lower()
    return any(
        form.lower() == folded or fnmatchcase(form.lower(), folded)
        for target in targets
        for form in (*target_forms(target), *op_types(target))
    )


def target_forms(target: str) -> tuple[str, ...]:
    """A target and every dotted prefix with two parts or more: `aten.add.Tensor`, `aten.add`."""
    parts = target.removeprefix("torch.ops.").split(".")
    return tuple(".".join(parts[:length]) for length in range(len(parts), 1, -1)) or (target,)


def op_types(target: str) -> tuple[str, ...]:
    """What kind of op a target is: `add` for `aten.add.Tensor` and `torch.add`; `add_` and `add` for `aten.add_`."""
    parts = target.removeprefix("torch.ops.").split(".")
    operator = target.startswith("torch.ops.") or parts[0] != "torch"
    name = parts[1] if operator and len(parts) in (2, 3) else parts[-1]
    plain = name.rstrip("_")
    return (name, plain) if plain and plain != name else (name,)


def _source_token(text: str, file: str, lines: str | None) -> LayerToken:
    if lines is None:
        return LayerToken(text, "source", file)
    match = _LINES.fullmatch(lines)
    if match is None or int(match[1]) < 1:
        raise SettingError(f"{_shown(text)} has no line number after the colon", hint="file.py:12, or file.py:12-20")
    first, last = int(match[1]), int(match[2] or match[1])
    if first > last:
        raise SettingError(f"the lines of {_shown(text)} run backwards", hint=f"write {file}:{last}-{first}")
    return LayerToken(text, "source", file, first, last)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "…")


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

    def choose(self, ops: Sequence[OpFacts]) -> list[dict[str, How]]:
        """For each op of one graph the tokens that select it, in the order they were written, and in which way."""
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
            {self._tokens[at].text: how for at, how in sorted(ways.items()) if _WEAKNESS.get(how, 0) == best[at]}
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
