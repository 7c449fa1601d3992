"""The exception scene: inputs and traceback of the op that failed are kept, and the program sees what it would see."""

import logging
import traceback
from typing import Any

import numpy as np
import pytest
import torch

from graphprobe.probe.dump import recorder
from probe.dump.conftest import Dumping
from probe.dump.scenes import documents, findings


class Refused(Exception):
    """What the operators here raise."""


def watched(dumping: Dumping, function: Any, name: str = "aot_eager") -> Any:
    return torch.compile(function, backend=dumping.backend_of_file(name, dump_scene="exception"))


def deepest(error: BaseException) -> tuple[str, int]:
    """Function and number of the innermost frame of the traceback."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return last.name, last.lineno or 0


@pytest.mark.parametrize("backend", ["inductor", "aot_eager", "eager"])
def test_what_the_op_read_is_kept_and_the_error_goes_on_as_it_is(backend: str, dumping: Dumping, operator: Any) -> None:
    error = Refused("no more\nthan this")
    failing = False

    def moody(x: torch.Tensor) -> torch.Tensor:
        if failing:
            raise error
        return x.clone()

    op = operator(moody)
    compiled = watched(dumping, lambda x: op(x * 2).sin(), backend)
    x = torch.arange(4.0)
    torch.testing.assert_close(compiled(x), (x * 2).sin())
    assert findings(dumping.path, "exception") == [] and not list(dumping.path.rglob("exception.json"))

    failing = True
    with pytest.raises(Refused) as caught:
        compiled(x)
    with pytest.raises(Refused) as plain:
        moody(x)
    assert caught.value is error and plain.value is error
    assert deepest(caught.value) == deepest(plain.value)
    assert not any("graphprobe" in frame.filename for frame in traceback.extract_tb(caught.value.__traceback__))

    found = dumping.end()
    (record,) = found.ops()
    np.testing.assert_array_equal(record.values()["input.0"].array(), np.arange(4) * 2)
    assert not any(value.slot.role == "output" for value in record.values().values())
    (document,) = documents(dumping.path, "exception.json")
    assert "moody" in document["target"] and document["step"] == 1 and "test_exception.py:" in document["source"]
    assert document["error"].endswith(".Refused") and document["message"] == "no more\nthan this"
    assert "raise error" in document["traceback"] and "test_what_the_op_read" in document["callers"]
    (finding,) = findings(dumping.path, "exception")
    assert "Refused: no more" in finding["text"] and finding["file"] == document["file"]


def test_an_op_that_had_begun_to_write_is_dumped_as_before(dumping: Dumping, operator: Any) -> None:

    def half(x: torch.Tensor) -> torch.Tensor:
        x[:2] = 99
        raise Refused("in the middle")

    op = operator(half, writes=True)

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        return op(y) + y

    with pytest.raises(Refused):
        watched(dumping, program, "eager")(torch.zeros(4))
    (record,) = dumping.end().ops()
    np.testing.assert_array_equal(record.values()["input.0"].array(), np.ones(4))
    assert any("input.0 is a copy" in note for note in record.record.notes)


def test_a_backward_that_fails(dumping: Dumping, operator: Any) -> None:
    failing = False

    def picky(x: torch.Tensor) -> torch.Tensor:
        if failing:
            raise Refused("gradient")
        return x.clone()

    op = operator(picky)

    class Through(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 3

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            return op(gradient * 3)

    compiled = watched(dumping, lambda x: Through.apply(x).sum())
    x = torch.ones(3, requires_grad=True)
    compiled(x).backward()
    assert findings(dumping.path, "exception") == []
    failing = True
    loss = compiled(x)
    with pytest.raises(Refused):
        loss.backward()
    (found,) = findings(dumping.path, "exception")
    assert found["direction"] == "backward" and found["step"] == 1


@pytest.mark.cuda
def test_an_exception_on_a_device(dumping: Dumping, operator: Any) -> None:

    def on_device(x: torch.Tensor) -> torch.Tensor:
        raise Refused("there")

    op = operator(on_device)
    with pytest.raises(Refused):
        watched(dumping, lambda x: op(x * 2), "inductor")(torch.ones(4, device="cuda"))
    (record,) = dumping.end().ops()
    np.testing.assert_array_equal(record.values()["input.0"].array(), np.full(4, 2))


def f(x: torch.Tensor) -> torch.Tensor:
    return (x @ x).relu() + 1


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("where", ["dump_value", "scalar_of", "stream_of"])
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


def test_what_an_op_raises_reaches_the_program(dumping: Any) -> None:
    compiled = dumping.compile(lambda x, i: x[i] + 1, "aot_eager")
    with pytest.raises(IndexError, match="out of bounds"):
        compiled(torch.ones(2), torch.tensor([5]))
    found = dumping.end()
    assert found.inputs() and "add" not in found.names()
