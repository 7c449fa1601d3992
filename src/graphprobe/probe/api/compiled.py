"""Compiled code inside an eager program: one record of it as a whole; its inside is for the graph dump."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from graphprobe.internals.dynamo.region_graphs import OUTPUT_GRAPH, RegionGraphs, autocasts, reduced_precisions
from graphprobe.internals.importhook import ImportHook
from graphprobe.internals.operators.api_calls import (
    UNTOLD,
    CompiledRegions,
    is_compiled_module,
    original_of,
    put_back,
    take_out,
)
from graphprobe.internals.operators.autograd_edges import unseen
from graphprobe.probe.api.call import OpenCall
from graphprobe.probe.api.hooks import ModuleWatch
from graphprobe.probe.api.patched import ApiMode
from graphprobe.probe.api.session import ApiSession
from graphprobe.store.calls import COMPILED, CompiledRegion, WrittenSlot

_EVAL_FRAME = "torch._dynamo.eval_frame"

OTHER_THREADS = (
    "hooks of modules are the process's, and are out while a thread runs compiled code: "
    "runs of modules in other threads have no record meanwhile"
)
NO_RESULT = "this torch does not tell what compiled code returns"


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
