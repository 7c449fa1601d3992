"""The docs site: every command and public name has its place, links lead somewhere, it loads nothing."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import graphprobe
from conftest import ROOT, module_at
from graphprobe.cli.main import COMMANDS

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
    """The pages of a navigation, however deep."""
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
