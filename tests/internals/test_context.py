"""The stack of what is being compiled, caches, and tracebacks without graphprobe's frames."""

from __future__ import annotations

import sys
import threading
import traceback
from types import TracebackType
from typing import Any

import pytest
import torch
import torch._functorch.config
import torch._inductor.config

from graphprobe.internals.caches import CACHES, bypassed
from graphprobe.internals.context import UNOBSERVED, Frame, current, entered, unobserved
from graphprobe.internals.quiet import quiet
from graphprobe.internals.unseen import unseen


def test_frames_nest_and_end() -> None:
    outer, inner = Frame("model", phase="dynamo"), Frame("model", "forward", "aot")
    assert current() is None and not unobserved()
    with entered(outer):
        assert current() is outer
        with entered(None):
            assert current() is outer
        with pytest.raises(ValueError, match="inside"), entered(inner):
            raise ValueError("inside" if current() is inner else "outside")
        assert current() is outer
        with entered(UNOBSERVED):
            assert current() is None and unobserved()
            with entered(inner):
                assert current() is inner and not unobserved()
        assert current() is outer
    assert current() is None


def test_each_thread_has_its_own() -> None:
    seen: list[object] = []
    with entered(Frame("mine")):
        thread = threading.Thread(target=lambda: seen.append(current()))
        thread.start()
        thread.join()
    assert seen == [None]


def values() -> dict[str, Any]:
    return {f"{module}.{name}": getattr(sys.modules[module], name, None) for module, name in CACHES}


def test_caches_are_off_inside_and_back_outside() -> None:
    with torch._inductor.config.patch(fx_graph_cache=True), torch._functorch.config.patch(enable_autograd_cache=True):
        before = values()
        assert before["torch._inductor.config.fx_graph_cache"] is True
        with bypassed() as names:
            assert not any(values().values())
            assert {"torch._inductor.config.fx_graph_cache", "torch._functorch.config.enable_autograd_cache"} <= set(
                names
            )
            with bypassed() as again:
                assert again == []
                assert not any(values().values())
            assert not any(values().values())
        assert values() == before
        with pytest.raises(KeyError), bypassed():
            raise KeyError
        assert values() == before


def test_a_cache_that_is_off_stays_off_and_is_not_named() -> None:
    with torch._inductor.config.patch(fx_graph_cache=False):
        with bypassed() as names:
            assert "torch._inductor.config.fx_graph_cache" not in names
        assert torch._inductor.config.fx_graph_cache is False


def test_threads_that_overlap() -> None:
    """A in, B in, A out, B out: both work without caches, and all is as before in the end.

    Where settings belong to a thread, each finds its own again as it comes out. Where threads share them (torch 2.11),
    B found them off, and leaves them on.
    """
    per_thread = hasattr(torch.utils._config_module, "ContextVar")
    turns = [threading.Event() for _ in range(3)]
    found: dict[str, list[Any]] = {}
    before = values()

    def first() -> None:
        mine = [values()]
        with bypassed():
            turns[0].set()
            turns[1].wait(10)
            mine.append(values())
        mine.append(values())
        turns[2].set()
        found["first"] = mine

    def second() -> None:
        turns[0].wait(10)
        mine = [values()]
        with bypassed():
            turns[1].set()
            turns[2].wait(10)
            mine.append(values())
        mine.append(values())
        found["second"] = mine

    threads = [threading.Thread(target=target) for target in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    for mine in found.values():
        assert not any(mine[1].values())
        assert not per_thread or mine[0] == mine[2]
    assert len(found) == 2 and (per_thread or found["second"][2] == before)
    assert values() == before


own: dict[str, Any] = {"__name__": "graphprobe.fake", "unseen": unseen}
exec(
    """
def passes(call):
    with unseen:
        return call()

def passes_after_work(call):
    try:
        with unseen:
            return call()
    except BaseException:
        raise
    finally:
        pass

def careless(call):
    return call()

def faulty(call):
    with unseen:
        return broken()

def broken():
    raise RuntimeError("graphprobe's own")
""",
    own,
)


def frames(trace: TracebackType | None) -> list[str]:
    return [frame.f_code.co_name for frame, _ in traceback.walk_tb(trace)]


def program() -> None:
    raise LookupError("the program's")


@pytest.mark.parametrize("way", ["passes", "passes_after_work"])
def test_no_frame_of_ours_is_left(way: str) -> None:
    call: Any = own[way]
    with pytest.raises(LookupError) as caught:
        call(lambda: own["careless"](lambda: call(program)))
    name = "test_no_frame_of_ours_is_left"
    assert frames(caught.value.__traceback__) == [name, "<lambda>", "<lambda>", "program"]


def test_errors_raised_in_c_code_pass_too() -> None:
    call: Any = own["passes"]
    with pytest.raises(ZeroDivisionError) as caught:
        call(lambda: call(lambda: divmod(1, 0)))
    assert frames(caught.value.__traceback__)[-1] == "<lambda>"
    with pytest.raises(TypeError) as direct:
        call(int("3").__divmod__)
    assert frames(direct.value.__traceback__) == ["test_errors_raised_in_c_code_pass_too"]


def test_causes_and_contexts_are_cleaned_as_well() -> None:
    call: Any = own["passes"]

    def wraps() -> None:
        try:
            own["careless"](program)
        except LookupError as error:
            raise OSError("outer") from error

    with pytest.raises(OSError, match="outer") as caught:
        call(wraps)
    assert caught.value.__cause__ is not None
    assert frames(caught.value.__cause__.__traceback__) == ["wraps", "program"]


def test_a_fault_of_ours_keeps_its_frames() -> None:
    call: Any = own["faulty"]
    with pytest.raises(RuntimeError) as caught:
        call(None)
    assert frames(caught.value.__traceback__)[-2:] == ["faulty", "broken"]


def test_quiet_leaves_every_mode_and_comes_back() -> None:
    with torch.inference_mode(), quiet():
        value = torch.ones(2) * 2
        assert not value.is_inference()
    x = torch.ones(2, requires_grad=True)
    with quiet():
        assert not (x * 2).requires_grad
    assert (x * 2).requires_grad
    with torch._subclasses.FakeTensorMode():
        with quiet():
            assert float(torch.ones(()) + 1) == 2.0
        assert type(torch.ones(1)).__name__ == "FakeTensor"
