"""The report of a diagnosis: which files it is made of, what it says of each finding and rung, what is refused."""

import json
import math
import re
from pathlib import Path

import pytest

from graphprobe.errors import SchemaError, UsageError
from graphprobe.findings import Diagnosis, Finding, FunctionDiagnosis, LargestZ, Rung, ScriptDocument
from graphprobe.report.html.render import rendered
from graphprobe.report.html.sections_diagnosis import ladder_section, report_from, states
from report.samples import fault, finding, healthy, rungs, source
from store.dump_helpers import read_diagnosed

pytestmark = pytest.mark.usefixtures("beside_the_program")


def put(folder: Path, document: Diagnosis | ScriptDocument) -> Path:
    path = folder / "document.json"
    path.write_text(json.dumps(document.to_json(), allow_nan=False))
    return path


def test_a_healthy_program(tmp_path: Path) -> None:
    report = report_from(healthy(tmp_path))
    assert report.verdict.word == "HEALTHY" and "1.76 times what rounding explains" in rendered(report.verdict.body)
    (ladder,) = [section for section in report.sections if section.id == "ladder"]
    assert rendered(ladder.body).count("badge good") == 4
    assert not {"code", "proof"} & {section.id for section in report.sections}


def test_a_dossier_alone_and_a_folder_of_them(tmp_path: Path) -> None:
    fault(tmp_path)
    dossier = tmp_path / "proofs" / "codegen-aten.relu.default"
    (tmp_path / "result.json").unlink()
    for path in (dossier, dossier / "finding.json", tmp_path / "proofs", tmp_path):
        report = report_from(path)
        assert report.verdict.word == "FAULT" and "relu gives wrong numbers" in report.verdict.sentence
        assert [section.id for section in report.sections] == ["code", "proof"]
        assert str(dossier / "repro.py") in rendered(report.verdict.body)


def test_the_result_in_a_folder_is_read_with_its_dossiers(tmp_path: Path) -> None:
    fault(tmp_path)
    assert [section.id for section in report_from(tmp_path).sections] == ["ladder", "code", "checked", "proof"]
    healthy(tmp_path)  # now there are two, and neither is meant more than the other
    assert [section.id for section in report_from(tmp_path).sections] == ["code", "proof"]


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


@pytest.mark.parametrize("backend", [None, "tvm", "mine (b.py:67)"])
def test_pytorchs_template_is_named_where_the_fault_is_pytorchs(backend: str | None, tmp_path: Path) -> None:
    dossier = Path(str(finding(tmp_path, source(tmp_path), backend=backend).dossier))
    proof = rendered(next(one.body for one in report_from(dossier).sections if one.id == "proof"))
    assert ("s template" in proof) is (backend is None) and "an issue" in proof


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


def test_many_functions_are_listed_and_the_first_are_told(tmp_path: Path) -> None:
    found = finding(tmp_path, source(tmp_path))
    made = [
        FunctionDiagnosis(function=f"f{n} (model.py:13)", verdict="fault", findings=[found], rungs=rungs("dynamo"))
        for n in range(23)
    ]
    report = report_from(put(tmp_path, ScriptDocument(target="train.py", diagnoses=made)))
    listed = rendered(report.sections[0].body)
    assert listed.count("<tr>") == 24 and "3 more are in the JSON" in listed
    assert sum(section.id.endswith("-ladder") for section in report.sections) == 20
    ids = {section.id for section in report.sections}
    assert set(re.findall(r'href="#([a-z-]+)"', rendered(report.verdict.body))) <= ids


def test_several_findings_are_all_told(tmp_path: Path) -> None:
    file = source(tmp_path)
    other = finding(
        tmp_path, file, kind="hang", stage="post_grad", pass_="fuse", op=None, dossier=None, flaky_rate=0.25
    )
    diagnosis = Diagnosis(verdict="fault", findings=[other, finding(tmp_path, file)], rungs=rungs("dynamo"))
    report = report_from(put(tmp_path, diagnosis))
    assert "relu" in report.verdict.sentence  # the one with a proof
    cards = rendered(next(section for section in report.sections if section.id == "findings").body)
    for text in ("the program does not come to an end", "25% of the repeats", "No program that shows it", "fuse"):
        assert text in cards, text
    assert len({section.id for section in report.sections}) == len(report.sections)


def test_undecided_says_why(tmp_path: Path) -> None:
    diagnosis = Diagnosis(verdict="undecided", notes=["the program could not be run in float64"], rungs=rungs("dynamo"))
    report = report_from(put(tmp_path, diagnosis))
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


def test_a_backend_that_is_not_inductor_has_a_rung_of_its_own() -> None:
    accused = Finding(kind="wrong_value", stage="backend", backend="mine (b.py:67)")
    ladder = [Rung(name="dynamo", state="right"), Rung(name="plain", state="wrong")]
    section = ladder_section(Diagnosis(verdict="fault", findings=[accused], rungs=ladder))
    assert section.summary == "first wrong: Backend"
    assert "mine" in str(section.body) and "Kernels" not in str(section.body)


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
        ('{"schema": 1, "diagnoses": [], "target": "x.py", "ended": "it was killed"}', "no diagnosis: it was killed"),
        ('{"schema": 2, "diagnoses": []}', "schema 2"),
    ],
)
def test_what_is_no_diagnosis(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises((UsageError, SchemaError), match=message):
        report_from(path)


@pytest.mark.parametrize("z", [0.0, 7.25, float("inf"), float("-inf")])
def test_what_was_written_is_read_back_equal(tmp_path: Path, z: float) -> None:
    found = Finding(kind="nonfinite", stage="post_grad", pass_="reinplace", local_z=z, accumulated_z=z, also=["add"])
    one = FunctionDiagnosis(function="f (a.py:1)", verdict="fault", findings=[found], largest_z=LargestZ("mm", z))
    document = ScriptDocument(target="a.py", ended="it raised ValueError", diagnoses=[one])
    read = read_diagnosed(put(tmp_path, document))
    assert (read.target, read.ended, read.diagnoses) == ("a.py", "it raised ValueError", [one])
    one = Diagnosis(verdict="healthy", largest_z=LargestZ("mm", float("nan")))
    assert math.isnan(read_diagnosed(put(tmp_path, one)).diagnoses[0].largest_z.z)
