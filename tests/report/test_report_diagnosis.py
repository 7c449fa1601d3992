"""The report of a diagnosis, in Chromium: what is wrong is read in a glance, and everything leads to its line."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from graphprobe.errors import SchemaError, UsageError
from graphprobe.findings import Diagnosis, Finding, FunctionDiagnosis, LargestZ, Rung, ScriptDocument
from graphprobe.report.html.page import write_page
from graphprobe.report.html.render import rendered
from graphprobe.report.html.sections_diagnosis import report_from, states
from graphprobe.store.diagnosis_file import read_diagnosed
from report.browser import OpenReport, axe_faults, draw_everything
from report.samples import LINE, fault, finding, healthy, rungs, source


@pytest.fixture(autouse=True)
def in_the_folder_of_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(source: Path) -> Path:
    file = source.with_suffix(".html")
    with file.open("w", encoding="utf-8") as out:
        write_page(report_from(source), out)
    return file


@pytest.mark.parametrize(("dark", "width"), [(False, 1280), (True, 1280), (False, 390)])
def test_a_fault_found(tmp_path: Path, open_report: OpenReport, dark: bool, width: int) -> None:
    opened = open_report(written(fault(tmp_path)), dark=dark, width=width)
    page = opened.page
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
    assert page.locator("#verdict details").count() == 1
    assert page.locator("#verdict .command").bounding_box()["y"] < 900 or width < 1000  # type: ignore[index]
    draw_everything(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    states_shown = page.locator(".ladder .state").all_inner_texts()
    assert [text.split("\n")[-1].lstrip("i✓✗! ") for text in states_shown] == [
        "reference",
        "right",
        "right",
        "right",
        "wrong",
    ]
    assert axe_faults(page) == []


def test_source_graph_and_kernel_are_side_by_side(tmp_path: Path, open_report: OpenReport) -> None:
    opened = open_report(written(fault(tmp_path)))
    opened.see("code")
    panes = opened.page.locator("#code .pane")
    assert panes.locator("figcaption strong").all_inner_texts() == [
        "Source",
        "FX graph, the smallest that fails",
        "Kernel",
    ]
    marked = panes.locator(".marked").all_inner_texts()
    assert len(marked) == 3 and "tmp1 = tmp0 + decltype(tmp0)(1);" in marked[2]
    assert "hidden = torch.relu(self.up(x)) * scale" in marked[0] and "relu: " in marked[1]
    assert '// <script>alert("kernel")</script>' in panes.nth(2).inner_text()
    panes.nth(1).locator("a.src").first.click()
    assert opened.page.evaluate("document.activeElement.textContent").startswith(str(LINE))


def test_a_healthy_program(tmp_path: Path, open_report: OpenReport) -> None:
    opened = open_report(written(healthy(tmp_path)), dark=True)
    assert "HEALTHY" in opened.text("h1")
    assert "1.76 times what rounding explains" in opened.text("#verdict")
    assert opened.page.locator(".ladder .badge.good").count() == 4
    assert opened.page.locator("#code, #proof").count() == 0
    assert axe_faults(opened.page) == []


def test_a_dossier_alone_and_a_folder_of_them(tmp_path: Path) -> None:
    fault(tmp_path)
    dossier = tmp_path / "proofs" / "codegen-aten.relu.default"
    (tmp_path / "result.json").unlink()
    for path in (dossier, dossier / "finding.json", tmp_path / "proofs", tmp_path):
        report = report_from(path)
        assert report.verdict.word == "FAULT" and "relu gives wrong numbers" in report.verdict.sentence
        assert [section.id for section in report.sections] == ["code", "graph", "proof"]
        assert str(dossier / "repro.py") in rendered(report.verdict.body)


def test_the_result_in_a_folder_is_read_with_its_dossiers(tmp_path: Path) -> None:
    fault(tmp_path)
    assert [section.id for section in report_from(tmp_path).sections] == ["ladder", "code", "graph", "checked", "proof"]
    healthy(tmp_path)  # now there are two, and neither is meant more than the other
    assert [section.id for section in report_from(tmp_path).sections] == ["code", "graph", "proof"]


def test_a_proof_that_was_moved_is_found_and_one_that_is_gone_is_told(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    fault(here)
    here.rename(there)
    assert str(there / "proofs") in rendered(report_from(there / "result.json").verdict.body)
    (there / "proofs").rename(tmp_path / "elsewhere")
    report = report_from(there / "result.json")
    assert "is not at hand" in rendered(report.verdict.body)
    assert [section.id for section in report.sections] == ["ladder", "checked"]


def test_the_line_is_shown_as_it_was_compiled(tmp_path: Path) -> None:
    path = fault(tmp_path)
    (tmp_path / "model.py").write_text("# another line\n" * 30)
    report = report_from(path)
    assert "hidden = torch.relu(self.up(x)) * scale" in rendered(report.verdict.body)
    assert report.sources is not None
    snippets = report.sources.section()
    assert snippets is not None and "written to since" in rendered(snippets.body)
    (tmp_path / "model.py").unlink()
    report = report_from(path)
    assert "hidden = torch.relu(self.up(x)) * scale" in rendered(report.verdict.body)
    assert report.sources is not None and report.sources.section() is None


def test_a_script_with_several_functions(tmp_path: Path, open_report: OpenReport) -> None:
    good = FunctionDiagnosis(function="f (model.py:3)", verdict="healthy", rungs=rungs("dynamo", "kernels"))
    found = finding(tmp_path, source(tmp_path))
    bad = FunctionDiagnosis(
        function="g (model.py:13), call 2", verdict="fault", findings=[found], rungs=rungs("dynamo"), seconds=12.5
    )
    unsure = FunctionDiagnosis(
        function="h (model.py:9)", verdict="undecided", rungs=rungs("dynamo"), notes=["no float64 run"]
    )
    document = ScriptDocument(
        target="train.py", ended="the script ended with exit code 3", diagnoses=[good, unsure, bad]
    )
    path = tmp_path / "script.json"
    path.write_text(json.dumps(document.to_json()))
    opened = open_report(written(path))
    assert "FAULT" in opened.text("h1") and "exit code 3" in opened.text("#verdict")
    rows = opened.page.locator("#functions tbody tr").all_inner_texts()
    assert [row.split()[0] for row in rows] == ["g,", "h", "f"] and "call 2" in rows[0]
    assert opened.page.locator("#f0-ladder").is_visible() and opened.page.locator("#f1-ladder").is_visible()
    assert opened.page.locator("#f2-ladder").count() == 0
    assert "model.py:13" in opened.page.locator("#functions a.src").all_inner_texts()
    assert axe_faults(opened.page) == []


def test_many_functions_are_listed_and_the_first_are_told(tmp_path: Path) -> None:
    found = finding(tmp_path, source(tmp_path))
    made = [
        FunctionDiagnosis(function=f"f{n} (model.py:13)", verdict="fault", findings=[found], rungs=rungs("dynamo"))
        for n in range(23)
    ]
    path = tmp_path / "script.json"
    path.write_text(json.dumps(ScriptDocument(target="train.py", diagnoses=made).to_json()))
    report = report_from(path)
    assert rendered(report.sections[0].body).count("<tr>") == 24 and "3 more are in the JSON" in rendered(
        report.sections[0].body
    )
    assert sum(section.id.endswith("-ladder") for section in report.sections) == 20
    ids = {section.id for section in report.sections}
    assert set(re.findall(r'href="#([a-z-]+)"', rendered(report.verdict.body))) <= ids


def test_several_findings_are_all_told(tmp_path: Path) -> None:
    file = source(tmp_path)
    other = finding(
        tmp_path, file, kind="hang", stage="post_grad", pass_="fuse", op=None, dossier=None, flaky_rate=0.25
    )
    diagnosis = Diagnosis(verdict="fault", findings=[other, finding(tmp_path, file)], rungs=rungs("dynamo"))
    path = tmp_path / "two.json"
    path.write_text(json.dumps(diagnosis.to_json()))
    report = report_from(path)
    assert "relu" in report.verdict.sentence  # the one with a proof
    cards = rendered(next(section for section in report.sections if section.id == "findings").body)
    for text in ("the program does not come to an end", "25% of the repeats", "No program that shows it", "fuse"):
        assert text in cards, text
    assert len({section.id for section in report.sections}) == len(report.sections)


def test_undecided_says_why(tmp_path: Path) -> None:
    diagnosis = Diagnosis(verdict="undecided", notes=["the program could not be run in float64"], rungs=rungs("dynamo"))
    path = tmp_path / "unsure.json"
    path.write_text(json.dumps(diagnosis.to_json()))
    report = report_from(path)
    assert (report.verdict.tone, report.verdict.word) == ("warn", "UNDECIDED")
    assert "could not be run in float64" in rendered(report.verdict.body)
    assert rendered(report.sections[0].body).count("not run") == 3


@pytest.mark.parametrize(
    ("right", "wrong", "stages", "expected"),
    [
        ("dynamo aot passes", "kernels", ["codegen"], "right right right wrong"),
        ("dynamo", "aot passes kernels", ["aot"], "right wrong wrong,-too wrong,-too"),
        ("dynamo aot kernels", "passes", ["joint"], "right right wrong right"),
        ("dynamo aot passes kernels plain", "", [], "right right right right"),
        ("dynamo kernels", "", [], "right not-run not-run right"),
        ("", "dynamo kernels", ["dynamo", "lowering"], "wrong not-run not-run wrong"),
        ("dynamo", "kernels", ["unknown"], "right not-run not-run wrong"),
        ("dynamo aot", "passes kernels", [], "right right wrong wrong,-too"),  # nobody could be accused
        ("dynamo aot passes kernels", "plain", [], "right right right wrong"),
        ("dynamo aot passes kernels plain", "", ["codegen"], "right right right wrong"),  # it shows in one op alone
        ("plain", "", [], "not-run not-run not-run right"),
    ],
)
def test_ladder(right: str, wrong: str, stages: list[str], expected: str) -> None:
    findings = [Finding(kind="wrong_value", stage=stage) for stage in stages]  # type: ignore[arg-type]
    ladder = rungs(*right.split(), wrong=wrong.split())
    diagnosis = Diagnosis(verdict="fault" if stages else "healthy", findings=findings, rungs=ladder)
    assert " ".join(word.replace(" ", "-") for _, _, word, _ in states(diagnosis)) == expected


def test_no_rung_is_wrong_for_its_last_bits() -> None:
    off = Finding(kind="not_bitwise", stage="decomposition")
    shown = Diagnosis(verdict="fault", findings=[off], rungs=[Rung(name="plain", state="right")])
    assert [tone for _, tone, _, _ in states(shown)] == ["good"]
    off.kind = "wrong_value"
    assert "bad" in [tone for _, tone, _, _ in states(shown)]


def test_a_rung_that_could_not_be_judged_says_how_it_differs() -> None:
    ladder = [Rung(name="dynamo", state="right"), Rung(name="kernels", state="unsure", difference="off by 3e-4")]
    told = states(Diagnosis(verdict="undecided", rungs=ladder))
    assert told == [("dynamo", "good", "right", ""), ("kernels", "warn", "not told", "off by 3e-4")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"verdict": "maybe", "findings": []}', r"Invalid enum value 'maybe' - at `\$.verdict`"),
        ('{"verdict": "fault", "findings": [{"kind": "hang"}]}', r"missing required field `stage`"),
        ('{"verdict": "fault", "findings": 3}', r"Expected `array`"),
        ('{"other": 1}', "is no diagnosis"),
        ("{", "is no diagnosis"),
        (
            '{"schema": 1, "diagnoses": [], "target": "x.py", "ended": "it was killed"}',
            "holds no diagnosis: it was killed",
        ),
    ],
)
def test_what_is_no_diagnosis(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        report_from(path)


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"schema": 2, "diagnoses": []}')
    with pytest.raises(SchemaError, match="schema 2"):
        report_from(path)


@pytest.mark.parametrize("z", [0.0, 7.25, float("inf"), float("-inf")])
def test_what_was_written_is_read_back_equal(tmp_path: Path, z: float) -> None:
    found = Finding(kind="nonfinite", stage="post_grad", pass_="reinplace", local_z=z, accumulated_z=z, also=["add"])
    one = FunctionDiagnosis(function="f (a.py:1)", verdict="fault", findings=[found], largest_z=LargestZ("mm", z))
    document = ScriptDocument(target="a.py", ended="it raised ValueError", diagnoses=[one])
    path = tmp_path / "x.json"
    path.write_text(json.dumps(document.to_json(), allow_nan=False))
    read = read_diagnosed(path)
    assert (read.target, read.ended, read.diagnoses) == ("a.py", "it raised ValueError", [one])


def test_nan_is_read_back(tmp_path: Path) -> None:
    one = Diagnosis(verdict="healthy", largest_z=LargestZ("mm", float("nan")))
    path = tmp_path / "x.json"
    path.write_text(json.dumps(one.to_json(), allow_nan=False))
    assert math.isnan(read_diagnosed(path).diagnoses[0].largest_z.z)
