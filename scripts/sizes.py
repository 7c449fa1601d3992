"""Measure the sources against the budgets of the house: how large each room is, what is there twice, who imports whom.

    python scripts/sizes.py [--all] [--lower]

sizes.json has for each room the lines and modules that it may have now, its ceiling, and those that it should have, its
budget. Exits with 1 if a room is above its ceiling, if the ceilings add up to more than their sum in sizes.json, or if
something is there that should not be. A room's ceiling rises only by lowering another's. `--lower` lowers the ceilings
and their sum to what is measured. `tests/test_sizes.py` holds the same; `tests/test_layers.py` reads imports with this.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import functools
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypedDict

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "graphprobe"
ARCHITECTURE = ROOT / "ARCHITECTURE.md"
CEILINGS = Path(__file__).resolve().with_suffix(".json")

MAX_FUNCTION_LINES = 60
MAX_COMPLEXITY = 15
MAX_FILES_PER_FOLDER = 25
MAX_FOLDERS_PER_NAME = 2
SHOWN = 12
STEPS = {"lines": 20, "modules": 1}
"""Ceilings are multiples of these, so that not every change meets them."""

REST = "*"
"""In the name of a row of sizes.json: the rooms that no row names."""

ROW = re.compile(r"^\| \d+ \| (`.*?`) \|", re.MULTILINE)
OF_EVERY_FOLDER = frozenset({"__init__.py", "__main__.py"})


@dataclasses.dataclass(frozen=True)
class Module:
    """One file of sources; `name` is dotted, of a package without `.__init__`."""

    name: str
    path: Path
    text: str

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def folder(self) -> str:
        """Dotted, without the name of the package itself, which is empty."""
        parts = self.name.split(".")[1:]
        return ".".join(parts if self.is_package else parts[:-1])

    @functools.cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)


@dataclasses.dataclass(frozen=True)
class Import:
    """One imported name, fully spelled out.

    Attributes:
        name: such as `torch.fx.Graph`.
        line: where, from 1.
        running: it happens when the module loads; an import for annotations, or inside a function, does not.
        by_constant: `import_module` got it as a constant of the module.
    """

    name: str
    line: int
    running: bool
    by_constant: bool = False


def module_name(path: Path, package: Path = PACKAGE) -> str:
    parts = list(path.relative_to(package.parent).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules_of(package: Path = PACKAGE) -> list[Module]:
    """All modules of a package, by path."""
    return [Module(module_name(p, package), p, p.read_text(encoding="utf-8")) for p in sorted(package.rglob("*.py"))]


def layers_in(text: str) -> tuple[tuple[str, ...], ...]:
    """The rooms of each row of the table in ARCHITECTURE.md, from the lowest row to the highest."""
    return tuple(tuple(re.findall(r"`(\w+)`", row)) for row in ROW.findall(text))


def layers() -> tuple[tuple[str, ...], ...]:
    return layers_in(ARCHITECTURE.read_text(encoding="utf-8"))


def room_of(module: str) -> str:
    """`graphprobe.store.writer` -> `store`; the package itself is the room `__init__`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def walk(node: ast.AST, *, running: bool = True) -> Iterator[tuple[ast.AST, bool]]:
    """Every node below `node`, and whether it runs when the module is imported."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and is_type_checking(child.test):
            for part in child.body:
                yield part, False
                yield from walk(part, running=False)
            for part in child.orelse:
                yield part, running
                yield from walk(part, running=running)
            continue
        inside = running and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield child, running
        yield from walk(child, running=inside)


def text_constants(tree: ast.Module) -> dict[str, str]:
    """Names that a module gives to a text, once, outside of functions and classes."""
    found: dict[str, list[ast.expr | None]] = defaultdict(list)
    for node in tree.body:
        for target in node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]:
            if isinstance(target, ast.Name) and isinstance(node, ast.Assign | ast.AnnAssign):
                found[target.id].append(node.value)
    return {
        name: value.value
        for name, [value, *more] in found.items()
        if not more and isinstance(value, ast.Constant) and isinstance(value.value, str)
    }


def imports(tree: ast.Module, module: str, *, is_package: bool) -> Iterator[Import]:
    """All imports of a module: relative ones resolved, and `import_module` of a text or of a constant that is one."""
    constants = text_constants(tree)
    for node, running in walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, running)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                home = module.split(".") if is_package else module.split(".")[:-1]
                home = home[: len(home) - node.level + 1]
                base = ".".join([*home, *filter(None, [base])])
            for alias in node.names:
                yield Import(f"{base}.{alias.name}", node.lineno, running)
        elif isinstance(node, ast.Call) and node.args and _imports_by_name(node.func):
            name = node.args[0]
            if isinstance(name, ast.Constant):
                yield Import(str(name.value), node.lineno, running)
            elif isinstance(name, ast.Name) and name.id in constants:
                yield Import(constants[name.id], node.lineno, running, by_constant=True)


def _imports_by_name(function: ast.expr) -> bool:
    return ast.unparse(function).split(".")[-1] in ("import_module", "__import__")


def edges_of(modules: Sequence[Module]) -> dict[str, set[str]]:
    """For each module the other modules that it imports, be it for annotations or inside of a function.

    The package itself is left out: whatever is imported from it, its `__init__` runs first.
    """
    names = {module.name for module in modules if module.folder or not module.is_package}
    names |= {module_name(stub) for stub in PACKAGE.rglob("*.pyi")}  # of modules that are compiled

    def target(name: str) -> str | None:
        parts = name.split(".")
        heads = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
        return next((head for head in heads if head in names), None)

    return {
        module.name: {
            other
            for found in imports(module.tree, module.name, is_package=module.is_package)
            if (other := target(found.name)) is not None and other != module.name
        }
        for module in modules
        if module.name in names
    }


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Groups of names that can all reach each other, sorted."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        todo = list(edges.get(start, ()))
        while todo:
            if (name := todo.pop()) not in seen:
                seen.add(name)
                todo.extend(edges.get(name, ()))
        return seen

    reach = {name: reached(name) for name in edges}
    groups = {frozenset({*(other for other in reach[name] if name in reach.get(other, ()))}) for name in edges}
    return sorted(sorted(group) for group in groups if group)


def import_circles(modules: Sequence[Module]) -> list[str]:
    return [" ↔ ".join(name.removeprefix("graphprobe.") for name in circle) for circle in circles(edges_of(modules))]


def imports_upwards(modules: Sequence[Module], rows: Sequence[Sequence[str]]) -> list[str]:
    """Imports from a room of a row that lies above the importer's own."""
    rank = {room: number for number, row in enumerate(rows) for room in row}
    return [
        f"{module.name}:{found.line} imports {found.name}"
        for module in modules
        for found in imports(module.tree, module.name, is_package=module.is_package)
        if found.name.startswith("graphprobe.")
        and (own := rank.get(room_of(module.name))) is not None
        and rank.get(room_of(found.name), 0) > own
    ]


def doubled_classes(modules: Sequence[Module]) -> list[str]:
    """Names of classes that several modules define."""
    found: dict[str, list[str]] = defaultdict(list)
    for module in modules:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(module.name.removeprefix("graphprobe."))
    return [f"{name}: {', '.join(places)}" for name, places in sorted(found.items()) if len(places) > 1]


def common_file_names(modules: Sequence[Module]) -> list[str]:
    """Names of files that are in more than two folders."""
    found: dict[str, list[str]] = defaultdict(list)
    for module in modules:
        if module.path.name not in OF_EVERY_FOLDER:
            found[module.path.name].append(module.folder or ".")
    return [f"{name}: {', '.join(at)}" for name, at in sorted(found.items()) if len(at) > MAX_FOLDERS_PER_NAME]


def full_folders(modules: Sequence[Module]) -> list[str]:
    """Folders of more than 25 modules."""
    counts = Counter(module.folder for module in modules)
    return [f"{folder or '.'}: {n} files" for folder, n in counts.most_common() if n > MAX_FILES_PER_FOLDER]


def long_functions(modules: Sequence[Module]) -> list[str]:
    """Functions of more than 60 lines, from `def` to their end."""
    found = [
        (node.end_lineno - node.lineno + 1, f"{module.name}:{node.lineno} {node.name}")
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None
    ]
    return [f"{name}: {lines} lines" for lines, name in sorted(found, reverse=True) if lines > MAX_FUNCTION_LINES]


def complex_functions(folder: Path) -> list[str]:
    """Functions of a cyclomatic complexity over 15, as ruff counts it."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select", "C901", "--exit-zero"]
    command += ["--config", f"lint.mccabe.max-complexity={MAX_COMPLEXITY}", "--output-format", "json", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [
        f"{module_name(Path(found['filename']), folder)}:{found['location']['row']} {found['message']}"
        for found in json.loads(done.stdout)
    ]


@dataclasses.dataclass(frozen=True)
class Size:
    """How large some rooms are.

    Attributes:
        rooms: their names, as sizes.json has them.
        unit: `lines` or `modules`.
        value: how many there are.
        ceiling: how many there may be until the budget is reached.
        budget: how many there should be.
    """

    rooms: str
    unit: str
    value: int
    ceiling: int
    budget: int

    @property
    def lowered(self) -> int:
        """The next ceiling, which is no higher than this one."""
        step = STEPS[self.unit]
        return min(self.ceiling, max(self.budget, -(-self.value // step) * step))


class Limits(TypedDict):
    """What sizes.json has: of each row of rooms (ceiling, budget) by unit, and the sum of the ceilings by unit."""

    rooms: dict[str, dict[str, tuple[int, int]]]
    sum: dict[str, int]


def limits() -> Limits:
    found: Limits = json.loads(CEILINGS.read_text(encoding="utf-8"))
    return found


def sizes(modules: Sequence[Module], rows: dict[str, dict[str, tuple[int, int]]]) -> list[Size]:
    """How large the rooms of each row are, in the order of the rows."""
    row_of = {room: row for row in rows for room in row.split(", ")}
    values: Counter[tuple[str, str]] = Counter()
    for module in modules:
        row = row_of.get(room_of(module.name), row_of[REST])
        values.update({(row, "lines"): len(module.text.splitlines()), (row, "modules"): 1})
    return [
        Size(row, unit, values[row, unit], *limit) for row, by_unit in rows.items() for unit, limit in by_unit.items()
    ]


def too_large(found: Sequence[Size], sums: dict[str, int]) -> list[str]:
    """The rooms that are above their ceilings, and ceilings above their sum, in words."""
    faults = [
        f"{size.rooms}: {size.value:,} {size.unit}, and {size.ceiling:,} is the ceiling (scripts/sizes.json); "
        "it rises only by lowering another room's"
        for size in found
        if size.value > size.ceiling
    ]
    for unit, most in sums.items():
        ceilings = sum(size.ceiling for size in found if size.unit == unit)
        if ceilings > most:
            faults.append(f"the ceilings of the rooms add up to {ceilings:,} {unit}, and {most:,} is their sum")
    return faults


def lowered(found: Sequence[Size]) -> Limits:
    """The limits with each ceiling lowered, and the sums that follow."""
    rows: dict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
    sums: Counter[str] = Counter()
    for size in found:
        rows[size.rooms][size.unit] = (size.lowered, size.budget)
        sums[size.unit] += size.lowered
    return {"rooms": dict(rows), "sum": dict(sums)}


def unwanted(modules: Sequence[Module], *, package: Path = PACKAGE) -> dict[str, list[str]]:
    """What should not be there at all, by what it is."""
    return {
        "class names that stand for two things": doubled_classes(modules),
        "file names in more than two folders": common_file_names(modules),
        "folders of more than 25 modules": full_folders(modules),
        "import circles, annotations included": import_circles(modules),
        "imports upwards": imports_upwards(modules, layers()),
        "functions over 60 lines": long_functions(modules),
        "functions of complexity over 15": complex_functions(package),
    }


def text_of(limits: Limits) -> str:
    """sizes.json, with a row of rooms in a line."""
    rows = (f"  {json.dumps(row)}: {json.dumps(by_unit)}" for row, by_unit in limits["rooms"].items())
    return '{\n "rooms": {\n' + ",\n".join(rows) + f'\n }},\n "sum": {json.dumps(limits["sum"])}\n}}\n'


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help=f"name all that should not be there, not the first {SHOWN}")
    parser.add_argument("--lower", action="store_true", help="lower the ceilings in sizes.json to what is measured")
    options = parser.parse_args(arguments)
    modules = modules_of()
    known = limits()
    found = sizes(modules, known["rooms"])
    print(f"{'':<41}{'now':>8}{'ceiling':>9}{'budget':>9}")
    for unit in STEPS:
        of_unit = [size for size in found if size.unit == unit]
        whole = Size("all", unit, *(sum(getattr(s, name) for s in of_unit) for name in ("value", "ceiling", "budget")))
        for size in (*of_unit, whole):
            print(f"{size.rooms[:32]:<32} {size.unit:<8}{size.value:>8,}{size.ceiling:>9,}{size.budget:>9,}")
    faults = too_large(found, known["sum"])
    for name, places in unwanted(modules).items():
        print(f"{len(places):>7,}  {name}")
        shown = places if options.all else places[:SHOWN]
        print(*(f"         {place}" for place in shown), sep="\n", end="\n" if shown else "")
        faults += [f"{name}: {len(places)}"] * bool(places)
    if options.lower:
        CEILINGS.write_text(text_of(lowered(found)), encoding="utf-8")
        return 0
    print(*faults, sep="\n", end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
