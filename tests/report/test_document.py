"""Content of a report: every kind has its HTML, all text is escaped, and the terminal shows the same words."""

import ast
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, get_args

import pytest

from cli.test_reading import record
from conftest import ROOT
from graphprobe.findings import Diagnosis, Finding
from graphprobe.report import document as d
from graphprobe.report.html.render import Html, rendered
from graphprobe.report.notebook import html_of, text_of
from graphprobe.report.terminal import Paper, console_for, grid_lines
from graphprobe.store import Run, layout
from report import samples

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


NOTEBOOK = ROOT / "examples" / "notebook.ipynb"
SCRIPT = "<script>alert(1)</script>"
VERDICT = re.compile(r"<strong[^>]*>([A-Z ]+)</strong>")


class Tags(HTMLParser):
    """What a piece of HTML consists of, and whether all that is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes.update(name for name, _ in attrs)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, tag


def check_shown(shown: str, word: str) -> None:
    """It is whole, begins with its verdict, and neither asks for anything nor runs anything."""
    tags = Tags(shown)
    assert tags.open == []
    assert tags.names.isdisjoint({"script", "img", "link", "iframe", "style", "object", "form"})
    assert tags.attributes.isdisjoint({"src", "href"}) and not any(name.startswith("on") for name in tags.attributes)
    found = VERDICT.search(shown)
    assert found is not None and found[1] == word
    assert re.sub(r"<[^>]+>|\s", "", shown).startswith(word.replace(" ", ""))


def test_a_fault(tmp_path: Path) -> None:
    diagnosis = Diagnosis(verdict="fault", findings=[samples.finding(tmp_path, samples.source(tmp_path))], seconds=3)
    check_shown(diagnosis._repr_html_(), "FAULT")
    assert "Compiled, relu gives wrong numbers." in diagnosis._repr_html_() and "<details>" in diagnosis._repr_html_()
    assert str(diagnosis).startswith("FAULT: the program: one fault appears only when it is compiled (3 s).\n")
    assert str(diagnosis) == text_of(diagnosis) and repr(diagnosis) == (
        "<Diagnosis: FAULT: the program: one fault appears only when it is compiled (3 s); print() shows it>"
    )


def test_text_of_the_program_is_no_html() -> None:
    names = {"op": f"aten.{SCRIPT}", "node": SCRIPT, "kernel": SCRIPT, "module": SCRIPT, "source": f"{SCRIPT}.py:3"}
    finding = Finding(kind="crash_compile", stage="codegen", reason=f"raised {SCRIPT}", **names)
    diagnosis = Diagnosis(verdict="undecided", findings=[finding], notes=[SCRIPT], ruled_out=[SCRIPT])
    shown = diagnosis._repr_html_()
    check_shown(shown, "UNDECIDED")
    assert shown.count("&lt;script&gt;") >= 7 and "<script" not in shown
    assert str(diagnosis).count(SCRIPT) >= 7


def test_of_many_findings_a_few_are_shown(tmp_path: Path) -> None:
    made = samples.finding(tmp_path, samples.source(tmp_path))
    shown = Diagnosis(verdict="fault", findings=[made] * 5)._repr_html_()
    assert shown.count("<article") == 3 and "and 2 more; print() has them" in shown


def test_a_run(tmp_path: Path) -> None:
    record(tmp_path / layout.ROOT)
    run = Run.open(tmp_path / layout.ROOT)
    check_shown(run._repr_html_(), "FINISHED")
    assert "model__0/forward/graph" in run._repr_html_() and "model__0/forward/graph" in str(run)


def test_anything_else_is_refused() -> None:
    for show in (html_of, text_of):
        with pytest.raises(TypeError, match="dict is no result that graphprobe shows"):
            show({})


def results_of(notebook: Path) -> list[Any]:
    """The value of the last line of each cell that ends with an expression, all run in one namespace."""
    results, names = [], {"__name__": "__main__"}
    for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, cell["id"], "exec"), names)
        if isinstance(last, ast.Expr):
            results.append(eval(compile(ast.Expression(last.value), cell["id"], "eval"), names))
    return results


def test_the_notebook_keeps_no_output() -> None:
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells if "outputs" in cell)


def test_the_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    results = results_of(NOTEBOOK)
    words = ["HEALTHY", "BREAKS", "PROFILE", "DUMPED", "DIFFERENT", "FINISHED"]
    assert len(results) == len(words)
    for result, word in zip(results, words, strict=True):
        check_shown(result._repr_html_(), word)
        assert str(result).strip() and not str(result).startswith("<")
    results[4].close()
