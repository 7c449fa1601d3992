"""The report of a dump: an overflow, overwritten memory, an exception, and where NaN begins in an eager program."""

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

import graphprobe
from compare.made import call, scalar, tensor
from graphprobe.errors import RunNotFoundError
from graphprobe.records import TensorStats
from graphprobe.report.document import Section
from graphprobe.report.html.render import rendered
from graphprobe.report.html.sections_dump import Health, infinite_of, report_from, told
from graphprobe.store import Call
from probe.dump.conftest import Dumping, dumping  # noqa: F401
from report.made import body_of


class Layer(nn.Module):
    def __init__(self, gain: float) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.gain = gain

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x)) * self.gain * self.gain


def model(*, hot: bool) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Layer(1e30 if hot and i == 2 else 1.0) for i in range(4))).bfloat16()


@pytest.fixture
def overflowing(dumping: Dumping) -> Path:  # noqa: F811
    backend = dumping.backend_of_file("aot_eager", dump_debug="on")
    compiled = torch.compile(model(hot=True), backend=backend)
    for _ in range(3):
        compiled(torch.ones(4, 8, dtype=torch.bfloat16))
    return dumping.end().path


def section(sections: list[Section], name: str) -> Section:
    return next(one for one in sections if one.id == name)


def test_the_verdict_of_an_overflow(overflowing: Path) -> None:
    report = report_from(overflowing, source_roots=[Path(__file__).parent])
    assert (report.verdict.word, report.verdict.tone) == ("OVERFLOW", "bad")
    assert report.verdict.sentence.endswith("makes +infinity of what was finite.")
    assert " in 2 " in report.verdict.sentence
    with pytest.raises(RunNotFoundError, match="there is no dump"):
        report_from(overflowing / "nowhere")


def test_where_infinity_begins_in_an_eager_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[1])  # what lies below is named relative to it
    net = model(hot=True)
    with graphprobe.dump(tmp_path / "dump", model=net, data="stats"):
        net(torch.ones(4, 8, dtype=torch.bfloat16))
    monkeypatch.chdir(tmp_path)
    report = report_from(tmp_path / "dump", source_roots=[Path(__file__).parent])
    said = rendered(report.verdict.body)
    assert "report/test_sections_dump.py:" in said and "* self.gain" in said
    assert report.verdict.word == "NOT FINITE"
    assert "Infinity begins at Tensor.mul" in report.verdict.sentence and " in 2:" in report.verdict.sentence
    body = body_of(section(report.sections, "calls").data)
    column = next(i for i, one in enumerate(body["columns"]) if one["name"] == "health")
    texts = body["columns"][column]["texts"]
    words = [texts[i] for i in body["values"][column]]
    assert words.count("makes_infinity") == 1 and set(words[words.index("makes_infinity") + 1 :]) == {"passes_on"}


def one(api: str, given: list[float], gave: list[float], *more: Any, **how: Any) -> Call:
    slots = (
        tensor("input.0", "input", np.array(given, np.float32)),
        *more,
        tensor("output.0", "output", np.array(gave, np.float32)),
    )
    return call(0, api, *slots, **how)


@pytest.mark.parametrize(
    ("made", "word"),
    [
        (one("torch.exp", [1], [2]), "finite"),
        (one("torch.exp", [100], [np.inf]), "makes_infinity"),
        (one("torch.log", [-1], [np.nan]), "makes_NaN"),
        (one("torch.exp", [np.nan], [np.nan]), "passes_on"),
        (one("torch.Tensor.masked_fill", [1], [-np.inf], scalar("input.2", -np.inf)), "writes_infinity"),
        (one("torch.empty_like", [1], [np.nan]), "uninitialised"),
        (one("torch.exp", [1], [np.inf], notes=("overflow: it overflows",)), "overflows"),
        (call(0, "torch.exp", scalar("input.0", 1)), "not_measured"),
    ],
)
def test_what_a_call_did(made: Call, word: str) -> None:
    health = Health({"it overflows": "overflows"})
    stats = {slot.name: slot.stats for slot in made.slots if slot.stats is not None}
    assert health.word(made, stats) == word and health.words == {word: 1}


def test_what_statistics_tell_of_nan_depends_on_who_wrote_them() -> None:
    slot = tensor("output.0", "output", np.array([1, np.nan, np.inf], np.float32))
    assert slot.stats is not None and told(slot) is slot.stats
    ours = msgspec.structs.replace(slot, known=("count", "max", "min"))
    assert told(ours) is None  # the column of NaN was not asked for
    for low, high, nan, infinite in ((1.0, 2.0, 0, 0), (math.nan, math.nan, 1, 0), (-math.inf, 2.0, 0, 1)):
        stats = TensorStats(count=3, min=low, max=high)
        found = told(msgspec.structs.replace(slot, stats=stats, known=("max", "min")))
        assert found is not None and (found.nan, infinite_of(found)) == (nan, infinite)


def test_a_dump_of_another_tool(tmp_path: Path) -> None:
    file = tmp_path / "dump.pkl"
    rows = []
    for index, high in enumerate((2.0, math.inf)):
        for slot, value in (("input.0", 1.0), ("output", high)):
            name = f"{index}_Torch_exp_forward_{slot}"
            rows.append([name, 1, [], "torch.float32", [4], [value, 0.0, 0.5]])
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = report_from(file)
    assert report.verdict.word == "NOT FINITE" and "1_Torch_exp_forward" in report.verdict.sentence


def test_a_backward_through_a_spoiled_forward_begins_nothing() -> None:
    health = Health({})
    forward = one("torch.mul", [3e38], [np.inf])
    backward = one("torch.mul", [1], [np.nan], direction="backward")
    words = [health.word(c, {s.name: s.stats for s in c.slots if s.stats is not None}) for c in (forward, backward)]
    assert words == ["makes_infinity", "passes_on"]


def test_findings_that_cannot_be_read_are_told_and_nothing_outside_is_opened(overflowing: Path) -> None:
    (file,) = overflowing.rglob("findings.jsonl")
    lines = file.read_text().splitlines()
    secret = overflowing.parent / "exception.json"
    secret.write_text('{"traceback": "secret"}')
    away = '{"kind": "exception", "op": "sin", "document": "../../../exception.json"}'
    file.write_text("\n".join([lines[0], '{"kind": "overflow", "problems": 3}', away, lines[1][:50]]))
    report = report_from(overflowing)
    assert report.verdict.word == "OVERFLOW" and "secret" not in rendered(section(report.sections, "findings").body)
    missing = rendered(section(report.sections, "dump").body)
    assert "line 2 is no finding" in missing and "line 4 is cut off" in missing
