"""Ranks, forked and spawned processes: a run for each, none torn, none mixed up."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphprobe.store.reader import Run

PROGRAMS = Path(__file__).parent / "programs"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
ENV = {"OMP_NUM_THREADS": "1"}


def whole(run: Run) -> None:
    """Every line, every file, every number is there."""
    events = run.events()
    assert [event.seq for event in events] == list(range(len(events)))
    assert len(events) > 10
    lines = (run.tool_dir / "events.jsonl").read_bytes()
    assert lines.endswith(b"\n")
    assert all(json.loads(line) for line in lines.splitlines())
    assert run.verify() == []
    assert run.problems == []
    assert run.manifest.missing == []
    assert run.manifest.state == "finished"
    assert run.manifest.models == len(run.models())
    assert [model.number for model in run.models()] == list(range(len(run.models())))
    for folder in run.tool_dir.glob("model__*/*/"):
        names = [p.name for p in folder.iterdir() if not p.name.endswith(".constants.safetensors")]
        numbers = sorted(int(name[:3]) for name in names if re.match(r"\d{3}_", name))
        assert numbers == list(range(len(numbers))), folder


def ranks_said(text: str) -> list[str]:
    return sorted(re.findall(r"RANK .*", text))


@pytest.fixture(scope="module")
def alone(run_python: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    done = run_python(*TORCHRUN, str(PROGRAMS / "ddp.py"), cwd=tmp_path_factory.mktemp("alone"), env=ENV)
    assert done.code == 0, done.err[-4000:]
    said = ranks_said(done.out)
    assert len(said) == 2
    return said


def check_ranks(runs: list[Run]) -> None:
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
        assert any("backward" in model.directions() for model in run.models())
        ops = [json.loads(run.text(event)) for event in run.events() if event.kind == "ops"]
        launched = {e["name"] for trace in ops for e in trace["traceEvents"] if e["ph"] == "X"}
        assert any("all_reduce" in name for name in launched), launched


def test_a_folder_for_each_rank(alone: list[str], run_python: Callable[..., Any], tmp_path: Path) -> None:
    watched = ("-m", "graphprobe", "run", "--out", str(tmp_path / "runs"), "--save-inputs")
    done = run_python(*TORCHRUN, *watched, str(PROGRAMS / "ddp.py"), cwd=tmp_path, env=ENV)
    assert done.code == 0, done.err[-4000:]
    assert ranks_said(done.out) == alone
    check_ranks(sorted(Run.find_all(tmp_path / "runs"), key=lambda run: run.manifest.rank))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["runs"]


def test_the_environment_switch_on_each_rank(alone: list[str], run_python: Callable[..., Any], tmp_path: Path) -> None:
    env = {**ENV, "TORCH_COMPILE_DEBUG": "1"}
    done = run_python(*TORCHRUN, str(PROGRAMS / "ddp.py"), "--import", cwd=tmp_path, env=env)
    assert done.code == 0, done.err[-4000:]
    assert ranks_said(done.out) == alone
    check_ranks(sorted(Run.find_all(tmp_path / "torch_compile_debug"), key=lambda run: run.manifest.rank))


@pytest.mark.heavy
@pytest.mark.parametrize("method", ["fork", "os.fork", "spawn"])
def test_children(method: str, run_python: Callable[..., Any], tmp_path: Path) -> None:
    # torch's own compile threads do not survive a fork: with a cold kernel cache the child would wait for them.
    env = {**ENV, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    program = str(PROGRAMS / "children.py")
    plain = run_python(program, method, cwd=tmp_path, env=env)
    assert plain.code == 0, plain.err[-4000:]
    out = tmp_path / "runs"
    done = run_python("-m", "graphprobe", "run", "-q", "--out", str(out), program, method, cwd=tmp_path, env=env)
    assert done.code == 0, done.err[-4000:]
    assert done.out == plain.out
    assert done.err == plain.err
    runs = Run.find_all(out)
    parent = next(
        run for run in runs if run.manifest.models == 2 and not any("forked" in n for n in run.manifest.notes)
    )
    for run in runs:
        whole(run)
    constants = [constants_of(run) for run in runs]
    assert constants[runs.index(parent)] == [{11}, {12}]
    if method == "spawn":
        assert len(runs) == 1
        return
    assert len(runs) == 2
    child = next(run for run in runs if run is not parent)
    assert child.manifest.parent_pid == parent.manifest.pid
    assert constants[runs.index(child)] == [{31}, {32}]
    assert "torch._inductor.config.fx_graph_cache" in child.manifest.caches_bypassed
    assert all(model.compile["guards"] and model.compile["timings_ms"] for model in child.models())
    assert all("backward" in model.directions() for model in child.models())


def constants_of(run: Run) -> list[set[int]]:
    """For each model, which of the programs' constants stand in its graphs."""
    found = []
    for model in run.models():
        texts = [run.text(e) for e in model.events if e.path is not None and e.path.endswith(".txt")]
        found.append({int(n) for text in texts for n in re.findall(r"[ ,](\d\d)[,)]", text)} & {11, 12, 31, 32})
    return found
