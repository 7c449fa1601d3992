"""Several threads, a Dask cluster, several ranks, and what can be opened."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from compare.made import MemoryDump, call, chain, replaced, tensor
from graphprobe.compare import Comparison, compare_dumps
from graphprobe.compare.open import MERGED, extra_module, is_remote, open_dump, write_text
from graphprobe.compare.options import Options, processors, with_jobs
from graphprobe.compare.ranks import MergedDump, shared_values
from graphprobe.errors import RunNotFoundError, UsageError
from graphprobe.store import Call, CallDump

APIS = ["torch.relu", "torch.exp", "torch.relu"] * 60


def rows_of(comparison: Comparison) -> list[bytes]:
    with comparison:
        return [msgspec.json.encode(row) for row in comparison.rows()]


def test_threads_give_the_rows_of_one_in_order() -> None:
    a, b = MemoryDump(chain(APIS, scale={100: 1.001})), MemoryDump(chain(APIS))
    alone = rows_of(compare_dumps(a, b, Options(jobs=1)))
    assert rows_of(compare_dumps(a, b, Options(jobs=3))) == alone
    assert len(alone) == len(APIS) and b"candidate_worse" in alone[100] and b"candidate_worse" not in alone[99]


def one_value(shift: float = 0.0) -> MemoryDump:
    """A value that a call gives and another gets."""
    values: dict[str, Any] = {}
    made = tensor("output.0", "output", np.arange(64, dtype=np.float32) + np.float32(shift), values=values)
    taken = replaced(made, name="input.0", role="input")
    return MemoryDump([call(0, "torch.exp", made), call(1, "torch.relu", taken)], values)


def test_threads_judge_values_and_one_thread_statistics() -> None:
    whole, statistics = one_value(), one_value().without_values()
    assert with_jobs(Options(), whole, whole).jobs == processors() >= 1
    assert with_jobs(Options(), whole, statistics).jobs == 1
    assert with_jobs(Options(), statistics, whole).jobs == 1
    assert with_jobs(Options(jobs=7), statistics, whole).jobs == 7
    assert with_jobs(Options(scheduler="tcp://host:8786"), whole, whole).jobs is None


def test_equal_digests_are_never_read_and_another_value_once() -> None:
    a, b = one_value(), one_value()
    with compare_dumps(a, b) as comparison:
        assert set(comparison.summary.counts.by_basis) == {"digest"}
    assert (a.read, b.read) == (0, 0)
    a = one_value(1e-3)
    compare_dumps(a, b).close()
    assert (a.read, b.read) == (1, 1)


def test_a_package_that_is_missing_is_named_with_its_extra() -> None:
    with pytest.raises(UsageError, match="surely_not_there") as error:
        extra_module("surely_not_there", extra="dask", purpose="--scheduler")
    assert "graphprobe[dask]" in error.value.hint


def test_local_paths_are_not_remote_and_urls_are() -> None:
    assert [is_remote(p) for p in ("dump", "./a/b", "C:\\dump", "/tmp/x:y")] == [False] * 4
    assert [is_remote(p) for p in ("s3://bucket/run", "memory://run", "simplecache::s3://x")] == [True] * 3


def test_wrong_options() -> None:
    with pytest.raises(UsageError, match="jobs is 0"):
        Options(jobs=0)


def test_what_is_no_dump_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(RunNotFoundError, match="there is no dump"):
        open_dump(tmp_path / "nowhere")
    (tmp_path / "x.pkl").write_bytes(b"\x80\x04K\x01.")
    with pytest.raises(UsageError, match="is a pickle"):
        open_dump(tmp_path / "x.pkl")
    (tmp_path / "x.txt").write_text("hello")
    with pytest.raises(UsageError) as error:
        open_dump(tmp_path / "x.txt")
    assert "msprobe" in error.value.hint
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no dump that can be read"):
        open_dump(tmp_path / "empty")
    (tmp_path / MERGED).write_text("{}")
    with pytest.raises(UsageError, match="index of ranks"):
        open_dump(tmp_path)


PTDBG_LINE = json.dumps(["0_Torch_relu_forward_output.0", 1, [], "torch.float32", [2], [1.0, 0.0, 0.5]]) + "\n"


def test_a_ptdbg_text_and_an_msprobe_folder_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "npu_dump.pkl").write_text(PTDBG_LINE)
    assert open_dump(tmp_path / "npu_dump.pkl").format == "ptdbg"
    folder = tmp_path / "step0" / "rank0"
    folder.mkdir(parents=True)
    (folder / "dump.json").write_text('{"task": "statistics", "level": "L1", "framework": "pytorch", "data": {}}')
    assert open_dump(tmp_path / "step0").format == "msprobe"


def weights(rank: int, *, scale: float = 1.0, columns: int = 4) -> MemoryDump:
    array = np.arange(8 * columns, dtype=np.float32).reshape(8, columns) * np.float32(scale)
    slot = tensor("parameter.weight", "parameter", array)
    return MemoryDump([call(0, "Linear", slot, kind="module", module="fc", rank=rank)])


def test_parameters_across_ranks() -> None:
    def relations(*dumps: MemoryDump) -> list[tuple[str, str]]:
        return [(v.what, v.relation) for v in shared_values(MergedDump("all", dict(enumerate(dumps))))]

    assert relations(weights(0), weights(1)) == [("fc.parameter.weight", "replicated")]
    assert relations(weights(0), weights(1, scale=1.001)) == [("fc.parameter.weight", "differs")]
    assert relations(weights(0), weights(1, columns=2)) == [("fc.parameter.weight", "sharded")]
    with pytest.raises(UsageError, match="1 rank"):
        shared_values(weights(0))


def sharded_steps(rank: int, given: float, *, clamped: bool = False) -> MemoryDump:
    """Two steps of an optimizer on a shard, which is `given` times what the first one left when the second begins."""
    shard = np.arange(8, dtype=np.float32) + rank + 1

    def step(number: int, before: np.ndarray, after: np.ndarray) -> Call:
        slots = tensor("parameter.w", "parameter", before), tensor("output.w", "output", after)
        note = ("a DTensor of 2 ranks (S(0))",)
        more = {"kind": "optimizer", "label": "Optimizer.SGD.0.forward", "notes": note}
        return call(number * 10, "SGD", *slots, step=number, rank=rank, **more)

    clamp = call(9, "torch.Tensor.clamp_", tensor("output.0", "output", shard * 2 * given), step=1, rank=rank)
    return MemoryDump([step(0, shard, shard * 2), *[clamp][: int(clamped)], step(1, shard * 2 * given, shard * 3)])


def test_a_shard_that_something_unseen_changed_on_one_rank() -> None:
    for other, relation, odd in (
        (sharded_steps(1, 1.0), "sharded", ()),
        (sharded_steps(1, 1.5), "changed_unseen", (1,)),
        (sharded_steps(1, 1.5, clamped=True), "differs", (1,)),
    ):
        (found,) = shared_values(MergedDump("all", {0: sharded_steps(0, 1.0), 1: other}))
        assert (found.what, found.relation, found.odd) == ("Optimizer.SGD.0.forward.parameter.w", relation, odd)
        assert (found.name, found.step) == ("w (shard)", len(odd))
        assert found.written_by == "clamp_.0.forward" * (relation == "differs")
    both = {rank: sharded_steps(rank, 1.5, clamped=True) for rank in (0, 1)}
    (everywhere,) = shared_values(MergedDump("all", both))
    assert everywhere.relation == "sharded", "all ranks clamp it"
    (everywhere,) = shared_values(MergedDump("all", {0: sharded_steps(0, 1.5), 1: sharded_steps(1, 1.5)}))
    assert everywhere.relation == "sharded", "all ranks do it: the program does"


def normed(rank: int, *, stale: bool = False, spare: float = 0.0) -> MemoryDump:
    """Two steps of a layer that gathers statistics of its rank's data; before them memory that has held `spare`."""
    mean, name = np.zeros(4, np.float32), "torch.nn.functional.batch_norm"
    calls = [call(0, "torch.empty", tensor("output.0", "output", np.full(4, spare, np.float32)), rank=rank)]
    if stale:
        mean = mean + np.float32(0.5)
        calls.append(call(1, "torch.Tensor.add_", tensor("output.0", "output", mean), source="train.py:7", rank=rank))
    for step in (0, 1):
        after = mean + np.float32(rank + 1)
        got = replaced(tensor("input.1", "input", mean), held="buffer")
        given = tensor("output.input.1", "output", after)
        calls.append(call(10 + step, name, got, given, module="blocks.1.norm", step=step, rank=rank))
        mean = after
    return MemoryDump(calls)


def test_a_stale_buffer_is_named_and_statistics_of_each_ranks_data_are_not_accused() -> None:
    for stale, relation, odd in ((True, "differs", (1,)), (False, "own_data", ())):
        ranks = {0: normed(0), 1: normed(1, stale=stale)}
        (found,) = shared_values(MergedDump("all", ranks))
        assert (found.name, found.relation, found.odd) == ("blocks.1.norm.running_mean", relation, odd)
        assert (found.step, found.line) == ((0, "train.py:7") if stale else (1, ""))


def test_another_number_of_ranks_is_told() -> None:
    both = MergedDump("all", {0: weights(0), 1: weights(1)})
    with compare_dumps(both, weights(0)) as comparison:
        assert comparison.summary.outcome == "same"
        assert comparison.summary.counts.pairs == 2
        assert "ranks 0, 1 of the candidate are held against rank 0 of the reference" in comparison.summary.notes
    with compare_dumps(weights(0), both) as comparison:
        assert (comparison.summary.outcome, comparison.summary.counts.pairs) == ("undecided", 1)
        assert any("ranks 1 of the reference have no counterpart" in note for note in comparison.summary.notes)
    wrong = MergedDump("all", {0: weights(0), 1: weights(1, scale=1.001)})
    with compare_dumps(wrong, weights(0)) as comparison:
        assert comparison.summary.first is not None and comparison.summary.first.rank == 1


def test_folders_that_all_call_themselves_rank_0() -> None:
    merged = MergedDump("all", {0: weights(0), 1: weights(0, scale=2)})
    assert [c.rank for c in merged.calls(1, 0)] == [1]


DIES = """
import os, signal
from graphprobe.compare.judge import Judge

judge, calls = Judge.judge, []

def dies(self, task):
    calls.append(task.number)
    if len(calls) == 5:  # of a block of 32
        try:
            marker = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except FileExistsError:  # one death is enough
            pass
        else:
            os.write(marker, f"{os.getpid()} {calls}".encode())
            os.kill(os.getpid(), signal.SIGKILL)
    return judge(self, task)

Judge.judge = dies
"""


@pytest.fixture(scope="module")
def forty_layers(tmp_path_factory: pytest.TempPathFactory) -> tuple[CallDump, CallDump, list[bytes]]:
    """Two dumps, and what one process says of them."""
    import torch

    import graphprobe

    folder = tmp_path_factory.mktemp("dumps")
    for name, factor in (("a", 1.01), ("b", 1.0)):
        torch.manual_seed(0)
        model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(40)])
        with graphprobe.dump(folder / name, model=model, data="tensor"):
            x = torch.randn(4, 8)
            for i, layer in enumerate(model):
                x = layer(x) * (factor if i == 20 else 1.0)
    a, b = open_dump(folder / "a"), open_dump(folder / "b")
    return a, b, rows_of(compare_dumps(a, b))


@pytest.fixture
def client() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.mark.heavy
def test_dask_gives_what_one_process_gives(forty_layers: tuple[CallDump, CallDump, list[bytes]], client: Any) -> None:
    a, b, alone = forty_layers
    assert rows_of(compare_dumps(a, b, Options(scheduler=client.scheduler.address))) == alone


@pytest.mark.heavy
def test_a_worker_that_dies_inside_a_block_changes_nothing(
    forty_layers: tuple[CallDump, CallDump, list[bytes]], client: Any, tmp_path: Path
) -> None:
    a, b, alone = forty_layers
    before = set(client.run(os.getpid).values())
    marker = tmp_path / "died"
    client.run(exec, DIES, {"path": str(marker)})
    assert rows_of(compare_dumps(a, b, Options(scheduler=client.scheduler.address))) == alone
    died, _, judged = marker.read_text().partition(" ")
    assert int(died) in before
    assert len(json.loads(judged)) == 5  # four tasks of its block were judged and lost
    client.wait_for_workers(2, timeout=60)
    after = set(client.run(os.getpid).values())
    assert len(after) == 2 and len(after - before) == 1 and int(died) not in after


def test_a_dump_is_read_and_a_text_written_through_a_url(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    url = (tmp_path / "run" / "npu_dump.pkl").as_uri()
    write_text(url, PTDBG_LINE)
    dump = open_dump(url)
    assert (dump.format, dump.title) == ("ptdbg", url)
    assert [call.api for call in dump.calls(0, 0)] == ["torch.relu"]
    with pytest.raises(RunNotFoundError, match="nothing at"):
        open_dump((tmp_path / "nowhere").as_uri())
    with pytest.raises(UsageError, match="cannot be opened"):
        open_dump("nosuchscheme://x/y")
