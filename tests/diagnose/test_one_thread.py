"""A healthy verdict says so where no loop could be shared out among threads."""

from collections.abc import Iterator

import pytest
import torch

import graphprobe
from graphprobe.diagnose.notes import ONE_THREAD, in_one_thread
from graphprobe.judge import Observation, Reference


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def reference(device: str) -> Reference:
    call = Observation(None, [torch.empty(2, device=device), 3], [], [], frozenset())
    return Reference([[call], [call]])


@pytest.mark.parametrize(("count", "device", "expected"), [(1, "cpu", True), (2, "cpu", False), (1, "meta", False)])
@pytest.mark.usefixtures("threads")
def test_when(count: int, device: str, expected: bool) -> None:
    torch.set_num_threads(count)
    assert in_one_thread(reference(device)) is expected


@pytest.mark.heavy
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.usefixtures("threads")
def test_a_healthy_program(count: int) -> None:
    torch.set_num_threads(count)
    found = graphprobe.diagnose(lambda x: (x * 2).relu(), torch.ones(4), grad=False)
    assert found.verdict == "healthy"
    assert (ONE_THREAD in found.notes) is (count == 1)
