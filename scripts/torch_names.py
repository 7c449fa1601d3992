"""Writes docs/torch_names.md from `graphprobe.internals.names`.

`--against FOLDER` says what a torch's sources lack; `--installed FILE` looks the names up in the installed torch.
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib
import inspect
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from graphprobe.internals.names import LOSES, NAMES, SUPPORTED, Name

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "docs" / "torch_names.md"

HEAD = """# The private names of torch that graphprobe uses

Written by `python scripts/torch_names.py` from `src/graphprobe/internals/names.py`; do not edit this page.

graphprobe supports torch {oldest} to {newest}. What it uses of torch beyond the public interface stands here, each name
once. `graphprobe doctor` looks for all of them in the installed torch and says what is lost where one is missing.

For another torch, unpack its wheel and ask for what its sources lack, without installing it:

```sh
python -m pip download --no-deps --dest wheel torch==2.15.0
python -m zipfile --extract wheel/torch-2.15.0-*.whl unpacked
python scripts/torch_names.py --against unpacked
```

Names cannot tell whether a function still does the same: `graphprobe doctor` calls each public function once.
"""


def page() -> str:
    """The page's content."""
    lines = [HEAD.format(oldest=SUPPORTED[0], newest=SUPPORTED[1])]
    lines += ["## What is lost without them", "", "| needed for | without it |", "|---|---|"]
    lines += [f"| `{capability}` | {lost} |" for capability, lost in sorted(LOSES.items())]
    lines += ["", "## The names", "", "| name | use | torch | doctor | needed for |", "|---|---|---|---|---|"]
    lines += [_row(name) for name in NAMES]
    return "\n".join(lines) + "\n"


def _row(name: Name) -> str:
    needed = ", ".join(f"`{capability}`" for capability in name.needed_for)
    when = "looked up while a graph is lowered" if name.only_while_lowering else "looked up"
    return f"| `{name.address}` | {name.use} | {name.versions} | {when} | {needed} |"


class Sources:
    """A torch as its sources have it, none of which is run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder if (folder / "torch").is_dir() else folder.parent

    @property
    def version(self) -> str:
        """Such as `2.14.1+cpu`."""
        text = (self.folder / "torch" / "version.py").read_text("utf-8")
        found = next(line for line in text.splitlines() if line.startswith("__version__"))
        return str(ast.literal_eval(found.partition("=")[2].strip()))

    def has(self, module: str, attribute: str) -> bool | None:
        """Whether the name is there; None where sources do not say, as for what is written in C++."""
        if self.tree(module) is None:
            return None if module.startswith("torch._C.") else False
        if not attribute:
            return True
        found = self._follow(module, attribute.split("."), frozenset())
        return None if found is False and "_C" in module else found

    @functools.cache  # noqa: B019  # one object a run
    def tree(self, module: str) -> ast.Module | None:
        """The sources of a module, its stub where it is not written in Python."""
        path = self.folder.joinpath(*module.split("."))
        for file in (path.with_suffix(".py"), path / "__init__.py", path.with_suffix(".pyi"), path / "__init__.pyi"):
            if file.is_file():
                return ast.parse(file.read_text("utf-8"))
        return None

    def _follow(self, module: str, parts: list[str], seen: frozenset[tuple[str, str]]) -> bool | None:
        """Whether `parts` lead from the module to something; None where the way is lost."""
        tree = self.tree(module)
        if tree is None:
            return None
        if not parts:
            return True
        name, *rest = parts
        if (module, name) in seen:
            return False
        seen |= {(module, name)}
        if self.tree(f"{module}.{name}") is not None:
            return self._follow(f"{module}.{name}", rest, frozenset())
        for node in _statements(tree.body):
            if isinstance(node, ast.ImportFrom):
                found = self._imported(module, node, name, rest, seen)
                if found is not False:
                    return found
            elif name in _bound(node):
                return self._inside(module, node, rest, seen)
        if any("install_config_module" in ast.unparse(node) for node in tree.body if isinstance(node, ast.Expr)):
            return self._follow("torch.utils._config_module", ["ConfigModule", *parts], seen)
        return False

    def _imported(
        self, module: str, node: ast.ImportFrom, name: str, rest: list[str], seen: frozenset[tuple[str, str]]
    ) -> bool | None:
        base = node.module or ""
        if node.level:
            is_package = self.folder.joinpath(*module.split("."), "__init__.py").is_file()
            home = module.split(".")
            home = home[: len(home) - node.level + is_package]
            base = ".".join([*home, *filter(None, [base])])
        for alias in node.names:
            if (alias.asname or alias.name) == name:
                return self._follow(base, [alias.name, *rest], seen) if base.startswith("torch") else True
            if alias.name == "*" and base.startswith("torch") and self._follow(base, [name, *rest], seen):
                return True
        return False

    def _inside(self, module: str, node: ast.stmt, rest: list[str], seen: frozenset[tuple[str, str]]) -> bool | None:
        if not rest:
            return True
        if isinstance(node, ast.ClassDef):
            return self._in_class(module, node, rest, seen)
        value = getattr(node, "value", None)
        called = value.func if isinstance(value, ast.Call) else value
        kind = ast.unparse(called) if called is not None else ""
        annotation = getattr(node, "annotation", None)
        for path in (kind, ast.unparse(annotation) if annotation is not None else ""):
            if path and all(part.isidentifier() for part in path.split(".")):
                found = self._follow(module, [*path.split("."), *rest], seen)
                if found is not False:
                    return found
        return None

    def _in_class(
        self, module: str, node: ast.ClassDef, rest: list[str], seen: frozenset[tuple[str, str]]
    ) -> bool | None:
        name, *deeper = rest
        members = {bound for child in _statements(node.body) for bound in _bound(child)}
        members |= {
            found.attr
            for found in ast.walk(node)
            if isinstance(found, ast.Attribute) and ast.unparse(found.value) == "self"
        }
        for child in _statements(node.body):
            if name in _bound(child):
                return self._inside(module, child, deeper, seen)
        if name in members or name in ("__init__", "__call__"):
            return True if not deeper else None
        unknown = False
        for base in node.bases:
            path = ast.unparse(base).partition("[")[0]
            if path in ("object", "Protocol", "Generic"):
                continue
            found = self._follow(module, [*path.split("."), name, *deeper], frozenset())
            if found:
                return True
            unknown = unknown or found is None
        return None if unknown else False


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Those of a module or class, and those that stand under a condition."""
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody", "handlers"):
            if isinstance(node, ast.If | ast.Try | ast.With | ast.ExceptHandler):
                yield from _statements(getattr(node, part, []))


def _bound(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import):
        return {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}


def lacking(sources: Sources, names: Iterable[Name] = NAMES) -> tuple[list[str], list[str]]:
    """Lines for names that a torch should have and has not, or the other way round; and names that it does not tell."""
    version = sources.version
    lines, untold = [], []
    for name in names:
        there = sources.has(name.module, name.attribute) if not name.only_while_lowering else None
        if there is None:
            untold += [name.address] if name.is_in(version) else []
        elif there != name.is_in(version):
            what = "is there, and the table says that it is not" if there else f"is not there: {name.lost}"
            lines.append(f"{name.address} {what}")
    return lines, untold


def installed() -> dict[str, str]:
    """What is wrong with each name of the table, and each private path in `internals`, in the installed torch.

    The sources are the cross-check: a path in them is there, or the table says that this torch is without it.
    """
    import torch

    version = torch.__version__
    found = {}
    for name in NAMES:
        if not name.only_while_lowering:
            there, expected = name.is_there(), name.is_in(version)
            wrong = "it is there, and the table says that it is not" if there else f"it is not there: {name.lost}"
            found[name.path] = "" if there == expected else wrong
    sys.path.insert(0, str(ROOT / "tests" / "internals"))
    from torch_paths import torch_paths

    package, room = ROOT / "src" / "graphprobe", "graphprobe.internals."
    while_compiling = tuple(name.path for name in NAMES if name.only_while_lowering)
    absent = tuple(name.path for name in NAMES if not name.is_in(version))
    for used in sorted(torch_paths(package, package.name)):
        private = "._" in used.path and used.module.startswith(room) and used.module != f"{room}names"
        if private and not used.path.startswith((*while_compiling, *absent)):
            missing = "" if _leads_somewhere(used.path) else f"it is not there, and {used.module}:{used.line} uses it"
            found[used.path] = found.get(used.path) or missing
    return found


def _leads_somewhere(path: str) -> bool:
    """Whether a path can be followed; what an object that is no module and no class has is not known before it runs."""
    found: Any = importlib.import_module("torch")
    way = "torch"
    for part in path.split(".")[1:]:
        way += f".{part}"
        if hasattr(found, part):
            found = getattr(found, part)
            continue
        try:
            found = importlib.import_module(way)
        except ImportError:
            return not (inspect.ismodule(found) or inspect.isclass(found))
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--against", type=Path, metavar="FOLDER", help="an unpacked wheel of torch, or its folder torch"
    )
    parser.add_argument("--installed", type=Path, metavar="FILE", help="write to it what is wrong with each name")
    given = parser.parse_args()
    if given.installed is not None:
        found = installed()
        given.installed.write_text(json.dumps(found, indent=1), encoding="utf-8")
        wrong = [f"{path}: {why}" for path, why in found.items() if why]
        print(f"{len(found)} names, {len(wrong)} of them wrong", *wrong, sep="\n")
        return bool(wrong)
    if given.against is None:
        FILE.write_text(page(), encoding="utf-8")
        return 0
    sources = Sources(given.against)
    lines, untold = lacking(sources)
    print(f"torch {sources.version}: {len(NAMES)} names, {len(lines)} differ from the table")
    print(*lines, f"{len(untold)} that sources do not tell: {', '.join(untold)}", sep="\n")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
