"""Gathers the pages of the docs site in build/docs: those of the repository, and references of commands and Python.

`make docs` runs it, and then `mkdocs build --strict`, which takes this file as a hook: headings are named as on GitHub.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

import graphprobe
from graphprobe.cli.main import GROUPS, LazyGroup, main
from graphprobe.faces import imported_for_types

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "build" / "docs"
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")
CALLABLE = dict.fromkeys(("compare", "reduce", "report"), "graphprobe.api")
CALLABLE |= {"diagnose": "graphprobe.diagnose.api", "export": "graphprobe.export.forms"}
"""Functions that are named as a package is, and where they are."""

Named = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def commands_page() -> str:
    """The help of every command, by what it is for."""
    assert isinstance(main, LazyGroup)
    parts = ["# Commands\n", "Written by `scripts/docs_site.py` from the commands themselves.\n"]
    for title, group in GROUPS.items():
        parts.append(f"## {title}\n")
        for name in group:
            command = main.get_command(click.Context(main), name)
            assert command is not None
            context = click.Context(command, info_name=f"graphprobe {name}", max_content_width=88, terminal_width=88)
            parts.append(f"### graphprobe {name}\n\n```text\n{command.get_help(context)}\n```\n")
    return "\n".join(parts)


def api_page() -> str:
    """The signature and the documentation of every public name."""
    parts = ["# Python\n", "Written by `scripts/docs_site.py` from the sources. [What is stable](../stability.md).\n"]
    imported = {name: home for name, (home, _) in imported_for_types(graphprobe).items() if home != "graphprobe"}
    homes = imported | CALLABLE
    for name in sorted(graphprobe.__all__, key=str.casefold):
        if name == "__version__":
            continue
        parts.append(f"## graphprobe.{name}\n")
        module = ast.parse(_source(homes.get(name, f"graphprobe.{name}")).read_text(encoding="utf-8"))
        found = [node for node in module.body if isinstance(node, Named) and node.name == name]
        if name in homes and not found:
            raise LookupError(f"{homes[name]} defines no {name}: where is it?")
        if name in homes:
            parts += [_described(found[-1])]
        else:
            parts += [f"A module.\n\n```text\n{ast.get_docstring(module)}\n```\n"]
            parts += [_described(node) for node in module.body if isinstance(node, Named) and node.name[0] != "_"]
    return "\n".join(parts)


def _source(module: str) -> Path:
    path = ROOT / "src" / Path(*module.split("."))
    return path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"


def _described(node: Named) -> str:
    """Signature and docstring; of a class, those of its public methods, too."""
    text = f"```python\n{_signature(node)}\n```\n"
    if doc := ast.get_docstring(node):
        text += f"\n```text\n{doc}\n```\n"
    if isinstance(node, ast.ClassDef):
        methods = [one for one in node.body if isinstance(one, Named) and one.name[0] != "_" and ast.get_docstring(one)]
        text += "".join(f"\n{_described(one)}" for one in methods)
    return text


def _signature(node: Named) -> str:
    if isinstance(node, ast.ClassDef):
        init = next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
        bases = ", ".join(map(ast.unparse, node.bases))
        head = f"class {node.name}({bases})" if bases else f"class {node.name}"
        return head if init is None else f"{head}\n{_signature(init)}"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    return f"def {node.name}({ast.unparse(node.args)}){returns}"


def pages() -> Iterator[Path]:
    """The pages of the repository that belong to the site, relative to its root."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        if not name.startswith((".", "tests/")) or name == "tests/README.md":
            yield Path(name)


def gather(site: Path = SITE) -> None:
    """Copies the pages, and what they link to, in their places; writes the references."""
    shutil.rmtree(site, ignore_errors=True)
    wanted = list(pages())
    for page in tuple(wanted):
        text = (ROOT / page).read_text(encoding="utf-8")
        wanted += [Path(ROOT / page).parent.joinpath(link).resolve().relative_to(ROOT) for link in LINK.findall(text)]
    for file in dict.fromkeys(wanted):
        if (ROOT / file).is_file():
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, site / file)
    reference = site / "docs" / "reference"
    reference.mkdir(parents=True)
    (reference / "commands.md").write_text(commands_page(), encoding="utf-8")
    (reference / "python.md").write_text(api_page(), encoding="utf-8")


def slug(text: str, separator: str) -> str:
    """The name of a heading, as GitHub makes it, so that links work in both places."""
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", separator)


def on_config(config: Any) -> Any:
    """mkdocs calls this with what `mkdocs.yml` says."""
    config["mdx_configs"]["toc"]["slugify"] = slug
    return config


if __name__ == "__main__":
    gather()
