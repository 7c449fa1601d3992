"""The documentation is executed: every command and program of README and of docs/*.md, with what it shows."""

import html
import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import graphprobe
from cli.calling import call, command_of
from conftest import RANDOM, ROOT, module_at
from doc_session import Step, blocks_of, matches, run_step, steps_of
from graphprobe.analysis import timing
from graphprobe.cli.commands.demo import PLANTED
from graphprobe.cli.main import AGENTS, COMMANDS, main
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
    "drift": [],
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
    "SKILL": [],
    "tutorial": [],
    "watch": [],
    "ways_in": [],
}
"""Pages that are executed here, and what must have been done before, with the files in tests/doc_setups/<page>."""

ELSEWHERE = {
    "dump_config": "dump_plan/test_document.py",
    "explain": "cli/test_explain.py",
    "export": "export/test_forms.py",
    "logs": "cli/test_logs.py",
    "profile": "cli/test_profile.py",
    "pytest": "test_pytest_plugin.py",
    "recompiles": "probe/test_recompiles.py",
    "replay": "probe/frames/test_replay.py",
    "report": "report/test_report_page.py",
    "save_and_print": "ops/test_save.py",
    "troubleshooting": "cli/test_logs.py",
}
"""Pages that have a test of their own, below tests."""

FIRST = ("README", "tutorial")
"""Pages that a newcomer meets first: `make test` executes them, however long they take."""

WORDS = re.compile(r"`graphprobe ([a-z][^`]*)`")
"""Commands in running text."""


def page(name: str) -> Path:
    return {"README": ROOT / "README.md", "SKILL": AGENTS}.get(name, DOCS / f"{name}.md")


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


@pytest.mark.parametrize("path", [ROOT / "README.md", AGENTS, *sorted(DOCS.glob("*.md"))], ids=lambda path: path.stem)
def test_commands_in_running_text_exist(path: Path) -> None:
    for text in WORDS.findall(path.read_text(encoding="utf-8")):
        words = shlex.split(text.replace("\\|", "|"))
        if words == ["help", "agents"]:
            continue
        assert words[0] in COMMANDS, text
        known = {name for option in command_of(words[0]).params for name in (*option.opts, *option.secondary_opts)}
        script = next((n for n, word in enumerate(words) if word.endswith(".py")), len(words))
        given = {word.partition("=")[0] for word in words[1:script] if word.startswith("-") and word != "-"}
        assert given <= known | {"--help"}, text


def test_the_page_for_agents_is_short_and_printed() -> None:
    text = AGENTS.read_text(encoding="utf-8")
    head = yaml.safe_load(text.split("---\n")[1])
    assert text.count("\n") <= 90 and head["name"] == "graphprobe" and head["description"]
    assert (ROOT / "skills" / "graphprobe" / "SKILL.md").samefile(AGENTS)
    assert call("help", "agents", code=0).output == text


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
        for field in msgspec.structs.fields(getattr(timing, name)):
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


site = module_at("scripts", "docs_site.py")


@pytest.fixture(scope="module")
def gathered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("site") / "build" / "docs"
    site.gather(folder)
    return folder


def test_every_command_and_every_public_name_has_its_place(gathered: Path) -> None:
    commands = (gathered / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^### graphprobe (\w+)$", commands, re.M)) == sorted(COMMANDS)
    assert commands.count("Usage: graphprobe ") == len(COMMANDS)
    python = (gathered / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    names = re.findall(r"^## graphprobe\.(\w+)$", python, re.M)
    assert sorted(names) == sorted(set(graphprobe.__all__) - {"__version__"})
    assert "def diagnose(fn: " in python and "class UsageError(GraphprobeError)" in python


def test_every_link_of_a_page_leads_to_a_file_of_the_site(gathered: Path) -> None:
    pages = list(gathered.rglob("*.md"))
    assert len(pages) > 60
    links = [(page, target) for page in pages for target in site.LINK.findall(page.read_text(encoding="utf-8"))]
    assert [f"{page}: {target}" for page, target in links if not (page.parent / target).exists()] == []


def named_in(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for one in nav.values() if isinstance(nav, dict) else nav:
            yield from named_in(one)


def test_the_navigation_has_pages_that_exist_and_every_guide(gathered: Path) -> None:
    named = set(named_in(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    assert [name for name in sorted(named) if not (gathered / name).is_file()] == []
    assert {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} - named == set()


def test_headings_are_named_as_on_github() -> None:
    assert site.slug("How do I compare ranks?", "-") == "how-do-i-compare-ranks"
    assert site.slug("Choose the logs: `--logs`", "-") == "choose-the-logs---logs"
    assert site.slug("3. NaN or infinity", "-") == "3-nan-or-infinity"


@pytest.mark.heavy
@pytest.mark.parametrize("broken", [False, True])
def test_the_site_is_built_strictly_and_loads_nothing(gathered: Path, tmp_path: Path, broken: bool) -> None:
    pytest.importorskip("mkdocs")
    shutil.copytree(gathered, tmp_path / "build" / "docs")
    for name in ("mkdocs.yml", "scripts"):
        (tmp_path / name).symlink_to(ROOT / name)
    if broken:
        with (tmp_path / "build" / "docs" / "docs" / "ci.md").open("a", encoding="utf-8") as page:
            page.write("\n[gone](diagnose.md#no-such-heading)\n")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    done = subprocess.run(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=500)
    assert (done.returncode != 0) == broken, done.stdout
    assert ("no-such-heading" in done.stdout) == broken
    for page in [] if broken else (tmp_path / "build" / "site").rglob("*.html"):
        loaded = re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=\"?(https?:[^\" >]+)", page.read_text("utf-8"))
        assert [url for url in loaded if not url.startswith("https://www.mkdocs.org")] == [], page


MOST_WORDS = 30
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[.!?]\))\s+")


def sentences(prose: str) -> Iterator[str]:
    """The sentences of a paragraph; code is one word."""
    prose = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", prose)
    prose = re.sub(r"`[^`]*`", "CODE", prose)
    yield from SENTENCE_END.split(" ".join(prose.split()))


def prose_of_markdown(text: str) -> Iterator[str]:
    """Paragraphs, list items and cells of tables, without blocks of code."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    for block in re.split(r"\n\s*\n|\n(?=[-*|#] ?)", text):
        yield from block.strip("|").split("|") if block.startswith("|") else [block.lstrip("-*# ")]


def prose_of_help(command: click.Command) -> Iterator[str]:
    """Paragraphs of the help, without those that stand as they are, and the help of each option."""
    for paragraph in re.split(r"\n\s*\n", command.help or ""):
        if "\b" not in paragraph:
            yield paragraph
    yield from (option.help for option in command.params if isinstance(option, click.Option) and option.help)


def long_sentences(prose: Iterator[str]) -> list[str]:
    return [s for text in prose for s in sentences(text) if len(re.findall(r"[\w'’…-]+", s)) > MOST_WORDS]


def test_a_long_sentence_is_found_and_code_is_one_word() -> None:
    long = " ".join(["word"] * 31)
    assert long_sentences(iter([f"Short. {long}. Short."])) == [f"{long}."]
    assert long_sentences(iter([f"`{long}` and [{long[:60]}]({long})", f"{long[:100]}. {long[:100]}."])) == []
    markdown = "# a\n\nb\nc\n\n- d\n- e\n\n| f | g |\n|---|---|\n| h | i |\n"
    assert list(prose_of_markdown(markdown))[:4] == ["a", "b\nc", "d", "e"]


def test_no_sentence_of_the_readme_is_long() -> None:
    assert long_sentences(prose_of_markdown((ROOT / "README.md").read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("name", [*COMMANDS, ""])
def test_no_sentence_of_the_help_is_long(name: str) -> None:
    assert long_sentences(prose_of_help(command_of(name) if name else main)) == []


def drawn() -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []

    @given(st.integers(0, 2**60), st.text())
    def draw(number: int, text: str) -> None:
        found.append((number, text))

    draw()
    return found


def test_examples_do_not_depend_on_what_was_imported(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--hypothesis-profile") == RANDOM:
        pytest.skip("random examples were asked for")
    assert settings.default.derandomize
    before = drawn()
    path = tmp_path / "of_many_constants.py"
    path.write_text("\n".join(f"N{k}, T{k} = {10**6 + 7 * k}, 'text {k}'" for k in range(50)), "utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
        assert drawn() == before
    finally:
        del sys.modules[path.stem]
