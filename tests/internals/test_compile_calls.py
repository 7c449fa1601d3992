"""Standing in for `torch.compile`: every way to call it is seen, nothing else changes, and it can be taken back."""

import copy
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch._dynamo.eval_frame import OptimizeContext

from graphprobe.engine.forked_child import Outcome, isolated
from graphprobe.internals.dynamo.compile_calls import CompileCalls, Compiled, settings_of_compiled

Seen = list[tuple[Compiled, tuple[Any, ...], dict[str, Any]]]


@contextmanager
def standing_in(before: Callable[..., None], **more: Any) -> Iterator[CompileCalls]:
    original, of_dynamo = torch.compile, OptimizeContext.__call__
    calls = CompileCalls(before, **more)
    calls.install()
    try:
        assert OptimizeContext.__call__ is not of_dynamo
        yield calls
    finally:
        calls.remove()
    assert torch.compile is original and OptimizeContext.__call__ is of_dynamo


@pytest.fixture
def seen() -> Iterator[Seen]:
    """What was told before calls, while the stand-in is installed."""
    found: Seen = []
    with standing_in(lambda compiled, args, kwargs: found.append((compiled, args, kwargs))):
        yield found


def backend(graph: torch.fx.GraphModule, inputs: list[Any], **options: Any) -> Any:
    compiled.append(options)
    return graph.forward


compiled: list[dict[str, Any]] = []
"""Options of the graphs that `backend` got in this test."""


@pytest.fixture(autouse=True)
def forget() -> None:
    compiled.clear()


def test_every_form(seen: Seen) -> None:
    def plain(x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return x * scale

    class Owner:
        @torch.compile(backend="eager", dynamic=False)
        def method(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    x = torch.ones(2)
    assert torch.compile(lambda x: x, disable=True)(x) is x, "and nothing is told of it"
    assert torch.compile(plain, backend=backend, options={"depth": 3})(x, scale=2.0).tolist() == [2, 2]
    assert Owner().method(x).tolist() == [2, 2]
    module = torch.nn.Sequential(torch.nn.Identity(), torch.nn.ReLU())
    optimized = torch.compile(module, backend="eager")
    assert isinstance(optimized, torch.nn.Module) and optimized(x).tolist() == [1, 1]
    module.compile(backend="eager")
    module(x)
    first, second, third, fourth = (record for record, _, _ in seen)
    assert first.fn is plain and seen[0][1:] == ((x,), {"scale": 2.0})
    assert (first.backend, first.options, compiled) == (backend, {"depth": 3}, [{"options": {"depth": 3}}])
    assert (second.fn.__name__, second.dynamic, len(seen[1][1])) == ("method", False, 2)
    assert third.fn is module and fourth.fn == module._call_impl


def test_whoever_asks_dynamo(seen: Seen) -> None:
    """`optimize` itself, a compiled module's context on a method, a copy of a compiled module, one of torch's own."""
    x, module = torch.ones(2), Doubling()
    optimized: Any = torch.compile(module, backend=backend, options={"depth": 3})
    assert torch._dynamo.optimize("eager", nopython=True)(neg)(x).tolist() == [-1, -1]
    assert optimized.dynamo_ctx(module.forward)(x).tolist() == [2, 2]
    assert copy.deepcopy(optimized)(x).tolist() == [2, 2]
    assert torch.compile(torch.nn.ReLU(), backend="eager")(x).tolist() == [1, 1]
    by_optimize, by_context, by_copy, of_torch = (record for record, _, _ in seen)
    assert (by_optimize.fn, by_optimize.backend, by_optimize.fullgraph) == (neg, "eager", True)
    assert by_context.fn == module.forward and (by_context.backend, by_context.options) == (backend, {"depth": 3})
    assert type(by_copy.fn) is Doubling and type(of_torch.fn) is torch.nn.ReLU
    torch.export.export(module, (x,))
    assert len(seen) == 4, "to export is not to compile"


def test_dynamo_leaves_the_watch_alone() -> None:
    """Of a compiled class one method calls the other while Dynamo reads what is called."""

    class Net(Doubling):
        pass

    seen: list[int] = []
    with standing_in(lambda record, args, kwargs: seen.append(len(vars(args[1])))):
        assert torch.compile(Net, backend="eager")()(torch.ones(2)).tolist() == [2, 2]
    assert seen == [0]


def test_graphs_that_no_call_explains_and_calls_that_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._dynamo.config, "raise_on_ctx_manager_usage", False)
    failures: list[tuple[Compiled, Exception]] = []
    backwards: list[Exception | None] = []

    def failing(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 2:
            raise ValueError("too long")
        return x * 3

    more = {
        "failed": lambda record, args, kwargs, error: failures.append((record, error)),
        "backward": backwards.append,
    }
    with standing_in(lambda *_: None, **more) as calls:
        compiled = torch.compile(failing, backend="eager", dynamic=False)
        x = torch.ones(2, requires_grad=True)
        compiled(x).sum().backward()
        with pytest.raises(ValueError, match="too long") as caught:
            compiled(torch.ones(3))
        loss = (x * x).sum()
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
        torch.export.export(Doubling(), (x,))
        assert not calls.unseen
        with torch._dynamo.optimize("eager"):
            neg(x)
    assert [(record.fn, str(error)) for record, error in failures] == [(failing, "too long")]
    assert not any("graphprobe." in entry.frame.f_globals["__name__"] for entry in caught.traceback), "no frame of ours"
    assert calls.compiled[0].graphs == 1 and [type(error) for error in backwards] == [type(None)] * 2 + [RuntimeError]
    assert [(name.partition(" ")[0], count) for name, count in calls.unseen.items()] == [("neg", 1)]


def test_called_inside_a_compiled_function(seen: Seen) -> None:
    inner = torch.compile(torch.nn.ReLU(), backend="eager")
    function = torch.compile(lambda x: x + 1, backend="eager")
    outer = torch.compile(lambda x: inner(x) + function(x), backend="eager", fullgraph=True)
    assert outer(torch.ones(2)).tolist() == [3, 3]
    assert len(seen) == 1, "it is part of the outer one's graph"


def test_uncompiled_inside_and_after_a_crash() -> None:
    def before(record: Compiled, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        assert f(*args).tolist() == [2], "uncompiled, and not told of again"
        record.uncompiled = True

    with standing_in(before, overrides={"backend": backend}) as calls:
        f = torch.compile(lambda x: x * 2, backend="inductor")
        assert f(torch.ones(1)).tolist() == f(torch.ones(1)).tolist() == [2]
    assert calls.compiled[0].backend is backend and compiled == []


def test_mode_and_options_are_settings_of_inductor() -> None:
    config = torch._inductor.config
    before = config.max_autotune, config.cpp.threads
    record = Compiled(torch.sin, "inductor", mode="max-autotune-no-cudagraphs", options={"cpp.threads": 3})
    settings = record.inductor_settings()
    assert (settings["max_autotune"], settings["cpp.threads"]) == (True, 3)
    with config.patch(settings):
        assert (config.max_autotune, config.cpp.threads) == (True, 3)
    assert (config.max_autotune, config.cpp.threads) == before
    assert record.lone_backend() == "inductor"


def test_settings_of_a_compiled_function_without_any() -> None:
    assert Compiled(torch.sin, "inductor").inductor_settings() == {}
    assert Compiled(torch.sin, "inductor", options={"guard_filter_fn": any}).inductor_settings() == {}
    assert Compiled(torch.sin, "eager", mode="max-autotune").inductor_settings() == {}, "another backend has none"
    with pytest.raises((AttributeError, RuntimeError), match="no_such_thing"):
        Compiled(torch.sin, "inductor", options={"no_such_thing": 1}).inductor_settings()
    with pytest.raises(RuntimeError, match="max_autotune"):
        Compiled(torch.sin, "inductor", options={"max_autotune": "yes"}).inductor_settings()


def neg(x: torch.Tensor) -> torch.Tensor:
    return -x


def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


class Doubling(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def test_what_is_not_compiled_has_the_defaults_of_torch() -> None:
    model = Doubling()
    for fn in (neg, model, model.forward):
        record = settings_of_compiled(fn)
        assert (record.fn, record.backend, record.dynamic) == (fn, "inductor", None)
        assert (record.mode, record.options, record.fullgraph) == (None, None, False)


@pytest.mark.parametrize("target", [neg, Doubling()], ids=["function", "module"])
def test_what_a_function_was_compiled_with(target: Any) -> None:
    record = settings_of_compiled(torch.compile(target, dynamic=True, fullgraph=True))
    assert (record.fn, record.backend, record.dynamic, record.fullgraph) == (target, "inductor", True, True)
    assert record.inductor_settings() == {}
    record = settings_of_compiled(torch.compile(target, dynamic=False, options={"max_autotune": True}))
    assert (record.dynamic, record.fullgraph, record.inductor_settings()) == (False, False, {"max_autotune": True})
    record = settings_of_compiled(torch.compile(target, mode="max-autotune-no-cudagraphs"))
    assert record.inductor_settings() == torch._inductor.list_mode_options("max-autotune-no-cudagraphs")
    named = settings_of_compiled(torch.compile(target, backend="aot_eager")).lone_backend()
    assert named in ("aot_eager", torch._dynamo.lookup_backend("aot_eager")), "torch keeps the function only"
    assert settings_of_compiled(torch.compile(target, backend=backend)).lone_backend() is backend
    lone = settings_of_compiled(torch.compile(target, backend=backend, options={"depth": 3})).lone_backend()
    assert torch.compile(target, backend=lone)(torch.ones(1)).numel() == 1
    assert compiled == [{"options": {"depth": 3}}]


def test_threads_of_a_child_that_is_forked_before_a_call_do_not_wait_for_the_turn_of_its_parent() -> None:
    """A thread of its own has not the context of the one that forked, which has the turn and is not in the child."""
    outcomes: list[Outcome] = []
    x = torch.ones(2)

    def in_a_thread() -> list[list[float]]:
        got: list[list[float]] = []

        def work() -> None:
            got.append(program(x).tolist())
            got.append(torch.compile(lambda x: x - 1, backend=backend)(x).tolist())

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return [*got, [len(compiled)]]

    with standing_in(lambda *_: outcomes.append(isolated(in_a_thread, timeout_s=60))):
        program = torch.compile(lambda x: x + 1, backend="eager")
        assert program(x).tolist() == [2, 2]
        (outcome,) = outcomes
        assert not outcome.died, outcome.end
        assert outcome.value == [[2, 2], [0, 0], [1]], "compiled, and looked at by nobody"
        assert program(x).tolist() == [2, 2] and len(outcomes) == 2, "here it is looked at as ever"


def test_while_a_call_is_looked_at_those_of_other_threads_run_uncompiled() -> None:
    """Of the same function; one of another function waits for its turn."""
    looked: list[str] = []
    x, looking, others = torch.ones(2), threading.Event(), list[Any]()

    def before(record: Compiled, args: Any, kwargs: Any) -> None:
        looked.append(record.fn.__name__)
        if len(looked) == 1:
            record.busy = True
            looking.set()
            beside.start()
            beside.join(60)
            assert record.beside == 2 and not beside.is_alive()
            record.busy = False

    def call_twice() -> None:
        assert looking.wait(60)
        others.extend(program(x).tolist() for _ in range(2))

    beside = threading.Thread(target=call_twice)
    with standing_in(before):
        program, second = torch.compile(neg, backend=backend), torch.compile(twice, backend=backend)
        assert program(x).tolist() == [-1, -1] and others == [[-1, -1]] * 2
        waiting = threading.Thread(target=lambda: others.append(second(x).tolist()))
        waiting.start()
        waiting.join(60)
    assert looked == ["neg", "twice"] and others[2] == [2, 2]


def test_in_a_process_that_the_program_forks_nothing_is_looked_at() -> None:
    looked: list[int] = []
    with standing_in(lambda *_: looked.append(os.getpid())) as calls:
        program = torch.compile(neg, backend="eager")
        assert calls.elsewhere[0] == 0
        if (child := os.fork()) == 0:
            os._exit(program(torch.ones(1)).item() != -1 or bool(looked))
        assert os.waitpid(child, 0)[1] == 0
        assert calls.elsewhere[0] == 1
        program(torch.ones(1))
    assert looked == [os.getpid()]
