"""Runs of modules: which is running, and on request a record of each with its parameters and buffers."""

from __future__ import annotations

import sys
import threading
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from graphprobe.internals.operators.api_calls import (
    global_hooks,
    is_compiled_module,
    keywords_of_call,
    original_of,
    own_buffers,
    own_parameters,
)
from graphprobe.internals.operators.autograd_edges import uncompiled, unseen
from graphprobe.probe.api.call import OpenCall
from graphprobe.probe.api.session import ApiSession


class ModuleWatch:
    """Global forward hooks, torch's public ones. `recorded` says whether runs of modules are records themselves."""

    def __init__(self, session: ApiSession, *, recorded: bool) -> None:
        self._session = session
        self._recorded = recorded
        self._handles: list[RemovableHandle] = []
        self._lock = threading.Lock()
        self._asleep = 0

    def install(self) -> None:
        """Watch every module of the process, unless asleep."""
        if self._handles or self._asleep:
            return
        module = torch.nn.modules.module
        self._handles = [
            module.register_module_forward_pre_hook(self._before),
            module.register_module_forward_hook(self._after, always_call=True),
        ]

    def remove(self) -> None:
        """Take the hooks out."""
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()

    def sleep(self) -> None:
        """Take the hooks out until `wake`; until the last one, where there are several reasons."""
        with self._lock:
            self._asleep += 1
            self._session.hidden = True
            self.remove()

    def wake(self) -> None:
        """Watch again."""
        with self._lock:
            self._asleep -= 1
            if not self._asleep:
                self.install()
                self._session.hides, self._session.hidden = self._session.hides + 1, False

    def only_ours(self) -> bool:
        """Whether nobody else has global hooks on modules."""
        return global_hooks() <= (3 if self._handles else 0)  # always_call has a list of its own

    @uncompiled
    def _before(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        session = self._session
        if not session.on and not session.is_due():
            return
        if session.state.off:
            session.recover()
            if session.state.off:
                return
        try:
            with unseen():
                self._begin(module, args)
        except Exception as error:
            session.fail("modules", error)

    def _begin(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        session = self._session
        modules = session.modules
        session.values.held.learn(module, below=not modules)
        compiled = is_compiled_module(module)  # recorded where it runs, see `compiled`
        named = original_of(module) if compiled else module
        path = session.paths.module(named, modules[-1][1] if modules else None)
        call = None
        if self._recorded and not compiled:
            call = self.begin_call(module, path, args, keywords_of_call(module), sys._getframe(2))
        modules.append((module, path, call))

    def begin_call(
        self, module: torch.nn.Module, path: str, args: Any, kwargs: dict[str, Any], frame: Any, *, below: bool = False
    ) -> OpenCall | None:
        """The record of a run, with inputs, parameters and buffers, `below` also those of the modules inside; None
        where it is not wanted."""
        api = type(module).__name__
        label = f"Module.{path}.{api}" if path else f"Module.{api}"
        call = self._session.begin("module", api, label, (api, path, f"Module.{path}"), frame, module=path)
        if call is not None:
            call.take_inputs(args, kwargs)
            parameters: Any = module.named_parameters() if below else own_parameters(module).items()
            for name, parameter in parameters:
                if parameter is not None:
                    call.add_tensor(f"parameter.{name}", "parameter", parameter)
            buffers: Any = module.named_buffers() if below else own_buffers(module).items()
            for name, buffer in buffers:
                if buffer is not None:
                    call.add_tensor(f"buffer.{name}", "buffer", buffer)
                    call.doubt(f"buffer.{name}")
        return call

    @uncompiled
    def _after(self, module: torch.nn.Module, args: Any, result: Any) -> None:
        session = self._session
        modules = session.modules
        if not modules or session.state.off:
            return
        try:
            with unseen():
                self._end(module, result)
        except Exception as error:
            session.fail("modules", error)

    def _end(self, module: torch.nn.Module, result: Any) -> None:
        session = self._session
        modules = session.modules
        if not any(one is module for one, _, _ in modules):  # it began while the hooks were out
            return
        call = None
        while modules:
            one, _, call = modules.pop()
            if one is module:
                break
        if call is None or not session.on:
            return
        error = sys.exc_info()[1]
        if result is None and error is not None:
            call.raised(error)
        else:
            call.take_results(result)
            call.close()
