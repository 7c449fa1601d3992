"""Memory that is watched is freed as if nobody looked, and read without a trace."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from graphprobe.internals.tensors import weak_storage
from graphprobe.internals.tensors.weak_storage import WeakMemory, WeakStorages, span_of, storage_ids, version_of


class Refuses(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        raise AssertionError(f"{func} was seen by the program")


def test_a_view_is_read_for_as_long_as_its_memory_lives() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    weak = WeakMemory(base.t()[1:3])  # the view itself dies at once
    base[0, 1] = 50
    now = weak.tensor()
    assert now is not None and torch.equal(now, base.t()[1:3])
    assert now.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
    del now, base
    assert weak.gone and weak.tensor() is None


def test_reading_is_not_seen_by_a_mode_of_the_program() -> None:
    base = torch.ones(3)
    weak = WeakMemory(base)
    with Refuses():
        now = weak.tensor()
    assert now is not None and now.tolist() == [1, 1, 1]


def test_spans_and_versions_which_count_what_operators_do() -> None:
    base = torch.zeros(4, 6, dtype=torch.float64)
    memory, begin, end = span_of(base[1:3, 2:4])
    assert (begin - memory, end - memory) == (8 * 8, (2 * 6 + 4) * 8)
    assert span_of(torch.zeros(0))[1] == span_of(torch.zeros(0))[2]
    before = version_of(base)
    base[1:].add_(1)
    assert before is not None and version_of(base) == before + 1
    with torch.inference_mode():
        assert version_of(torch.zeros(3)) is None


def test_storages_are_known_again_while_they_live(monkeypatch: pytest.MonkeyPatch) -> None:
    base, other = torch.ones(4), torch.ones(3)
    kept = WeakStorages([base, base[1:], 7, other, torch.ones(2).to_sparse()])
    assert kept.shared(storage_ids([base.view(2, 2), None])) == 1
    assert kept.shared(storage_ids([base, base.t(), other])) == 2
    assert kept.shared(storage_ids([torch.ones(4), torch.empty(0)])) == 0
    weak = WeakMemory(other)
    del other
    assert weak.gone, "nothing is kept alive"
    monkeypatch.setattr(weak_storage, "_weak", None)  # in a torch that lacks them an id could be that of something else
    assert WeakStorages([base]).shared(storage_ids([base])) == 0
