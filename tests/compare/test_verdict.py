"""What keeps `compare` from saying SAME, and what it never does with a dump that is not to be trusted."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from compare.made import MemoryDump, chain
from compare.pairs import Dumps, Run, compared, trained
from graphprobe.compare import compare_dumps, open_dump
from graphprobe.diagnose.call_replay import NotReplayableError, function_of
from graphprobe.errors import NotComparableError, UsageError
from graphprobe.store import CallSlot


@pytest.fixture
def two(dumps: Dumps, tmp_path: Path) -> tuple[Path, Path]:
    """Two tensor dumps of one program of two steps; the candidate may be changed."""
    shutil.copytree(dumps(Run(trained(2)), data="tensor"), tmp_path / "candidate")
    return tmp_path / "candidate", dumps(Run(trained(2)), "reference", data="tensor")


def spoiled(line: bytes) -> Callable[[Path], None]:
    def spoil(dump: Path) -> None:
        path = dump / "rank0/step0/calls.jsonl"
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join([*lines[:3], line + b"\n", *lines[4:]]))

    return spoil


def torn(dump: Path) -> None:
    path = dump / "rank0/step1/calls.jsonl"
    path.write_bytes(path.read_bytes()[:-100])


def cut_shard(dump: Path) -> None:
    path = sorted((dump / "rank0/values").iterdir())[-1]
    os.truncate(path, path.stat().st_size // 2)


def fifo(dump: Path) -> None:
    path = dump / "rank0/step0/calls.jsonl"
    path.unlink()
    os.mkfifo(path)


def manifest(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def spoil(dump: Path) -> None:
        path = dump / "rank0/manifest.json"
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))

    return spoil


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a line that is no record": (spoiled(b"{ this is no record"), "calls.jsonl line"),
    "a line nested without end": (spoiled(b"[" * 100_000), "calls.jsonl line"),
    "a file of calls cut off": (torn, "calls.jsonl line"),
    "a shard cut off": (cut_shard, "is cut off"),
    "a shard that is gone": (lambda dump: min((dump / "rank0/values").iterdir()).unlink(), "cannot be read"),
    "a pipe for the calls": (fifo, "no regular file"),
    "a step on one side only": (lambda dump: (dump / "rank0/step1/calls.jsonl").unlink(), "steps 1 of rank 0"),
    "a dump that was stopped": (manifest(lambda m: m.update(stopped="max_bytes")), "ended early: max_bytes"),
    "a process that was killed": (manifest(lambda m: m.update(state="running", pid=2**22 + 5)), "killed"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_what_was_not_read_is_not_the_same(name: str, two: tuple[Path, Path]) -> None:
    spoil, told = DAMAGES[name]
    candidate, reference = two
    spoil(candidate)
    for summary in (compared(candidate, reference), compared(reference, candidate)):
        said = [*summary.notes, *summary.candidate.problems, *summary.reference.problems]
        assert summary.outcome == "undecided", said
        assert any(told in text for text in said), said


def tanh_of_a_product(scale: float) -> torch.Tensor:
    y = torch.tanh(torch.ones(3, 4) @ torch.ones(4, 5))
    return y if scale == 1 else y * scale


def test_one_more_result_that_nobody_uses_is_not_the_same(dumps: Dumps) -> None:
    plain, more = (dumps(Run(lambda scale=scale: tanh_of_a_product(scale)), data="tensor") for scale in (1, 1.5))
    for summary in (compared(more, plain), compared(plain, more)):
        assert (summary.outcome, [f.kind for f in summary.findings]) == ("undecided", ["unpaired"])


def test_the_same_result_by_other_calls_is_the_same(dumps: Dumps) -> None:
    x = torch.randn(4, 8)
    silu = dumps(Run(lambda: torch.exp(torch.nn.functional.silu(x))), data="tensor")
    by_hand = dumps(Run(lambda: torch.exp(x * torch.sigmoid(x))), data="tensor")
    summary = compared(silu, by_hand)
    assert (summary.outcome, summary.counts.pairs) == ("same", 1)


def test_reading_memory_that_nobody_wrote_is_told(dumps: Dumps) -> None:
    def reading(value: float) -> torch.Tensor:
        memory = torch.empty(64)
        memory.numpy()[:] = np.arange(64) * value  # what happened to be there
        return torch.exp(memory)

    found = [dumps(Run(lambda value=value: reading(value)), data="stats") for value in (0.5, 0.25)]
    assert compared(*found).outcome == "undecided"


def test_a_dump_of_graphs_and_one_of_calls_cannot_be_compared(dumps: Dumps, graph_dumps: dict[str, Path]) -> None:
    calls = open_dump(dumps(Run(trained(2)), data="tensor"))
    with pytest.raises(NotComparableError, match="is of compiled graphs") as caught:
        compare_dumps(open_dump(graph_dumps["stats"]), calls)
    assert caught.value.exit_code == 125


@pytest.mark.parametrize(
    "api",
    ["aten.from_file.default", "aten.from_file.out", "aten.set_data.default", "aten.record_stream.default",
     "aten._cufft_set_plan_cache_max_size.default", "torch.Tensor.share_memory_", "torch.from_file", "os.system",
     "torch.ops.aten.from_file.default", "torch.load", "torch.hub.load", "c10d.broadcast_.default"],
)  # fmt: skip
def test_only_what_computes_is_called_again(api: str) -> None:
    with pytest.raises(NotReplayableError):
        function_of(api)
    for computes in ("aten.gelu.default", "aten.div.Tensor_mode", "aten.mm.default", "torch.einsum"):
        assert callable(function_of(computes))


def test_an_index_of_ranks_names_no_other(tmp_path: Path) -> None:
    (tmp_path / "graphprobe-ranks.json").write_text('{"ranks": {"0": "."}}')
    with pytest.raises(UsageError, match="another index of ranks"):
        open_dump(tmp_path)


@pytest.mark.parametrize(("ranks", "outcome"), [((0,), "undecided"), ((0, 1), "different")])
def test_a_collective_is_accused_only_where_all_that_it_gets_is_known(ranks: tuple[int, ...], outcome: str) -> None:
    """What it gives is made of what other ranks have, which a dump of one rank alone does not show."""
    apis = ["torch.sin", "torch.distributed.all_reduce", "torch.exp"]
    dumps = [
        MemoryDump(
            [msgspec.structs.replace(c, rank=rank) for rank in ranks for c in chain(apis, seed=rank, scale=scale)]
        )
        for scale in ({}, {1: 1.5}, {0: 1.5})
    ]
    reference, reduced, before = dumps
    with compare_dumps(reduced, reference) as found:
        assert found.summary.outcome == outcome
        named = [(cause.kind, cause.candidate and cause.candidate.label) for cause in found.summary.findings]
    kind = "unrecorded_origin" if outcome == "undecided" else "wrong_value"
    assert named == [(kind, "all_reduce.0.forward")] * len(named) and named
    with compare_dumps(before, reference) as found:
        first = found.summary.first
        assert (found.summary.outcome, first and first.candidate and first.candidate.label) == (
            "different",
            "sin.0.forward",
        )


def test_a_result_that_neither_side_has_is_undecided(two: tuple[Path, Path], tmp_path: Path) -> None:
    """Inputs that agree say nothing of it."""
    assert compared(*two).outcome == "same"
    for name, dump in zip(("a", "b"), two, strict=True):
        shutil.copytree(dump, tmp_path / name)
        path = tmp_path / name / "rank0/step1/calls.jsonl"
        *lines, last = [json.loads(line) for line in path.read_bytes().splitlines()]
        place = next(i for i, slot in enumerate(last["slots"]) if slot["role"] in ("output", "grad_input"))
        last["slots"][place] = {key: last["slots"][place][key] for key in ("name", "role")} | {"missing": "not seen"}
        path.write_text("".join(f"{json.dumps(line)}\n" for line in [*lines, last]), encoding="utf-8")
    summary = compared(tmp_path / "a", tmp_path / "b")
    assert summary.outcome == "undecided" and "1 calls could not be compared: not seen" in summary.notes


def test_a_dtype_that_a_damaged_file_made_up_is_taken_as_it_is(two: tuple[Path, Path]) -> None:
    """Between two dtypes stands a `>`, which may be in the name of one as well."""
    path = two[0] / "rank0/step1/calls.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"float32"', b'"fl>at>32"'))
    assert compared(*two).precision["float32 -> fl?at?32"] > 0


@pytest.mark.parametrize("scale", [{}, {2: 1.5}])
@pytest.mark.parametrize("turned", [False, True])
def test_values_alone_against_statistics_alone(scale: dict[int, float], turned: bool) -> None:
    """Those of the values are computed, so that a dump of compiled graphs of each kind can be compared."""
    apis = [f"torch.op{i}" for i in range(6)]
    arrays = {}
    values = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    for one in chain(apis):
        arrays[f"{one.position}.input.0"] = values
        values = (np.roll(values, 1) * np.float32(scale.get(one.position, 1.0))).astype(np.float32)
        arrays[f"{one.position}.output.0"] = values
    calls = [
        msgspec.structs.replace(
            one,
            slots=tuple(
                CallSlot(name=slot.name, role=slot.role, meta=slot.meta, value=f"{one.position}.{slot.name}")
                for slot in one.slots
            ),
        )
        for one in chain(apis)
    ]
    sides = MemoryDump(calls, arrays), MemoryDump(chain(apis))
    found = compare_dumps(*(sides[::-1] if turned else sides))
    assert found.summary.outcome == ("different" if scale else "same")
    assert not scale or found.summary.findings[0].candidate.label == "op2.0.forward"
