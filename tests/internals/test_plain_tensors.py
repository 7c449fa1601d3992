"""Which tensors are plain, and that asking keeps the interpreter's lock."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from graphprobe.internals.tensors import plain_tensors
from graphprobe.internals.tensors.plain_tensors import is_plain

COUNTS = '''
import os, sys, threading, time
import torch
from graphprobe.internals.tensors.plain_tensors import is_plain

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


@pytest.mark.parametrize("known", [True, False], ids=["metadata", "no metadata"])
@pytest.mark.parametrize("case", NOT_PLAIN)
def test_not_plain(case: str, known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not known:
        monkeypatch.setattr(plain_tensors, "_lazy", None)
    plain = torch.nn.Parameter(torch.ones(3, 2)).detach().t()
    assert is_plain(plain) and is_plain(torch.nn.Parameter(plain))
    assert not is_plain(NOT_PLAIN[case]())


def test_asking_keeps_the_lock(run_warm: Callable[..., Any]) -> None:
    done = run_warm("-c", COUNTS)
    assert done.code == 0, done.err
    of_torch, ours = done.out.split()
    assert int(of_torch) >= 0, "is_neg() gives it up, sooner or later"
    assert ours == "None", "and this never does"
