"""Every reading command on the demo's data, at 80 and 120 columns: nothing is cut, or broken inside a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli import captures
from cli.captures import CAPTURES, SHOWN, TIMED, WIDTHS, capture, make_data, masked, too_wide

VERDICTS = {
    "explain": "BREAKS: ",
    "recompiles": "RECOMPILES: ",
    "compare": "DIFFERENT: ",
    "compare_same": "SAME: ",
    "merge": "SAME: ",
    "report": "FAULT: ",
}
"""The word that is in the last five lines."""

GO_ON = ("explain", "recompiles", "compare", "merge")
"""Whose last line is what to do next."""


def kept(name: str, width: int) -> tuple[str, str]:
    """The command of a capture, and what it showed."""
    command, _, shown = (CAPTURES / str(width) / f"{name}.txt").read_text(encoding="utf-8").partition("\n")
    return command, shown


def test_a_broken_word_is_found_and_a_long_path_is_none() -> None:
    assert too_wide("word " * 20, 80) == ["word " * 20]
    assert too_wide("at " + "folder/" * 20, 80) == []
    assert too_wide("short", 80) == []


def test_what_is_measured_is_masked_and_nothing_else() -> None:
    assert masked("0.5 s in  /home/me/x.py:12") == masked("12.25 s in /a/b/x.py:12") != masked("1 s in /a/x.py:13")
    assert masked("mean -6.03904e-10") == masked("mean 1.2e-09") != masked("mean 1.2e-03")
    assert masked("3 graphs") != masked("4 graphs")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", SHOWN)
def test_nothing_is_wider_than_the_terminal(name: str, width: int) -> None:
    command, shown = kept(name, width)
    assert command == f"$ graphprobe {SHOWN[name]}"
    assert too_wide(shown, width) == []


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", VERDICTS)
def test_the_verdict_is_at_the_end(name: str, width: int) -> None:
    last = kept(name, width)[1].rstrip().split("\n")[-5:]
    assert any(line.startswith(VERDICTS[name]) for line in last)
    assert name not in GO_ON or last[-1].startswith("  next: ")


def test_there_is_no_other_file() -> None:
    assert {path.stem for path in CAPTURES.glob("*/*.txt")} == SHOWN.keys()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("captures") / "data"
    make_data(folder)
    return folder


@pytest.mark.heavy
def test_commands_show_what_was_kept(data: Path) -> None:
    """`python tests/cli/captures.py FOLDER` writes the captures anew where they are to be others."""
    wrong = {}
    for width in captures.WIDTHS:
        for name, command in SHOWN.items():
            shown = capture(command, data, width)
            assert too_wide(shown, width) == [], name
            if name not in TIMED and masked(shown) != masked(kept(name, width)[1]):
                wrong[f"{name} at {width}"] = shown
    assert wrong == {}
