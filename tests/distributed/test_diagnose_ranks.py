"""`torchrun -m graphprobe diagnose`: it ends, each rank has its own answer, and the program goes on as it would."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).parent / "programs"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
ENV = {"OMP_NUM_THREADS": "1"}

Run = Callable[..., Any]

FORKED = """
import os, sys, threading, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from graphprobe.internals.operators import collectives

dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
model = torch.nn.Linear(3, 2)
if sys.argv[1] == "ddp":
    model = torch.nn.parallel.DistributedDataParallel(model)
else:
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
x = torch.ones(2, 3)
model(x).sum().backward()

def answered():
    model(x).sum().backward()
    summed = [torch.ones(2)]
    dist.all_reduce(summed[0])
    dist.all_gather([torch.zeros(2)], summed[0])
    dist.barrier()
    print("answered", summed[0].tolist(), collectives.ranks(), flush=True)

name = dist.group.WORLD.group_name
child = os.fork()
if child == 0:
    collectives.answer_here()
    assert dist.group.WORLD.group_name == name != ""
    thread = threading.Thread(target=answered, daemon=True)
    thread.start()
    thread.join(60)
    os._exit(thread.is_alive())
print("child", os.waitpid(child, 0)[1], flush=True)
model(x).sum().backward()
dist.barrier()
"""


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_forked_child_answers_its_collectives_itself(run_python: Run, kind: str) -> None:
    done = run_python("-c", FORKED, kind, env=ENV)
    assert done.code == 0, done.err[-3000:]
    assert "answered [1.0, 1.0] 1" in done.out and "child 0" in done.out


def test_where_there_are_no_ranks_nothing_is_touched(run_python: Run) -> None:
    code = (
        "from graphprobe.internals.operators import collectives as c\nc.answer_here(); import torch; c.answer_here()\n"
    )
    done = run_python("-c", f"{code}print(c.ranks())", env=ENV)
    assert (done.code, done.out) == (0, "1\n"), done.err


def diagnosed(run_python: Run, folder: Path, *arguments: str, ranks: int = 2) -> tuple[Any, list[dict[str, Any]]]:
    """How it ended, and the one diagnosis of each rank."""
    command = [str(ranks), "-m", "graphprobe", "diagnose", "--out", "out", "--json", "result.json"]
    done = run_python(*TORCHRUN, *command, str(PROGRAMS / "diagnosed.py"), *arguments, cwd=folder, env=ENV)
    documents = [json.loads((folder / f"result-rank_{rank}.json").read_text("utf-8")) for rank in range(ranks)]
    found = [document["diagnoses"] for document in documents]
    assert [len(diagnoses) for diagnoses in found] == [1] * ranks
    return done, [diagnosis for (diagnosis,) in found]


def losses(text: str) -> list[str]:
    return sorted(re.findall(r"RANK \d+ LOSS [-\d.e]+", text))  # two ranks may write into one line


@pytest.mark.heavy
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["ddp", "fsdp", "own"])
def test_programs_of_two_ranks_are_diagnosed(run_python: Run, tmp_path: Path, kind: str) -> None:
    done, found = diagnosed(run_python, tmp_path, kind)
    assert done.code == 0, done.out + done.err[-3000:]
    for diagnosis in found:
        assert diagnosis["verdict"] == "healthy" and diagnosis["graphs"] > 0
        assert any("each of the 2 ranks was diagnosed alone" in note for note in diagnosis["notes"])
    plain = run_python(*TORCHRUN, "2", str(PROGRAMS / "diagnosed.py"), kind, cwd=tmp_path, env=ENV)
    assert losses(done.out) == losses(plain.out) and len(losses(done.out)) == 2


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_a_fault_under_ddp_is_found_in_each_rank(run_python: Run, tmp_path: Path) -> None:
    _, found = diagnosed(run_python, tmp_path, "ddp", "accuracy")
    for rank, diagnosis in enumerate(found):
        assert diagnosis["verdict"] == "fault"
        (finding,) = diagnosis["findings"]
        assert (finding["stage"], finding["op"]) == ("codegen", "aten.relu.default")
        assert Path(finding["dossier"]).is_relative_to(tmp_path / f"out-rank_{rank}")


@pytest.mark.heavy
@pytest.mark.timeout(900)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_fault_of_one_rank_is_found_in_that_one_alone(run_python: Run, tmp_path: Path, kind: str, ranks: int) -> None:
    _, found = diagnosed(run_python, tmp_path, kind, "accuracy", f"{ranks - 1}", ranks=ranks)
    *others, last = found
    assert [(f["stage"], f["op"]) for f in last["findings"]] == [("codegen", "aten.relu.default")]
    assert [diagnosis["verdict"] for diagnosis in others] == ["healthy"] * (ranks - 1)


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_nothing_that_was_compiled_is_no_all_clear(run_python: Run, tmp_path: Path) -> None:
    done, found = diagnosed(run_python, tmp_path, "nothing")
    assert "exitcode  : 2" in done.err and "HEALTHY" not in done.out
    for diagnosis in found:
        assert (diagnosis["verdict"], diagnosis["graphs"]) == ("undecided", 0)
        assert diagnosis["notes"][0].startswith("nothing was compiled: torch.compile made no graph")
