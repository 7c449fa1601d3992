"""Promises that the repository makes about itself: one version, a page per message, no traces of a machine."""

import ast
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.calling import command_of
from conftest import ROOT, module_at

sizes = module_at("scripts", "sizes.py")
PACKAGE: Path = sizes.PACKAGE
MACHINE_PATH = re.compile(r"(?<![\w.<])/(?:" + "|".join(("wo" + "rk", "fa" + "rm")) + r")(?![\w-])")
MARKDOWN_LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")


@pytest.fixture(scope="module")
def modules() -> list[Any]:
    found: list[Any] = sizes.modules_of()
    return found


def tracked_files() -> list[Path]:
    """Every file git knows or would add; outside a checkout there is nothing to hold against the rule."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [path for name in listed.stdout.decode().split("\0") if name and (path := ROOT / name).is_file()]


def slugs_in(tree: ast.AST) -> set[str]:
    """Error slugs a module defines: `slug = "…"` in a class, `slug="…"` in a call of an …Error or of `partial`."""
    found = set()
    for node in ast.walk(tree):
        values: list[ast.expr | None] = []
        if isinstance(node, ast.ClassDef) and node.name.endswith("Error"):
            for statement in node.body:
                if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == "slug":
                    values.append(statement.value)
                elif isinstance(statement, ast.Assign) and [ast.unparse(t) for t in statement.targets] == ["slug"]:
                    values.append(statement.value)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("Error", "partial")):
            values.extend(keyword.value for keyword in node.keywords if keyword.arg == "slug")
        found |= {v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str)}
    return found


def all_slugs() -> set[str]:
    return set().union(*(slugs_in(module.tree) for module in sizes.modules_of()))


def version_of_package() -> str:
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and target.id == "__version__" and isinstance(value, ast.Constant):
            return str(value.value)
    raise AssertionError("src/graphprobe/__init__.py gives __version__ no literal, and the build reads it from there")


def test_slug_finder_finds_all_three_spellings() -> None:
    tree = ast.parse('class AError(E):\n slug = "a"\nclass BError(E):\n slug: str = "b"\nraise m.CError("x", slug="c")')
    assert slugs_in(tree) == {"a", "b", "c"}


def test_machine_path_finder() -> None:
    here, there = "/wo" + "rk", "/fa" + "rm"
    assert MACHINE_PATH.search(f"see {here}/main")
    assert MACHINE_PATH.search(f"'{there}'")
    assert not MACHINE_PATH.search(f"https://example.com{here}/main, .github{here}flows, frame{here[1:]}")


def test_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    version = version_of_package()
    assert project["project"].get("version", version) == version
    if "version" in project["project"]["dynamic"]:
        assert project["tool"]["scikit-build"]["metadata"]["version"]["input"] == "src/graphprobe/__init__.py"
    released = re.findall(r"^## \[(\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.M)
    assert released, "CHANGELOG.md names no version"
    assert released[0] == version


def test_every_release_has_a_date() -> None:
    heads = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.M)
    assert heads[0] == "[Unreleased]"
    dates = [re.fullmatch(r"\[\d+\.\d+\.\d+\] - (\d{4}-\d\d-\d\d)", head) for head in heads[1:]]
    found = [date[1] for date in dates if date is not None]
    assert len(found) == len(heads) - 1 >= 2
    assert sorted(found, reverse=True) == found


@pytest.mark.slow
def test_every_error_slug_has_a_page_and_every_page_a_slug() -> None:
    slugs = all_slugs()
    assert {"usage", "internal", "run-not-found"} <= slugs
    pages = {path.stem for path in (ROOT / "docs" / "messages").glob("*.md")} - {"README"}
    assert sorted(slugs - pages) == [], "slugs without docs/messages/<slug>.md"
    assert sorted(pages - slugs) == [], "pages whose slug no error has"


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "messages").glob("[!R]*.md")), ids=lambda path: path.stem)
def test_message_page_is_complete(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith(f"# `{path.stem}`")
    for heading in ("## What it means", "## Example", "## What to do"):
        assert heading in text


DEFINITION = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
ASSIGNMENT = ast.Assign | ast.AnnAssign | ast.AugAssign


def names_in(node: ast.AST | None, context: type[ast.expr_context]) -> set[str]:
    nodes = ast.walk(node) if node is not None else ()
    return {found.id for found in nodes if isinstance(found, ast.Name) and isinstance(found.ctx, context)}


def late_constants(tree: ast.Module) -> list[str]:
    """Assignments behind the first definition of a module; a value that needs a definition, or such a value, may be."""
    defined: set[str] = set()
    found: list[str] = []
    for node in tree.body:
        if isinstance(node, DEFINITION):
            defined.add(node.name)
        elif isinstance(node, ASSIGNMENT) and defined:
            names = names_in(node, ast.Store)
            if (names_in(node.value, ast.Load) | (names if isinstance(node, ast.AugAssign) else set())) & defined:
                defined |= names
            else:
                found.append(f"{node.lineno}: {', '.join(sorted(names))}")
    return found


@pytest.mark.parametrize(
    ("text", "late"),
    [
        ("A = 1\ndef f(): ...", []),
        ("def f(): ...\nA = 1", ["2: A"]),
        ("class C: ...\nlog = logging.getLogger(__name__)", ["2: log"]),
        ("def f(): ...\nA = f()\nB: int = A + 1\nB += 1\nC = B", []),
        ("def f(): ...\nA: C = 1\nclass C: ...\nA, B = 1, 2", ["2: A", "4: A, B"]),
    ],
)
def test_what_a_late_constant_is(text: str, late: list[str]) -> None:
    assert late_constants(ast.parse(text)) == late


@pytest.mark.slow
def test_modules_begin_with_a_sentence_then_constants_and_loggers_then_definitions(modules: list[Any]) -> None:
    first = {module.name: (ast.get_docstring(module.tree) or "").partition("\n\n")[0] for module in modules}
    assert [name for name, line in first.items() if "\n" in line or not line.endswith(".")] == []
    assert [f"{module.name}:{late}" for module in modules for late in late_constants(module.tree)] == []


def test_constraints_pin_what_pyproject_asks_for() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    names = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pins.items()}
    assert re.fullmatch(r"\d+\.\d+\.\d+", names["torch"]), "torch is pinned to a release, without a build tag"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    wanted = {re.split(r"[<>=!~\[; ]", requirement)[0].lower() for requirement in asked}
    assert sorted(wanted - names.keys()) == []


def test_package_says_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()


def test_no_machine_paths_in_tracked_files() -> None:
    hits = []
    for path in tracked_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if MACHINE_PATH.search(line):
                hits.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert hits == []


def test_links_between_documents_lead_somewhere() -> None:
    broken = []
    for path in tracked_files():
        if path.suffix != ".md":
            continue
        for target in MARKDOWN_LINK.findall(path.read_text(encoding="utf-8")):
            if not (path.parent / target).exists():
                broken.append(f"{path.relative_to(ROOT)}: {target}")
    assert broken == []


READING_ROOMS = ("analysis", "compare", "export", "report", "store")
READS = re.compile(
    r"\.read_(bytes|text)\(|(?<![\w.])open\([^)\n]*\"rb?\"|np\.(load|memmap|fromfile)\(|ZipFile\((?!.*\"w\")|mmap\("
)
READ_HERE = {
    "store/files.py": 2,
    "store/reader.py": 1,  # of the kernel, whether a process is alive
    "store/dump_format.py": 1,  # behind open_file
    "store/foreign/checked.py": 2,  # behind check_regular
    "report/html/page.py": 1,  # a file of this package
}
"""Places that read a file otherwise than by `store/files.py`, which refuses what is no regular file."""


def test_files_that_anybody_wrote_are_read_in_one_way() -> None:
    found = {
        str(path.relative_to(PACKAGE)): len(READS.findall(path.read_text(encoding="utf-8")))
        for room in READING_ROOMS
        for path in (PACKAGE / room).rglob("*.py")
    }
    assert {name: count for name, count in found.items() if count} == READ_HERE


release = module_at("scripts", "release_check.py")
GOOD = "# Changelog\n\n## [Unreleased]\n\n## [1.2.0] - 2026-01-31\n\n### Added\n\n- A thing.\n"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (GOOD, None),
        (GOOD.replace("## [Unreleased]\n\n", ""), None),
        (GOOD.replace("[Unreleased]\n", "[Unreleased]\n\n- More.\n"), "[Unreleased] has entries"),
        (GOOD.replace("1.2.0", "1.1.0"), "not that of 1.2.0"),
        (GOOD.replace(" - 2026-01-31", ""), "not that of 1.2.0 with a date"),
        (GOOD.replace("- A thing.\n", ""), "has no entry"),
        ("# Changelog\n", "'none'"),
    ],
    ids=["good", "no unreleased", "unreleased", "other version", "no date", "empty", "nothing"],
)
def test_the_release_check_reads_the_changelog(text: str, fault: str | None) -> None:
    found = list(release.faults_of_changelog(text, "1.2.0"))
    assert (found == []) if fault is None else (len(found) == 1 and fault in found[0])


def test_the_release_check_knows_the_version_and_the_scripts() -> None:
    assert release.version_in('__version__ = "3.4.5"\n') == "3.4.5"
    assert release.version_in("version = 3\n") is None
    assert release.version_in((ROOT / "src" / "graphprobe" / "__init__.py").read_text(encoding="utf-8")) is not None
    assert [name for name in release.WRITTEN if not (ROOT / "scripts" / name).is_file()] == []


def yaml_at(*parts: str) -> Any:
    return yaml.safe_load(Path(ROOT, *parts).read_text(encoding="utf-8"))


def test_the_hooks_need_no_network_and_run_what_is_there() -> None:
    (local,) = yaml_at(".pre-commit-config.yaml")["repos"]
    assert local["repo"] == "local"
    for hook in local["hooks"]:
        assert hook["language"] == "system" and hook["entry"].startswith(".venv/bin/")
        tests = [word for word in hook["entry"].split() if word.startswith("tests/")]
        assert all((ROOT / word).is_file() for word in tests), tests


def test_the_templates_ask_for_what_is_needed() -> None:
    for file in sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml")):
        form = yaml_at(".github", "ISSUE_TEMPLATE", file.name)
        required = {field["id"] for field in form["body"] if field.get("validations", {}).get("required")}
        assert form["name"] and "doctor" in required, file.name


def test_the_nightly_workflow_gives_commands_that_exist_and_that_the_page_names() -> None:
    steps = yaml_at("examples", "ci", "nightly_diagnose.yml")["jobs"]["diagnose"]["steps"]
    commands = [step["run"] for step in steps if step.get("run", "").startswith("graphprobe ")]
    assert len(commands) == 2
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    for command in commands:
        assert f"`{command}`" in page
        words = shlex.split(command)
        script = next((n for n, word in enumerate(words) if word.endswith(".py")), len(words))
        known = {spelled for option in command_of(words[1]).params for spelled in option.opts}
        assert {word for word in words[2:script] if re.match("--?[a-z]", word)} <= known
