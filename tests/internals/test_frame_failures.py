"""The tap on Dynamo's conversion of frames."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch._dynamo import convert_frame

from graphprobe.internals.dynamo.frame_failures import FailedFrame, FrameFailures, marked_function, uncompiled


def branch(x: torch.Tensor, k: int = 1) -> torch.Tensor:
    if x.sum() > k:
        return x + 1
    return x - 1


@contextmanager
def watched(told: Callable[[FailedFrame], object], failed: Callable[[Exception], object]) -> Iterator[None]:
    original, failures = convert_frame._compile, FrameFailures(told, failed)
    failures.install()
    try:
        yield
    finally:
        assert failures.remove() == [] and convert_frame._compile is original


def compile_all(*calls: tuple[Callable[..., Any], tuple[Any, ...], bool]) -> tuple[list[FailedFrame], list[Exception]]:
    found: list[FailedFrame] = []
    errors: list[Exception] = []
    with watched(found.append, lambda error: pytest.fail(repr(error))):
        for function, args, fullgraph in calls:
            try:
                torch.compile(function, backend="eager", fullgraph=fullgraph)(*args)
            except Exception as error:
                errors.append(error)
    return found, errors


def test_a_frame_comes_with_what_it_was_given() -> None:
    x = torch.ones(3)
    (frame,), (error,) = compile_all((branch, (x, 2), True))
    assert frame.code is branch.__code__ and frame.locals["x"] is x and frame.locals["k"] == 2
    assert frame.globals is globals() and frame.closure == () and frame.error is error
    assert frame.fullgraph and not frame.suppressed and not frame.is_continuation
    file, line, function, text = frame.stack[-1]
    assert (file, function, text) == (__file__, "branch", "if x.sum() > k:")
    assert line == branch.__code__.co_firstlineno + 1 and frame.dynamic == [] and frame.unresolved == []


def test_what_torch_keeps_to_itself_is_told_apart() -> None:
    def refused(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            try:
                torch._dynamo.graph_break()
            finally:
                x = x + 1
        return x

    (frame,), errors = compile_all((refused, (torch.ones(3),), False))
    assert (errors, frame.code.co_name, frame.suppressed, frame.fullgraph) == ([], "refused", True, False)


def test_a_failing_backend_is_no_failure_to_trace() -> None:
    def backend(gm: Any, inputs: Any) -> Any:
        raise RuntimeError("no")

    found: list[FailedFrame] = []
    with watched(found.append, found.append), pytest.raises(Exception, match="no"):  # type: ignore[arg-type]
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
    assert found == []


def test_sizes_that_became_symbols_are_found_in_containers() -> None:
    def grows(pair: Any) -> torch.Tensor:
        return pair[1]["t"] if pair[1]["t"].shape[0] == 3 else branch(pair[1]["t"])

    second = torch.ones(5)
    compiled = [(grows, (("a", {"t": torch.ones(3)}),), True), (grows, (("a", {"t": second}),), True)]
    (frame,), _ = compile_all(*compiled)
    ((value, dims),) = frame.dynamic
    assert value is second and dims == [0]


def test_an_observer_that_fails_is_called_once() -> None:
    told: list[Exception] = []
    with watched(lambda frame: {}["planted"], told.append):
        for function in (branch, lambda x: branch(x)):
            with pytest.raises(torch._dynamo.exc.Unsupported):
                torch.compile(function, backend="eager", fullgraph=True)(torch.ones(3))
    assert [repr(error) for error in told] == ["KeyError('planted')"]


def test_wrapped_functions_and_modules_are_opened() -> None:
    module = torch.nn.ReLU()
    assert uncompiled(torch.compile(branch, backend="eager")) is branch
    assert uncompiled(torch.compile(module, backend="eager")) is module
    for recursive in (True, False):
        off: Any = torch.compiler.disable(branch, recursive=recursive, reason="slow")
        marks, inner, settings = marked_function(off) or (None, None, {})
        assert (marks, inner) == (torch.compiler.disable, branch) and uncompiled(off) is off
        assert settings == {"recursive": recursive, "reason": "slow"}
    assert marked_function(branch) is None and uncompiled(3) == 3


@pytest.mark.parametrize("given", [{}, {"max_reuse_entries": 3}])
def test_a_region_is_made_anew_by_what_marks_it(given: dict[str, int]) -> None:
    if not given.keys() <= inspect.signature(torch.compiler.nested_compile_region).parameters.keys():
        pytest.skip("this torch takes nothing of the kind")

    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    region: Any = torch.compiler.nested_compile_region(doubled, **given)  # type: ignore[no-untyped-call]
    assert marked_function(region) == (torch.compiler.nested_compile_region, doubled, given)
    assert marked_function(doubled) is None
