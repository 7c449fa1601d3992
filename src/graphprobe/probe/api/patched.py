"""Sees each call of torch's API, also past torch's function modes: custom autograd functions, collectives.

Functions are replaced while a dump is open. A reference to a collective that the program took before is not seen.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from graphprobe.internals.bus import Patch, PatchSet
from graphprobe.internals.importhook import ImportHook
from graphprobe.internals.operators.api_calls import FunctionApply
from graphprobe.internals.operators.autograd_edges import unseen
from graphprobe.probe.api.call import OpenCall
from graphprobe.probe.api.plan import info_of
from graphprobe.probe.api.session import ApiSession

COLLECTIVES = (
    "all_reduce all_gather all_gather_into_tensor all_to_all all_to_all_single broadcast gather irecv isend recv "
    "reduce reduce_scatter reduce_scatter_tensor scatter send"
).split()
_DISTRIBUTED = ("torch.distributed", "torch.distributed.distributed_c10d")


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
