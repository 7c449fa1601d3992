"""The mode that sees every call of torch's API in its thread, and in those that run a backward for it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from graphprobe.probe.api.call import OpenCall
from graphprobe.probe.api.names import FunctionInfo, info_of
from graphprobe.probe.api.session import ApiSession


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
        call = self._begin(info, args, kwargs)
        if call is None:
            return func(*args, **kwargs)
        try:
            result = func(*args, **kwargs)
        except BaseException as error:
            self._raised(call, error)
            raise
        self._end(info, call, result)
        return result

    def _begin(self, info: FunctionInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpenCall | None:
        session = self._session
        try:
            modules = session.state.modules
            call = session.begin(
                "api",
                info.api,
                info.label,
                info.names,
                sys._getframe(2),
                module=modules[-1][1] if modules else "",
                changes=info.changes or "out" in kwargs,
            )
            if call is not None:
                call.take_inputs(args, kwargs)
                if info.doubtful:
                    call.doubt_all()
            return call
        except Exception as error:
            session.fail("calls", error)
            return None

    def _end(self, info: FunctionInfo, call: OpenCall, result: Any) -> None:
        try:
            if call.take_results(result) or info.reads or info.changes:
                call.close()
        except Exception as error:
            self._session.fail("calls", error)

    def _raised(self, call: OpenCall, error: BaseException) -> None:
        try:
            call.raised(error)
        except Exception as own:
            self._session.fail("calls", own)
