"""The pages of a run, of a diagnosis and of a comparison in Chromium, each walked through as a person would."""

import re
from pathlib import Path

import msgspec
import pytest

from conftest import ROOT
from graphprobe.numerics import PairStats
from graphprobe.records import TensorStats
from graphprobe.report import comparison
from graphprobe.report.html import sections_comparison, sections_dump, table
from graphprobe.report.html.sections_comparison import report_from as comparison_from
from graphprobe.report.html.sections_diagnosis import report_from as diagnosis_from
from graphprobe.report.html.sections_run import report_from as run_from
from graphprobe.report.html.table import Column
from report.browser import Grid, Opened, OpenReport, axe_faults
from report.made import page, report_cases
from report.samples import BREAK_LINE, LINE, MadeRun, fault

pytestmark = [pytest.mark.always, pytest.mark.usefixtures("beside_the_program")]

ROWS = 10_000


def test_the_page_of_a_run(tmp_path: Path, open_report: OpenReport) -> None:
    run = MadeRun(tmp_path)
    run.add_steps()
    run.add_losses()
    opened = open_report(page(tmp_path / "run.html", run_from(run.close())))
    assert "COULD BE FASTER" in opened.text("h1") and "1 graph break and 1 recompilation" in opened.text("h1")
    assert "graphprobe diagnose" in opened.text("#verdict"), "a run does not say that the numbers are right"
    assert f"model.py:{BREAK_LINE}" in opened.text("#breaks")
    assert "untried\n" in opened.text("#breaks") and "capture_scalar_outputs = True" in opened.text("#breaks")
    assert "the size of dim 0 of x changed" in opened.text("#recompiles")
    assert "mark_dynamic" in opened.text("#recompiles")
    assert opened.page.locator("#recompiles a.src", has_text=f"model.py:{LINE}").count() == 1
    _passes_and_the_diff_of_one(opened)
    _a_launch_marks_what_belongs_to_it(opened)
    _flame_with_the_keyboard(opened)
    opened.see("launches")
    cells = opened.page.locator("#launches [role=row]").nth(2).inner_text()
    assert "cpp_fused_relu_0" in cells and "model__0 forward" in cells
    assert opened.page.locator("#launches a.src").count() == 2
    assert opened.has_no_faults()


def _passes_and_the_diff_of_one(opened: Opened) -> None:
    opened.see("passes")
    page = opened.page
    rows = page.locator("#passes .passes .name")
    assert rows.all_inner_texts() == ["remove_noop_ops"]
    page.get_by_label("also those that changed nothing").check()
    assert rows.all_inner_texts() == ["remove_noop_ops", "idle_pass"]
    button = page.locator("#passes button.pass")
    assert button.count() == 1, "the one that changed nothing has no diff to open"
    button.focus()
    page.keyboard.press("Enter")
    assert button.get_attribute("aria-expanded") == "true"
    removed = page.locator("#passes .diff-node.removed").all_inner_texts()
    assert len(removed) == 1 and "torch.ops.aten.alias.default(relu)" in removed[0]
    assert "2.5 ms" in button.inner_text() and "−1" in button.inner_text()
    page.locator("#passes .diff a.src").click()
    assert page.evaluate("document.activeElement.textContent").startswith(str(LINE))


def _a_launch_marks_what_belongs_to_it(opened: Opened) -> None:
    opened.see("code")
    marked = opened.page.locator("#code .marked")
    assert "addmm: " in marked.nth(1).inner_text()
    opened.page.get_by_role("button", name="cpp_fused_relu_0").click()
    texts = marked.all_inner_texts()
    assert "torch.relu(self.up(x))" in texts[0] and "relu: " in texts[1]
    assert "cpp_fused_relu_0 = async_compile" in texts[2] and "cpp_fused_relu_0(buf0)" in texts[3]
    opened.page.locator("#code .line", has_text="extern_kernels.addmm(").click()
    assert "extern_kernels.addmm" in opened.page.locator("#code [aria-pressed=true]").inner_text()


def _flame_with_the_keyboard(opened: Opened) -> None:
    opened.see("flame")
    page = opened.page
    # The build on a thread of its own is no time of compiling.
    assert "2.00 s" in opened.text(".flame-told") and "5.0 s in 1 step: compile C++" in opened.text("#flame .note")
    page.locator(".flame [tabindex='0']").focus()
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    assert "lower" in opened.text(".flame-told") and "1.50 s" in opened.text(".flame-told")
    first = page.locator(".flame button").first
    page.keyboard.press("Enter")
    assert first.inner_text() == "lower"
    page.keyboard.press("Escape")
    assert "trace the Python code" in first.inner_text()
    page.get_by_role("button", name="Zoom out").click()
    assert first.inner_text().startswith("Mlp.forward")


def test_the_page_of_a_diagnosis(tmp_path: Path, open_report: OpenReport) -> None:
    source = fault(tmp_path)
    opened = open_report(page(tmp_path / "fault.html", diagnosis_from(source)))
    assert "FAULT" in opened.text("h1") and "relu gives wrong numbers." in opened.text("h1")
    # Without scrolling: what, where, and how to see it.
    for text in (
        "In the proof: expected 0, got -1.07 at (5, 7) of output 0",
        "code generation",
        f"model.py:{LINE}",
        "torch.relu(self.up(x))",
        "aten.relu.default",
        "repro.py",
    ):
        assert text in opened.text("#verdict"), text
    assert "of z is" not in opened.text("#verdict"), "figures of the judge are folded away"
    assert opened.page.locator("#verdict details").count() == 1
    assert opened.page.locator("#verdict .command").bounding_box()["y"] < 900  # type: ignore[index]
    shown = opened.page.locator(".ladder .state").all_inner_texts()
    states = [text.split("\n")[-1].lstrip("i✓✗! ") for text in shown]
    assert states == ["reference", "right", "right", "right", "wrong"]
    _source_graph_and_kernel_side_by_side(opened)
    assert opened.has_no_faults()


def _source_graph_and_kernel_side_by_side(opened: Opened) -> None:
    opened.see("code")
    panes = opened.page.locator("#code .pane")
    titles = panes.locator("figcaption strong").all_inner_texts()
    assert titles == ["Source", "FX graph, the smallest that fails", "Kernel"]
    marked = panes.locator(".marked").all_inner_texts()
    assert len(marked) == 3 and "tmp1 = tmp0 + decltype(tmp0)(1);" in marked[2]
    assert "hidden = torch.relu(self.up(x)) * scale" in marked[0] and "relu: " in marked[1]
    assert '// <script>alert("kernel")</script>' in panes.nth(2).inner_text()
    panes.nth(1).locator("a.src").first.click()
    assert opened.page.evaluate("document.activeElement.textContent").startswith(str(LINE))


def test_the_page_of_a_comparison(tmp_path: Path, open_report: OpenReport) -> None:
    report_cases().write_comparison(tmp_path, ROWS)
    rows = list(report_cases().rows(ROWS))
    opened = open_report(page(tmp_path / "report.html", comparison_from(tmp_path)))
    assert opened.text("#verdict").splitlines()[0].endswith("DIFFERENT")
    assert "nn.functional.gelu" in opened.text("h1") and "model.blocks.13.mlp" in opened.text("h1")
    assert "217 times" in opened.text("#findings") and "[3, 17, 250]" in opened.text("#findings")
    assert opened.page.locator("#growth svg polyline").count() == 1
    grid = Grid(opened, "calls")
    assert grid.column("verdict").count("✗candidate worse") == 1, "the table opens where it goes wrong"
    expected = [row for row in rows if "gelu" in row.candidate.api and row.step == 1]
    assert grid.search("gelu step=1") == f"{len(expected):,} of {ROWS:,} rows"
    assert grid.column("#")[:3] == [f"{row.number:,}" for row in expected[:3]]
    assert grid.search("gave>400") == f"1 of {ROWS:,} rows" and grid.column("module") == ["model.blocks.13.mlp"]
    grid.search("")
    grid.page.get_by_role("columnheader", name="gave").click()
    assert grid.column("gave")[0] == "412.7"
    grid.grid.focus()
    grid.press("Control+End")
    assert grid.page.locator("#calls .body .row").count() < 60
    opened.see("health")
    opened.page.get_by_role("gridcell", name="model.blocks.13, step 1, forward: error 412.7, up to 10,000").click()
    in_cell = [row for row in rows if (row.step, row.direction) == (1, "forward")]
    expected = [row for row in in_cell if ".blocks.13." in row.candidate.module]
    assert Grid(opened, "calls").count == f"{len(expected):,} of {ROWS:,} rows"
    assert opened.has_no_faults()
    opened.page.emulate_media(color_scheme="dark")
    assert axe_faults(opened.page) == []


PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")


def test_every_figure_is_defined() -> None:
    of_tables = [value for room in (sections_comparison, sections_dump) for value in vars(room).values()]
    columns = [c for value in of_tables if isinstance(value, tuple) for c in value if isinstance(c, Column)]
    shown = {c.name for c in columns if c.kind == "number" and not c.hidden} - {"#", "step", "rank"}
    assert {"gave", "got", "range"} <= shown
    shown |= {value.name for value in vars(table).values() if isinstance(value, table.Metric)}
    texts = {f"{side} {text}" for side in ("NPU", "Bench") for text in ("Name", "Tensor Dtype", "Tensor Shape")}
    shown |= set(comparison.SOURCE_COLUMNS) - texts - {"Err_message"} | {"Noise Level", "Max Z", "Max ULP"}
    for record in (TensorStats, PairStats):
        shown |= {field.name for field in msgspec.structs.fields(record) if not field.name.endswith("_index")}
    names = set(re.findall(r"`([^`\n]+)`", "\n".join(re.findall(r"^\| .+$", PAGE, re.M))))
    assert sorted(shown - names) == []


def test_every_source_of_a_figure_exists() -> None:
    tables = PAGE.partition("## Which figure is which")[2]
    named = re.findall(r"`([a-z_/]+(?:\.py)?)`", " ".join(re.findall(r"\| ([^|]+) \|$", tables, re.M)))
    assert len(named) > 20
    assert [name for name in named if not (ROOT / "src" / "graphprobe" / name).exists()] == []
