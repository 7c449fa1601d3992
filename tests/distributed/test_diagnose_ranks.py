"""`diagnose` on several ranks: it ends, each rank has its own answer, and the program goes on as it would."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import Finished
from graphprobe.internals import after_fork

Run = Callable[..., Finished]

FORKED = """
import os, sys, threading, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from graphprobe.internals import after_fork
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
    print("answered", summed[0].tolist(), after_fork.ranks(), flush=True)
name = dist.group.WORLD.group_name
child = os.fork()
if child == 0:
    after_fork.answer_here()
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
def test_a_forked_child_answers_its_collectives_itself(run_warm: Run, kind: str) -> None:
    done = run_warm("-c", FORKED, kind, env={"OMP_NUM_THREADS": "1"})
    assert done.code == 0, done.err[-3000:]
    assert "answered [1.0, 1.0] 1" in done.out and "child 0" in done.out


def test_where_there_are_no_ranks_nothing_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    for loaded in (True, False):
        if not loaded:
            monkeypatch.delitem(sys.modules, "torch.distributed", raising=False)
        after_fork.answer_here()
        assert after_fork.ranks() == 1


WORDS = ("-m", "graphprobe", "diagnose", "--out", "out", "--json", "result.json")


def diagnoses(folder: Path, ranks: int = 2) -> list[dict[str, Any]]:
    documents = [json.loads((folder / f"result-rank_{rank}.json").read_text("utf-8")) for rank in range(ranks)]
    found = [document["diagnoses"] for document in documents]
    assert [len(diagnoses) for diagnoses in found] == [1] * ranks
    return [diagnosis for (diagnosis,) in found]


def losses(text: str) -> list[str]:
    return sorted(re.findall(r"RANK \d+ LOSS [-\d.e]+", text))  # two ranks may write into one line


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["ddp", "fsdp", "own"])
def test_programs_of_two_ranks_are_diagnosed(run_ranks: Run, tmp_path: Path, kind: str) -> None:
    done = run_ranks(2, "diagnosed.py", kind, cwd=tmp_path, before=WORDS)
    for diagnosis in diagnoses(tmp_path):
        assert diagnosis["verdict"] == "healthy" and diagnosis["graphs"] > 0
        assert any("each of the 2 ranks was diagnosed alone" in note for note in diagnosis["notes"])
    plain = run_ranks(2, "diagnosed.py", kind, cwd=tmp_path)
    assert losses(done.out) == losses(plain.out) and len(losses(done.out)) == 2


@pytest.mark.heavy
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("kind", "ranks", "faulty"),
    [("ddp", 2, [0, 1]), ("ddp", 2, [1]), ("ddp", 4, [3]), ("fsdp", 2, [1]), ("fsdp", 4, [3])],
)
def test_a_fault_found_in_its_ranks(run_ranks: Run, tmp_path: Path, kind: str, ranks: int, faulty: list[int]) -> None:
    run_ranks(ranks, "diagnosed.py", kind, "accuracy", *map(str, faulty), cwd=tmp_path, before=WORDS, code=1)
    for rank, diagnosis in enumerate(diagnoses(tmp_path, ranks)):
        assert diagnosis["verdict"] == ("fault" if rank in faulty else "healthy")
        found = [(finding["stage"], finding["op"]) for finding in diagnosis["findings"]]
        assert found == [("codegen", "aten.relu.default")] * (rank in faulty)
        for finding in diagnosis["findings"]:
            assert Path(finding["dossier"]).is_relative_to(tmp_path / f"out-rank_{rank}")


@pytest.mark.heavy
def test_nothing_that_was_compiled_is_no_all_clear(torchrun: Run, tmp_path: Path) -> None:
    done = torchrun("diagnosed.py", "nothing", cwd=tmp_path, before=WORDS, env={})
    assert "exitcode  : 2" in done.err and "HEALTHY" not in done.out
    for diagnosis in diagnoses(tmp_path):
        assert (diagnosis["verdict"], diagnosis["graphs"]) == ("undecided", 0)
        assert diagnosis["notes"][0].startswith("nothing was compiled: torch.compile made no graph")
