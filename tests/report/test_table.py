"""What is embedded of a table and of a heat map: packed columns, layers that share a row, steps that share a column."""

import json
import math
from pathlib import Path
from typing import Any

from graphprobe.report.document import Section
from graphprobe.report.html.table import (
    COLUMN_KEY,
    ERROR,
    MOST_COLUMNS,
    MOST_ROWS,
    NONFINITE,
    PACKED_FROM_BYTES,
    ROW_KEY,
    Column,
    Heat,
    Table,
    shortened,
)
from report.made import body_of, page_of

EVIL = "<img src=x onerror=\"document.title='run'\"></script>"


def table_of(rows: int) -> Table:
    table = Table(
        "Calls",
        [
            Column(name="#", kind="number"),
            Column(name="verdict", kind="verdict"),
            Column(name="call", wide=True),
            Column(name="error", kind="number", help="in units of noise"),
            Column(name="rank", kind="number"),
            Column(name="group", kind="number", hidden=True),
        ],
    )
    for i in range(rows):
        error = math.inf if i == 7 else None if i == 8 else (i * 7) % 101 + 0.25
        table.add((i, "wrong" if i % 10 == 3 else "ok", EVIL if i == 1 else f"linear.{i}", error, 0, i // 2))
    return table


def test_texts_that_repeat_are_kept_once_and_json_has_no_infinity() -> None:
    data = json.loads(json.dumps(table_of(10).data()))
    columns = {column["name"]: (column, values) for column, values in zip(data["columns"], data["values"], strict=True)}
    assert columns["verdict"][0]["texts"] == ["ok", "wrong"] and columns["verdict"][1][:4] == [0, 0, 0, 1]
    assert columns["error"][1][6:] == [42.25, "inf", None, 63.25]
    assert columns["#"][1] == list(range(10))


def test_large_tables_are_packed_and_hold_the_same() -> None:
    small, large = table_of(100).data(), table_of(20_000).data()
    assert "packed" not in small and "packed" in large and large["rows"] == 20_000
    assert body_of(large)["values"][2][:100] == small["values"][2]
    assert len(large["packed"]) * 2 < len(json.dumps(body_of(large))) > PACKED_FROM_BYTES


def test_columns_in_which_all_rows_agree_or_have_nothing_can_be_hidden() -> None:
    table = table_of(10)
    table.hide_constant("rank", "verdict")
    hidden = {column["name"]: column["hidden"] for column in table.data()["columns"]}
    assert hidden == {"#": False, "verdict": False, "call": False, "error": False, "rank": True, "group": True}
    kinds: dict[str, Any] = {"a": "text", "b": "number", "c": "text", "d": "number"}
    table = Table("T", [Column(name=name, kind=kind) for name, kind in kinds.items()])
    table.add(("", None, "x", 1))
    table.add((None, None, "", None))
    table.hide_empty()
    assert [column["hidden"] for column in table.data()["columns"]] == [True, True, False, False]


def test_numbers_and_texts_can_be_replaced_at_the_end() -> None:
    table = table_of(6)
    table.renumber("group", [5, 5, 9])
    table.map_texts("verdict", lambda text: "same")
    data = table.data()
    assert data["values"][5] == [5, 5, 5, 5, 9, 9]
    assert data["columns"][1]["texts"] == ["same"] and data["values"][1] == [0] * 6


LAYERS = ("embed", "blocks.0.attn", "blocks.0.mlp", "blocks.1.attn", "blocks.1.mlp")


def test_layers_share_rows_by_their_paths_or_as_neighbours() -> None:
    assert shortened(LAYERS) == (list(LAYERS), [0, 1, 2, 3, 4]), "few layers have a row each"
    names, row_of = shortened([f"blocks.{i}.{part}" for i in range(40) for part in ("attn.q", "attn.k", "mlp.up")])
    assert names == [f"blocks.{i}" for i in range(40)] and row_of == [i // 3 for i in range(120)]
    names, row_of = shortened([f"blocks.{i}.m" for i in range(1000)])
    assert len(names) <= MOST_ROWS and names[0] == "blocks.0 … blocks.15" and names[-1] == "blocks.992 … blocks.999"
    assert row_of[15:17] == [0, 1] and row_of[-1] == len(names) - 1


def test_values_of_one_cell_become_one() -> None:
    heat = Heat((ERROR, NONFINITE))
    for layer, value, count in (("a", 2.0, 1.0), ("a", 5.0, 2.0), ("b", math.inf, None), ("b", None, None)):
        heat.add(layer, (0, 0, 0), (value, count))
    data = heat.data(table="")
    assert [metric["values"] for metric in data["metrics"]] == [[[5.0], ["inf"]], [[3.0], [None]]]


def test_many_steps_share_columns_and_directions_have_their_own() -> None:
    heat = Heat((ERROR,))
    for step in range(100):
        for backward in (0, 1):
            heat.add("a", (0, step, backward), (1.0,))
    data = heat.data(table="")
    assert len(data["columns"]) <= MOST_COLUMNS and data["columns"][0] == "step 0, forward … step 4, forward"
    few = Heat((ERROR,))
    few.add("a", (0, 3, 0), (1.0,))
    assert few.data(table="")["columns"] == ["step 3"]


def health_page(folder: Path) -> Path:
    """Five layers in three steps; blocks.1.attn is far off in step 2."""
    heat = Heat((ERROR, NONFINITE))
    table = Table(
        "Calls",
        [
            Column(name="module"),
            Column(name="step", kind="number"),
            Column(name=ROW_KEY, kind="number", hidden=True),
            Column(name=COLUMN_KEY, kind="number", hidden=True),
        ],
    )
    for step in range(3):
        for layer in LAYERS:
            for _ in range(4):
                error = 900.0 if (layer, step) == ("blocks.1.attn", 2) else 0.5
                table.add((layer, step, *heat.add(layer, (0, step, 0), (error, 0.0))))
    rows, columns = heat.place()
    table.renumber(ROW_KEY, rows)
    table.renumber(COLUMN_KEY, columns)
    data = heat.data(table="calls")
    sections = Section("health", "Health", "heat", data), Section("calls", "Calls", "table", table.data())
    return page_of(folder / "report.html", *sections)
