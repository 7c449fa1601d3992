"""The words that a newcomer meets first, README and help: short sentences, and terms that the glossary explains."""

import re
from collections.abc import Iterator

import click
import pytest

from cli.calling import command_of
from conftest import ROOT
from graphprobe.cli.main import COMMANDS, main

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
