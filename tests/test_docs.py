"""The documentation is executed: every command and program of README and of docs/*.md, with what it shows."""

import html
import re
import shlex
import shutil
from pathlib import Path

import msgspec
import pytest

from cli.calling import command_of
from conftest import ROOT
from doc_session import Step, blocks_of, matches, run_step, steps_of
from graphprobe.analysis import timing, timing_records
from graphprobe.cli.commands.demo import PLANTED
from graphprobe.cli.main import COMMANDS
from warm.pool import Warm

DOCS = ROOT / "docs"
SETUPS = ROOT / "tests" / "doc_setups"

BROKEN = SETUPS / "reduce" / "broken.py"
WRONG = f"sed s/compile_error/accuracy/ {shlex.quote(str(BROKEN))} > wrong.py"

SESSIONS = {
    "README": [f"cp -r {shlex.quote(str(ROOT / 'examples'))} ."],
    "compare": [
        "python dumps.py",
        "python undecided.py dump_new 1.01",
        "python undecided.py dump_old 1.0",
        "RANK=0 WORLD_SIZE=2 python ranks.py",
        "RANK=1 WORLD_SIZE=2 python ranks.py",
        "python ptdbg.py",
    ],
    "convert": ["python dumps.py"],
    "api_dump": [],
    "backends": [],
    "diagnose": [WRONG, "grep -v _inductor wrong.py > right.py"],
    "dump": [],
    "issue": [
        "mkdir dossier",
        f"cp {shlex.quote(str(ROOT / 'tests' / 'diagnose' / 'golden' / 'wrong_value.md'))} dossier/REPORT.md",
        """printf '{"worst": {"label": "output 0"}}' > dossier/finding.json""",
    ],
    "overflow_and_watch": [],
    "ptdbg": [],
    "reduce": [WRONG],
    "tutorial": [],
}
"""Pages that are executed here, and what must have been done before, with the files in tests/doc_setups/<page>."""

ELSEWHERE = {
    "dump_config": "dump_plan/test_page.py",
    "explain": "cli/test_explain.py",
    "export": "export/test_page.py",
    "logs": "cli/test_logs.py",
    "profile": "cli/test_profile.py",
    "pytest": "test_pytest_plugin.py",
    "recompiles": "probe/test_recompiles_page.py",
    "replay": "probe/frames/test_page.py",
    "report": "report/test_report_docs.py",
    "save_and_print": "ops/test_page.py",
    "troubleshooting": "cli/test_logs.py",
}
"""Pages that have a test of their own, below tests."""

FIRST = ("README", "tutorial")
"""Pages that a newcomer meets first: `make test` executes them, however long they take."""

WORDS = re.compile(r"`graphprobe ([a-z][^`]*)`")
"""Commands in running text."""


def page(name: str) -> Path:
    return ROOT / "README.md" if name == "README" else DOCS / f"{name}.md"


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.always if name in FIRST else pytest.mark.slow) for name in SESSIONS],
)
def test_page(name: str, warm: Warm, tmp_path: Path) -> None:
    """Do what the page says, and hold what is printed against what it shows."""
    setup = SETUPS / name
    if setup.is_dir():
        shutil.copytree(setup, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    prelude = (setup / "prelude.py").read_text(encoding="utf-8") if (setup / "prelude.py").is_file() else ""
    for command in SESSIONS[name]:
        run_step(Step(0, command=command), tmp_path, python=warm.executable)
    steps = list(steps_of(page(name).read_text(encoding="utf-8")))
    assert steps
    for step in steps:
        said = run_step(step, tmp_path, prelude=prelude, python=warm.executable)
        if step.shown is not None:
            assert matches(step.shown, said), f"{name}, line {step.line}, shows\n{step.shown}\nand it printed\n{said}"


def test_every_page_is_executed_somewhere() -> None:
    without = []
    for name in sorted({path.stem for path in DOCS.glob("*.md")} | {"README"}):
        languages = {block.language for block in blocks_of(page(name).read_text(encoding="utf-8"))}
        if languages & {"console", "python"} and name not in SESSIONS.keys() | ELSEWHERE.keys():
            without.append(name)
    assert without == [], "pages whose commands no test gives"
    for name, file in ELSEWHERE.items():
        assert f"{name}.md" in (ROOT / "tests" / file).read_text(encoding="utf-8"), file


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(([\w./]+\.md)", index))
    pages = {str(path.relative_to(DOCS)) for path in [*DOCS.glob("*.md"), *DOCS.glob("formats/*.md")]}
    assert sorted(pages - linked - {"README.md"}) == []


def test_numbers_are_those_of_the_torch_that_is_pinned() -> None:
    shown = "pass: 37 of 759 nodes, 0.5 in 9.1 ms"
    for said, same, other in (
        (shown, True, True),
        ("pass: 28 of 765 nodes, 0.25 in 7 ms", False, True),
        ("pass: many of 759 nodes, 0.5 in 9.1 ms", False, False),
        ("pass: 37 of 759 edges, 0.5 in 9.1 ms", False, False),
    ):
        assert (matches(shown, said, other_torch=False), matches(shown, said, other_torch=True)) == (same, other)


@pytest.mark.parametrize("name", ["README", "docs/README"])
def test_every_command_is_in_the_tables(name: str) -> None:
    text = (ROOT / f"{name}.md").read_text(encoding="utf-8")
    told = {words.split()[0] for words in WORDS.findall(text)} | set(re.findall(r"^\$ graphprobe (\w+)", text, re.M))
    assert sorted(COMMANDS.keys() - told) == []


@pytest.mark.parametrize("path", [ROOT / "README.md", *sorted(DOCS.glob("*.md"))], ids=lambda path: path.stem)
def test_commands_in_running_text_exist(path: Path) -> None:
    for text in WORDS.findall(path.read_text(encoding="utf-8")):
        words = shlex.split(text.replace("\\|", "|"))
        assert words[0] in COMMANDS, text
        known = {name for option in command_of(words[0]).params for name in (*option.opts, *option.secondary_opts)}
        script = next((n for n, word in enumerate(words) if word.endswith(".py")), len(words))
        given = {word.partition("=")[0] for word in words[1:script] if word.startswith("-") and word != "-"}
        assert given <= known | {"--help"}, text


def test_readme_is_short_and_shows_what_it_is_within_forty_lines() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.count("\n") <= 200
    blocks = blocks_of(text)
    assert 0 < text.index("](docs/pictures/diagnose.svg)") < text.index(blocks[0].text)
    setup, shown = blocks[:2]
    assert setup.language == "sh" and setup.text.split("\n")[:2] == ["make setup", ". .venv/bin/activate"]
    assert shown.language == "console" and shown.text.startswith("$ graphprobe demo\n")
    assert shown.line + shown.text.count("\n") + 1 <= 40


def test_the_picture_loads_nothing_and_shows_the_planted_fault() -> None:
    """`python scripts/picture.py` draws it; it is drawn anew when the demo finds its fault otherwise."""
    picture = (DOCS / "pictures" / "diagnose.svg").read_text(encoding="utf-8")
    assert re.findall(r"https?://[^\s\"<]+", picture) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"<script|url\((?!#)|@import", picture)
    shown = " ".join(html.unescape("\n".join(re.findall(r">([^<>]+)</text>", picture))).replace("\xa0", " ").split())
    for words in (*PLANTED, "transformer.py:27", "blocks.0.mlp", "FAULT: ", "repro.py"):
        assert words in shown or words.replace("codegen", "code generation") in shown, words


def test_every_field_of_a_profile_is_described() -> None:
    text = (DOCS / "formats" / "profile.md").read_text(encoding="utf-8")
    names = "Profile Span Compile CacheEvent TimingSummary Row FunctionRow CacheRow TimingDiff TimingChange"
    for name in names.split():
        for field in msgspec.structs.fields(getattr(timing_records, name, None) or getattr(timing, name)):
            assert f"`{field.encode_name}`" in text, f"{name}.{field.name}"


def anchors_of(text: str) -> set[str]:
    """What a heading is linked by: lower case, words joined by hyphens, without punctuation."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    heads = re.findall(r"^#+ (.+)$", prose, re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("path", [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))], ids=lambda path: path.stem)
def test_links_to_headings_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)", text):
        file = path.parent / target if target else path
        assert anchor in anchors_of(file.read_text(encoding="utf-8")), f"{target}#{anchor}"
