"""The page around the sections: it needs nothing else, escapes what is in it, and shows the lines that it links to."""

import io
import re
import shlex
import struct
from collections.abc import Callable
from pathlib import Path

import jinja2
import pytest

from conftest import ROOT, Finished
from doc_session import matches, run_step, steps_of
from graphprobe.report.document import DocumentVerdict, Prose, Section
from graphprobe.report.html import sections_run, sources
from graphprobe.report.html.page import Report, asset, pieces, write_page
from graphprobe.report.html.render import Html, html, rendered
from graphprobe.report.html.sources import AROUND, MOST_LINES, Sources
from report.browser import OpenReport, axe_faults, draw_everything
from report.looks import LOOKS, PICTURES, REPORTS
from warm.pool import Warm

EVIL = '</script><script>window.hacked = 1</script><img src=x onerror="window.hacked = 1">'
VERDICT = DocumentVerdict("bad", "FAULT", "relu gives wrong numbers.")


@pytest.fixture(autouse=True)
def code(tmp_path: Path) -> Path:
    return program(tmp_path)


def program(folder: Path) -> Path:
    file = folder / "model.py"
    file.write_text("\n".join(f"x{number} = {number}" for number in range(1, 101)))
    return file


def page_with_source(folder: Path, sources: Sources) -> Report:
    program(folder)
    rows = [f"row {n}" for n in range(80)]
    here = [("at ", sources.place("model.py:50"))]
    return Report(
        "title", "model.py", VERDICT, [Section("long", "Long", body=rows), Section("at", "At", body=here)], sources
    )


def test_text_is_escaped_and_html_is_not() -> None:
    assert html("{{ a }} {{ b }}", a="<b>", b=Html("<i>")) == "&lt;b&gt; <i>"
    assert rendered(Prose("use `x < 1` in `it's`")) == "use <code>x &lt; 1</code> in <code>it&#39;s</code>"
    assert rendered(Prose("it's a ` alone")) == "it&#39;s a ` alone"
    with pytest.raises(jinja2.UndefinedError, match="missing"):
        html("{{ missing }}")


def test_data_cannot_end_its_element() -> None:
    text = "".join(pieces(Report(EVIL, EVIL, DocumentVerdict("bad", EVIL, EVIL), [Section("a", EVIL, "code", [EVIL])])))
    assert "hacked = 1</script>" not in text
    assert len(re.findall("</script", text)) == len(re.findall("<script", text))


def test_only_the_assets_that_are_used_are_in_the_page() -> None:
    plain = "".join(pieces(Report("t", "s", VERDICT, [Section("a", "A")])))
    with_code = "".join(pieces(Report("t", "s", VERDICT, [Section("a", "A", "code", [])])))
    assert "GP.views.code" not in plain and "GP.views.code =" in with_code
    assert "GP.views.passes" not in with_code
    with pytest.raises(ValueError, match="no assets/view_nowhere"):
        "".join(pieces(Report("t", "s", VERDICT, [Section("a", "A", "nowhere", [])])))


def test_sections_are_named_well() -> None:
    with pytest.raises(ValueError, match="two sections have one id"):
        "".join(pieces(Report("t", "s", VERDICT, [Section("a", "A"), Section("a", "B")])))
    with pytest.raises(ValueError, match="lower-case letters"):
        Section("A b", "A")


def test_a_group_is_named_once_in_the_contents() -> None:
    sections = [Section(f"a{n}", "A", group="f" if n < 2 else "g" if n < 4 else "") for n in range(5)]
    text = "".join(pieces(Report("t", "s", VERDICT, sections)))
    assert re.findall(r'<li class="group">(.)</li>', text) == ["f", "g"]


def test_nothing_is_loaded_from_anywhere() -> None:
    names = [
        "page.html",
        "page.css",
        "page.js",
        "parts.css",
        *(f"view_{v}.{e}" for v in ("code", "passes", "flame") for e in ("js", "css")),
    ]
    for name in names:
        text = asset(name)
        assert text, name
        found = re.findall(r"https?://(?!www\.w3\.org/2000/svg)\S+|@import|url\(|\bimport\(|fetch\(|<link\b", text)
        assert found == [], name
    assert "default-src 'none'" in asset("page.html")


def test_sources_links_what_is_there(code: Path, tmp_path: Path) -> None:
    sources = Sources(tmp_path)
    assert sources.link("model.py:50") == sources.link(f"{code}:50") == sources.link("model.py:50 in forward") != ""
    assert sources.short(f"{code}:51") == "model.py:51"
    assert sources.short("/x/site-packages/torch/nn/linear.py:7") == "torch/nn/linear.py:7"
    assert sources.line("model.py:50") == "x50 = 50"
    for gone in ("model.py:101", "model.py:0", "other.py:3", "model.py", "", None, "a:b"):
        assert sources.link(gone) == ""
    assert rendered(sources.place("other.py:3")) == "<code>other.py:3</code>"


def test_snippets_that_touch_are_one(code: Path, tmp_path: Path) -> None:
    sources = Sources(tmp_path)
    for line in (20, 22, 80):
        sources.link(f"model.py:{line}")
    section = sources.section()
    assert section is not None
    assert rendered(section.body).count("<pre>") == 2
    shown = re.findall(r'class="no">(\d+)<', rendered(section.body))
    assert shown == [str(n) for n in [*range(20 - AROUND, 22 + AROUND + 1), *range(80 - AROUND, 80 + AROUND + 1)]]
    assert Sources(tmp_path).section() is None


def test_snippets_are_limited_and_say_so(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text("x\n" * (MOST_LINES + 30))
    sources = Sources(tmp_path)
    linked = [line for line in range(1, MOST_LINES + 31) if sources.link(f"long.py:{line}")]
    assert len(linked) == MOST_LINES
    section = sources.section()
    assert section is not None and "30 more lines" in rendered(section.body)


def test_a_file_that_was_written_to_since_is_marked(code: Path, tmp_path: Path) -> None:
    for since_ns, marked in ((code.stat().st_mtime_ns + 1, False), (code.stat().st_mtime_ns - 1, True)):
        sources = Sources(tmp_path, since_ns=since_ns)
        sources.link("model.py:3")
        section = sources.section()
        assert section is not None and ("written to since" in rendered(section.body)) is marked


def test_page_is_written_in_pieces() -> None:
    file = io.StringIO()
    write_page(Report("t", "s", VERDICT, [Section(f"a{n}", "A") for n in range(3)]), file)
    assert file.getvalue().count("<section") == 4
    assert len(list(pieces(Report("t", "s", VERDICT, [Section("a", "A", "code", [])])))) > 4


def test_lines_of_any_length_and_names_that_no_system_takes(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("x = 1\n" + "y" * 100_000 + "\n")
    sources = Sources(tmp_path)
    assert sources.link("model.py:2")
    section = sources.section()
    assert section is not None and len(rendered(section.body)) < 5_000
    assert sources.link("a" * 5_000 + ":3") == sources.link("a\0b:3") == ""


Python = Callable[..., Finished]

PAGE = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
RUN, FAULT, *_ = re.split(r"^## ", PAGE, flags=re.MULTILINE)


def do(text: str, folder: Path, warm: Warm) -> None:
    for step in steps_of(text):
        said = run_step(step, folder, python=warm.executable)
        assert step.shown is None or matches(step.shown, said), said


@pytest.mark.heavy
def test_the_report_of_a_run(warm: Warm, tmp_path: Path, open_report: OpenReport) -> None:
    do(RUN, tmp_path, warm)
    opened = open_report(tmp_path / "run.html")
    assert "COMPILED" in opened.text("h1")
    draw_everything(opened.page)
    assert opened.page.locator("#passes .passes li").count() > 1
    assert opened.page.locator("#code .marked").count() > 1
    assert opened.page.locator(".flame button").count() > 4
    assert "train.py" in opened.text("#sources")
    assert axe_faults(opened.page) == []


@pytest.mark.slow
def test_the_report_of_a_fault(warm: Warm, run_warm: Python, tmp_path: Path, open_report: OpenReport) -> None:
    do(FAULT, tmp_path, warm)
    opened = open_report(tmp_path / "fault.html", dark=True)
    draw_everything(opened.page)
    assert opened.page.locator(".ladder .badge.bad").count() == 1
    kernel = opened.page.locator("#code .pane").last.inner_text()
    assert "decltype(tmp0)(1)" in kernel  # the 1 that is too much
    done = run_warm(*shlex.split(opened.text("#verdict .command code"))[1:], cwd=tmp_path)
    assert done.code == 1
    assert axe_faults(opened.page) == []


def test_the_limits_are_those_of_the_code() -> None:
    assert f"beyond the first {sources.MOST_LINES}" in PAGE
    assert f"beyond {sections_run.MOST_BYTES >> 20} MiB of graphs" in PAGE
    assert f"generated code beyond {sections_run.MOST_CODE_BYTES >> 20} MiB" in PAGE


def test_of_each_kind_and_look_there_is_a_picture() -> None:
    """`python scripts/report_pictures.py` draws them."""
    names = {f"{kind}_{look}.png" for kind in REPORTS for look in LOOKS}
    assert {path.name for path in PICTURES.iterdir()} == names
    assert set(re.findall(r"\(pictures/reports/([\w.]+)\)", PAGE)) == names
    for name in names:
        head = (PICTURES / name).read_bytes()[:24]
        look = LOOKS[name.removesuffix(".png").partition("_")[2]]
        assert head[:8] == b"\x89PNG\r\n\x1a\n"
        assert struct.unpack(">II", head[16:]) == (look.width, look.height)
