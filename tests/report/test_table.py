"""The table: what is embedded, and in Chromium what is shown after searching, sorting and walking through it."""

from __future__ import annotations

import base64
import json
import math
import zlib
from pathlib import Path
from typing import Any

import pytest

from graphprobe.report.document import Section
from graphprobe.report.html.table import PACKED_FROM_BYTES, Column, Table
from report.browser import Opened, OpenReport, axe_faults
from report.made import page_of

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


def body_of(data: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(data["packed"]))) if "packed" in data else data
    return found


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


def test_columns_in_which_all_rows_agree_can_be_hidden() -> None:
    table = table_of(10)
    table.hide_constant("rank", "verdict")
    hidden = {column["name"]: column["hidden"] for column in table.data()["columns"]}
    assert hidden == {"#": False, "verdict": False, "call": False, "error": False, "rank": True, "group": True}


def test_columns_in_which_no_row_has_anything_can_be_hidden() -> None:
    table = Table(
        "T", [Column(name="a"), Column(name="b", kind="number"), Column(name="c"), Column(name="d", kind="number")]
    )
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


class Grid:
    """The table of an opened page, as a person meets it."""

    def __init__(self, opened: Opened, section: str) -> None:
        self.page = opened.page
        self.of = f"#{section}"
        self.page.evaluate("id => document.querySelector(id).scrollIntoView()", self.of)
        self.page.wait_for_selector(f"{self.of} .view[data-interactive]")
        self.grid = self.page.locator(f"{self.of} [role=grid]")

    def column(self, name: str) -> list[str]:
        """The texts of a column in the rows that are drawn, from the top."""
        return self.page.evaluate(
            """([of, name]) => {
                const heads = [...document.querySelectorAll(`${of} [role=columnheader]`)];
                const at = heads.findIndex((head) => head.querySelector(".name").textContent === name);
                return [...document.querySelectorAll(`${of} .body .row:not([hidden])`)]
                    .sort((a, b) => a.ariaRowIndex - b.ariaRowIndex).map((row) => row.children[at].textContent);
            }""",
            [self.of, name],
        )

    @property
    def count(self) -> str:
        return self.page.locator(f"{self.of} output").inner_text()

    def search(self, text: str) -> str:
        """Types into the search box, and waits for what it says then."""
        before = self.count
        self.page.locator(f"{self.of} input[type=search]").fill(text)
        self.page.wait_for_function(
            "([of, text]) => document.querySelector(`${of} output`).textContent !== text", arg=[self.of, before]
        )
        return self.count

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)
        self.page.wait_for_timeout(60)

    @property
    def active(self) -> str:
        """The text of the cell that a screen reader is on."""
        return self.page.evaluate(
            "of => document.getElementById(document.querySelector(of + ' [role=grid]')"
            ".getAttribute('aria-activedescendant'))?.textContent ?? ''",
            self.of,
        )


@pytest.fixture
def grid(tmp_path: Path, open_report: OpenReport) -> Grid:
    file = page_of(tmp_path / "report.html", Section("calls", "Calls", "table", table_of(500).data()))
    return Grid(open_report(file), "calls")


def test_search_narrows_by_words_columns_and_sizes(grid: Grid) -> None:
    assert grid.count == "500 rows"
    assert grid.search("linear.49") == "11 of 500 rows"  # 49, and 490 to 499
    assert grid.column("call")[:2] == ["linear.49", "linear.490"]
    assert grid.search("verdict:wrong linear.49") == "1 of 500 rows" and grid.column("call") == ["linear.493"]
    large = 1 + sum((i * 7) % 101 == 100 for i in range(500) if i not in (7, 8))  # and the infinite one
    assert grid.search("error>100") == f"{large} of 500 rows" and "∞" in grid.column("error")
    assert grid.search("no such thing") == "0 of 500 rows"
    assert "No row has this" in grid.page.locator("#calls .none").inner_text()
    grid.page.get_by_role("button", name="Show all").click()
    assert grid.count == "500 rows" and grid.page.locator("#calls .none").count() == 0


def test_the_verdict_filter_names_how_many_there_are(grid: Grid) -> None:
    choice = grid.page.locator("#calls select")
    assert choice.locator("option").all_inner_texts() == ["all", "ok (450)", "wrong (50)"]
    choice.select_option("wrong")
    assert grid.count == "50 of 500 rows" and grid.column("#")[:3] == ["3", "13", "23"]


def test_a_click_on_a_heading_sorts_and_blanks_come_last(grid: Grid) -> None:
    head = grid.page.get_by_role("columnheader", name="error")
    head.click()
    assert grid.column("error")[:3] == ["∞", "100.3", "100.3"] and head.get_attribute("aria-sort") == "descending"
    grid.grid.focus()
    grid.press("Control+End")
    assert grid.column("error")[-1] == ""
    head.click()
    assert grid.column("error")[:2] == ["0.25", "0.25"] and head.get_attribute("aria-sort") == "ascending"
    grid.press("Control+End")
    assert grid.column("error")[-1] == ""
    head.click()
    assert grid.column("#")[:3] == ["0", "1", "2"] and head.get_attribute("aria-sort") == "none"


def test_names_are_sorted_by_their_numbers(grid: Grid) -> None:
    grid.page.get_by_role("columnheader", name="call").click()
    assert grid.column("call")[:4] == [EVIL, "linear.0", "linear.2", "linear.3"]


def test_everything_can_be_done_with_the_keyboard(grid: Grid) -> None:
    grid.page.locator("#calls input").focus()
    grid.press("ArrowDown", "ArrowRight", "ArrowRight", "PageDown")
    assert grid.active.startswith("linear.") and int(grid.active.removeprefix("linear.")) > 5
    grid.press("Control+End")
    assert grid.grid.get_attribute("aria-rowcount") == "501" and grid.active.startswith("0")  # rank, the last column
    grid.press("Home")
    assert grid.active == "499"
    grid.press("Enter")
    details = grid.page.locator("#calls .details")
    assert details.locator("h3").inner_text() == "linear.499" and "499" in details.inner_text()
    grid.press("Escape")
    assert not details.is_visible() and grid.grid.evaluate("grid => document.activeElement === grid")
    grid.press("Control+Home", "ArrowUp", "ArrowRight", "ArrowRight", "ArrowRight")
    assert grid.active == "error"
    grid.press("Enter")
    assert grid.column("error")[0] == "∞"
    assert grid.page.locator("#live").inner_text() == "Sorted by error, descending"


def test_text_of_the_data_is_never_markup(grid: Grid) -> None:
    assert grid.column("call")[1] == EVIL and grid.page.locator("#calls img").count() == 0
    grid.page.locator("#calls .body .row").nth(1).click()
    assert EVIL in grid.page.locator("#calls .details").inner_text() and grid.page.title() == "made up"


def test_the_row_that_matters_is_in_sight_at_first(tmp_path: Path, open_report: OpenReport) -> None:
    table = Table("Calls", [Column(name="call")])
    for i in range(400):
        table.add((f"call.{i}",))
        if i in (250, 300):
            table.start_here()
    grid = Grid(open_report(page_of(tmp_path / "r.html", Section("calls", "Calls", "table", table.data()))), "calls")
    assert "call.250" in grid.column("call") and "call.0" not in grid.column("call")


def test_more_rows_than_a_browser_has_pixels_for(tmp_path: Path, open_report: OpenReport) -> None:
    table = Table("Numbers", [Column(name="n", kind="number")])
    for i in range(500_000):
        table.add((i,))
    grid = Grid(open_report(page_of(tmp_path / "r.html", Section("n", "N", "table", table.data()))), "n")
    grid.grid.focus()
    grid.press("Control+End")
    assert grid.active == "499,999" and grid.page.locator("#n .body .row").count() < 60
    grid.press("PageUp", "ArrowUp")
    assert 499_900 < int(grid.active.replace(",", "")) < 499_999
    grid.press("Control+Home", "ArrowDown")
    assert grid.active == "1"


def test_an_empty_table_says_so_and_breaks_no_rule(tmp_path: Path, open_report: OpenReport) -> None:
    section = Section("calls", "Calls", "table", Table("Calls", [Column(name="call")]).data())
    opened = open_report(page_of(tmp_path / "report.html", section))
    assert "There are no rows" in opened.text("#calls")
    assert axe_faults(opened.page) == []


def test_no_serious_accessibility_fault_with_details(grid: Grid) -> None:
    grid.page.locator("#calls .body .row").nth(3).click()
    assert axe_faults(grid.page) == []
