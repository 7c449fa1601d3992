"""What `graphprobe` offers in Python: the names, their types, and what their errors say."""

from __future__ import annotations

import traceback

import pytest

from graphprobe import errors
from graphprobe.errors import GraphprobeError


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
