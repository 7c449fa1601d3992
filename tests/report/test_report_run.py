"""The report of a run, in Chromium: passes with their diffs, breaks, recompilations, launches, compile time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import graphprobe
from conftest import Finished
from graphprobe.analysis.timing_records import Compile, Profile, Span
from graphprobe.records import Where
from graphprobe.report.html import flame, sections_run
from graphprobe.report.html.flame import Box, largest, tree_from_profile, tree_from_steps
from graphprobe.report.html.page import Report, write_page
from graphprobe.report.html.render import rendered
from graphprobe.report.html.sections_run import report_from
from graphprobe.report.html.sources import Sources
from graphprobe.store import layout
from graphprobe.store.reader import Run
from graphprobe.store.step_file import StepLine, StepRecord, encode_step
from report.browser import Opened, OpenReport, axe_faults, draw_everything
from report.samples import BREAK_LINE, LINE, MadeRun, graph


@pytest.fixture(autouse=True)
def in_the_folder_of_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(tmp_path: Path) -> MadeRun:
    return MadeRun(tmp_path)


def opened_report(open_report: OpenReport, folder: Path, **how: Any) -> Opened:
    file = folder.with_suffix(".html")
    with file.open("w", encoding="utf-8") as out:
        write_page(report_from(folder), out)
    return open_report(file, **how)


def section(report: Report, name: str) -> Any:
    return next((found for found in report.sections if found.id == name), None)


@pytest.mark.parametrize(("dark", "width"), [(False, 1280), (True, 390)])
def test_a_healthy_run(run: MadeRun, open_report: OpenReport, dark: bool, width: int) -> None:
    run.add_steps()
    opened = opened_report(open_report, run.close(), dark=dark, width=width)
    assert "COMPILED" in opened.text("h1") and "no graph break, no recompilation" in opened.text("h1")
    assert "graphprobe diagnose" in opened.text("#verdict")  # a run does not say that the numbers are right
    draw_everything(opened.page)
    assert opened.page.locator("#breaks, #recompiles, #missing").count() == 0
    assert opened.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert axe_faults(opened.page) == []


def test_passes_and_the_diff_of_one(run: MadeRun, open_report: OpenReport) -> None:
    opened = opened_report(open_report, run.close())
    opened.see("passes")
    page = opened.page
    rows = page.locator("#passes .passes .name")
    assert rows.all_inner_texts() == ["remove_noop_ops"]
    page.get_by_label("also those that changed nothing").check()
    assert rows.all_inner_texts() == ["remove_noop_ops", "idle_pass"]
    button = page.locator("#passes button.pass")
    assert button.count() == 1  # the one that changed nothing has no diff to open
    button.focus()
    page.keyboard.press("Enter")
    assert button.get_attribute("aria-expanded") == "true"
    removed = page.locator("#passes .diff-node.removed").all_inner_texts()
    assert len(removed) == 1 and "torch.ops.aten.alias.default(relu)" in removed[0]
    assert "2.5 ms" in button.inner_text() and "−1" in button.inner_text()
    page.locator("#passes .diff a.src").click()
    assert page.evaluate("document.activeElement.textContent").startswith(str(LINE))
    assert axe_faults(page) == []


def test_a_launch_marks_what_belongs_to_it(run: MadeRun, open_report: OpenReport) -> None:
    opened = opened_report(open_report, run.close())
    opened.see("code")
    marked = opened.page.locator("#code .marked")
    assert "addmm: " in marked.nth(1).inner_text()
    opened.page.get_by_role("button", name="cpp_fused_relu_0").click()
    texts = marked.all_inner_texts()
    assert "torch.relu(self.up(x))" in texts[0] and "relu: " in texts[1]
    assert "cpp_fused_relu_0 = async_compile" in texts[2] and "cpp_fused_relu_0(buf0)" in texts[3]
    opened.page.locator("#code .line", has_text="extern_kernels.addmm(").click()
    pressed = opened.page.locator("#code [aria-pressed=true]").inner_text()
    assert "extern_kernels.addmm" in pressed


def test_breaks_and_recompilations(run: MadeRun, open_report: OpenReport) -> None:
    run.add_losses()
    opened = opened_report(open_report, run.close())
    assert "COULD BE FASTER" in opened.text("h1") and "1 graph break and 1 recompilation" in opened.text("h1")
    assert f"model.py:{BREAK_LINE}" in opened.text("#breaks")
    assert "instead\n" in opened.text("#breaks") and "capture_scalar_outputs = True" in opened.text("#breaks")
    assert "the size of dim 0 of x changed" in opened.text("#recompiles")
    assert "mark_dynamic" in opened.text("#recompiles")
    assert opened.page.locator("#recompiles a.src", has_text=f"model.py:{LINE}").count() == 1
    assert axe_faults(opened.page) == []


def test_flame_with_the_keyboard(run: MadeRun, open_report: OpenReport) -> None:
    run.add_steps()
    opened = opened_report(open_report, run.close())
    opened.see("flame")
    page = opened.page
    # The build on a thread of its own is no time of compiling.
    assert "2.00 s" in opened.text(".flame-told") and "5.0 s in 1 step: compile C++" in opened.text("#flame .note")
    page.locator(".flame [tabindex='0']").focus()
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    assert "lower" in opened.text(".flame-told") and "1.50 s" in opened.text(".flame-told")
    page.keyboard.press("Enter")
    assert page.locator(".flame button").first.inner_text() == "lower"
    page.keyboard.press("Escape")
    assert "trace the Python code" in page.locator(".flame button").first.inner_text()
    page.get_by_role("button", name="Zoom out").click()
    assert page.locator(".flame button").first.inner_text().startswith("Mlp.forward")
    assert axe_faults(page) == []


@pytest.mark.parametrize(
    ("tone", "word", "end"),
    [
        ("bad", "FAILED", {"exception": "ValueError: no such luck\n  at x"}),
        ("good", "COMPILED", {}),
    ],
)
def test_verdict_by_the_end(run: MadeRun, tone: str, word: str, end: dict[str, str]) -> None:
    verdict = report_from(run.close(**end)).verdict
    assert (verdict.tone, verdict.word) == (tone, word)
    assert ("no such luck" in verdict.sentence) is bool(end)
    assert "at x" not in verdict.sentence


def test_verdict_of_a_pass_that_raised(run: MadeRun) -> None:
    where = Where(model=0, direction="forward", phase="post_grad_passes", pass_name="fuse")
    run.writer.event(where=where, kind="failure", name="fuse", message="KeyError: 'x'\nTraceback …")
    report = report_from(run.close())
    assert report.verdict.word == "COMPILE FAILED" and "fuse raised KeyError: 'x'." in report.verdict.sentence
    assert [row["name"] for row in section(report, "passes").data["graphs"][0]["passes"] if "failed" in row] == ["fuse"]


def test_verdict_of_a_run_that_was_killed(run: MadeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = StepLine(0, run.started_ns, component="inductor", name="compile C++", detail="x.so", model=0, thread=1)
    run.writer.append_text(layout.STEPS, encode_step(begun))
    monkeypatch.setattr(Run, "state", "killed")
    verdict = report_from(run.writer.run_dir).verdict
    assert (verdict.tone, verdict.word) == ("bad", "KILLED")
    assert "It was in this step: Inductor: compile C++ x.so (model__0)." in verdict.sentence
    assert "graphprobe logs" in rendered(verdict.body)


def test_tracing_that_was_started_over_is_no_failure(run: MadeRun) -> None:
    for model, facts in ((1, {"failure": "RestartAnalysis"}), (2, {"restart_of": 1})):
        file = run.writer.write_text(layout.compile_file(model), json.dumps(facts))
        run.writer.event(where=Where(model=model), kind="compile", name="compile", file=file)
    assert report_from(run.writer.run_dir).verdict.word == "RUNNING"
    file = run.writer.write_text(layout.compile_file(3), json.dumps({"failure": "RuntimeError: no", "function": "g"}))
    run.writer.event(where=Where(model=3), kind="compile", name="compile", file=file)
    verdict = report_from(run.close()).verdict
    assert verdict.word == "COMPILE FAILED" and "g was not compiled: RuntimeError: no." in verdict.sentence


def test_verdict_of_what_is_missing(run: MadeRun) -> None:
    run.writer.missing("no room for 3 files")
    report = report_from(run.close())
    assert (report.verdict.tone, report.verdict.word) == ("warn", "INCOMPLETE")
    assert "no room for 3 files" in rendered(section(report, "missing").body)


def test_diffs_end_where_they_would_be_too_much(run: MadeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sections_run, "MOST_BYTES", 3_000)
    for number in range(2, 6):
        run.add_pass(f"grow_{number}", graph(run.file, more=number), number=number)
    found = section(report_from(run.close()), "passes")
    rows = [row for row in found.data["graphs"][0]["passes"] if row["changed"]]
    left = sum(row["diff"] is None for row in rows)
    assert 0 < left < len(rows)
    assert f"{left} passes that changed a graph are without their diff" in rendered(found.body)


def test_a_large_diff_is_cut_and_says_so(run: MadeRun) -> None:
    run.add_pass("grow", graph(run.file, more=100), number=2)
    rows = section(report_from(run.close()), "passes").data["graphs"][0]["passes"]
    (shown,) = next(row for row in rows if row["name"] == "grow")["diff"]["graphs"]
    assert len(shown["added"]) == sections_run.MOST_NODES and shown["added_left"] == 100 - sections_run.MOST_NODES


def test_a_file_that_is_gone_leaves_no_diff_and_no_code(run: MadeRun) -> None:
    folder = run.close()
    for path in folder.rglob("*graph*.txt"):
        path.unlink()
    report = report_from(folder)
    rows = section(report, "passes").data["graphs"][0]["passes"]
    assert [row["diff"] for row in rows if row["changed"]] == [None]
    assert section(report, "code") is None


def test_torn_launches_leave_the_code(run: MadeRun) -> None:
    folder = run.close()
    next(folder.rglob("captured_ops.json")).write_text('{"traceEvents": [{"name": 3')
    (view,) = section(report_from(folder), "code").data
    assert view.links == [] and len(view.panes) == 2  # without launches nothing says which lines they stem from


def step(number: int, begin: int, end: int | None, name: str, component: str = "inductor", **more: Any) -> StepRecord:
    fields: dict[str, Any] = {"detail": "", "model": None, "direction": None, "compile_id": "0/0", "thread": 1} | more
    return StepRecord(number, component, name, begin_ns=begin, end_ns=end, error=None, **fields)


def shape(box: Box) -> Any:
    return (box.name, box.ns, box.count, [shape(inside) for inside in box.inside])


def test_equal_steps_are_one_box_and_running_is_no_compiling() -> None:
    steps = [
        step(0, 0, 100, "trace", "dynamo", detail="f (x.py:3)"),
        step(1, 10, 30, "lower"),
        step(2, 40, 50, "lower"),
        step(3, 100, 900, "launch", "run"),
        step(4, 1000, 1400, "compile C++", thread=2, compile_id=None),
        step(5, 1500, None, "trace", "dynamo", compile_id="1/0", detail="g (x.py:9)"),
    ]
    tree, beside = tree_from_steps(steps, Sources())
    inside = [("trace the Python code", 100, 1, [("lower", 30, 2, [])])]
    assert shape(tree) == (
        "compiling",
        100,
        2,
        [("f  [0/0]", 100, 1, inside), ("g  [1/0]", 0, 1, [("trace the Python code", 0, 1, [])])],
    )
    assert beside.endswith("in 1 step: compile C++.")
    assert largest(tree)[0][:1] + largest(tree)[0][2:] == ("trace the Python code", 70, 2)


def test_a_large_tree_is_cut_and_keeps_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flame, "MOST_NODES", 10)
    steps = [step(0, 0, 100_000, "trace", "dynamo", detail="f (x.py:3)")]
    steps += [step(number, 1_000 * number, 1_000 * number + number, f"pass_{number}") for number in range(1, 60)]
    tree, _ = tree_from_steps(steps, Sources())
    trace = tree.inside[0].inside[0]
    assert tree.ns == 100_000
    assert trace.left + len(trace.inside) == 59 and len(trace.inside) < 10
    assert trace.inside[0].name == "pass_59"


def test_the_flame_of_a_profile_is_the_time_of_compiling() -> None:
    spans = [
        Span("torch", 0, 500, 1, kind="import"),
        Span("dynamo", 1_000, 3_000, 1, compile_id="0/0"),
        Span("lowering", 1_500, 2_500, 1, compile_id="0/0", parent=1),
        Span("cpp_build", 1_000, 9_000, 1, kind="build", thread=1),
    ]
    compiles = [Compile("0/0", function="f", file="x.py", line=3)]
    profile = Profile("0.1", "2.13", "3.11", 0, 10_000, 1, spans, compiles, [], ["main", "builder"])
    inside = [("dynamo", 2_000, 1, [("lowering", 1_000, 1, [])])]
    assert shape(tree_from_profile(profile, Sources())) == ("compiling", 2_000, 1, [("f  [0/0]", 2_000, 1, inside)])


def test_many_passes_open_at_once(run: MadeRun, open_report: OpenReport) -> None:
    for model in range(1, 101):
        for number in range(100):
            where = Where(model=model, direction="forward", phase="post_grad_passes", pass_name=f"pass_{number}")
            run.writer.event(where=where, kind="pass", name=f"pass_{number}", changed=False, elapsed_ns=1_000)
    opened = opened_report(open_report, run.close())
    opened.see("passes")
    page = opened.page
    assert page.evaluate("performance.now()") < 2_000
    page.locator("#passes select").select_option(label="model__7 forward (0 changed)")
    page.get_by_label("also those that changed nothing").check()
    assert page.locator("#passes .name").count() == 100
    assert page.evaluate("document.querySelectorAll('*').length") < 4_000


def test_the_calls_of_a_run_are_in_its_report(run: MadeRun, open_report: OpenReport) -> None:
    folder = run.close()
    without = report_from(folder)
    with graphprobe.dump(folder / "api_dump", data="stats"):
        torch.log(torch.zeros(3) - 1) + 1
    report = report_from(folder)
    assert [s.id for s in report.sections if section(without, s.id) is None][:1] == ["calls"]
    assert report.verdict.word == "NOT FINITE" and "graphs compiled" in rendered(report.verdict.body)
    opened = opened_report(open_report, folder)
    opened.see("calls")
    assert axe_faults(opened.page) == []


def test_both_dumps_of_a_run_are_in_its_report(
    run_warm: Callable[..., Finished], tmp_path: Path, open_report: OpenReport
) -> None:
    (tmp_path / "program.py").write_text(
        "import torch\nf = torch.compile(lambda x: (x + 1).log(), backend='aot_eager')\nf(torch.zeros(3) - 1)\n"
    )
    done = run_warm("-m", "graphprobe", "run", "--dump", "stats", "--dump-graph", "stats", "program.py", cwd=tmp_path)
    assert done.code == 0, done.err
    (folder,) = (tmp_path / layout.ROOT).iterdir()
    assert {layout.CALLS, layout.GRAPHS} <= {path.name for path in folder.iterdir()}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["program.py", layout.ROOT]
    listed = run_warm("-m", "graphprobe", "ls", cwd=tmp_path).out
    assert "api_dump  a dump of calls" in listed and "graph_dump  a dump of operations of compiled graphs" in listed
    report = report_from(folder)
    groups: dict[str, list[str]] = {}
    for one in report.sections:
        groups.setdefault(one.group, []).append(one.id)
    assert list(groups)[:2] == ["Dump: calls of torch's API", "Dump: operations of compiled graphs"], (
        "what is not finite comes first"
    )
    assert "calls-compiled" in groups["Dump: operations of compiled graphs"]
    assert report.verdict.word == "NOT FINITE"
    opened = opened_report(open_report, folder)
    for name in ("calls", "calls-compiled"):
        opened.see(name)
    assert "log" in opened.page.locator("#calls-compiled").inner_text()
    assert axe_faults(opened.page) == []


def test_calls_that_cannot_be_read_are_told(run: MadeRun) -> None:
    folder = run.close()
    (folder / "api_dump").mkdir()
    report = report_from(folder)
    assert report.verdict.word == "INCOMPLETE" and "api_dump cannot be read" in rendered(
        section(report, "missing").body
    )


def test_the_table_of_launches(run: MadeRun, open_report: OpenReport) -> None:
    opened = opened_report(open_report, run.close())
    opened.see("launches")
    cells = opened.page.locator("#launches [role=row]").nth(2).inner_text()
    assert "cpp_fused_relu_0" in cells and "model__0 forward" in cells
    assert opened.page.locator("#launches a.src").count() == 2
