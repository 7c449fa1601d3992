"""A value that is dumped is a copy in the writer's pool, or says why there is none."""

import numpy as np
import pytest
import torch

from graphprobe.probe.dump.tensors import dump_value
from graphprobe.store.dump_queue import CopyPool


@pytest.mark.parametrize("stats", [False, True])
@pytest.mark.parametrize(
    ("layout", "why"), [("sparse", "layout torch.sparse_coo"), ("meta", "fake or on the meta device")]
)
def test_what_has_no_memory_says_so(layout: str, why: str, stats: bool) -> None:
    x = torch.eye(3).to_sparse() if layout == "sparse" else torch.empty(3, 3, device="meta")
    value = dump_value("input.0", "input", x, stats=stats, pool=CopyPool(0))
    assert callable(value.data) and value.meta.shape == (3, 3)
    with pytest.raises(Exception, match=why):
        value.data()


def test_a_value_is_a_copy_and_gives_its_memory_back() -> None:
    pool = CopyPool(1 << 30)
    x = torch.zeros(1 << 16)
    value = dump_value("input.0", "input", x, stats=False, pool=pool)
    x.fill_(1)
    assert not np.asarray(value.data()).any()
    assert pool.idle_bytes == 0
    del value
    assert pool.idle_bytes == x.nbytes
