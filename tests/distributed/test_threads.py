"""Eight threads compile at once: every graph lies under its own model."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphprobe.store.reader import Run

PROGRAM = Path(__file__).parent / "programs" / "threads.py"
WORKERS = range(8)


@pytest.fixture(scope="module")
def collected(run_warm: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Any]:
    out = tmp_path_factory.mktemp("threads")
    done = run_warm(
        "-m", "graphprobe", "run", "-q", "--save-inputs", "--graph-dump", "py", "--out", str(out), str(PROGRAM),
        env={"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.code == 0, done.err[-4000:]
    return Run.open(out), done


def models_of_threads(run: Run) -> dict[int, Any]:
    found = {m.compile["function"]: m for m in run.models() if m.compile["function"].startswith("thread_")}
    assert sorted(found) == [f"thread_{n}" for n in WORKERS]
    return {int(name.removeprefix("thread_")): model for name, model in found.items()}


def test_results_settings_and_modules_are_as_without(collected: tuple[Run, Any]) -> None:
    assert collected[1].out.splitlines() == ["THREADS RIGHT True True", "LEFT []"]


def test_the_run_is_whole(collected: tuple[Run, Any]) -> None:
    run = collected[0]
    events = run.events()
    assert [event.seq for event in events] == list(range(len(events)))
    assert run.verify() == []
    assert run.problems == []
    assert run.manifest.missing == []
    # Eight functions, and the one that all threads share: torch may compile that once or in several threads.
    numbers = [model.number for model in run.models()]
    assert numbers == list(range(run.manifest.models))
    assert 9 <= len(numbers) <= 16
    assert len({model.compile_id for model in run.models()}) == len(numbers)
    for folder in run.tool_dir.glob("model__*/*/"):
        names = [p.name for p in folder.iterdir() if not p.name.endswith(".constants.safetensors")]
        numbers = sorted(int(name[:3]) for name in names if re.match(r"\d{3}_", name))
        assert numbers == list(range(len(numbers))), folder


@pytest.mark.parametrize("number", WORKERS)
def test_every_graph_lies_under_its_own_model(number: int, collected: tuple[Run, Any]) -> None:
    run = collected[0]
    model = models_of_threads(run)[number]
    assert {"joint", "forward", "backward"} <= set(model.directions())
    graphs = [e for e in model.events if e.kind in ("graph", "ir", "code", "ops") or (e.kind == "pass" and e.changed)]
    per_direction: dict[Any, set[int]] = {}
    for event in graphs:
        text = run.text(event)
        constants = {int(n) for n in re.findall(r"\b(100[0-7])\.0", text)}
        assert constants <= {1000 + number}, (event.path, constants)
        sizes = {int(n) for n in re.findall(r"f32\[(\d+)\]", text)} - {1}
        assert sizes <= {5 + number}, (event.path, sizes)
        per_direction.setdefault(event.where.direction, set()).update(constants)
    assert per_direction["forward"] == per_direction["joint"] == per_direction["backward"] == {1000 + number}
    # A backward was compiled, and ran, in another thread than its forward.
    for direction in ("forward", "backward"):
        trace = json.loads(run.text(run.find(f"model__{model.number}/{direction}/captured_ops")))
        assert [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert model.compile["guards"]
    assert "backward.entire_backward" in model.compile["timings_ms"]
    assert "torch._inductor.config.fx_graph_cache" in model.compile["caches_bypassed"]
