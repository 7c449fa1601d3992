"""What a release needs, checked before it is tagged: `make release-check`."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WRITTEN = ("diagnosis_schema.py", "dump_config_schema.py", "torch_names.py")
"""Scripts whose files are in the repository, and have to be what they write now."""

BY_HAND = (
    "make test-all is green, on a quiet machine",
    "the benches of bench/README.md were run, and figures that changed are in it",
    "git tag -a v{version} -m 'graphprobe {version}', push it, upload dist/",
    "CHANGELOG.md has a new, empty [Unreleased]",
)


def version_in(text: str) -> str | None:
    """The version that `src/graphprobe/__init__.py` gives."""
    found = re.search(r'^__version__(?:: \w+)? = "([^"]+)"', text, re.M)
    return None if found is None else found[1]


def faults_of_changelog(text: str, version: str) -> Iterator[str]:
    """Nothing is unreleased, and the newest section is that of the version, with a date and entries."""
    sections = re.split(r"^## ", text, flags=re.M)[1:]
    heads = [section.partition("\n")[0] for section in sections]
    if heads[:1] == ["[Unreleased]"] and sections[0].count("\n- "):
        yield "[Unreleased] has entries: move them below the version"
    released = [i for i, head in enumerate(heads) if head != "[Unreleased]"]
    newest = heads[released[0]] if released else "none"
    if not re.fullmatch(rf"\[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d", newest):
        yield f"the newest section is {newest!r}, not that of {version} with a date"
    elif not sections[released[0]].count("\n- "):
        yield f"the section of {version} has no entry"


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def checks(version: str) -> Iterator[tuple[str, Callable[[], list[str]]]]:
    """What is looked at, and what finds its faults."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    yield "CHANGELOG.md", lambda: list(faults_of_changelog(changelog, version))
    yield "the tag is new", lambda: [f"v{version} is there"] if _git("tag", "--list", f"v{version}") else []
    yield "nothing uncommitted", lambda: _git("status", "--porcelain").splitlines()
    for script in WRITTEN:
        yield f"scripts/{script} changes nothing", lambda script=script: _changed_by(script)


def _changed_by(script: str) -> list[str]:
    before = _git("status", "--porcelain")
    done = subprocess.run([sys.executable, ROOT / "scripts" / script], cwd=ROOT, capture_output=True, text=True)
    after = _git("status", "--porcelain")
    return [done.stderr] if done.returncode else [] if after == before else [f"it wrote: {after}"]


def main() -> int:
    version = version_in((ROOT / "src" / "graphprobe" / "__init__.py").read_text(encoding="utf-8"))
    if version is None:
        print("FAILED  src/graphprobe/__init__.py gives no __version__")
        return 1
    failed = 0
    for name, faults in checks(version):
        found = faults()
        failed += bool(found)
        print(f"{'FAILED' if found else 'ok    '}  {name}{''.join(f'{chr(10)}        {text}' for text in found)}")
    print(f"\nBy hand, for {version}:", *(f"  - {text.format(version=version)}" for text in BY_HAND), sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
