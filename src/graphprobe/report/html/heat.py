"""The data of the view `heat`: health of each layer in each step, with layers and steps put together where many."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from graphprobe.report.document import Content, Note, Section, counted
from graphprobe.report.html.render import html
from graphprobe.report.html.sources import Sources
from graphprobe.report.html.table import Table

MOST_ROWS, MOST_COLUMNS = 64, 24
"""What a person can take in, and an assistive technology read out. Beyond it, neighbours share a cell."""

Together = Literal["max", "sum"]

ROW_KEY, COLUMN_KEY = "heat row", "heat column"
"""Names of the hidden columns of the table by which a cell narrows it."""

CALLS, HEALTH = "calls", "health"
"""Ids of the sections."""

MOST_CALLS = 1_000_000
"""Calls that the table takes; a browser holds more, but the file is then of hundreds of megabytes."""


class HeatClass(msgspec.Struct, frozen=True):
    """A step of the legend: what it means, its largest value (None: no end), and how bad it looks, 0 to 4."""

    word: str
    upto: float | None
    tone: int


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """What a cell can show.

    Attributes:
        name: such as `error`.
        help: what the number is, in a sentence.
        classes: ascending; the last without an end.
        together: how the values of one cell become one.
    """

    name: str
    help: str
    classes: tuple[HeatClass, ...]
    together: Together = "max"


ERROR = Metric(
    name="error",
    help="The largest error of what the calls gave, in units of the noise that rounding explains.",
    classes=(
        HeatClass("as rounding: up to 1", 1.0, 0),
        HeatClass("up to 4", 4.0, 1),
        HeatClass("up to 64", 64.0, 2),
        HeatClass("up to 10,000", 1e4, 3),
        HeatClass("more, or without measure", None, 4),
    ),
)
NONFINITE = Metric(
    name="NaN and infinity",
    help="How many elements of what the calls gave are NaN or infinite.",
    classes=(HeatClass("none", 0.0, 0), HeatClass("up to 1,000", 1e3, 3), HeatClass("more", None, 4)),
    together="sum",
)
RANGE = Metric(
    name="share of the range",
    help="The largest magnitude that the calls gave, as a share of the largest number of its dtype.",
    classes=(
        HeatClass("far from overflow", 2.0**-7, 0),
        HeatClass("from 1/128", 2.0**-3, 1),
        HeatClass("from 1/8", 0.5, 2),
        HeatClass("from half", math.nextafter(1.0, 0.0), 3),
        HeatClass("at the end, or infinite", None, 4),
    ),
)
MAGNITUDE = Metric(
    name="largest magnitude",
    help="The largest finite magnitude that the calls gave.",
    classes=(
        HeatClass("up to 1", 1.0, 0),
        HeatClass("up to 1,000", 1e3, 1),
        HeatClass("up to 10⁶", 1e6, 2),
        HeatClass("more", None, 3),
    ),
)


class Heat:
    """Gathers values by layer and column; both are numbered in the order of their first appearance."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self.metrics = tuple(metrics)
        self._layers: dict[str, int] = {}
        self._columns: dict[tuple[int, ...], int] = {}
        self._cells: list[dict[tuple[int, int], float]] = [{} for _ in metrics]

    def add(self, layer: str, column: tuple[int, ...], values: Sequence[float | None]) -> tuple[int, int]:
        """One call: its module, such as `blocks.3.mlp`, what makes its column, and a value a metric, None for none.

        Returns:
            the numbers of layer and column, which `place` makes those of the map.
        """
        row = self._layers.setdefault(layer, len(self._layers))
        at = row, self._columns.setdefault(column, len(self._columns))
        for metric, cells, value in zip(self.metrics, self._cells, values, strict=True):
            if value is not None:
                before = cells.get(at)
                if before is None:
                    cells[at] = value
                else:
                    cells[at] = before + value if metric.together == "sum" else max(before, value)
        return at

    def place(self) -> tuple[list[int], list[int]]:
        """Row of the map for each layer, column of the map for each column."""
        return self._rows()[1], self._across()[1]

    def data(self, label: str, *, table: str, titles: Callable[[tuple[int, ...]], str]) -> dict[str, Any]:
        """What `assets/view_heat.js` takes; metrics without any value are left out.

        Args:
            label: of the map.
            table: id of the section whose table a cell narrows; empty for none.
            titles: heading of a column.
        """
        rows, row_of = self._rows()
        groups, column_of = self._across()
        columns = [titles(group[0]) if len(group) == 1 else _between(titles, group) for group in groups]
        return {
            "label": label,
            "table": table,
            "keys": [ROW_KEY, COLUMN_KEY],
            "rows": rows,
            "row_name": "module",
            "columns": columns,
            "metrics": [
                {
                    "name": metric.name,
                    "help": metric.help,
                    "classes": [msgspec.to_builtins(one) for one in metric.classes],
                    "values": _matrix(metric, cells, row_of, column_of, len(rows), len(columns)),
                }
                for metric, cells in zip(self.metrics, self._cells, strict=True)
                if cells
            ],
        }

    @property
    def columns(self) -> list[tuple[int, ...]]:
        """What makes a column, ascending."""
        return sorted(self._columns)

    @property
    def is_worth_it(self) -> bool:
        """Whether it shows more than a table of one module in one step would."""
        return any(self._cells) and (len(self._layers) > 1 or len(self._columns) > 2)

    def _rows(self) -> tuple[list[str], list[int]]:
        names, of = shortened(list(self._layers))
        return names, of

    def _across(self) -> tuple[list[list[tuple[int, ...]]], list[int]]:
        order = self.columns
        size = -(-len(order) // MOST_COLUMNS) or 1
        groups = [order[i : i + size] for i in range(0, len(order), size)]
        of = [0] * len(order)
        for number, group in enumerate(groups):
            for column in group:
                of[self._columns[column]] = number
        return groups, of


def shortened(layers: Sequence[str]) -> tuple[list[str], list[int]]:
    """At most `MOST_ROWS` rows for the layers, and the row of each.

    Layers are first put together with those of the deepest path that leaves few enough; where not even the first two
    parts of their paths do, neighbours in the order of execution are.
    """
    deepest = max((layer.count(".") + 1 for layer in layers), default=1)
    for depth in range(deepest, 1, -1):
        paths = dict.fromkeys(".".join(layer.split(".")[:depth]) for layer in layers)
        if len(paths) <= MOST_ROWS:
            names = list(paths)
            number = {name: i for i, name in enumerate(names)}
            return names, [number[".".join(layer.split(".")[:depth])] for layer in layers]
    # `blocks` alone would be one row: neighbours at a depth of two say more.
    paths = dict.fromkeys(".".join(layer.split(".")[:2]) for layer in layers)
    listed = list(paths)
    size = -(-len(listed) // MOST_ROWS) or 1
    row_of_path = {name: i // size for i, name in enumerate(listed)}
    names = [f"{listed[i]} … {listed[min(i + size, len(listed)) - 1]}" for i in range(0, len(listed), size)]
    if size == 1:
        names = listed
    return names, [row_of_path[".".join(layer.split(".")[:2])] for layer in layers]


def _between(titles: Callable[[tuple[int, ...]], str], group: list[tuple[int, ...]]) -> str:
    return f"{titles(group[0])} … {titles(group[-1])}"


def _matrix(
    metric: Metric,
    cells: dict[tuple[int, int], float],
    row_of: list[int],
    column_of: list[int],
    rows: int,
    columns: int,
) -> list[list[float | str | None]]:
    found: list[list[float | None]] = [[None] * columns for _ in range(rows)]
    for (layer, column), value in cells.items():
        row, across = row_of[layer], column_of[column]
        before = found[row][across]
        if before is not None:
            value = before + value if metric.together == "sum" else max(before, value)
        found[row][across] = value
    return [[None if v is None else "inf" if math.isinf(v) else float(f"{v:.4g}") for v in line] for line in found]


def calls_sections(
    table: Table,
    heat: Heat,
    sources: Sources,
    *,
    constant: Sequence[str],
    notes: Sequence[str],
    without: str = "",
    suffix: str = "",
) -> list[Section]:
    """The sections of calls: the map, where there is more than one cell, and the table; nothing without rows.

    Args:
        table: has the columns `line`, `ROW_KEY` and `COLUMN_KEY`, the last two with the numbers that `heat.add` gave.
        constant: columns that say nothing where all rows have the same.
        notes: stand above the table; empty ones are left out.
        without: what holds the rows where there is no JavaScript.
        suffix: of the sections' ids, where a page has the calls of several dumps.
    """
    if not table.rows:
        return []
    layers, across = heat.place()
    table.renumber(ROW_KEY, layers)
    table.renumber(COLUMN_KEY, across)
    table.hide_empty()
    table.hide_constant(*constant)
    table.map_texts("line", sources.short)
    for source in table.texts("line"):
        sources.link(source)
    sections = []
    if heat.is_worth_it:
        data = heat.data(
            "Health of each module in each step", table=f"{CALLS}{suffix}", titles=call_titles(heat.columns)
        )
        summary = counted(len(data["rows"]), "row")
        sections.append(Section(f"{HEALTH}{suffix}", "Health by step and module", "heat", data, summary=summary))
    body: list[Content] = [Note(note) for note in notes]
    body.append(html('<noscript><p class="note">The table needs JavaScript{{ more }}.</p></noscript>', more=without))
    return [*sections, Section(f"{CALLS}{suffix}", table.label, "table", table.data(), body, f"{table.rows:,}")]


def call_titles(columns: Sequence[tuple[int, ...]]) -> Callable[[tuple[int, ...]], str]:
    """Headings of columns that are (rank, step, 1 for backward): what they have in common is left out."""
    ranks = len({rank for rank, _, _ in columns}) > 1
    steps = len({step for _, step, _ in columns}) > 1
    both = len({way for _, _, way in columns}) > 1

    def title(column: tuple[int, ...]) -> str:
        rank, step, backward = column
        parts = [f"rank {rank}" if ranks else "", f"step {step}" if steps or not both else ""]
        parts.append(("backward" if backward else "forward") if both else "")
        return ", ".join(part for part in parts if part)

    return title
