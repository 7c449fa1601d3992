"""A fault of the recorder costs the dump, never the program."""

import logging
from typing import Any

import pytest
import torch

from graphprobe.probe.dump import recorder
from graphprobe.probe.dump.running import DumpSession


def f(x: torch.Tensor) -> torch.Tensor:
    return (x @ x).relu() + 1


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("where", ["dump_value", "argument_from_value", "stream_of"])
def test_a_recorder_that_raises_is_detached(
    backend: str, where: str, dumping: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    x = torch.randn(4, 4)
    expected = f(x)
    calls = []

    def fail(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        raise RuntimeError("planted")

    monkeypatch.setattr(recorder, where, fail)
    compiled = dumping.compile(f, backend)
    with caplog.at_level(logging.ERROR, logger="graphprobe"):
        results = [compiled(x) for _ in range(3)]
    assert all(torch.allclose(result, expected) for result in results)
    assert len(calls) <= 1, "it is asked once, and then left alone"
    found = dumping.end()
    reported = [line for line in found.manifest.missing if "RuntimeError: planted" in line]
    assert bool(reported) == bool(calls)
    assert ("detached" in caplog.text) == bool(calls)


def test_a_dump_that_cannot_begin_leaves_the_program_alone(
    dumping: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: Any) -> Any:
        raise OSError("planted")

    monkeypatch.setattr(DumpSession, "writer", fail)
    x = torch.randn(4, 4)
    assert torch.allclose(dumping.compile(f)(x), f(x))
    assert "opening the dump failed: OSError: planted" in caplog.text


def test_what_an_op_raises_reaches_the_program(dumping: Any) -> None:
    compiled = dumping.compile(lambda x, i: x[i] + 1, "aot_eager")
    with pytest.raises(IndexError, match="out of bounds"):
        compiled(torch.ones(2), torch.tensor([5]))
    found = dumping.end()
    assert found.inputs() and "add" not in found.names()
