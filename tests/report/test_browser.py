"""Pages in Chromium, beyond the walks of `test_pages.py`: kinds and looks, tables, heat maps, dumps, hostile data."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from graphprobe.analysis.timing import write_profile
from graphprobe.findings import FunctionDiagnosis, ScriptDocument
from graphprobe.records import Where
from graphprobe.report.document import DocumentVerdict, Section
from graphprobe.report.html.page import Report
from graphprobe.report.html.sections_comparison import report_from as comparison_from
from graphprobe.report.html.sections_diagnosis import report_from as diagnosis_from
from graphprobe.report.html.sections_dump import report_from as dump_from
from graphprobe.report.html.sections_run import report_from as run_from
from graphprobe.report.html.sources import Sources
from graphprobe.report.html.table import Column, Table
from graphprobe.report.subject import page_of as report_of_folder
from graphprobe.store import layout
from msprobe_tool import DATA
from probe.dump.conftest import Dumping, dumping  # noqa: F401
from report.browser import Grid, Opened, OpenReport, axe_faults, draw_everything
from report.looks import LOOKS, REPORTS
from report.made import page, page_of, report_cases
from report.samples import MadeRun, fault, finding, rungs, source
from report.test_report_page import EVIL as EVIL_PAGE
from report.test_report_page import VERDICT, page_with_source
from report.test_sections_dump import model, overflowing  # noqa: F401
from report.test_table import EVIL, health_page, table_of

pytestmark = pytest.mark.usefixtures("beside_the_program")

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


def report_of(kind: str, folder: Path) -> Any:
    if kind == "fault":
        return diagnosis_from(fault(folder))
    if kind == "comparison":
        report_cases().write_comparison(folder / "compared", 180)
        return comparison_from(folder / "compared")
    if kind == "dump":
        return report_of_folder(DATA / "statistics")
    if kind == "profile":
        from analysis.test_timing import compiled, profile_of

        write_profile(profile_of(compiled()), folder / "profile.json")
        return report_of_folder(folder / "profile.json")
    run = MadeRun(folder)
    run.add_steps()
    run.add_losses()
    return run_from(run.close())


def printed(opened: Opened) -> None:
    opened.drawn()
    for view in opened.page.locator(".view-table").all():
        view.locator(".grid").wait_for(state="attached")
    opened.page.emulate_media(media="print")
    draw_everything(opened.page)


@pytest.mark.slow
@pytest.mark.parametrize("kind", REPORTS)
def test_a_page_of_each_kind_in_each_look(kind: str, tmp_path: Path, open_report: OpenReport) -> None:
    """On a screen nothing overlaps and all can be used; on paper all is there, and nothing overlaps."""
    file = page(tmp_path / f"{kind}.html", report_of(kind, tmp_path))
    for look in (look for look in LOOKS.values() if not look.printed):
        opened = open_report(file, dark=look.dark, width=look.width, height=look.height)
        opened.drawn()
        assert opened.page.evaluate(MISPLACED, True) == [], look
        assert axe_faults(opened.page) == [], look
    opened = open_report(file, width=LOOKS["print"].width, dark=True)
    view = opened.page
    printed(opened)
    assert view.evaluate(MISPLACED) == []
    assert view.locator("details:not([open])").count() == 0
    assert view.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    for table in view.locator(".view-table").all():
        assert not table.locator(".grid").is_visible()
        assert table.locator("table.paper tbody tr").count() == int(table.locator("output").inner_text().split()[0])
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", view.pdf())) <= 15


@pytest.mark.slow
def test_what_overlaps_or_is_too_wide_is_seen(tmp_path: Path, open_report: OpenReport) -> None:
    opened = open_report(page(tmp_path / "run.html", report_of("run", tmp_path)), width=LOOKS["print"].width)
    printed(opened)
    opened.page.evaluate("document.querySelector('#passes').style.cssText = 'height: 10px; overflow: visible'")
    assert any("overlaps" in told for told in opened.page.evaluate(MISPLACED))
    opened.page.evaluate("document.querySelector('#graphs h2').style.cssText = 'width: 900px'")
    assert any("beyond the edge" in told for told in opened.page.evaluate(MISPLACED))


@pytest.mark.slow
def test_parts_far_down_are_drawn_without_scrolling(tmp_path: Path, open_report: OpenReport) -> None:
    opened = open_report(page(tmp_path / "run.html", report_of("run", tmp_path)), width=390)
    opened.drawn()
    assert opened.page.evaluate("scrollY") == 0 and opened.page.locator("#launches .grid").count() == 1
    assert opened.page.locator("#code .tok-k", has_text="return").count() > 0


@pytest.fixture
def grid(tmp_path: Path, open_report: OpenReport) -> Grid:
    file = page_of(tmp_path / "report.html", Section("calls", "Calls", "table", table_of(500).data()))
    return Grid(open_report(file), "calls")


@pytest.mark.slow
def test_a_table_is_searched_filtered_and_sorted(grid: Grid) -> None:
    assert grid.count == "500 rows"
    assert grid.search("linear.49") == "11 of 500 rows"  # 49, and 490 to 499
    assert grid.column("call")[:2] == ["linear.49", "linear.490"]
    assert grid.search("verdict:wrong linear.49") == "1 of 500 rows" and grid.column("call") == ["linear.493"]
    large = 1 + sum((i * 7) % 101 == 100 for i in range(500) if i not in (7, 8))  # and the infinite one
    assert grid.search("error>100") == f"{large} of 500 rows" and "∞" in grid.column("error")
    assert grid.search("no such thing") == "0 of 500 rows"
    assert "No row has this" in grid.page.locator("#calls .none").inner_text()
    grid.page.get_by_role("button", name="Show all").click()
    assert grid.count == "500 rows" and grid.page.locator("#calls .none").count() == 0
    choice = grid.page.locator("#calls select")
    assert choice.locator("option").all_inner_texts() == ["all", "ok (450)", "wrong (50)"]
    choice.select_option("wrong")
    assert grid.count == "50 of 500 rows" and grid.column("#")[:3] == ["3", "13", "23"]
    choice.select_option("all")
    head = grid.page.get_by_role("columnheader", name="error")
    for first, sort in ((["∞", "100.3", "100.3"], "descending"), (["0.25", "0.25"], "ascending")):
        head.click()
        assert grid.column("error")[: len(first)] == first and head.get_attribute("aria-sort") == sort
        grid.grid.focus()
        grid.press("Control+End")
        assert grid.column("error")[-1] == "", "blanks come last"
        grid.press("Control+Home")
    head.click()
    assert grid.column("#")[:3] == ["0", "1", "2"] and head.get_attribute("aria-sort") == "none"
    grid.page.get_by_role("columnheader", name="call").click()
    assert grid.column("call")[:4] == [EVIL, "linear.0", "linear.2", "linear.3"], "by the numbers in them"


@pytest.mark.slow
def test_everything_in_a_table_can_be_done_with_the_keyboard(grid: Grid) -> None:
    grid.page.locator("#calls input").focus()
    grid.press("ArrowDown", "ArrowRight", "ArrowRight", "PageDown")
    assert grid.active.startswith("linear.") and int(grid.active.removeprefix("linear.")) > 5
    grid.press("Control+End")
    assert grid.grid.get_attribute("aria-rowcount") == "501" and grid.active.startswith("0")  # rank, the last column
    grid.press("Home")
    assert grid.active == "499"
    grid.press("Enter")
    details = grid.page.locator("#calls .details")
    assert details.locator("h3").inner_text() == "linear.499" and "499" in details.inner_text()
    grid.press("Escape")
    assert not details.is_visible() and grid.grid.evaluate("grid => document.activeElement === grid")
    grid.press("Control+Home", "ArrowUp", "ArrowRight", "ArrowRight", "ArrowRight")
    assert grid.active == "error"
    grid.press("Enter")
    assert grid.column("error")[0] == "∞"
    assert grid.page.locator("#live").inner_text() == "Sorted by error, descending"


@pytest.mark.slow
def test_text_of_a_table_is_never_markup_and_its_details_break_no_rule(grid: Grid) -> None:
    assert grid.column("call")[1] == EVIL and grid.page.locator("#calls img").count() == 0
    grid.page.locator("#calls .body .row").nth(1).click()
    assert EVIL in grid.page.locator("#calls .details").inner_text() and grid.page.title() == "made up"
    assert axe_faults(grid.page) == []


@pytest.mark.slow
def test_a_table_begins_at_the_row_that_matters(tmp_path: Path, open_report: OpenReport) -> None:
    table = Table("Calls", [Column(name="call")])
    for i in range(400):
        table.add((f"call.{i}",))
        if i in (250, 300):
            table.start_here()
    grid = Grid(open_report(page_of(tmp_path / "r.html", Section("calls", "Calls", "table", table.data()))), "calls")
    assert "call.250" in grid.column("call") and "call.0" not in grid.column("call")


@pytest.mark.slow
def test_more_rows_than_a_browser_has_pixels_for_and_none(tmp_path: Path, open_report: OpenReport) -> None:
    table = Table("Numbers", [Column(name="n", kind="number")])
    for i in range(500_000):
        table.add((i,))
    empty = Section("calls", "Calls", "table", Table("Calls", [Column(name="call")]).data())
    opened = open_report(page_of(tmp_path / "r.html", Section("n", "N", "table", table.data()), empty))
    assert "There are no rows" in opened.text("#calls") and axe_faults(opened.page) == []
    grid = Grid(opened, "n")
    grid.grid.focus()
    grid.press("Control+End")
    assert grid.active == "499,999" and grid.page.locator("#n .body .row").count() < 60
    grid.press("PageUp", "ArrowUp")
    assert 499_900 < int(grid.active.replace(",", "")) < 499_999
    grid.press("Control+Home", "ArrowDown")
    assert grid.active == "1"


@pytest.mark.slow
def test_a_cell_of_a_heat_map_says_what_it_means_and_narrows_the_table(tmp_path: Path, open_report: OpenReport) -> None:
    opened = open_report(health_page(tmp_path))
    assert opened.page.locator("#health .c").count() == 15
    worst = opened.page.get_by_role("gridcell", name="blocks.1.attn, step 2: error 900, up to 10,000")
    assert worst.locator("[aria-hidden]").inner_text() == "900" and "t3" in (worst.get_attribute("class") or "")
    assert "as rounding: up to 1" in opened.text("#health .legend")
    worst.click()
    grid = Grid(opened, "calls")
    assert grid.count == "4 of 60 rows" and set(grid.column("module")) == {"blocks.1.attn"}
    assert opened.text("#calls .only") == "Only blocks.1.attn, step 2"
    opened.page.get_by_role("button", name="Show all").click()
    assert grid.count == "60 rows"
    opened.page.locator("#health select").select_option(label="NaN and infinity")
    clean = opened.page.get_by_role("gridcell", name="embed, step 0: NaN and infinity 0, none")
    assert clean.locator("[aria-hidden]").inner_text() == "0"


@pytest.mark.slow
def test_the_keyboard_finds_the_worst_cell_and_narrows(tmp_path: Path, open_report: OpenReport) -> None:
    opened = open_report(health_page(tmp_path))
    opened.page.locator("#health [role=grid]").focus()
    assert opened.text("#health .said").startswith("blocks.1.attn, step 2: error 900")
    opened.page.keyboard.press("ArrowUp")
    opened.page.keyboard.press("ArrowLeft")
    assert opened.text("#health .said").startswith("blocks.0.mlp, step 1: error 0.5, as rounding")
    opened.page.keyboard.press("Enter")
    grid = Grid(opened, "calls")
    assert grid.count == "4 of 60 rows" and set(grid.column("step")) == {"1"}
    assert grid.grid.evaluate("grid => document.activeElement === grid")


@pytest.mark.slow
def test_100_000_calls_can_be_used_within_2_s(tmp_path: Path, open_report: OpenReport) -> None:
    report_cases().write_comparison(tmp_path, 100_000)
    file = page(tmp_path / "report.html", comparison_from(tmp_path))
    opened = open_report(file)

    def interactive_ms() -> float:
        """From the navigation to the table's last line of preparation, in a page that is opened at the table."""
        opened.page.evaluate("location.hash = 'calls'")
        opened.page.reload()
        opened.page.wait_for_selector("#calls .view[data-interactive]")
        return float(opened.page.evaluate("performance.getEntriesByName('interactive:calls')[0].startTime"))

    took = min(interactive_ms() for _ in range(2))
    assert opened.text("#calls output") == "100,000 rows"
    searched = opened.page.evaluate(
        """() => new Promise((done) => {
            const output = document.querySelector("#calls output"), box = document.querySelector("#calls input");
            const begin = performance.now();
            new MutationObserver(() => done(performance.now() - begin)).observe(output, { childList: true });
            box.value = "gelu";
            box.dispatchEvent(new Event("input"));
        })"""
    )
    assert took < 2_000 and searched < 2_000 and file.stat().st_size < 20e6


@pytest.mark.slow
def test_many_passes_open_at_once(tmp_path: Path, open_report: OpenReport) -> None:
    run = MadeRun(tmp_path)
    for model_number, number in itertools.product(range(1, 101), range(100)):
        where = Where(model=model_number, direction="forward", phase="post_grad_passes", pass_name=f"pass_{number}")
        run.writer.event(where=where, kind="pass", name=f"pass_{number}", changed=False, elapsed_ns=1_000)
    opened = open_report(page(tmp_path / "run.html", run_from(run.close())))
    opened.see("passes")
    assert opened.page.evaluate("performance.now()") < 2_000
    opened.page.locator("#passes select").select_option(label="model__7 forward (0 changed)")
    opened.page.get_by_label("also those that changed nothing").check()
    assert opened.page.locator("#passes .name").count() == 100
    assert opened.page.evaluate("document.querySelectorAll('*').length") < 4_000


@pytest.mark.slow
def test_both_dumps_of_a_run_are_in_its_page(recorded_run: Path, tmp_path: Path, open_report: OpenReport) -> None:
    (folder,) = (recorded_run / layout.ROOT).iterdir()
    opened = open_report(page(tmp_path / "run.html", run_from(folder)))
    for name in ("calls", "calls-compiled"):
        opened.see(name)
    assert "log" in opened.page.locator("#calls-compiled").inner_text()
    assert axe_faults(opened.page) == []


@pytest.mark.slow
def test_a_script_with_several_functions(tmp_path: Path, open_report: OpenReport) -> None:
    good = FunctionDiagnosis(function="f (model.py:3)", verdict="healthy", rungs=rungs("dynamo", "kernels"))
    found = finding(tmp_path, source(tmp_path))
    bad = FunctionDiagnosis(
        function="g (model.py:13), call 2", verdict="fault", findings=[found], rungs=rungs("dynamo"), seconds=12.5
    )
    unsure = FunctionDiagnosis(
        function="h (model.py:9)", verdict="undecided", rungs=rungs("dynamo"), notes=["no float64 run"]
    )
    ended = "the script ended with exit code 3"
    document = ScriptDocument(target="train.py", ended=ended, diagnoses=[good, unsure, bad])
    path = tmp_path / "script.json"
    path.write_text(json.dumps(document.to_json()))
    opened = open_report(page(tmp_path / "script.html", diagnosis_from(path)))
    assert "FAULT" in opened.text("h1") and "exit code 3" in opened.text("#verdict")
    rows = opened.page.locator("#functions tbody tr").all_inner_texts()
    assert [row.split()[0] for row in rows] == ["g,", "h", "f"] and "call 2" in rows[0]
    assert opened.page.locator("#f0-ladder").is_visible() and opened.page.locator("#f1-ladder").is_visible()
    assert opened.page.locator("#f2-ladder").count() == 0
    assert "model.py:13" in opened.page.locator("#functions a.src").all_inner_texts()
    assert axe_faults(opened.page) == []


@pytest.mark.slow
def test_an_overflow_is_told_with_its_line_and_what_passes_it_on(
    overflowing: Path,  # noqa: F811
    open_report: OpenReport,
) -> None:
    report = dump_from(overflowing, source_roots=[Path(__file__).parent])
    opened = open_report(page(overflowing.parent / "report.html", report))
    text = opened.text("#findings")
    assert text.count("1. ") == 1 and "2. " not in text  # three steps, one finding
    assert "and 2 more, up to 2" in text and "+infinity" in text and "bfloat16[4, 8]" in text
    assert "passed on by" in text and "python" in text and "repro_" in text
    opened.page.locator("#findings a.src", has_text="test_sections_dump.py").first.click()
    assert "torch.relu(self.linear(x)) * self.gain" in opened.text(".line.target")
    grid = Grid(opened, "calls")
    assert set(grid.column("health")) == {"✗overflows"} and grid.count == "3 rows"
    assert opened.has_no_faults()


@pytest.mark.slow
def test_a_healthy_dump_has_no_finding(dumping: Dumping, open_report: OpenReport) -> None:  # noqa: F811
    compiled = torch.compile(model(hot=False), backend=dumping.backend("aot_eager", dump_data="stats"))
    compiled(torch.ones(4, 8, dtype=torch.bfloat16))
    report = dump_from(dumping.end().path)
    assert (report.verdict.word, report.verdict.tone) == ("FINITE", "good")
    assert [one.id for one in report.sections] == ["health", "calls", "dump"]
    opened = open_report(page(dumping.path.parent / "report.html", report), dark=True)
    opened.see("health")
    assert opened.page.locator("#health .c.t0").count() > 3 and opened.page.locator("#health .c.t4").count() == 0
    assert opened.has_no_faults()


@pytest.mark.slow
def test_overwritten_memory_is_told_with_victim_and_elements(
    dumping: Dumping,  # noqa: F811
    open_report: OpenReport,
) -> None:
    backend = dumping.backend_of_file("aot_eager", dump_scene="watcher")
    library = torch.library.Library("gp_report", "FRAGMENT")
    library.define("tramples(Tensor x) -> Tensor")
    torch.library.register_fake("gp_report::tramples", torch.empty_like, lib=library)

    def tramples(x: torch.Tensor) -> torch.Tensor:
        x[1].mul_(3)
        return x.sum() + torch.zeros_like(x)

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x @ x
        return y.relu() + torch.ops.gp_report.tramples(y) + y

    library.impl("tramples", tramples, "CompositeExplicitAutograd")
    torch.compile(program, backend=backend)(torch.ones(4, 4))
    path = dumping.end().path
    library._destroy()
    report = dump_from(path)
    assert report.verdict.word == "OVERWRITTEN" and "tramples" in report.verdict.sentence
    opened = open_report(page(path.parent / "report.html", report))
    text = opened.text("#findings")
    assert "elements 4 to 7 of 16, 4 of them changed" in text and "aten.mm.default" in text and "last intact" in text
    bar = opened.page.locator("#findings svg rect").nth(1)
    assert (bar.get_attribute("x"), bar.get_attribute("width")) == ("100.0", "100.0")


@pytest.mark.slow
def test_an_exception_is_told_with_its_traceback(dumping: Dumping, open_report: OpenReport) -> None:  # noqa: F811
    backend = dumping.backend_of_file("aot_eager", dump_scene="exception")
    with pytest.raises(IndexError):
        torch.compile(lambda x, i: x[i] + 1, backend=backend)(torch.ones(4), torch.tensor([7]))
    path = dumping.end().path
    report = dump_from(path)
    assert report.verdict.word == "EXCEPTION"
    opened = open_report(page(path.parent / "report.html", report))
    assert "index 7 is out of bounds" in opened.text("#findings")
    opened.page.locator("#findings summary").first.click()
    assert "Traceback" in opened.text("#findings pre")


@pytest.mark.slow
def test_nothing_of_the_data_is_run(tmp_path: Path, open_report: OpenReport) -> None:
    evil = EVIL_PAGE
    pane = {"title": evil, "name": evil, "lines": [[evil, evil, ""], ["1", evil, evil]]}
    view = [{"title": evil, "panes": [pane], "links": [{"label": evil, "marks": [[0]]}]}]
    sections = [Section("a", evil, "code", view, summary=evil)]
    report = Report(evil, evil, DocumentVerdict("bad", evil, evil), sections, facts=[(evil, evil)])
    opened = open_report(page(tmp_path / "report.html", report))
    assert "onerror" in opened.text("#a .view")
    assert opened.page.evaluate("window.hacked") is None


@pytest.mark.slow
def test_a_page_can_be_used_with_the_keyboard(tmp_path: Path, open_report: OpenReport) -> None:
    """A link leads to the line and back."""
    file = page(tmp_path / "report.html", page_with_source(tmp_path, Sources(tmp_path)))
    view = open_report(file).page
    view.keyboard.press("Tab")
    assert view.evaluate("document.activeElement.textContent") == "Skip to the report"
    view.keyboard.press("Enter")
    view.keyboard.press("Tab")
    assert view.evaluate("document.activeElement.matches('main *')")
    view.locator(".contents a", has_text="At").focus()
    view.keyboard.press("Enter")
    assert view.locator("#at h2").is_visible()
    assert 0 <= view.evaluate("document.querySelector('#at').getBoundingClientRect().top") < 900
    view.locator("#at a.src").focus()
    view.keyboard.press("Enter")
    focused = view.evaluate("document.activeElement.textContent")
    assert "50" in focused and "x50 = 50" in focused
    assert view.locator(".line.target").is_visible()
    assert axe_faults(view) == []
    view.go_back()
    assert not view.url.endswith("#src-0-50")


@pytest.mark.slow
def test_light_and_dark(tmp_path: Path, open_report: OpenReport) -> None:
    file = page(tmp_path / "report.html", Report("t", "s", VERDICT, [Section("a", "A")]))
    background = "getComputedStyle(document.body).backgroundColor"
    light, dark = open_report(file), open_report(file, dark=True)
    white, black = light.page.evaluate(background), dark.page.evaluate(background)
    assert white == "rgb(255, 255, 255)" and black != white
    light.page.click("#theme")
    assert light.page.evaluate(background) == white and light.text("#theme") == "Theme: light"
    light.page.click("#theme")
    assert light.page.evaluate(background) == black and light.text("#theme") == "Theme: dark"
    assert dark.page.evaluate("GP.colour('bg')") == light.page.evaluate("GP.colour('bg')")


@pytest.mark.slow
def test_the_verdict_needs_no_script(tmp_path: Path, browser: Any) -> None:
    file = page(tmp_path / "report.html", page_with_source(tmp_path, Sources(tmp_path)))
    context = browser.new_context(java_script_enabled=False, offline=True)
    view = context.new_page()
    view.goto(file.as_uri())
    assert "relu gives wrong numbers." in view.locator("h1").inner_text()
    assert view.locator("#at a.src").get_attribute("href") == "#src-0-50"
    context.close()


@pytest.mark.slow
def test_a_view_that_fails_says_so(tmp_path: Path, open_report: OpenReport) -> None:
    opened = open_report(page(tmp_path / "report.html", Report("t", "s", VERDICT, [Section("a", "A", "code", None)])))
    assert "could not be shown" in opened.text("#a .view")
    assert len(opened.errors) == 1
    opened.errors.clear()
