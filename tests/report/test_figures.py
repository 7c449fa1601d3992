"""docs/metrics.md defines each figure that a table, a heat map, a file of a comparison or a record of a tensor has."""

import re

import msgspec

from conftest import ROOT
from graphprobe.numerics import PairStats
from graphprobe.records import TensorStats
from graphprobe.report import comparison
from graphprobe.report.html import dump_table, heat, sections_comparison
from graphprobe.report.html.table import Column

PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")


def test_every_figure_is_defined() -> None:
    of_tables = [value for room in (sections_comparison, dump_table) for value in vars(room).values()]
    columns = [c for value in of_tables if isinstance(value, tuple) for c in value if isinstance(c, Column)]
    shown = {c.name for c in columns if c.kind == "number" and not c.hidden} - {"#", "step", "rank"}
    assert {"gave", "got", "range"} <= shown
    shown |= {value.name for value in vars(heat).values() if isinstance(value, heat.Metric)}
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
