"""Which tensors are plain, and that asking keeps the interpreter's lock."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from graphprobe.internals.operators.operators import decomposed_while_traced
from graphprobe.internals.tensors import (
    WeakMemory,
    WeakStorages,
    is_plain,
    span_of,
    storage_ids,
    version_of,
)

COUNTS = '''
import os, sys, threading, time
import torch
from graphprobe.internals.tensors import is_plain

turns = [0]

def take_turns():
    while True:
        turns[0] += 1
        time.sleep(0)

def given_up(ask, calls):
    """After how many calls the other thread had its turn; None: not once."""
    ask()
    sys.setswitchinterval(1000)  # from here on another thread runs only where the lock is given up
    before = turns[0]
    while turns[0] < before + 2:  # a wait that began earlier asks for the lock after the interval it began with
        time.sleep(0.001)
    before = turns[0]
    found = next((n for n in range(calls) if ask() or turns[0] != before), None)
    sys.setswitchinterval(0.0005)
    return found

x = torch.randn(4)
threading.Thread(target=take_turns, daemon=True).start()
of_torch = given_up(lambda: x.is_neg() or x.is_conj(), 10_000_000)
print(of_torch, given_up(lambda: not is_plain(x), 20 * (of_torch or 0) + 10_000), flush=True)
os._exit(0)
'''

NOT_PLAIN = {
    "negated": lambda: torch.ones(2, dtype=torch.complex64).conj().imag,
    "conjugated": lambda: torch.ones(2, dtype=torch.complex64).conj(),
    "sparse": lambda: torch.eye(2).to_sparse(),
    "meta": lambda: torch.ones(2, device="meta"),
    "no tensor": lambda: 3,
}


@pytest.mark.parametrize("case", NOT_PLAIN)
def test_not_plain(case: str) -> None:
    plain = torch.nn.Parameter(torch.ones(3, 2)).detach().t()
    assert is_plain(plain) and is_plain(torch.nn.Parameter(plain))
    assert not is_plain(NOT_PLAIN[case]())


def test_asking_keeps_the_lock(run_warm: Callable[..., Any]) -> None:
    done = run_warm("-c", COUNTS)
    assert done.code == 0, done.err
    of_torch, ours = done.out.split()
    assert int(of_torch) >= 0, "is_neg() gives it up, sooner or later"
    assert ours == "None", "and this never does"


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


def test_storages_are_known_again_while_they_live() -> None:
    base, other = torch.ones(4), torch.ones(3)
    kept = WeakStorages([base, base[1:], 7, other, torch.ones(2).to_sparse()])
    assert kept.shared(storage_ids([base.view(2, 2), None])) == 1
    assert kept.shared(storage_ids([base, base.t(), other])) == 2
    assert kept.shared(storage_ids([torch.ones(4), torch.empty(0)])) == 0
    weak = WeakMemory(other)
    del other
    assert weak.gone, "nothing is kept alive"


def test_which_operators_tracing_replaces_by_python() -> None:
    for name in ("aten.upsample_bilinear2d.default", "aten.upsample_nearest2d.vec", "aten.dropout"):
        assert decomposed_while_traced(name)
    for name in ("aten.add.Tensor", "aten.none_such.default", "prims.sin.default", "torch.relu", ""):
        assert not decomposed_while_traced(name)
