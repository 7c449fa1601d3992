"""Ranks, forked and spawned processes: a run for each. Threads: a model for each graph. None torn, none mixed up."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import Finished, damaged
from graphprobe.store import Run, layout

RunRanks = Callable[..., Finished]


def whole(run: Run) -> None:
    events = run.events()
    assert [event.seq for event in events] == list(range(len(events)))
    assert len(events) > 10
    lines = (run.tool_dir / layout.EVENTS).read_bytes()
    assert lines.endswith(b"\n")
    assert all(json.loads(line) for line in lines.splitlines())
    assert damaged(run) == []
    assert run.problems == []
    assert (run.manifest.state, run.manifest.missing) == ("finished", [])
    assert [model.number for model in run.models()] == list(range(run.manifest.models))
    for folder in run.tool_dir.glob("model__*/*/"):
        names = [p.name for p in folder.iterdir() if not p.name.endswith(".constants.safetensors")]
        numbers = sorted(int(name[:3]) for name in names if re.match(r"\d{3}_", name))
        assert numbers == list(range(len(numbers))), folder


def launches(trace: str) -> set[str]:
    return {event["name"] for event in json.loads(trace)["traceEvents"] if event["ph"] == "X"}


def ranks_said(done: Finished) -> list[str]:
    return sorted(re.findall(r"RANK .*", done.out))


@pytest.fixture(scope="module")
def alone(run_ranks: RunRanks, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    said = ranks_said(run_ranks(2, "ddp.py", cwd=tmp_path_factory.mktemp("alone")))
    assert len(said) == 2
    return said


def check_ranks(folder: Path) -> None:
    runs = sorted(Run.find_all(folder), key=lambda run: run.manifest.rank)
    assert [run.manifest.rank for run in runs] == [0, 1]
    assert len({run.manifest.pid for run in runs}) == 2
    for rank, run in enumerate(runs):
        assert run.run_dir.name.endswith(f"-pid_{run.manifest.pid}-rank_{rank}")
        assert run.manifest.world_size == 2
        whole(run)
        assert {event.where.rank for event in run.events()} == {rank}
        # The batch is 4 on rank 0 and 5 on rank 1: nothing of the one is in the other.
        graphs = [run.text(event) for event in run.events() if event.kind == "graph" and event.path is not None]
        assert any(f"[{4 + rank}, 6]" in text for text in graphs)
        assert not any(f"[{5 - rank}, 6]" in text for text in graphs)
        assert any("all_reduce" in text for text in graphs)
        assert any("backward" in model.graphs() for model in run.models())
        launched = set().union(*(launches(run.text(event)) for event in run.events() if event.kind == "ops"))
        assert any("all_reduce" in name for name in launched), launched


@pytest.mark.slow
def test_a_folder_for_each_rank(alone: list[str], run_ranks: RunRanks, tmp_path: Path) -> None:
    watched = ("-m", "graphprobe", "run", "--out", str(tmp_path / "runs"), "--save-inputs")
    assert ranks_said(run_ranks(2, "ddp.py", cwd=tmp_path, before=watched)) == alone
    check_ranks(tmp_path / "runs")
    assert [p.name for p in tmp_path.iterdir()] == ["runs"]


@pytest.mark.slow
def test_torchrun_and_the_environment(alone: list[str], torchrun: Callable[..., Finished], tmp_path: Path) -> None:
    done = torchrun("ddp.py", "--import", cwd=tmp_path, env={"TORCH_COMPILE_DEBUG": "1"})
    assert done.code == 0, done.err[-4000:]
    assert ranks_said(done) == alone
    check_ranks(tmp_path / "torch_compile_debug")


@pytest.mark.heavy
@pytest.mark.parametrize("method", ["fork", "os.fork", "spawn"])
def test_children(method: str, run_ranks: RunRanks, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    plain = run_ranks(0, "children.py", method, cwd=tmp_path)
    watched = ("-m", "graphprobe", "run", "-q", "--out", str(out))
    done = run_ranks(0, "children.py", method, cwd=tmp_path, before=watched)
    assert (done.out, done.err) == (plain.out, plain.err)
    runs = Run.find_all(out)
    for run in runs:
        whole(run)
    (parent,) = [run for run in runs if not any("forked" in note for note in run.manifest.notes)]
    assert constants_of(parent) == [{11}, {12}]
    children = [run for run in runs if run is not parent]
    assert len(children) == (method != "spawn")
    for child in children:
        assert child.manifest.parent_pid == parent.manifest.pid
        assert constants_of(child) == [{31}, {32}]
        assert "torch._inductor.config.fx_graph_cache" in child.manifest.caches_bypassed
        assert all(model.compile["guards"] and model.compile["timings_ms"] for model in child.models())
        assert all("backward" in model.graphs() for model in child.models())


def constants_of(run: Run) -> list[set[int]]:
    found = []
    for model in run.models():
        texts = [run.text(e) for e in model.events if e.path is not None and e.path.endswith(".txt")]
        found.append({int(n) for text in texts for n in re.findall(r"[ ,](\d\d)[,)]", text)} & {11, 12, 31, 32})
    return found


@pytest.fixture(scope="module")
def threads(run_ranks: RunRanks, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Finished]:
    out = tmp_path_factory.mktemp("threads")
    watched = ("-m", "graphprobe", "run", "-q", "--save-inputs", "--graph-dump", "py", "--out", str(out))
    done = run_ranks(0, "threads.py", cwd=out.parent, before=watched)
    return Run.open(out), done


@pytest.mark.slow
def test_the_run_of_threads_is_whole_and_their_results_are_as_without(threads: tuple[Run, Finished]) -> None:
    run, done = threads
    assert done.out.splitlines() == ["THREADS RIGHT True True", "LEFT []"]
    whole(run)
    # Eight functions, and the one that all threads share: torch may compile that once or in several threads.
    assert 9 <= run.manifest.models <= 16
    assert len({model.compile_id for model in run.models()}) == run.manifest.models


@pytest.mark.slow
def test_every_graph_of_a_thread_lies_under_its_own_model(threads: tuple[Run, Finished]) -> None:
    run, _ = threads
    models = {m.compile["function"]: m for m in run.models() if m.compile["function"].startswith("thread_")}
    assert sorted(models) == [f"thread_{number}" for number in range(8)]
    for number in range(8):
        check_thread(run, models[f"thread_{number}"], number)


def check_thread(run: Run, model: Any, number: int) -> None:
    assert {"joint", "forward", "backward"} <= set(model.graphs())
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
        assert launches(run.text(run.find(f"model__{model.number}/{direction}/captured_ops")))
    assert model.compile["guards"]
    assert "backward.entire_backward" in model.compile["timings_ms"]
    assert "torch._inductor.config.fx_graph_cache" in model.compile["caches_bypassed"]
