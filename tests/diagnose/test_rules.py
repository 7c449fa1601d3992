"""Rules of the search for a culprit, each by itself: what proves a suspect, what explains a rung, which graph broke."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from graphprobe.diagnose import prove
from graphprobe.diagnose.ladder import Ladder
from graphprobe.diagnose.rungs import Watch
from graphprobe.judge.judging import Difference


def result(*kinds: str, died: str | None = None, certain: bool = True) -> Any:
    weight: Any = "certain" if certain else "unsure"
    return SimpleNamespace(
        differences=[Difference(kind, 0, "outputs[0]", "", weight=weight) for kind in kinds],  # type: ignore[arg-type]
        died=died,
    )


@pytest.mark.parametrize(
    ("suspected", "shown", "proves"),
    [
        ("wrong_value", result("wrong_value"), True),
        ("wrong_value", result("wrong_dtype"), True),  # the piece shows another side of it
        ("wrong_value", result("crash_compile"), False),  # a piece that is refused shows no wrong value
        ("wrong_value", result("crash_compile", "nonfinite"), True),
        ("wrong_value", result("wrong_value", certain=False), False),
        ("wrong_value", result(died="SIGSEGV"), True),
        ("crash_compile", result("crash_compile"), True),
        ("crash_runtime", result("wrong_value"), True),
    ],
)
def test_a_piece_proves_what_fails_as_it_does(suspected: str, shown: Any, proves: bool) -> None:
    assert prove._alike(SimpleNamespace(kind=suspected), shown) is proves  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rung", "found", "explained"),
    [
        ("dynamo", [], False),
        ("dynamo", ["dynamo"], True),
        ("dynamo", ["codegen"], False),  # a kernel's fault is no reason for wrong graphs of Dynamo
        ("kernels", ["decomposition"], True),
        ("kernels", ["codegen", "dynamo"], True),
        ("aot", ["codegen"], False),
        ("aot", ["unknown"], True),
    ],
)
def test_a_rung_is_explained_by_faults_of_the_stages_it_has(rung: str, found: list[str], explained: bool) -> None:
    holder = SimpleNamespace(result=SimpleNamespace(findings=[SimpleNamespace(stage=stage) for stage in found]))
    assert Ladder._explained(holder, rung) is explained  # type: ignore[arg-type]


def test_the_first_graph_that_raises_is_the_one_that_broke() -> None:
    watch = Watch()
    with watch.breaking("forward", 0):
        pass
    assert watch.broken is None
    for direction, number in (("forward", 1), ("backward", 0)):
        with pytest.raises(KeyError), watch.breaking(direction, number):
            raise KeyError
    assert watch.broken == ("forward", 1)
