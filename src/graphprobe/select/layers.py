"""Ops by name, glob, operator, module path or source line, as `dump_layer` names them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Literal

import msgspec

from graphprobe.errors import SettingError

MAX_TEXT = 1_000_000
"""Longest text that is read, in characters."""

_SOURCE = re.compile(r"(?P<file>.*\.py)(?::(?P<lines>.*))?", re.DOTALL)
_LINES = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", re.ASCII)
_HINT = "an op's name, a glob, an operator such as aten.add, a module path such as blocks.3.mlp, or file.py:12"


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
