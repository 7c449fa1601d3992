"""A dossier's report as an issue: title and body, both also without the names and values of the program."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from graphprobe.errors import UsageError
from graphprobe.store.files import read_file
from graphprobe.store.schema import UNREADABLE

PUBLIC = {*sys.stdlib_module_names, "torch", "torchvision", "numpy", "triton", "safetensors", "transformers"}
"""Modules that everybody knows."""

KEPT = {"self", "cls", "forward", "backward", "setup_context"}
"""Names that torch calls, or that say nothing."""

FIELDS: dict[type[ast.AST], str] = {
    ast.Name: "id", ast.arg: "arg", ast.Attribute: "attr", ast.FunctionDef: "name", ast.ClassDef: "name",
    ast.ExceptHandler: "name", ast.alias: "name",
}  # fmt: skip
"""Where a node has a name that scripts bind."""

REPORT, FINDING, REDUCED = "REPORT.md", "finding.json", "repro"

FENCE = re.compile(r"^(`{3,})(\w*)\n(.*?)^\1$", re.MULTILINE | re.DOTALL)
FRAME = re.compile(r'File "(?!torch/)[^"\n]+", line (\d+), in \S+\n[^\n]*')
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+(?:e[+-]?\d+)?|e[+-]?\d+)(?![\w.])")
WORD_AND_NUMBER = re.compile(r"\b(expected|actual|got|compiled)(\s+)[-+]?[\d.][\w.+-]*")


class NeutralNames(ast.NodeTransformer):
    """Renames what scripts bind: functions, classes, variables, and modules that are not public."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.own_attributes: dict[str, str] = {}
        self.counts: dict[str, int] = {}

    def collect(self, tree: ast.Module) -> None:
        """Find the names of a script."""
        foreign = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and not _of_self(n)}
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                self._add(node.name, "Class")
                methods = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
                for name in methods - foreign - KEPT:
                    self._add(name, "method", self.own_attributes)
            elif isinstance(node, ast.FunctionDef):
                self._add(node.name, "function")
            elif isinstance(node, ast.arg):
                self._add(node.arg, "x")
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self._add(node.id, "v")
            elif isinstance(node, ast.ExceptHandler) and node.name:
                self._add(node.name, "v")
            elif isinstance(node, ast.Attribute) and _of_self(node) and isinstance(node.ctx, ast.Store):
                if node.attr not in foreign:
                    self._add(node.attr, "attribute", self.own_attributes)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                self._imported(node)

    def public_words(self) -> dict[str, str]:
        """The names that may stand in prose, too: not those of variables, which may be any word."""
        return {old: new for old, new in self.names.items() if not new.startswith(("x_", "v_")) and len(old) > 3}

    def _imported(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.ImportFrom):
            if node.module and node.module.split(".")[0] not in PUBLIC:
                self._add(node.module, "module")
                for alias in node.names:
                    self._add(alias.name, "name")
            return
        for alias in node.names:
            if alias.name.split(".")[0] not in PUBLIC:
                self._add(alias.name, "module")

    def _add(self, name: str, kind: str, into: dict[str, str] | None = None) -> None:
        into = self.names if into is None else into
        if name not in into and name not in KEPT and not name.startswith("__") and name != "_":
            self.counts[kind] = self.counts.get(kind, 0) + 1
            into[name] = f"{kind}_{self.counts[kind]}"

    def generic_visit(self, node: ast.AST) -> ast.AST:
        names = self.names
        if isinstance(node, ast.Attribute):
            names = self.own_attributes if _of_self(node) else {}
        elif isinstance(node, ast.FunctionDef):
            names = self.names | self.own_attributes
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.Global):
            node.names = [names.get(name, name) for name in node.names]
        elif isinstance(node, ast.Call):
            self._call(node)
        if field := FIELDS.get(type(node)):
            setattr(node, field, names.get(getattr(node, field), getattr(node, field)))
        return super().generic_visit(node)

    def _call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in self.names:
            for keyword in node.keywords:
                keyword.arg = self.names.get(keyword.arg, keyword.arg) if keyword.arg else None
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("tensor", "as_tensor") and node.args:
            for inner in ast.walk(node.args[0]):
                if isinstance(inner, ast.Constant) and type(inner.value) in (int, float) and inner.value:
                    inner.value = 1 if isinstance(inner.value, int) else 1.0


def _of_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "self"


class Issue(msgspec.Struct, frozen=True):
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
    folder = folder_of(dossier)
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


def folder_of(dossier: Path) -> Path:
    """The folder with the report: of a reduction, or of a report itself, too."""
    folder = dossier.parent if dossier.name == REPORT else dossier
    if not (folder / REPORT).is_file() and (folder / REDUCED / REPORT).is_file():
        folder = folder / REDUCED
    return folder


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
