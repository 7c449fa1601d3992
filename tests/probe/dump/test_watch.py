"""Watch mode: who overwrote what of whose output is told; what is written on purpose is not."""

import contextlib
import ctypes
import functools
import gc
from typing import Any

import numpy as np
import pytest
import torch

from diagnose.planted import codegen_shared_storage
from graphprobe.probe.dump import sessions
from graphprobe.probe.dump.watch import WatchedValue, WatchObserver
from probe.dump.conftest import Dumping
from probe.dump.scenes import findings


def watching(dumping: Dumping, function: Any, name: str = "aot_eager", **options: Any) -> Any:
    return torch.compile(function, backend=dumping.backend_of_file(name, dump_scene="watcher", **options))


def overwritten(dumping: Dumping) -> list[dict[str, Any]]:
    return findings(dumping.path, "overwritten")


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_an_in_place_write_through_an_alias(backend: str, dumping: Dumping, operator: Any) -> None:
    """The operator gets a transposed view, and its schema says that it writes nothing. Step 0 is the control."""
    writes = False

    def sneaky(x: torch.Tensor) -> torch.Tensor:
        if writes:
            x.t()[1, 2:5] = 7
        return x.clone()

    op = operator(sneaky)

    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        a = x @ w
        b = op(a.t())
        return torch.sin(a) @ b

    compiled = watching(dumping, program, backend)
    x, w = torch.randn(4, 6), torch.randn(6, 6)
    compiled(x[:, :6] @ w, w)
    assert overwritten(dumping) == []
    writes = True
    compiled(x, w)
    (found,) = [one for one in overwritten(dumping) if one["victim"]["value"] != "permute"]
    assert "sneaky" in found["culprit"]["target"]
    assert found["step"] == 1 and not found["declared"]
    assert found["elements"] == {"first": 8, "last": 10, "changed": 3, "of": 24}
    assert "mm" in found["victim"]["op_type"]
    assert "test_watch.py:" in found["victim"]["source"] and "test_watch.py:" in found["culprit"]["source"]
    assert found["intact_after"] and "elements 8 to 10, 3 of 24 changed" in found["text"]

    (entry,) = [op for op in dumping.end().ops() if op.record.seq == found["seq"]]
    before, after = (entry.values()[f"output.0.{when}"].array() for when in ("before", "after"))
    np.testing.assert_array_equal(np.flatnonzero(before != after), [8, 9, 10])
    assert (after.reshape(-1)[8:11] == 7).all()


@pytest.mark.parametrize("copy_bytes", [1 << 20, 0])
def test_comparisons_that_are_read_back_later_find_the_same(
    copy_bytes: int, dumping: Dumping, operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of a device, here on CPU tensors; the value is overwritten twice, and the first is told."""
    monkeypatch.setattr(WatchedValue, "on_cpu", False)
    monkeypatch.setattr(sessions, "WatchObserver", functools.partial(WatchObserver, copy_bytes=copy_bytes))
    writes = False

    def later(x: torch.Tensor) -> torch.Tensor:
        if writes:
            x[2:4] -= 1
        return x.clone()

    op = operator(later)

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        a = op(y)
        return op(y) + a + y

    compiled = watching(dumping, program)
    compiled(torch.ones(6))
    assert overwritten(dumping) == []
    writes = True
    compiled(torch.ones(6))
    (found,) = overwritten(dumping)
    assert found["victim"]["value"] == "add" and found["culprit"]["op"] == "later" and found["intact_after"] == "add"
    assert found["elements"]["first"] == (2 if copy_bytes else None)


@pytest.mark.parametrize("planted", [True, False])
def test_two_live_buffers_that_share_their_memory(planted: bool, dumping: Dumping) -> None:
    """Inductor reuses memory all the time; here, planted, that of a buffer which is read later."""
    function, args, _ = codegen_shared_storage.make()
    with codegen_shared_storage.plant() if planted else contextlib.nullcontext():
        result = watching(dumping, function, "inductor")(*args)
    found = overwritten(dumping)
    if not planted:
        torch._dynamo.reset()
        assert found == [] and torch.equal(result, torch.compile(function)(*args))
        return
    (only,) = found
    assert only["declared"] and "wrong reuse" in only["text"]
    assert (only["victim"]["value"], only["culprit"]["target"]) == ("buf2", "aten.mm.default")
    assert only["elements"]["of"] == 64 and only["elements"]["changed"] > 60
    assert "codegen_shared_storage.py:" in only["victim"]["source"]


def test_an_output_that_the_next_call_overwrites(dumping: Dumping, operator: Any) -> None:
    """A pool of output buffers, as CUDA graphs have: the same memory is returned by each call."""
    pool = torch.empty(8)

    def pooled(x: torch.Tensor) -> torch.Tensor:
        pool.copy_(x)
        return pool[:]

    op = operator(pooled)
    compiled = watching(dumping, lambda x: op(x * 2))
    first = compiled(torch.zeros(8))
    assert overwritten(dumping) == []
    second = compiled(torch.ones(8))
    (found,) = overwritten(dumping)
    assert found["step"] == 1 and found["victim"]["written_in_step"] == 0
    assert "pooled" in found["culprit"]["target"] and "pooled" in found["victim"]["target"]
    assert found["elements"] == {"first": 0, "last": 7, "changed": 8, "of": 8}
    del first, second


@pytest.mark.parametrize("how", ["replay", "by the program", "dropped"])
def test_an_output_that_is_overwritten_between_two_calls(how: str, dumping: Dumping) -> None:
    """A replay writes past torch, which knows of no operator. What the program does itself, torch has counted."""
    compiled = watching(dumping, lambda x: x * 2)
    kept = compiled(torch.ones(8))
    if how == "by the program":
        kept.add_(1)
    else:
        ctypes.memset(kept.data_ptr() + 8, 0, 4)
    if how == "dropped":
        del kept
        gc.collect()
    compiled(torch.ones(8))
    found = overwritten(dumping)
    if how != "replay":
        assert found == []
        return
    (only,) = found
    assert only["culprit"] is None and only["victim"]["op_type"] == "mul" and only["elements"]["first"] == 2
    assert "outside of any op" in only["text"] and "before step 1" in only["text"]


@pytest.mark.parametrize("backend", ["inductor", "aot_eager", "eager"])
def test_what_is_written_on_purpose_is_silent(backend: str, dumping: Dumping) -> None:
    """In-place ops, inputs that are updated, views, memory that is reused, a backward that uses up what was saved."""

    def program(x: torch.Tensor, w: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        y = x @ w
        view = y.view(-1)
        y.add_(1)
        view.mul_(2)
        cache[1:3].copy_(y[1:3].detach())
        z = torch.cat([y.sin(), y.cos()], dim=1)
        return (z @ z.t()).relu().sum() + cache.sum()

    compiled = watching(dumping, program, backend)
    w, cache = torch.randn(6, 6, requires_grad=True), torch.zeros(4, 6)
    for _ in range(2):
        compiled(torch.randn(4, 6), w, cache).backward()
        with torch.no_grad():
            w.sub_(0.1)
    notes = dumping.end().manifest.notes
    assert overwritten(dumping) == []
    assert any("no value was overwritten in" in note for note in notes)


def test_of_what_is_over_the_budget_a_digest_is_kept(
    dumping: Dumping, operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "WatchObserver", functools.partial(WatchObserver, copy_bytes=0))

    def quiet_write(x: torch.Tensor) -> torch.Tensor:
        x[0] = -1
        return x.clone()

    op = operator(quiet_write)

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        return op(y) + y

    watching(dumping, program)(torch.ones(4))
    (found,) = overwritten(dumping)
    assert found["elements"] == {"first": None, "last": None, "changed": None, "of": 4}
    assert "only a digest was kept" in found["text"]


@pytest.mark.cuda
def test_an_output_that_a_replay_overwrites(dumping: Dumping) -> None:
    """A CUDA graph of the program's own, whose output the program keeps across replays."""
    compiled = watching(dumping, lambda x: x * 2)
    kept = compiled(torch.ones(8, device="cuda"))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        kept.mul(1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept.copy_(torch.zeros(8, device="cuda"))
    compiled(torch.ones(8, device="cuda"))
    assert overwritten(dumping) == []
    graph.replay()
    compiled(torch.ones(8, device="cuda"))
    (found,) = overwritten(dumping)
    assert found["culprit"] is None and found["elements"]["changed"] == 8
