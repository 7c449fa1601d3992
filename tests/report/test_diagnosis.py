"""The story of a diagnosis: complete, readable at 80 columns, and in words."""

import io
import re
from pathlib import Path
from typing import Any, get_args

import pytest

from graphprobe.diagnose.dossier.report import report_text, title_of
from graphprobe.findings import BitDifference, Diagnosis, Finding, Kind, LargestZ, Stage, Worst, in_words, read_document
from graphprobe.report.diagnosis import (
    CRASHES,
    FAULTS_IN_WORDS,
    NUMERIC,
    STAGES,
    WIDTH,
    as_sentence,
    details,
    first_line_from,
    lines_from,
    print_diagnosis,
    print_end,
    reason_of,
    sentence,
    values_in_words,
)

WORST = Worst(
    label="output 0", index=(5, 7), expected=0.0, actual=-1.0698287, off=1.0698287, legitimate=2e-7, wrong=512, of=512
)


def told(diagnosis: Diagnosis, **options: Any) -> str:
    stream = io.StringIO()
    print_diagnosis(diagnosis, name="f (model.py:1)", file=stream, **options)
    return stream.getvalue()


def words(text: str) -> str:
    return " ".join(text.split())


def finding(**fields: Any) -> Finding:
    return Finding(**{"kind": "wrong_value", "stage": "codegen", **fields})


OFF = BitDifference(observable="outputs[0]", call=0, elements=0.5, max_ulp=3.0, max_abs=1.2e-7, worst=WORST)


def test_a_program_that_is_right_and_not_to_the_last_bit() -> None:
    text = words(told(Diagnosis(verdict="healthy", differences=[OFF, OFF])))
    said = "Right, but not to the last bit. 50% of the elements of output 0 differ, by up to 3 units in the last place"
    assert f"{said} (1.2e-07). So does one more observable." in text


def test_a_difference_in_the_last_bits_is_no_wrong_number() -> None:
    off = finding(kind="not_bitwise", stage="decomposition", op="aten.gelu.default", reason="50% differ.", worst=WORST)
    text = words(told(Diagnosis(verdict="fault", findings=[off], differences=[OFF])))
    assert "the results match within rounding, and not to the last bit" in text
    assert "Compiled, gelu gives other last bits, no further off than rounding explains." in text
    assert "It begins to differ in decomposing" in text and "goes wrong" not in text
    assert "appears only when it is compiled" not in text and "Right, but" not in text
    both = words(told(Diagnosis(verdict="fault", findings=[off, finding()])))
    assert "2 faults appear only when it is compiled" in both


def test_healthy() -> None:
    ruled_out, largest = ["aot: the program computes the same on this rung"], LargestZ("forward:relu_1", 1.7234)
    text = told(Diagnosis(verdict="healthy", seconds=12.4, compiles=1, ruled_out=ruled_out, largest_z=largest))
    assert text.startswith("HEALTHY: f (model.py:1): compiled and uncompiled results match within rounding")
    assert "(12 s, 1 graph compiled to look inside)" in words(text)
    assert "  - aot: the program computes the same on this rung" in text
    assert "1.72 times what rounding explains, at forward:relu_1" in words(text)
    assert "notes" not in text and "last bit" not in text


def test_fault_tells_everything(tmp_path: Path) -> None:
    source = tmp_path / "model.py"
    source.write_text("import torch\n\n    hidden = torch.relu(up)\n")
    dossier = tmp_path / ("a long folder name " * 6) / "codegen-relu"
    made = finding(
        op="aten.relu.default", node="relu_3", also=["aten.add.Tensor", "aten.mm.default"], kernel="cpp_fused_relu_0",
        source=f"{source}:3", module="blocks.3.mlp", direction="backward", pass_="fuse_things", local_z=3.6e38,
        accumulated_z=412.0, flaky_rate=0.4, dossier=str(dossier), proof="piece", worst=WORST,
        reason="q999 of z is 3.6e+38, the limit 3. The repro is incomplete: x.",
    )  # fmt: skip
    text = told(Diagnosis(verdict="fault", findings=[made], notes=["the budget is spent"]))
    assert text.startswith("FAULT: f (model.py:1): one fault appears only when it is compiled")
    flat = words(text)
    for expected in (
        "1. Compiled, relu gives wrong numbers, in the backward pass.",
        "It goes wrong in code generation, where the loops are written as C++ or GPU code.",
        "operation: aten.relu.default, node relu_3",
        "may also be: aten.add.Tensor, aten.mm.default",
        "kernel: cpp_fused_relu_0",
        "pass: fuse_things",
        "hidden = torch.relu(up)",
        "module: blocks.3.mlp",
        "over a million times what rounding explains in this operation alone",
        "412 times what rounding explains in the result of the whole graph",
        "it failed in 40% of the repeats",
        "observed: The repro is incomplete: x.",
        "In the proof: expected 0, got -1.07 at (5, 7) of output 0; off by 1.07, where rounding explains 2e-07; "
        "512 of 512 elements are wrong.",
        "- the budget is spent",
    ):
        assert expected in flat
    assert flat.index("got -1.07") < flat.index("times what rounding") and " of z " not in flat
    # What is copied stands in one line, whole, and a shell can read it.
    assert f"{source}:3\n" in text
    assert f"proof:       {dossier}\n" in text
    assert f"python '{dossier}/repro.py'\n" in text
    assert f"{dossier}/REPORT.md\n" in text
    long = [line for line in text.splitlines() if len(line) > WIDTH]
    assert all(str(tmp_path) in line for line in long)
    assert "\x1b" not in text


INDUCTORS = re.compile(r"Inductor|codegen|code generation|C\+\+|report it|PyTorch")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "in your backend `mine` (b.py:67): Dynamo's graph is right, and what the backend returns for it is not."),
        (
            {"pass_": "drop (b.py:27)"},
            "in your backend `mine` (b.py:67), in its pass `drop` (b.py:27): the graph before the pass is right, and "
            "the graph after the pass is not.",
        ),
        ({"kind": "crash_compile"}, "in your backend `mine` (b.py:67): Dynamo's graph is right."),
        (
            {"backend": "tvm"},
            "in the backend `tvm`: Dynamo's graph is right, and what the backend returns for it is not.",
        ),
    ],
)
def test_a_backend_of_the_program_is_called_by_its_name(fields: dict[str, Any], said: str, tmp_path: Path) -> None:
    own = {"stage": "backend", "backend": "mine (b.py:67)", "op": "aten.neg.default", **fields}
    made = finding(**own, dossier=str(tmp_path), proof="piece")
    text, end = words(told(Diagnosis(verdict="fault", findings=[made]))), io.StringIO()
    assert f"It goes wrong {said}" in text
    print_end([Diagnosis(verdict="fault", findings=[made])], verdict="fault", name="f", target=["f"], file=end)
    failed = [*lines_from(Diagnosis(verdict="fault", findings=[made])), report_text(made, versions={}, files={})]
    everywhere = "\n".join([text, end.getvalue(), *failed])
    assert f"Stage: {made.stage_name}." in everywhere and not INDUCTORS.search(everywhere)
    with_inductor = told(Diagnosis(verdict="fault", findings=[finding(dossier=str(tmp_path), proof="piece")]))
    assert len({*INDUCTORS.findall(words(with_inductor))}) == 3


@pytest.mark.parametrize(
    ("called_from", "line"),
    [
        ("train.py:21", "your line: train.py:21 (called from there: …/transformers/pytorch_utils.py:119)"),
        (None, "your line: /x/site-packages/transformers/pytorch_utils.py:119"),
    ],
)
def test_a_line_of_a_library_comes_behind_the_line_that_calls_it(called_from: str | None, line: str) -> None:
    place = {"source": "/x/site-packages/transformers/pytorch_utils.py:119", "called_from": called_from}
    made = finding(**place, module="7", within="7 (Block) of Sequential", places=["", "b.py:3 in 8"])
    diagnosis, end = Diagnosis(verdict="fault", findings=[made]), io.StringIO()
    text = words(told(diagnosis))
    assert line in text and "module: 7 (Block) of Sequential" in text and "b.py:3 in module 8" in text
    print_end([diagnosis], verdict="fault", name="f", target=["f"], file=end)
    assert f"where: {made.line} in module 7 (Block) of Sequential" in words(end.getvalue())
    assert f" at {made.line}. Stage" in first_line_from(diagnosis)
    assert f"(`{(made.line or '').rpartition('/')[2]}`)" in report_text(made, versions={}, files={}) or not called_from


def test_several_faults_are_numbered() -> None:
    text = told(Diagnosis(verdict="fault", findings=[finding(op="aten.sin.default"), finding()]))
    assert "2 faults appear" in text
    assert "1. Compiled, sin" in text
    assert "2. Compiled, the program gives wrong numbers." in text
    assert text.count("No program that shows it by itself could be made.") == 2
    assert "off by" not in text and "details" not in text
    assert "flaky" not in text


def test_paths_below_the_base_are_relative(tmp_path: Path) -> None:
    made = finding(source=f"{tmp_path / 'model.py'}:3", dossier=str(tmp_path / "proofs" / "one"), proof="piece")
    text = told(Diagnosis(verdict="fault", findings=[made]), base=tmp_path)
    assert "your line:   model.py:3\n" in text and "python proofs/one/repro.py\n" in text
    assert str(tmp_path) not in text


def test_infinite_error_unreadable_source_and_notes_of_many_lines() -> None:
    made = finding(kind="nonfinite", stage="unknown", local_z=float("inf"), source="gone.py:7")
    text = told(Diagnosis(verdict="fault", findings=[made]))
    assert "your line:   gone.py:7\n" in text
    assert "more than any rounding explains in this operation alone" in text and "could not be told" in text
    text = told(Diagnosis(verdict="undecided", notes=["it failed:\nTraceback\n  RuntimeError: " + "x" * 200]))
    assert text.startswith("UNDECIDED: ") and "- it failed:\n" in text
    assert "x" * 200 in text, "nothing is cut"


def test_every_kind_and_stage_has_words() -> None:
    assert (set(FAULTS_IN_WORDS), set(STAGES)) == (set(get_args(Kind)), set(get_args(Stage)))


@pytest.mark.parametrize(
    "kind", [kind for kind in FAULTS_IN_WORDS if kind not in (*NUMERIC, "not_bitwise", "wrong_registration")]
)
def test_what_is_no_number_has_no_size(kind: Any) -> None:
    made = finding(kind=kind, local_z=float("inf"), accumulated_z=float("inf"), reason="C++ compile error")
    text = told(Diagnosis(verdict="fault", findings=[made]))
    assert f"   {'error' if kind in CRASHES else 'observed'}:" in text and "C++ compile error" in text
    assert "rounding" not in text and "noise" not in text and "inf" not in words(text).replace("infinity", "")


def test_the_end_and_the_short_form_tell_the_values() -> None:
    diagnosis = Diagnosis(verdict="fault", findings=[finding(worst=WORST, local_z=412.0)])
    stream = io.StringIO()
    print_end([diagnosis], verdict="fault", name="f", target=["f.py:f"], file=stream)
    told_last = "fault: Compiled, the program gives wrong numbers: expected 0, got -1.07. Stage: codegen."
    assert told_last in stream.getvalue()
    lines = lines_from(diagnosis)
    assert lines[1].startswith("  Expected 0, got -1.07") and lines[-1].startswith("  details: 412 times")


def test_the_worst_element_comes_back_from_json() -> None:
    worst = Worst(label="output 0", expected=float("nan"), actual=2, off=float("inf"), wrong=1, of=3)
    plain = Diagnosis(verdict="fault", findings=[finding(worst=worst)]).to_json()["findings"][0]
    assert plain["worst"]["expected"] == "nan" and plain["worst"]["off"] == "inf"
    assert values_in_words(finding(worst=WORST, dossier="d", proof="program")).startswith(
        "Expected 0, got -1.07 at (5, 7)"
    )
    read = read_document(plain, Finding).worst
    assert read is not None and in_words(read) == in_words(worst)
    assert in_words(worst) == "expected NaN, got 2 in output 0; 1 of 3 elements differs"


def test_reasons_are_parted_into_what_all_understand_and_z() -> None:
    reason = (
        "it differs each time; rms of z is 9, the limit 4; with k replaced it is gone. The repro is incomplete: a; b."
    )
    made = finding(reason=reason)
    assert reason_of(made) == (
        "observed",
        "It differs each time; with k replaced it is gone. The repro is incomplete: a; b.",
    )
    assert details(made) == ["rms of z is 9, the limit 4"]
    made.kind = "side_effect"
    assert reason_of(made) == ("observed", reason) and details(made) == []


def test_a_dossier_whose_repro_does_not_fail_alone_is_no_proof() -> None:
    text = told(Diagnosis(verdict="fault", findings=[finding(dossier="kept", proof=None)]))
    assert "proof:" not in text and "repro.py" not in text
    assert "No program that shows it by itself could be made." in text and "kept in:     kept" in text


def test_a_relation_is_the_title_of_what_no_operation_is_to_blame_for() -> None:
    made = finding(kind="wrong_gradient", op="torch.Tensor.retain_grad", relation="no gradient goes from z to y")
    assert sentence(made) == "Compiled, no gradient goes from z to y."
    assert title_of(made) == f"torch.compile: no gradient goes from z to y ({made.stage})"


def test_a_wrong_registration_is_told_as_the_programs_own_and_not_to_be_reported() -> None:
    reason = "Your fake kernel at ops.py:12 promises dtype float32, the kernel of my::op makes float64. Write dtype=d."
    told = Diagnosis(verdict="fault", findings=[finding(kind="wrong_registration", stage="aot", reason=reason)])
    text = "\n".join(lines_from(told))
    assert text.startswith(f"{reason.partition('. ')[0]}.") and "mend it: Write dtype=d." in text
    assert "report it" not in text and "gives" not in text


def test_a_variable_of_the_program_is_no_unit_of_noise() -> None:
    text = "Here y and z are outputs of one function, so z does not depend on y."
    assert reason_of(finding(reason=f"rms of z is 9, the limit 4. {text}")) == ("observed", text)


def test_code_keeps_its_case_at_the_beginning_of_a_sentence() -> None:
    for text in (
        "view_as: another branch",
        "ref: another branch",
        "operator.eq: no",
        "self.holder: no",
        "aten.add.Tensor is",
    ):
        assert as_sentence(text) == f"{text}."
    assert [as_sentence(text) for text in ("off by 2", "dtype torch.int8, not", "wrong.", "")] == [
        "Off by 2.",
        "Dtype torch.int8, not.",
        "Wrong.",
        "",
    ]
