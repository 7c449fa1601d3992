"""Reports as they are printed, or saved as PDF: all is there, within the page, and nothing lies on something else."""

from __future__ import annotations

import itertools
import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest

from analysis.test_timing import compiled, profile_of
from conftest import ROOT
from foreign_dumps import example
from graphprobe.analysis.timing_records import write_profile
from graphprobe.report.html.make import page_of
from graphprobe.report.html.sections_comparison import report_from as comparison_from
from graphprobe.report.html.sections_diagnosis import report_from as diagnosis_from
from graphprobe.report.html.sections_run import report_from as run_from
from graphprobe.store.foreign.msprobe_write import write_msprobe
from report.browser import Opened, OpenReport, axe_faults
from report.looks import LOOKS, PICTURES, REPORTS
from report.made import page, report_cases
from report.samples import MadeRun, fault

MISPLACED = """(scrolls) => {
    const held = (one) => {
        for (let up = one.parentElement; scrolls && up && up.tagName !== "MAIN"; up = up.parentElement)
            if (/auto|scroll/.test(getComputedStyle(up).overflowX)) return true;
        return false;
    };
    const box = (one) => one.getBoundingClientRect();
    const seen = (one) => box(one).width > 1 && box(one).height > 1 && !one.closest(".unseen");
    const all = (root, what) => [...root.querySelectorAll(what)].filter(seen);
    const wide = all(document, "main :not(svg *)").filter((one) => box(one).right > innerWidth + 1 && !held(one));
    const blocks = all(document, "section.part, section.part > *, .view > *, div.paper > *, .split > *");
    const over = blocks.filter((one) => {
        let next = one.nextElementSibling;
        while (next && !seen(next)) next = next.nextElementSibling;
        if (!next || !blocks.includes(next)) return false;
        const parts = all(one, ":not(svg *)").filter((part) => !held(part) && part.checkVisibility());
        const bottom = Math.max(...[one, ...parts].map((part) => box(part).bottom));
        const beside = box(one).left >= box(next).right || box(next).left >= box(one).right;
        return bottom > box(next).top + 1 && !beside;
    });
    const named = (word) => (one) => `${word}: ${one.outerHTML.slice(0, 90)}`;
    return [...wide.map(named("beyond the edge")), ...over.map(named("overlaps"))];
}"""
"""What lies beyond the right edge, or reaches into what comes after it; `scrolls`: but for what can be scrolled to."""


@pytest.fixture(autouse=True)
def in_the_folder_of_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def windowed(folder: Path) -> Path:
    """A fault with a graph that is taller than a page."""
    path = fault(folder)
    proof = folder / "proofs" / "codegen-aten.relu.default"
    names = [f"node_{number}" for number in range(40)]
    told = {"op": "aten.relu.default", "kind": "call_function", "type": "float32[4]"}
    nodes = [{"name": name, "accused": name == "node_20", **told} for name in names]
    edges = [list(pair) for pair in itertools.pairwise(names)]
    window = {"schema": 1, "culprit": "node_20", "graph_nodes": 40, "nodes": nodes, "edges": edges}
    (proof / "window.json").write_text(json.dumps(window))
    return path


def report_of(kind: str, folder: Path) -> Any:
    if kind == "fault":
        return diagnosis_from(windowed(folder))
    if kind == "comparison":
        report_cases().write_comparison(folder / "compared", 180)
        return comparison_from(folder / "compared")
    if kind == "dump":
        write_msprobe(example(), folder / "dump")
        return page_of(folder / "dump")
    if kind == "profile":
        write_profile(profile_of(compiled()), folder / "profile.json")
        return page_of(folder / "profile.json")
    run = MadeRun(folder)
    run.add_steps()
    run.add_losses()
    return run_from(run.close())


def printed(opened: Opened) -> None:
    opened.page.wait_for_function("[...document.querySelectorAll('.view')].every(view => view.dataset.done)")
    for view in opened.page.locator(".view-table").all():
        view.locator(".grid").wait_for(state="attached")
    opened.page.emulate_media(media="print")
    opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")


@pytest.mark.parametrize("look", ["desktop", "dark", "phone"])
@pytest.mark.parametrize("kind", REPORTS)
def test_on_a_screen_nothing_overlaps_and_all_can_be_used(
    kind: str, look: str, tmp_path: Path, open_report: OpenReport
) -> None:
    seen = LOOKS[look]
    file = page(tmp_path / f"{kind}.html", report_of(kind, tmp_path))
    opened = open_report(file, dark=seen.dark, width=seen.width, height=seen.height)
    opened.page.wait_for_function("[...document.querySelectorAll('.view')].every(view => view.dataset.done)")
    assert opened.page.evaluate(MISPLACED, True) == []
    assert axe_faults(opened.page) == []


def test_of_each_kind_and_look_there_is_a_picture() -> None:
    """`python scripts/report_pictures.py` draws them."""
    page = (ROOT / "docs" / "report.md").read_text("utf-8")
    names = {f"{kind}_{look}.png" for kind in REPORTS for look in LOOKS}
    assert {path.name for path in PICTURES.iterdir()} == names
    assert set(re.findall(r"\(pictures/reports/([\w.]+)\)", page)) == names
    for name in names:
        head = (PICTURES / name).read_bytes()[:24]
        look = LOOKS[name.removesuffix(".png").partition("_")[2]]
        assert head[:8] == b"\x89PNG\r\n\x1a\n"
        assert struct.unpack(">II", head[16:]) == (look.width, look.height)


@pytest.mark.parametrize("kind", REPORTS)
def test_on_paper_all_is_there_and_nothing_overlaps(kind: str, tmp_path: Path, open_report: OpenReport) -> None:
    opened = open_report(
        page(tmp_path / f"{kind}.html", report_of(kind, tmp_path)), width=LOOKS["print"].width, dark=True
    )
    view = opened.page
    printed(opened)
    assert view.evaluate(MISPLACED) == []
    assert view.locator("details:not([open])").count() == 0
    assert view.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    for table in view.locator(".view-table").all():
        assert not table.locator(".grid").is_visible()
        assert table.locator("table.paper tbody tr").count() == int(table.locator("output").inner_text().split()[0])
    pages = len(re.findall(rb"/Type\s*/Page\b", view.pdf()))
    assert 1 <= pages <= 15


def test_what_overlaps_or_is_too_wide_is_seen(tmp_path: Path, open_report: OpenReport) -> None:
    opened = open_report(page(tmp_path / "run.html", report_of("run", tmp_path)), width=LOOKS["print"].width)
    printed(opened)
    opened.page.evaluate("document.querySelector('#passes').style.cssText = 'height: 10px; overflow: visible'")
    assert any("overlaps" in told for told in opened.page.evaluate(MISPLACED))
    opened.page.evaluate("document.querySelector('#graphs h2').style.cssText = 'width: 900px'")
    assert any("beyond the edge" in told for told in opened.page.evaluate(MISPLACED))


def test_a_tall_graph_is_printed_in_strips_and_can_be_zoomed(tmp_path: Path, open_report: OpenReport) -> None:
    opened = open_report(page(tmp_path / "fault.html", report_of("fault", tmp_path)))
    opened.see("graph")
    shown = opened.page.locator("#graph .frame-of-graph svg")
    height = float(shown.get_attribute("height") or 0)
    opened.page.get_by_role("button", name="Fit the whole graph").click()
    fitted = float(shown.get_attribute("height") or 0)
    whole = "frame => frame.scrollHeight <= frame.clientHeight + 8"
    assert fitted < height and opened.page.locator("#graph .frame-of-graph").evaluate(whole)
    opened.page.locator("#graph .node[tabindex='0']").focus()
    opened.page.keyboard.press("+")
    assert fitted < float(shown.get_attribute("height") or 0) < height
    printed(opened)
    strips = opened.page.locator("#graph .paper svg")
    assert strips.count() > 1
    tops = [float((strip.get_attribute("viewBox") or "").split()[1]) for strip in strips.all()]
    assert tops == sorted(set(tops)) and not shown.is_visible()
    opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert strips.count() == len(tops)


def test_parts_far_down_are_drawn_without_scrolling(tmp_path: Path, open_report: OpenReport) -> None:
    opened = open_report(page(tmp_path / "run.html", report_of("run", tmp_path)), width=390)
    opened.page.wait_for_function("[...document.querySelectorAll('.view')].every(view => view.dataset.done)")
    assert opened.page.evaluate("scrollY") == 0 and opened.page.locator("#launches .grid").count() == 1
    assert opened.page.locator("#code .tok-k", has_text="return").count() > 0
    assert axe_faults(opened.page) == []
