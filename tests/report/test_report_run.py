"""The report of a run: its verdict, diffs that are cut, compile time as a tree, and dumps that lie in the run."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import graphprobe
from graphprobe.analysis.timing import Compile, Profile, Span
from graphprobe.cli.main import main
from graphprobe.records import Where
from graphprobe.report.html import flame, sections_run
from graphprobe.report.html.flame import Box, largest, tree_from_profile, tree_from_steps
from graphprobe.report.html.page import Report
from graphprobe.report.html.render import rendered
from graphprobe.report.html.sections_run import report_from
from graphprobe.report.html.sources import Sources
from graphprobe.store import Run, StepLine, json_line, layout
from report.samples import MadeRun, graph
from store.dump_helpers import StepRecord

pytestmark = pytest.mark.usefixtures("beside_the_program")


@pytest.fixture
def run(tmp_path: Path) -> MadeRun:
    return MadeRun(tmp_path)


def section(report: Report, name: str) -> Any:
    return next((found for found in report.sections if found.id == name), None)


def test_verdicts(run: MadeRun, tmp_path: Path) -> None:
    run.add_steps()
    report = report_from(run.close())
    assert (report.verdict.tone, report.verdict.word) == ("good", "COMPILED")
    assert "no graph break, no recompilation" in report.verdict.sentence
    assert not {"breaks", "recompiles", "missing"} & {section.id for section in report.sections}
    (tmp_path / "failed").mkdir()
    verdict = report_from(MadeRun(tmp_path / "failed").close(exception="ValueError: no such luck\n  at x")).verdict
    assert (verdict.tone, verdict.word) == ("bad", "FAILED")
    assert "no such luck" in verdict.sentence and "at x" not in verdict.sentence
    (tmp_path / "incomplete").mkdir()
    incomplete = MadeRun(tmp_path / "incomplete")
    incomplete.writer.missing("no room for 3 files")
    report = report_from(incomplete.close())
    assert (report.verdict.tone, report.verdict.word) == ("warn", "INCOMPLETE")
    assert "no room for 3 files" in rendered(section(report, "missing").body)


def test_verdict_of_a_pass_that_raised(run: MadeRun) -> None:
    where = Where(model=0, direction="forward", phase="post_grad_passes", pass_name="fuse")
    run.writer.event(where=where, kind="failure", name="fuse", message="KeyError: 'x'\nTraceback …")
    report = report_from(run.close())
    assert report.verdict.word == "COMPILE FAILED" and "fuse raised KeyError: 'x'." in report.verdict.sentence
    assert [row["name"] for row in section(report, "passes").data["graphs"][0]["passes"] if "failed" in row] == ["fuse"]


def test_verdict_of_a_run_that_was_killed(run: MadeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = StepLine(0, run.started_ns, component="inductor", name="compile C++", detail="x.so", model=0, thread=1)
    run.writer.append_text(layout.STEPS, json_line(begun))
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
    f = ("f  [0/0]", 100, 1, [("trace the Python code", 100, 1, [("lower", 30, 2, [])])])
    g = ("g  [1/0]", 0, 1, [("trace the Python code", 0, 1, [])])
    assert shape(tree) == ("compiling", 100, 2, [f, g])
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


def test_the_calls_of_a_run_are_in_its_report(run: MadeRun) -> None:
    folder = run.close()
    without = report_from(folder)
    with graphprobe.dump(folder / "api_dump", data="stats"):
        torch.log(torch.zeros(3) - 1) + 1
    report = report_from(folder)
    assert [s.id for s in report.sections if section(without, s.id) is None][:1] == ["calls"]
    assert report.verdict.word == "NOT FINITE" and "graphs compiled" in rendered(report.verdict.body)


def test_both_dumps_of_a_run_are_in_its_report(recorded_run: Path) -> None:
    assert {path.name for path in recorded_run.iterdir()} == {"program.py", "said.txt", layout.ROOT}
    (folder,) = (recorded_run / layout.ROOT).iterdir()
    assert {layout.CALLS, layout.GRAPHS} <= {path.name for path in folder.iterdir()}
    report = report_from(folder)
    groups: dict[str, list[str]] = {}
    for one in report.sections:
        groups.setdefault(one.group, []).append(one.id)
    first = ["Dump: calls of torch's API", "Dump: operations of compiled graphs"]
    assert list(groups)[:2] == first, "what is not finite comes first"
    assert "calls-compiled" in groups["Dump: operations of compiled graphs"]
    assert report.verdict.word == "NOT FINITE"
    listed = CliRunner().invoke(main, ["ls", str(recorded_run)]).output
    assert "api_dump  a dump of calls" in listed and "graph_dump  a dump of operations of compiled graphs" in listed


def test_calls_that_cannot_be_read_are_told(run: MadeRun) -> None:
    folder = run.close()
    (folder / "api_dump").mkdir()
    report = report_from(folder)
    assert report.verdict.word == "INCOMPLETE"
    assert "api_dump cannot be read" in rendered(section(report, "missing").body)
