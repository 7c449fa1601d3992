"""Every reading command on the demo's data, at 80 and 120 columns: nothing is cut, or broken inside a word."""

from pathlib import Path

import pytest

from cli.captures import CAPTURES, SHOWN, TIMED, WIDTHS, capture, make_data, masked, too_wide
from warm.pool import Warm


def kept(name: str, width: int) -> tuple[str, str]:
    """The command of a capture, and what it showed."""
    command, _, shown = (CAPTURES / str(width) / f"{name}.txt").read_text(encoding="utf-8").partition("\n")
    return command, shown


def test_a_broken_word_is_found_and_what_is_measured_is_masked() -> None:
    assert too_wide("word " * 20, 80) == ["word " * 20]
    assert too_wide("at " + "folder/" * 20, 80) == too_wide("short", 80) == []
    assert masked("0.5 s in  /home/me/x.py:12") == masked("12.25 s in /a/b/x.py:12") != masked("1 s in /a/x.py:13")
    assert masked("mean -6.03904e-10") == masked("mean 1.2e-09") != masked("mean 1.2e-03")
    assert masked("3 graphs") != masked("4 graphs")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", SHOWN)
def test_nothing_is_wider_than_the_terminal(name: str, width: int) -> None:
    command, shown = kept(name, width)
    assert command == f"$ graphprobe {SHOWN[name]}"
    assert too_wide(shown, width) == []


def test_there_is_no_other_file() -> None:
    assert {path.stem for path in CAPTURES.glob("*/*.txt")} == SHOWN.keys()


@pytest.mark.heavy
def test_commands_show_what_was_kept(warm: Warm, tmp_path: Path) -> None:
    """`python tests/cli/captures.py FOLDER` writes the captures anew where they are to be others."""
    data = tmp_path / "data"
    make_data(data, python=warm.executable)
    wrong = {}
    for width in WIDTHS:
        for name, command in SHOWN.items():
            shown = capture(command, data, width)
            assert too_wide(shown, width) == [], name
            if name not in TIMED and masked(shown) != masked(kept(name, width)[1]):
                wrong[f"{name} at {width}"] = shown
    assert wrong == {}
