"""What a graph was lowered to is read once: by buffer the node whose value it holds, for this thread or for all."""

import threading
from typing import Any

import pytest
import torch

from graphprobe.errors import UnsupportedTorchError
from graphprobe.internals.inductor import lowered_graph as lowering
from graphprobe.internals.inductor.lowered_graph import watched


def program(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    z = x.clone()
    z.index_put_((i,), v, accumulate=True)
    z.index_put_((i,), v, accumulate=True)
    return z


def lowered() -> None:
    torch.compiler.reset()
    with torch.compiler.config.patch(force_disable_caches=True):
        torch.compile(program)(torch.randn(4, 4), torch.tensor([1, 2]), torch.randn(2, 4))


def test_a_buffer_that_others_change_holds_its_value_last() -> None:
    told: list[Any] = []
    with watched() as found, watched(all_threads=True, done=lambda *what: told.append(what)) as everywhere:
        lowered()
    (part,) = found.parts
    changed = {name for buffer in part.buffers for name in buffer.mutates}
    changing = [buffer.name for buffer in part.buffers if buffer.mutates]
    values = {name: node.name for name, node in part.values().items()}
    assert len(changing) == 2 and len(changed) == 1
    assert values == {changing[-1]: "index_put_1"}
    assert {node.name for node in part.fx} >= {"index_put", "index_put_1"}
    (other,) = everywhere.parts
    assert other.handler is part.handler
    ((_, module, code),) = told
    assert found.modules == {id(part.handler): (module, code)} and "def call" in code


def test_threads_and_nesting(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one thread the inner block sees it; another thread's is seen by those who look at all."""
    import torch._inductor.debug as debug

    monkeypatch.setattr(debug, "log_ir_post_fusion", lambda nodes: None)  # torch's own needs a compile
    plain = debug.log_ir_post_fusion
    with watched() as mine, watched(all_threads=True) as everywhere:
        with watched() as inner:
            debug.log_ir_post_fusion([])  # no graph is lowered: reading it fails, which stays inside
        thread = threading.Thread(target=debug.log_ir_post_fusion, args=([],))
        thread.start()
        thread.join()
    assert debug.log_ir_post_fusion is plain
    assert [found.error is not None for found in (inner, mine, everywhere)] == [True, False, True]


def test_a_torch_without_the_place_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering, "REPORT", ("torch._inductor.debug", "no_such_report"))
    with pytest.raises(UnsupportedTorchError, match="no_such_report"), watched():
        pass
