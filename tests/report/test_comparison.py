"""What is said of a comparison: on the terminal, as CSV, JSON and HTML; what is none is refused."""

import csv
import io
import json
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from compare.made import MemoryDump, call, chain, tensor
from graphprobe.cli.main import main
from graphprobe.compare import CallName, CallResult, Comparison, SlotResult, SlotSide, compare_dumps
from graphprobe.errors import ArtifactNotFoundError, SchemaError
from graphprobe.report.comparison import (
    OUR_COLUMNS,
    SOURCE_COLUMNS,
    bars_from,
    document_from,
    print_call,
    print_comparison,
    print_end,
    write_csv,
)
from graphprobe.report.document import Section
from graphprobe.report.html.page import pieces
from graphprobe.report.html.render import rendered
from graphprobe.report.html.sections_comparison import report_from, report_of
from report.made import body_of, report_cases

APIS = ["torch.relu", "torch.exp", "torch.relu", "torch.tanh"]


def different() -> Comparison:
    longer = chain([*APIS, "torch.sin"], scale={1: 1.01})
    return compare_dumps(MemoryDump(longer, title="new"), MemoryDump(chain(APIS), title="old"))


def text_of(comparison: Comparison) -> str:
    out = io.StringIO()
    print_comparison(comparison.summary, [r for r in comparison.rows() if r.rule is None], file=out)
    return out.getvalue()


def test_the_terminal_names_call_slot_and_reason() -> None:
    with different() as comparison:
        text = text_of(comparison)
    assert text.startswith("DIFFERENT 1 cause found")
    assert "First divergence: exp.0.forward (forward)" in text
    assert "output.0; the candidate is the worse side" in text
    assert "candidate sin.0.forward: the reference has no such operation with these shapes" in text
    assert "by statistics only" in text


@pytest.mark.parametrize(("ranks", "extra"), [("1", ""), ("2", " --rank 1")])
def test_the_next_command_names_step_and_rank(ranks: str, extra: str) -> None:
    """Of a call that the reference alone makes, too, unless each rank is held against the only one that it has."""
    missing = [c for c in chain(APIS) if c.api != "torch.tanh"]
    sides = [[msgspec.structs.replace(c, rank=1, step=3) for c in calls] for calls in (missing, chain(APIS))]
    dumps = [MemoryDump(calls, title=title) for calls, title in zip(sides, ("new", "old"), strict=True)]
    dumps[1].facts["ranks"] = ranks
    out = io.StringIO()
    with compare_dumps(*dumps) as comparison:
        print_end(comparison.summary, "new", "old", file=out)
    assert f"graphprobe parse old tanh.0.forward --step 3{extra}\n" in out.getvalue()


def test_terminal_and_page_are_short_when_nothing_differs() -> None:
    with compare_dumps(MemoryDump(chain(APIS)), MemoryDump(chain(APIS))) as comparison:
        text = text_of(comparison)
        report = report_of(comparison.summary, comparison.rows())
    assert text.startswith("SAME no difference") and "divergence" not in text and "partner" not in text
    assert (report.verdict.word, report.verdict.tone) == ("SAME", "good")
    assert not any(one.id in ("findings", "growth") for one in report.sections)


def test_the_csv_has_the_columns_of_the_source_first() -> None:
    out = io.StringIO()
    with different() as comparison:
        count = write_csv(comparison.rows(), out, stack=True)
    lines = list(csv.reader(io.StringIO(out.getvalue())))
    assert lines[0] == [*SOURCE_COLUMNS, "NPU_Stack_Info", *OUR_COLUMNS]
    assert len(lines) == count + 1 == 10 and all(len(line) == len(lines[0]) for line in lines)
    table = [dict(zip(lines[0], line, strict=True)) for line in lines[1:]]
    wrong = next(row for row in table if row["NPU Name"] == "exp.0.forward.output.0")
    assert (wrong["Verdict"], wrong["Blame"], wrong["Rule"]) == ("candidate_worse", "local", "exact")
    assert wrong["Bench Name"] == wrong["NPU Name"] and wrong["NPU Tensor Shape"] == "[64]"
    assert float(wrong["NPU max"]) > float(wrong["Bench max"])
    lone = table[-1]
    assert (lone["NPU Name"], lone["Bench Name"], lone["Rule"]) == ("sin.0.forward", "N/A", "none")
    assert lone["Err_message"].startswith("no partner:")


def test_the_csv_is_what_the_csv_module_writes() -> None:
    odd = 'a "quoted", text\r\nof two lines'
    side = SlotSide(dtype="float32", shape=(2, 3), min=-1e-07, max=1e16, mean=0.1, l2=float("nan"))
    slots = (
        SlotResult(name="input.0", role="input", candidate=side, reference=SlotSide(text=odd), ulp=2.5, worst=(1, 2)),
        SlotResult(name="kwarg.x", role="input", reference=SlotSide(text="None"), reason=odd),
        SlotResult(name="output.0", role="output", candidate=side, basis="digest", cosine=1.0, max_abs=0.0, level=3e-9),
    )
    mine = CallName(
        position=0, label="f,g.0", kind="api", api="f", module="a,b", source='"x".py:1', stack=(odd, "main")
    )
    rows = [
        CallResult(number=0, rule="exact", candidate=mine, reference=mine, slots=slots, step=3),
        CallResult(number=1, candidate=mine, reason="none, at all"),
        CallResult(number=2, rule="moved", candidate=mine, reference=mine),
    ]
    file = io.StringIO(newline="")
    assert write_csv(rows, file, stack=True) == 4
    found = list(csv.reader(io.StringIO(file.getvalue(), newline="")))
    again = io.StringIO(newline="")
    csv.writer(again).writerows(found)
    assert again.getvalue() == file.getvalue()
    columns, first, second, third, alone = found
    assert {len(line) for line in found} == {len(columns)}
    told = dict(zip(columns, first, strict=True))
    assert told["Bench Tensor Dtype"] == odd and told["NPU Tensor Shape"] == "[2, 3]"
    numbers = [told[f"NPU {name}"] for name in ("max", "min", "mean", "l2norm")]
    assert numbers == ["1e+16", "-1e-07", "0.1", "nan"] and told["Bench max"] == "N/A"
    assert told["Max ULP"] == "2.5" and told["Worst Element"] == "[1, 2]" and told["Module"] == "a,b"
    assert told["NPU_Stack_Info"] == f"{odd}\nmain"
    assert second[0] == "N/A" and dict(zip(columns, second, strict=True))["Err_message"] == odd
    shown = dict(zip(columns, third, strict=True))
    assert shown["Cosine"] == "1.0" and shown["MaxRelativeErr"] == "N/A" and shown["Noise Level"] == "3e-09"
    assert alone[0] == "f,g.0" and alone[1] == "N/A" and "no partner: none, at all" in alone


def test_the_rule_of_the_source_is_shown_and_not_trusted() -> None:
    values: dict[str, np.ndarray] = {}
    array = np.linspace(1, 2, 64, dtype=np.float32) * 1e-5
    other = array.copy()
    other[3] *= -1
    a, b = (
        MemoryDump([call(0, "torch.relu", tensor("output.0", "output", one, values=values))], values)
        for one in (other, array)
    )
    out = io.StringIO()
    with compare_dumps(a, b) as comparison:
        write_csv(comparison.rows(), out)
    row = next(csv.DictReader(io.StringIO(out.getvalue())))
    assert row["Verdict"] == "candidate_worse"
    assert row["Accuracy Reached or Not"] == "Yes" or row["Worst Element"] == "[3]"


def test_the_document_is_json() -> None:
    with different() as comparison:
        document = document_from(comparison.summary, [r for r in comparison.rows() if r.rule is None])
    again = json.loads(json.dumps(document))
    assert again["outcome"] == "different" and again["first"]["candidate"]["label"] == "exp.0.forward"
    assert [entry["call"]["label"] for entry in again["unpaired"]] == ["sin.0.forward"]


def test_the_html_needs_nothing_and_escapes() -> None:
    given = tensor("output.0", "output", np.ones(4, np.float32))
    calls = [call(0, "torch.relu", given, label="<script>alert(1)</script>")]
    with compare_dumps(MemoryDump(calls), MemoryDump(calls)) as comparison:
        text = "".join(pieces(report_of(comparison.summary, comparison.rows())))
    assert "<script>alert" not in text and "\\u003cscript>alert" in text
    assert not re.search(r"""(src|href)=["'](?!#)""", text)
    with different() as comparison:
        text = "".join(pieces(report_of(comparison.summary, comparison.rows())))
    assert "First divergence" in text and "exp.0.forward" in text and "<polyline" in text


def test_bars_are_logarithmic() -> None:
    assert bars_from([0.0, 1.0, 1e3, 1e9]) == "▁▁▄█"


def test_a_call_is_printed_with_stack_statistics_and_values() -> None:
    one = call(3, "torch.relu", tensor("output.0", "output", np.ones(4, np.float32)), stack=("a.py:1 in f: relu(x)",))
    out = io.StringIO()
    print_call(one, values={"output.0": "[1. 1. 1. 1.]"}, file=out)
    text = out.getvalue()
    for part in (
        "relu.0.forward torch.relu (api, forward)",
        "a.py:1 in f: relu(x)",
        "float32 [4], max 1",
        "[1. 1. 1. 1.]",
    ):
        assert part in text


def section(sections: list[Section], name: str) -> Section:
    return next(one for one in sections if one.id == name)


def test_all_rows_of_a_real_comparison_are_there_with_what_was_measured() -> None:
    with different() as comparison:
        report = report_of(comparison.summary, comparison.rows())
        count = sum(1 for _ in comparison.rows())
    assert (report.verdict.word, report.verdict.tone) == ("DIFFERENT", "bad")
    body = body_of(section(report.sections, "calls").data)
    names = [column["name"] for column in body["columns"]]
    verdict = names.index("verdict")
    words = [body["columns"][verdict]["texts"][i] for i in body["values"][verdict]]
    assert len(words) == count == 5 and words[1] == "candidate_worse" and words[4] == "no_partner"
    slots = body["more"]["1"]
    assert [row[0] for row in slots["rows"]] == ["input.0", "output.0"] and slots["rows"][1][9] == "candidate worse"


def test_what_is_no_comparison_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactNotFoundError, match=r"comparison\.json cannot be read"):
        report_from(tmp_path)
    file = tmp_path / "comparison.json"
    texts = {
        "{": "is no JSON",
        '{"schema": 99}': "has schema 99",
        '{"schema": 1}': "has schema 1",
        '{"schema": 2}': "no comparison",
    }
    for text, message in texts.items():
        file.write_text(text)
        with pytest.raises(SchemaError, match=message):
            report_from(tmp_path)


def test_a_summary_without_its_rows_says_so(tmp_path: Path) -> None:
    report_cases().write_comparison(tmp_path, 500)
    (tmp_path / "rows.jsonl").unlink()
    report = report_from(tmp_path / "comparison.json")
    assert "calls" not in [one.id for one in report.sections]
    assert "rows.jsonl is not there" in rendered(section(report.sections, "compared").body)


def test_a_row_that_is_none_names_its_line(tmp_path: Path) -> None:
    report_cases().write_comparison(tmp_path, 50)
    with open(tmp_path / "rows.jsonl", "a") as rows:
        rows.write("{]\n")
    with pytest.raises(SchemaError, match=r"rows\.jsonl line 51 is no row"):
        report_from(tmp_path)


def test_the_command_writes_it(tmp_path: Path) -> None:
    report_cases().write_comparison(tmp_path / "compared", 2_000)
    out = tmp_path / "report.html"
    done = CliRunner().invoke(main, ["report", str(tmp_path / "compared"), "-o", str(out)])
    assert done.exit_code == 0, done.output
    summary = json.loads((tmp_path / "compared" / "comparison.json").read_text())
    assert summary["outcome"].upper() in done.output and "data-calls" in out.read_text()
