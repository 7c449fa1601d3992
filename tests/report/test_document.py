"""Content of a report: every kind has its HTML, all text is escaped, and the terminal shows the same words."""

import io
from typing import get_args

import pytest

from graphprobe.report import document as d
from graphprobe.report.html.render import Html, rendered
from graphprobe.report.terminal import Paper, console_for, grid_lines

EVIL = '<img src=x onerror="x">'
INLINE = (
    d.Code(EVIL),
    d.Prose(f"{EVIL} `{EVIL}`"),
    d.Muted(EVIL),
    d.SourcePlace(EVIL, line=EVIL),
    d.SourcePlace(EVIL, anchor="src-0-1"),
    d.Jump("findings", EVIL),
    d.Badge("bad", EVIL),
)
BLOCKS = (
    d.Excerpt(EVIL),
    d.Command(EVIL),
    d.Note(EVIL),
    d.Facts([(EVIL, EVIL)]),
    d.Facts([(EVIL, EVIL)], large=True),
    d.Bullets([EVIL], EVIL, "warn"),
    d.Grid((EVIL,), [[EVIL]], left=EVIL),
    d.Card(EVIL, EVIL),
    d.Cards([d.Card(EVIL, EVIL)]),
    d.Folded(EVIL, EVIL),
    d.Listing(EVIL, EVIL),
)


@pytest.mark.parametrize("content", [EVIL, *INLINE, *BLOCKS], ids=lambda content: type(content).__name__)
def test_every_text_is_escaped(content: d.Content) -> None:
    for text in (rendered(content), rendered((content,)), rendered([content])):
        assert "&lt;img" in text and "<img" not in text


def test_no_kind_is_left_out() -> None:
    assert {type(one) for one in BLOCKS} == set(get_args(d.Block))


def test_paragraphs_are_of_text_and_not_of_blocks() -> None:
    assert rendered(["a", ("b", d.Code("c"))]) == "<p>a</p><p>b<code>c</code></p>"
    assert "<p>" not in rendered([d.Facts([("a", "b")]), [d.Command("c")], Html("<svg></svg>")])
    assert [rendered(empty) for empty in (d.Note(""), d.Facts([]), d.Bullets([]), d.Excerpt(""), d.Code(""))] == [
        ""
    ] * 5


def test_a_text_with_marks_is_no_code_unless_it_is_prose() -> None:
    assert rendered("`a`") == "`a`" and rendered(d.Prose("`a` b")) == "<code>a</code> b"
    assert d.plain((d.Prose("`a`"), " ", d.Code("b"), d.Badge("bad", "c"))) == "`a` bc"


def shown(content: d.Content) -> str:
    file = io.StringIO()
    Paper(console_for(file), width=30, label=8).show(content)
    return file.getvalue()


def test_the_terminal_breaks_prose_and_leaves_whole_what_is_copied() -> None:
    path = "/a/path/that/is/longer/than/thirty/columns.py:3"
    facts = d.Facts(
        [
            ("line", [d.SourcePlace(path), d.Excerpt("x = 1")]),
            ("why", "it is said in more words than fit"),
            ("more", d.Folded("figures", ["one", "two"])),
        ]
    )
    text = shown([d.Card((d.Code("relu"), " is wrong"), ["One line.", facts, d.Folded("all", "left out")])])
    assert text.splitlines() == [
        "",
        "relu is wrong",
        "   One line.",
        f"   line:   {path}",
        "           x = 1",
        "   why:    it is said in more",
        "           words than fit",
    ]
    assert shown([d.Bullets(["a", "b"], "Some"), d.Note("c")]) == "Some:\n  - a\n  - b\nc\n"


def test_numbers_stand_on_the_right() -> None:
    grid = d.Grid(("n", "name"), [("1", d.Code("a")), ("200", ("b", d.Muted(" c")))], numbers=(0,))
    assert grid_lines(grid, indent=1) == ["   n  name", "   1  a", " 200  b c"]
    assert rendered(grid).count('class="n"') == 3
