"""Collectives, threads, forked children, and what is left when everything ends at once."""

import os
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import nn

import graphprobe
from conftest import ROOT
from graphprobe.store import open_api_dump
from warm.pool import Warm

COLLECTIVES = """
import sys, torch, torch.distributed as dist
import graphprobe
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method="file://" + folder + "/store", rank=rank, world_size=2)
before = dist.all_reduce
with graphprobe.dump(folder + "/d", data="tensor"):
    x = torch.full((3,), float(rank + 1))
    x.sin()
    dist.all_reduce(x)
    x.cos()
    parts = [torch.zeros(3), torch.zeros(3)]
    dist.all_gather(parts, x + rank)
    work = dist.broadcast(x, src=0, async_op=True)
    work.wait()
    x.tan()
assert dist.all_reduce is before
dist.destroy_process_group()
"""


ENV = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}


def test_collectives_of_two_ranks(tmp_path: Path, warm: Warm) -> None:
    commands = [[warm.executable, "-c", COLLECTIVES, str(rank), str(tmp_path)] for rank in (0, 1)]
    running = [subprocess.Popen(command, env=ENV) for command in commands]
    assert [process.wait(timeout=120) for process in running] == [0, 0]
    dump = open_api_dump(tmp_path / "d")
    assert dump.ranks() == (0, 1) and dump.problems() == ()
    for rank in (0, 1):
        calls = {call.label: call for call in dump.calls(rank, 0)}

        def value(label: str, name: str, calls: Any = calls) -> list[float]:
            slot = next(slot for slot in calls[label].slots if slot.name == name)
            found: list[float] = dump.values(calls[label], slot).tolist()
            return found

        label = "distributed.all_reduce.0.forward"
        assert calls[label].api == "torch.distributed.all_reduce"
        assert value(label, "input.0") == [rank + 1.0] * 3
        assert value(label, "output.input.0") == value("Tensor.cos.0.forward", "input.0") == [3.0] * 3
        assert value("distributed.all_gather.0.forward", "output.input.0.1") == [4.0] * 3
        assert "asynchronous" in calls["distributed.broadcast.0.forward"].notes[0]
        assert value("Tensor.tan.0.forward", "input.0") == [3.0] * 3


def test_other_threads_keep_their_own_modules(tmp_path: Path) -> None:
    """Modes belong to a thread; modules of other threads are records of theirs."""
    models = [nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(4)]

    def work(model: nn.Module) -> None:
        for _ in range(20):
            model(torch.ones(2, 4)).sum().backward()

    named = {str(n): m for n, m in enumerate(models)}
    with graphprobe.dump(tmp_path / "d", level="mix", model=named), ThreadPoolExecutor(len(models)) as pool:
        done = pool.map(work, models)
        work(models[0])
        list(done)
    dump = open_api_dump(tmp_path / "d")
    assert dump.problems() == ()
    calls = list(dump.calls(0, 0))
    assert [call.position for call in calls] == list(range(len(calls)))
    assert len({call.label for call in calls}) == len(calls)
    linear = [call for call in calls if call.api == "Linear" and call.direction == "forward"]
    assert len(linear) == 100
    assert {call.module for call in linear} == {"0.0", "1.0", "2.0", "3.0"}


def test_compiled_code_of_threads_at_once(tmp_path: Path) -> None:
    """No hook is back while a thread is in compiled code, and a run whose end no hook tells does not go on for ever."""
    hooks, inside, go_on = list[int](), threading.Event(), threading.Event()

    @torch.compiler.disable
    def wait() -> None:
        if threading.current_thread() is thread:
            inside.set()
            assert go_on.wait(60)
        else:
            go_on.set()
            thread.join(60)
        hooks.append(len(nn.modules.module._global_forward_hooks))

    def waits(x: torch.Tensor) -> torch.Tensor:
        wait()
        return x + 1

    class Inner(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            thread.start()  # which takes the hooks out: this run has no end
            assert inside.wait(60)
            return x + 1

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return compiled(self.inner(x)).sin()

    compiled, x = torch.compile(waits, backend="eager"), torch.ones(2)
    thread = threading.Thread(target=compiled, args=(x,))
    with graphprobe.dump(tmp_path / "d", level="mix"):
        Outer()(x)
        x.cos()
    assert hooks == [0, 0]
    dump = open_api_dump(tmp_path / "d")
    calls = {call.label: call for call in dump.calls(0, 0)}
    assert dump.problems() == () and "Module.Outer.0.forward" in calls
    assert calls["Tensor.sin.0.forward"].module == "" != "inner"
    assert any("compiled code" in note for note in dump.by_rank[0].manifest.notes)


def test_dynamo_compiles_no_hook(dumped: Callable[..., Any], recwarn: Any) -> None:
    """The backward of recorded calls runs in compiled code, behind a graph break."""
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh())

    def program() -> None:
        loss = net(torch.ones(2, 3)).sum()

        def step(x: torch.Tensor) -> torch.Tensor:
            x = x * 2
            torch._dynamo.graph_break()
            loss.backward()
            return x + 1

        torch.compile(step, backend="eager")(torch.ones(2))

    read = dumped(program, level="mix")
    assert "nn.functional.linear.0.backward" in read.labels
    assert not [str(warning.message) for warning in recwarn if "graphprobe" in str(warning.message)]


def test_a_forked_child_leaves_the_dump_alone(dumped: Callable[..., Any]) -> None:
    def program() -> None:
        torch.ones(2).add(1)
        child = os.fork()
        if not child:
            torch.ones(2).mul(3)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        torch.ones(2).sub(1)

    labels = dumped(program).labels
    assert "Tensor.sub.0.forward" in labels and "Tensor.mul.0.forward" not in labels
