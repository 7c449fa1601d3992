"""The data of the views `table` and `heat`: rows of calls, and the health of each layer in each step.

A column of the table keeps a repeated text once, and is compressed if it is large. Of many layers or steps, neighbours
share a cell of the heat map.
"""

from __future__ import annotations

import base64
import math
import zlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from graphprobe.report.document import Content, Note, Section, Tone, counted
from graphprobe.report.html.render import html
from graphprobe.report.html.sources import Sources

Kind = Literal["text", "number", "verdict", "source"]
Cell = str | int | float | None

PACKED_FROM_BYTES = 64 << 10
"""Tables whose JSON is larger are deflated: 100,000 rows of a comparison shrink to a quarter, and open no later."""

LEVEL = 5
"""Of zlib: what a higher one saves is less than what it takes."""

DIGITS = 6
"""Significant digits that numbers keep; the view shows four."""

MOST_ROWS, MOST_COLUMNS = 64, 24
"""What a person can take in, and an assistive technology read out. Beyond it, neighbours share a cell."""

ROW_KEY, COLUMN_KEY = "heat row", "heat column"
"""Names of the hidden columns of the table by which a cell narrows it."""

CALLS, HEALTH = "calls", "health"
"""Ids of the sections."""

MOST_CALLS = 1_000_000
"""Calls that the table takes; a browser holds more, but the file is then of hundreds of megabytes."""


class Column(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a column is shown.

    Attributes:
        kind: `text`; `number`, which is aligned to the right; `verdict`, a coloured word that can be filtered by;
            `source`, `file.py:12`, a link where the page has the line.
        help: what it means, in a sentence; shown where the mouse rests, and read with the heading.
        hidden: not shown, but rows can be filtered by it, as the heat map does.
        tones: of a verdict, the tone of each word; the page knows those of graphprobe's own verdicts.
        wide: the column may be wide: names, reasons.
    """

    name: str
    kind: Kind = "text"
    help: str = ""
    hidden: bool = False
    tones: Mapping[str, Tone] = {}
    wide: bool = False


class Table:
    """Gathers rows and gives what the view wants; in memory a row is a few bytes a column beside its texts."""

    def __init__(self, label: str, columns: Sequence[Column]) -> None:
        """`label` says what the rows are, such as `Calls`."""
        self.label = label
        self.columns = tuple(columns)
        self.rows = 0
        self._numbers = [column.kind == "number" for column in columns]
        self._texts: list[dict[str, int]] = [{} for _ in columns]
        self._values: list[Any] = [array("d" if number else "i") for number in self._numbers]
        self._more: dict[int, dict[str, Any]] = {}
        self._first = 0
        self._hidden = {i for i, column in enumerate(columns) if column.hidden}

    def add(self, cells: Sequence[Cell]) -> None:
        """One row: a number or None where the column is one, text elsewhere; None is an empty cell."""
        for number, texts, values, cell in zip(self._numbers, self._texts, self._values, cells, strict=True):
            if number:
                values.append(math.nan if cell is None else cell)
            elif cell:
                values.append(texts.setdefault(str(cell), len(texts)))
            else:
                values.append(-1)
        self.rows += 1

    def more(self, head: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        """A small table that is shown with the details of the row that was added last."""
        cells = [[_number(cell) if isinstance(cell, float) else cell for cell in row] for row in rows]
        self._more[self.rows - 1] = {"head": list(head), "rows": cells}

    def start_here(self) -> None:
        """The row that was added last is in sight at first, unless another was before."""
        self._first = self._first or self.rows - 1

    @property
    def with_more(self) -> int:
        """How many rows have a small table of their own."""
        return len(self._more)

    def renumber(self, column: str, numbers: Sequence[int]) -> None:
        """Puts `numbers[value]` in the place of each value of a column of whole numbers."""
        values = self._values[self._index(column)]
        for i, value in enumerate(values):
            values[i] = numbers[int(value)]

    def hide_constant(self, *columns: str) -> None:
        """Hides those of the columns in which all rows have the same: one step, one rank."""
        for name in columns:
            i = self._index(name)
            if len(set(self._values[i])) <= 1:
                self._hidden.add(i)

    def hide_empty(self) -> None:
        """Hides the columns in which no row has anything."""
        for i, values in enumerate(self._values):
            if all(value != value if self._numbers[i] else value < 0 for value in values):
                self._hidden.add(i)

    def map_texts(self, column: str, made: Callable[[str], str]) -> None:
        """Puts `made(text)` in the place of each text of a column."""
        i = self._index(column)
        texts: dict[str, int] = {}
        numbers = [texts.setdefault(made(text), len(texts)) for text in self._texts[i]]
        self._texts[i] = texts
        values = self._values[i]
        for row, value in enumerate(values):
            if value >= 0:
                values[row] = numbers[value]

    def data(self) -> dict[str, Any]:
        """What `assets/view_table.js` takes; its head describes the format."""
        head: dict[str, Any] = {"label": self.label, "rows": self.rows, "first": self._first}
        body = {
            "columns": [self._column(i) for i in range(len(self.columns))],
            "values": [
                [_number(value) for value in values] if number else list(values)
                for number, values in zip(self._numbers, self._values, strict=True)
            ],
            "more": {str(row): found for row, found in self._more.items()},
        }
        text = msgspec.json.encode(body)
        if len(text) < PACKED_FROM_BYTES:
            return head | body
        return head | {"packed": base64.b64encode(zlib.compress(text, LEVEL)).decode()}

    def _column(self, i: int) -> dict[str, Any]:
        described: dict[str, Any] = msgspec.to_builtins(self.columns[i])
        described |= {"kind": self.columns[i].kind, "hidden": i in self._hidden}
        if not self._numbers[i]:
            described["texts"] = list(self._texts[i])
        return described

    def _index(self, name: str) -> int:
        return next(i for i, column in enumerate(self.columns) if column.name == name)


def _number(value: float) -> float | int | str | None:
    """JSON has no infinity, and NaN stands for an empty cell here."""
    if value != value:
        return None
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value.is_integer() and abs(value) < 1e15:
        return int(value)
    return float(f"{value:.{DIGITS}g}")


class HeatClass(msgspec.Struct, frozen=True):
    """A step of the legend: what it means, its largest value (None: no end), and how bad it looks, 0 to 4."""

    word: str
    upto: float | None
    tone: int


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """What a cell can show.

    Attributes:
        help: what the number is, in a sentence.
        classes: ascending; the last without an end.
        together: how the values of one cell become one.
    """

    name: str
    help: str
    classes: tuple[HeatClass, ...]
    together: Literal["max", "sum"] = "max"

    def joined(self, before: float | None, value: float) -> float:
        """What a cell shows of `value` and of what it has already."""
        if before is None:
            return value
        return before + value if self.together == "sum" else max(before, value)


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
                cells[at] = metric.joined(cells.get(at), value)
        return at

    def place(self) -> tuple[list[int], list[int]]:
        """Row of the map for each layer, column of the map for each column."""
        return shortened(list(self._layers))[1], self._across()[1]

    def data(self, *, table: str) -> dict[str, Any]:
        """What `assets/view_heat.js` takes; metrics without any value are left out.

        `table` is the id of the section whose table a cell narrows, or empty.
        """
        rows, row_of = shortened(list(self._layers))
        groups, column_of = self._across()
        titles = call_titles(sorted(self._columns))
        columns = [" … ".join(map(titles, dict.fromkeys((group[0], group[-1])))) for group in groups]
        return {
            "label": "Health of each module in each step",
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
    def is_worth_it(self) -> bool:
        """Whether it shows more than a table of one module in one step would."""
        return any(self._cells) and (len(self._layers) > 1 or len(self._columns) > 2)

    def _across(self) -> tuple[list[list[tuple[int, ...]]], list[int]]:
        order = sorted(self._columns)
        size = -(-len(order) // MOST_COLUMNS) or 1
        groups = [order[i : i + size] for i in range(0, len(order), size)]
        number = {column: i // size for i, column in enumerate(order)}
        return groups, [number[column] for column in self._columns]


def shortened(layers: Sequence[str]) -> tuple[list[str], list[int]]:
    """At most `MOST_ROWS` rows for the layers, and the row of each.

    Layers are first put together with those of the deepest path that leaves few enough; where not even the first two
    parts of their paths do, neighbours in the order of execution are.
    """
    deepest = max((layer.count(".") + 1 for layer in layers), default=1)
    # `blocks` alone would be one row: neighbours at a depth of two say more.
    for depth in range(max(deepest, 2), 1, -1):
        paths = [".".join(layer.split(".")[:depth]) for layer in layers]
        listed = list(dict.fromkeys(paths))
        if len(listed) <= MOST_ROWS:
            break
    size = -(-len(listed) // MOST_ROWS) or 1
    ends = [(listed[i], listed[min(i + size, len(listed)) - 1]) for i in range(0, len(listed), size)]
    row_of_path = {name: i // size for i, name in enumerate(listed)}
    return [" … ".join(dict.fromkeys(pair)) for pair in ends], [row_of_path[path] for path in paths]


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
        found[row][across] = metric.joined(found[row][across], value)
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
    table.map_texts("line", sources.linked)
    sections = []
    if heat.is_worth_it:
        data = heat.data(table=f"{CALLS}{suffix}")
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
