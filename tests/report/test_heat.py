"""The heat map: which layers share a row, what a cell says, and that choosing one narrows the table."""

from __future__ import annotations

import math
from pathlib import Path

from graphprobe.report.document import Section
from graphprobe.report.html.heat import (
    COLUMN_KEY,
    ERROR,
    MOST_COLUMNS,
    MOST_ROWS,
    NONFINITE,
    ROW_KEY,
    Heat,
    call_titles,
    shortened,
)
from graphprobe.report.html.table import Column, Table
from report.browser import OpenReport
from report.made import page_of
from report.test_table import Grid

LAYERS = ("embed", "blocks.0.attn", "blocks.0.mlp", "blocks.1.attn", "blocks.1.mlp")


def test_few_layers_have_a_row_each() -> None:
    assert shortened(LAYERS) == (list(LAYERS), [0, 1, 2, 3, 4])


def test_many_layers_are_put_together_by_their_path() -> None:
    layers = [f"blocks.{i}.{part}" for i in range(40) for part in ("attn.q", "attn.k", "mlp.up")]
    names, row_of = shortened(layers)
    assert names == [f"blocks.{i}" for i in range(40)] and row_of == [i // 3 for i in range(120)]


def test_where_paths_do_not_help_neighbours_share_a_row() -> None:
    names, row_of = shortened([f"blocks.{i}.m" for i in range(1000)])
    assert len(names) <= MOST_ROWS and names[0] == "blocks.0 … blocks.15" and names[-1] == "blocks.992 … blocks.999"
    assert row_of[15:17] == [0, 1] and row_of[-1] == len(names) - 1


def test_values_of_one_cell_become_one() -> None:
    heat = Heat((ERROR, NONFINITE))
    for layer, value, count in (("a", 2.0, 1.0), ("a", 5.0, 2.0), ("b", math.inf, None), ("b", None, None)):
        heat.add(layer, (0, 0, 0), (value, count))
    data = heat.data("Health", table="", titles=call_titles(heat.columns))
    assert [metric["values"] for metric in data["metrics"]] == [[[5.0], ["inf"]], [[3.0], [None]]]


def test_many_steps_share_columns_and_directions_have_their_own() -> None:
    heat = Heat((ERROR,))
    for step in range(100):
        for backward in (0, 1):
            heat.add("a", (0, step, backward), (1.0,))
    data = heat.data("Health", table="", titles=call_titles(heat.columns))
    assert len(data["columns"]) <= MOST_COLUMNS and data["columns"][0] == "step 0, forward … step 4, forward"
    few = Heat((ERROR,))
    few.add("a", (0, 3, 0), (1.0,))
    assert few.data("Health", table="", titles=call_titles(few.columns))["columns"] == ["step 3"]


def page(folder: Path) -> Path:
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
    data = heat.data("Health of each module", table="calls", titles=call_titles(heat.columns))
    sections = Section("health", "Health", "heat", data), Section("calls", "Calls", "table", table.data())
    return page_of(folder / "report.html", *sections)


def test_a_cell_says_what_it_means_and_narrows_the_table(tmp_path: Path, open_report: OpenReport) -> None:
    opened = open_report(page(tmp_path))
    cells = opened.page.locator("#health .c")
    assert cells.count() == 15
    worst = opened.page.get_by_role("gridcell", name="blocks.1.attn, step 2: error 900, up to 10,000")
    assert worst.locator("[aria-hidden]").inner_text() == "900" and "t3" in (worst.get_attribute("class") or "")
    assert "as rounding: up to 1" in opened.text("#health .legend")
    worst.click()
    grid = Grid(opened, "calls")
    assert grid.count == "4 of 60 rows" and set(grid.column("module")) == {"blocks.1.attn"}
    assert opened.text("#calls .only") == "Only blocks.1.attn, step 2"
    opened.page.get_by_role("button", name="Show all").click()
    assert grid.count == "60 rows"


def test_the_keyboard_finds_the_worst_cell_and_narrows(tmp_path: Path, open_report: OpenReport) -> None:
    opened = open_report(page(tmp_path))
    opened.page.locator("#health [role=grid]").focus()
    assert opened.text("#health .said").startswith("blocks.1.attn, step 2: error 900")
    opened.page.keyboard.press("ArrowUp")
    opened.page.keyboard.press("ArrowLeft")
    assert opened.text("#health .said").startswith("blocks.0.mlp, step 1: error 0.5, as rounding")
    opened.page.keyboard.press("Enter")
    grid = Grid(opened, "calls")
    assert grid.count == "4 of 60 rows" and set(grid.column("step")) == {"1"}
    assert grid.grid.evaluate("grid => document.activeElement === grid")


def test_another_measure_can_be_shown(tmp_path: Path, open_report: OpenReport) -> None:
    opened = open_report(page(tmp_path))
    opened.page.locator("#health select").select_option(label="NaN and infinity")
    clean = opened.page.get_by_role("gridcell", name="embed, step 0: NaN and infinity 0, none")
    assert clean.locator("[aria-hidden]").inner_text() == "0"
