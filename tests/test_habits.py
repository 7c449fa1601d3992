"""What contributors and other projects copy: the release check, the hooks, the templates, the nightly workflow."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.calling import command_of
from conftest import ROOT, module_at

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
