"""What `graphprobe` offers in Python: the names, their types, and what their errors say."""

from __future__ import annotations

import inspect
import traceback
import typing
from pathlib import Path
from typing import Any

import pytest

import graphprobe
from graphprobe import errors
from graphprobe.backends.wrap import WHOLE_RUN
from graphprobe.errors import GraphprobeError
from graphprobe.settings import TABLE


def every_error() -> list[type[GraphprobeError]]:
    return [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, GraphprobeError)]


@pytest.mark.parametrize("kind", every_error(), ids=lambda kind: kind.__name__)
def test_a_traceback_has_the_hint(kind: type[GraphprobeError]) -> None:
    place = {"where": "$.x", "slug": "dump-config-value"} if kind is errors.DumpConfigError else {}
    error = kind("what happened", hint="what to do", **place)
    trace = "".join(traceback.format_exception(error))
    assert trace.splitlines()[-1] == "hint: what to do"
    assert trace.count("what to do") == 1, "once, also in a class of a class"
    assert errors.last_line(trace).endswith("what happened")
    assert "hint" not in "".join(traceback.format_exception(kind("what happened", **place)))


ACCEPTED: dict[str, Any] = {
    "flag": bool | None,
    "path": str | Path | None,
    "size": int | str | None,
    "names": str | list[str] | tuple[str, ...] | None,
}
"""The annotation of a setting by its type; a choice has what its row allows."""


@pytest.mark.parametrize(
    ("function", "left_out"), [("enable", {"out_dir"}), ("trace", {"out_dir"}), ("wrap", WHOLE_RUN)]
)
def test_keyword_arguments_are_the_table_of_settings(function: str, left_out: set[str]) -> None:
    (keywords,) = typing.get_args(typing.get_type_hints(inspect.unwrap(getattr(graphprobe, function)))["settings"])
    rows = [row for row in TABLE if row.name not in left_out]
    assert len(rows) == len(TABLE) - len(left_out)
    assert typing.get_type_hints(keywords) == {
        row.name: typing.Literal[row.allowed] | None if row.type == "choice" else ACCEPTED[row.type] for row in rows
    }
    assert keywords.__required_keys__ == set()
