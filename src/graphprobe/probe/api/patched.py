"""Sees each call of torch's API, also past torch's function modes: own autograd functions, collectives, compiled code.

Functions are replaced while a dump is open. A reference to a collective that the program took before is not seen.
Compiled code has one record as a whole; its inside is for the graph dump.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode

from graphprobe.internals.bus import Patch, PatchSet
from graphprobe.internals.dynamo.region_graphs import OUTPUT_GRAPH, RegionGraphs, autocasts, reduced_precisions
from graphprobe.internals.importhook import ImportHook
from graphprobe.internals.operators.api_calls import (
    UNTOLD,
    CompiledRegions,
    FunctionApply,
    is_compiled_module,
    original_of,
    put_back,
    take_out,
)
from graphprobe.internals.operators.autograd_edges import unseen
from graphprobe.probe.api.call import OpenCall
from graphprobe.probe.api.hooks import ModuleWatch
from graphprobe.probe.api.plan import info_of
from graphprobe.probe.api.session import ApiSession
from graphprobe.store.calls import COMPILED, CompiledRegion, WrittenSlot

COLLECTIVES = (
    "all_reduce all_gather all_gather_into_tensor all_to_all all_to_all_single broadcast gather irecv isend recv "
    "reduce reduce_scatter reduce_scatter_tensor scatter send"
).split()
_DISTRIBUTED = ("torch.distributed", "torch.distributed.distributed_c10d")
_EVAL_FRAME = "torch._dynamo.eval_frame"

OTHER_THREADS = (
    "hooks of modules are the process's, and are out while a thread runs compiled code: "
    "runs of modules in other threads have no record meanwhile"
)
NO_RESULT = "this torch does not tell what compiled code returns"


class PatchedCalls:
    """Puts the replacements in and takes them out."""

    def __init__(self, session: ApiSession) -> None:
        self._session = session
        self._patches = PatchSet()
        self._functions = FunctionApply(self._function)
        self._hook: ImportHook | None = None

    def install(self) -> None:
        """Replace the names; those of modules that are not imported yet, once they are."""
        if not self._functions.install():
            self._session.writer.note("this torch hides calls of custom autograd functions; what they call is there")
        self._hook = ImportHook(dict.fromkeys(_DISTRIBUTED, self._collectives))
        self._hook.install()

    def remove(self) -> list[str]:
        """Restore the names; returns those that somebody else has replaced since."""
        if self._hook is not None:
            self._hook.remove()
        return self._functions.remove() + self._patches.undo()

    def _collectives(self, module: ModuleType) -> None:
        for name in COLLECTIVES:
            if callable(getattr(module, name, None)):
                self._patches.apply(module, Patch("api_calls", module.__name__, name, self._collective))

    def _function(self, original: Callable[..., Any], cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        session = self._session
        if not _watches(session):
            return original(cls, *args, **kwargs)
        api = f"{cls.__module__}.{cls.__qualname__}"
        with unseen():
            call = _begin(session, api, cls.__name__, (api, cls.__name__, api.rpartition(".")[2]), args, kwargs)
        if call is None:
            return original(cls, *args, **kwargs)
        return _run(session, call, _end, original, (cls, *args), kwargs)

    def _collective(self, original: Callable[..., Any]) -> Callable[..., Any]:
        session = self._session

        @functools.wraps(original)
        def collective(*args: Any, **kwargs: Any) -> Any:
            if not _watches(session):
                return original(*args, **kwargs)
            label = f"distributed.{original.__name__}"
            with unseen():
                names = (f"torch.{label}", label, original.__name__)
                call = _begin(session, names[0], label, names, args, kwargs, changes=True)
            session.state.off += 1  # they call each other, and torch
            try:
                if call is None:
                    return original(*args, **kwargs)
                return _run(session, call, _end_collective, original, args, kwargs)
            finally:
                session.state.off -= 1
                session.values.forget_all()

        return collective


def _watches(session: ApiSession) -> bool:
    return (session.on or session.is_due()) and not session.state.off and not torch.compiler.is_compiling()


def _begin(
    session: ApiSession,
    api: str,
    label: str,
    names: tuple[str, ...],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    changes: bool = False,
) -> OpenCall | None:
    """The call of the caller's caller."""
    try:
        modules = session.modules
        path = modules[-1][1] if modules else ""
        call = session.begin("api", api, label, names, sys._getframe(2), module=path, changes=changes)
        if call is not None:
            call.take_inputs(args, kwargs)
        return call
    except Exception as error:
        session.fail("calls", error)
        return None


def _run(
    session: ApiSession,
    call: OpenCall,
    end: Callable[[OpenCall, Any], None],
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run what a call stands for; `end` takes what it returned."""
    try:
        result = func(*args, **kwargs)
    except BaseException as error:
        try:
            call.raised(error)
        except Exception as own:
            session.fail("calls", own)
        raise
    try:
        end(call, result)
    except Exception as error:
        session.fail("calls", error)
    return result


def _end(call: OpenCall, result: Any) -> None:
    with unseen():
        call.take_results(result)
        call.close()


def _end_collective(call: OpenCall, result: Any) -> None:
    values = call.session.values
    with unseen():
        values.forget_all()
        if result is not None and hasattr(result, "wait"):  # it has only begun: there are no results yet
            for tensor in call.tensors():
                values.unwatch(tensor)
            call.notes.append("asynchronous: values after the call are not recorded")
        else:  # its tensors are its results, too
            call.take_all_again()
        call.close()


class ApiMode(TorchFunctionMode):
    """Records calls. What a function of torch calls inside itself is part of its call, and no record of its own."""

    def __init__(self, session: ApiSession) -> None:
        super().__init__()
        self._session = session

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        session = self._session
        if not session.on and not session.is_due():
            return func(*args, **kwargs)
        info = info_of(func)
        if info.leaks and args and isinstance(args[0], torch.Tensor):
            session.values.unwatch(args[0])
        if info.skip or session.state.off:
            return func(*args, **kwargs)
        changes = info.changes or "out" in kwargs
        call = _begin(session, info.api, info.label, info.names, args, kwargs, changes=changes)
        if call is None:
            return func(*args, **kwargs)
        if info.doubtful:
            call.doubt_all()
        always = info.reads or info.changes

        def end(call: OpenCall, result: Any) -> None:
            if call.take_results(result) or always:
                call.close()

        return _run(session, call, end, func, args, kwargs)


class TorchWatch(Protocol):
    """What is put into torch and taken out again."""

    def install(self) -> object: ...

    def remove(self) -> object: ...


class CallWatch:
    """Mode and hooks of modules: in torch during steps that are selected, and out of it during others."""

    def __init__(self, mode: ApiMode | None, modules: ModuleWatch) -> None:
        """Both are in; `mode` is None where calls of the API are no records."""
        self._mode, self._modules = mode, modules
        self._place: int | None = None
        self._inside = True

    def set(self, wanted: bool) -> bool:
        """Put them in or take them out, to be called between calls; whether they are in now.

        A mode that is not in the stack of this thread, because one of its calls runs, stays as it is.
        """
        if self._inside and not wanted:
            self._place = take_out(self._mode) if self._mode is not None else 0
            if self._place is not None:
                self._modules.sleep()
                self._inside = False
        elif wanted and not self._inside:
            if self._mode is not None:
                put_back(self._mode, self._place or 0)
            self._modules.wake()
            self._inside = True
        return self._inside


def _generators() -> list[torch.Tensor]:
    """The states of torch's default generators; empty where one cannot be told, while CUDA captures a graph, say."""
    try:
        with unseen():
            cuda: Any = torch.cuda
            devices = range(cuda.device_count()) if cuda.is_initialized() else ()
            return [torch.get_rng_state(), *(torch.cuda.get_rng_state(i) for i in devices)]
    except RuntimeError:
        return []


def _drawn_since(states: list[torch.Tensor]) -> bool:
    now = _generators()
    with unseen():
        return len(now) != len(states) or not all(map(torch.equal, states, now))


class CompiledWatch:
    """Takes everything out before compiled code runs, and puts it back afterwards.

    Dynamo guards on the modes and hooks that there are: left in, they would make it compile again, or trace into them.
    """

    def __init__(self, session: ApiSession, mode: ApiMode, modules: ModuleWatch, others: Sequence[TorchWatch]) -> None:
        """`others`: what else Dynamo would find in torch."""
        self._session = session
        self._mode = mode
        self._modules = modules
        self._others = others
        self._lock = threading.Lock()
        self._threads = 0  # that run compiled code now
        self._regions = CompiledRegions(self._enter)
        self._graphs = RegionGraphs()
        self._hook = ImportHook({_EVAL_FRAME: lambda module: self._install(), OUTPUT_GRAPH: self._graphs.install})

    def install(self) -> None:
        """Begin now, or when the program loads Dynamo."""
        self._regions.hide_hooks(lambda: not self._modules.only_ours())
        self._hook.install()

    def remove(self) -> None:
        self._hook.remove()
        self._graphs.remove()
        self._regions.remove()
        with self._lock:
            pass  # who leaves compiled code in another thread has put all back, or knows that the dump is closed

    def _install(self) -> None:
        if not self._regions.install():
            self._session.writer.note(
                "this torch does not tell when compiled code begins: it may be compiled again while the dump is open"
            )

    def _enter(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[Any], None] | None:
        session, state = self._session, self._session.state
        if state.compiled:
            return None
        call = self._begin(function, args, kwargs) if session.on and not state.off else None
        place = take_out(self._mode)
        self._count(1)
        state.off += 1
        state.compiled = True
        self._graphs.begin(function)
        generators = _generators() if call is not None else []
        casts = autocasts()

        def leave(result: Any) -> None:
            inside = self._graphs.end()
            if call is not None:
                call.compiled = CompiledRegion(
                    autocast=casts,
                    dtypes=tuple(sorted({*inside.dtypes, *reduced_precisions()})),
                    unknown=inside.unknown,
                    unsteady=inside.unsteady,
                    draws=not generators or _drawn_since(generators),
                    operations=inside.operations,
                )
            state.compiled = False
            state.off -= 1
            self._count(-1)
            if place is not None and not session.closed:
                put_back(self._mode, place)
            if call is not None:
                self._end(call, result)

        return leave

    def _count(self, change: int) -> None:
        """A thread enters or leaves compiled code: what is the process's is out as long as any thread is in there."""
        with self._lock:
            before, self._threads = self._threads, self._threads + change
            if self._session.closed:
                return
            if not before:
                if len(self._session.threads) > 1:
                    self._session.writer.note(OTHER_THREADS)
                self._modules.sleep()
                for watch in self._others:
                    watch.remove()
            elif not self._threads:
                self._modules.wake()
                for watch in self._others:
                    watch.install()

    def _begin(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpenCall | None:
        session = self._session
        try:
            with unseen():
                module = self._module(function)
                call = self._begin_call(function, module, args, kwargs)
                if call is not None:
                    call.notes.append(COMPILED)
            return call
        except Exception as error:
            session.fail("compiled code", error)
            return None

    def _module(self, function: Any) -> torch.nn.Module | None:
        """The module that was compiled: by `torch.compile(module)`, whose wrapper runs now, or `module.compile()`."""
        modules = self._session.modules
        if modules and is_compiled_module(modules[-1][0]):
            return original_of(modules[-1][0])
        owner = getattr(function, "__self__", None)
        return owner if isinstance(owner, torch.nn.Module) else None

    def _begin_call(
        self, function: Any, module: torch.nn.Module | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> OpenCall | None:
        session = self._session
        modules = session.modules
        if module is not None:
            path = session.paths.module(module, modules[-1][1] if modules else None)
            return self._modules.begin_call(module, path, args, kwargs, sys._getframe(4), below=True)
        if session.plan.level == "module":
            return None
        name = getattr(function, "__qualname__", type(function).__name__)
        label = f"compiled.{name}"
        path = modules[-1][1] if modules else ""
        call = session.begin("api", label, label, (label, name), sys._getframe(4), module=path)
        if call is not None:
            call.take_inputs(args, kwargs)
        return call

    def _end(self, call: OpenCall, result: Any) -> None:
        try:
            with unseen():
                if result is UNTOLD:
                    call.slots.append(WrittenSlot(name="output.0", role="output", missing=NO_RESULT))
                else:
                    call.take_results(result)
                call.close()
        except Exception as error:
            self._session.fail("compiled code", error)
