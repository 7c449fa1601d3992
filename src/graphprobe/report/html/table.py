"""The data of the view `table`: columns that keep a repeated text once, compressed if they are large."""

from __future__ import annotations

import base64
import math
import zlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from graphprobe.report.document import Tone

Kind = Literal["text", "number", "verdict", "source"]
Cell = str | int | float | None

PACKED_FROM_BYTES = 64 << 10
"""Tables whose JSON is larger are deflated: 100,000 rows of a comparison shrink to a quarter, and open no later."""

LEVEL = 5
"""Of zlib: what a higher one saves is less than what it takes."""

DIGITS = 6
"""Significant digits that numbers keep; the view shows four."""


class Column(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a column is shown.

    Attributes:
        name: its heading.
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
        self._sort: tuple[str, bool] | None = None
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
        self._more[self.rows - 1] = {"head": list(head), "rows": [[_cell(cell) for cell in row] for row in rows]}

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

    def texts(self, column: str) -> list[str]:
        """The different texts of a column, in the order of their first row."""
        return list(self._texts[self._index(column)])

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

    def sort(self, column: str, *, descending: bool = False) -> None:
        """The order in which the rows stand at first; without this, as they were added."""
        self._sort = (column, descending)

    def data(self) -> dict[str, Any]:
        """What `assets/view_table.js` takes; its head describes the format."""
        head: dict[str, Any] = {"label": self.label, "rows": self.rows, "first": self._first}
        if self._sort is not None:
            head["sort"] = {"column": self._sort[0], "descending": self._sort[1]}
        body = {
            "columns": [self._column(i) for i in range(len(self.columns))],
            "values": [self._listed(i) for i in range(len(self.columns))],
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

    def _listed(self, i: int) -> list[Any]:
        values = self._values[i]
        return [_number(value) for value in values] if self._numbers[i] else list(values)


def _cell(cell: Cell) -> Cell:
    return _number(cell) if isinstance(cell, float) else cell


def _number(value: float) -> float | int | str | None:
    """JSON has no infinity, and NaN stands for an empty cell here."""
    if value != value:
        return None
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value.is_integer() and abs(value) < 1e15:
        return int(value)
    return float(f"{value:.{DIGITS}g}")
