"""A dossier's report as an issue: title and body, and both without the names and values of the program."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from graphprobe.errors import UsageError
from graphprobe.report.neutral_names import NeutralNames
from graphprobe.store.files import read_file
from graphprobe.store.schema import UNREADABLE

REPORT, FINDING, REDUCED = "REPORT.md", "finding.json", "repro"

FENCE = re.compile(r"^(`{3,})(\w*)\n(.*?)^\1$", re.MULTILINE | re.DOTALL)
FRAME = re.compile(r'File "(?!torch/)[^"\n]+", line (\d+), in \S+\n[^\n]*')
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+(?:e[+-]?\d+)?|e[+-]?\d+)(?![\w.])")
WORD_AND_NUMBER = re.compile(r"\b(expected|actual|got|compiled)(\s+)[-+]?[\d.][\w.+-]*")


@dataclass(frozen=True)
class Issue:
    """What is posted; the body is Markdown."""

    title: str
    body: str


class _Named(msgspec.Struct):
    """What of a finding names something of the program."""

    source: str | None = None
    module: str | None = None
    op: str | None = None
    places: list[str] = []
    also: list[str] = []


def read_issue(dossier: Path) -> tuple[Issue, dict[str, Any]]:
    """The report of a dossier, or of a reduction, and its finding as JSON; without `finding.json` an empty one.

    Raises:
        UsageError: there is no report, or the finding cannot be read.
    """
    folder = dossier.parent if dossier.name == REPORT else dossier
    if not (folder / REPORT).is_file() and (folder / REDUCED / REPORT).is_file():
        folder = folder / REDUCED
    try:
        text = read_file(folder / REPORT, below=folder).decode("utf-8", "replace")
    except FileNotFoundError as error:
        raise UsageError(f"{dossier}: it has no {REPORT}", hint=_hint(dossier)) from error
    except OSError as error:
        raise UsageError(f"{folder / REPORT} cannot be read: {error.strerror}", hint=_hint(dossier)) from error
    head, _, body = text.partition("\n")
    if not head.startswith("# "):
        raise UsageError(f"{folder / REPORT}: its first line is no title", hint="it was changed: write `# TITLE` first")
    return Issue(head[2:].strip(), body.strip() + "\n"), _finding(folder / FINDING)


def _finding(path: Path) -> dict[str, Any]:
    try:
        data = read_file(path)
        msgspec.json.decode(data, type=_Named)
        finding: dict[str, Any] = msgspec.json.decode(data)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except UNREADABLE as error:  # without it, the names of the program would not be known
        raise UsageError(f"{path} is no finding: {error}", hint="name a folder of graphprobe diagnose") from error
    return finding


def _hint(dossier: Path) -> str:
    below = sorted(path.parent.name for path in dossier.glob(f"*/{REPORT}")) if dossier.is_dir() else []
    names = ", ".join(below[:5])
    return f"name one of the folders in it: {names}" if below else "name a folder that diagnose or reduce has written"


def private(issue: Issue, finding: Mapping[str, Any]) -> Issue:
    """The issue with neutral names for files, modules, functions and variables of the program, and neutral values.

    What the script does stays. Whether it still fails must be seen by running it.
    """
    names = _names_of(finding)
    codes = [match[3] for match in FENCE.finditer(issue.body) if match[2] == "python"]
    trees = [tree for code in codes if (tree := _parsed(code)) is not None]
    words = NeutralNames()
    for tree in trees:
        words.collect(tree)
    names |= words.public_words()

    def block(match: re.Match[str]) -> str:
        return f"{match[1]}{match[2]}\n{_neutral_block(match[2], match[3], words, names)}{match[1]}"

    bug, mark, rest = issue.body.partition("### Error logs")
    logs, versions, tail = rest.partition("### Versions")
    if finding.get("worst"):
        bug = re.sub(r"(\*Expected\*: ).*?(?= (?:at|in) )", r"\1a value", bug)
        bug = re.sub(r"(\*Actual\*: )[^;\n]*", r"\1another value", bug)
    text = FENCE.sub(block, bug) + mark + FRAME.sub(r'File "file.py", line \1, in function', logs)
    return Issue(_replaced(issue.title, names), _replaced(text, names) + versions + tail)


def _names_of(finding: Mapping[str, Any]) -> dict[str, str]:
    """What the finding tells of the program: its files, its modules, its own operations."""
    found: dict[str, str] = {}
    places = [finding.get("source"), *finding.get("places", [])]
    files = dict.fromkeys(Path(str(place).partition(" in ")[0].rpartition(":")[0]).name for place in places if place)
    found |= {name: f"file_{i}.py" for i, name in enumerate(filter(None, files), 1)}
    modules = dict.fromkeys([finding.get("module"), *(str(p).partition(" in ")[2] for p in finding.get("places", []))])
    named = [name for name in modules if name and re.search(r"[^\W\d]", name)]  # "0" is no name, but any number
    found |= {name: f"module_{i}" for i, name in enumerate(named, 1)}
    ops = [op for op in (finding.get("op"), *finding.get("also", [])) if op]
    own = [op for op in dict.fromkeys(ops) if not op.startswith(("aten.", "prims.", "torch", "_operator", "builtins"))]
    return found | {op: f"own_op_{i}" for i, op in enumerate((op for op in own if "." in op), 1)}


def _parsed(code: str) -> ast.Module | None:
    try:
        return ast.parse(code)
    except SyntaxError:
        return None


def _neutral_block(language: str, text: str, words: NeutralNames, names: Mapping[str, str]) -> str:
    """A fenced block with neutral names; comments go, and floating-point numbers of what is printed."""
    if language != "python":
        return NUMBER.sub("…", WORD_AND_NUMBER.sub(r"\1\2…", text))
    tree = _parsed(text)
    if tree is None:
        return "".join(line for line in text.splitlines(keepends=True) if not line.lstrip().startswith("#"))
    return _replaced(ast.unparse(ast.fix_missing_locations(words.visit(tree))), names) + "\n"


def _replaced(text: str, names: Mapping[str, str]) -> str:
    if not names:
        return text
    longest = sorted(names, key=len, reverse=True)
    pattern = re.compile(r"(?<![\w.])(?:" + "|".join(map(re.escape, longest)) + r")(?!\w)")
    return pattern.sub(lambda match: names[match.group()], text)
