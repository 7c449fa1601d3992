"""Watches by torch's public global hooks: which modules run, and the steps of optimizers; a record of each on request.

The record of a module has its parameters and buffers; that of a step has hyperparameters and gradients before it,
parameters after it, and on request the optimizer's state.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from graphprobe.internals.dynamo.compile_facts import frames_from
from graphprobe.internals.operators.api_calls import (
    global_hooks,
    is_compiled_module,
    keywords_of_call,
    original_of,
    own_buffers,
    own_parameters,
    put_back,
    take_out,
)
from graphprobe.internals.operators.autograd_edges import uncompiled, unseen
from graphprobe.probe.api.call import OpenCall
from graphprobe.probe.api.session import ApiSession
from graphprobe.probe.dump.tensors import has_tensor, scalar_of

IMPLEMENTATION = frozenset(("foreach", "fused", "capturable", "differentiable"))
"""Options of torch's optimizers that change how a step is computed, and not what."""


class _Hooks:
    """Hooks that are in torch until `remove`."""

    def __init__(self, session: ApiSession) -> None:
        self._session = session
        self._handles: list[RemovableHandle] = []

    def remove(self) -> None:
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()


class ModuleWatch(_Hooks):
    """Global forward hooks, torch's public ones. `recorded` says whether runs of modules are records themselves."""

    def __init__(self, session: ApiSession, *, recorded: bool) -> None:
        super().__init__(session)
        self._recorded = recorded
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


class _Step(NamedTuple):
    """A step that runs. `place`: of the mode, where it was taken out; `frame`: of what calls the hooks."""

    optimizer: Optimizer
    call: OpenCall | None
    hides: bool
    place: int | None
    frame: FrameType


class _Names(NamedTuple):
    """Of a parameter, and of its slots."""

    name: str
    before: str
    grad: str
    after: str


class _Steps(threading.local):
    """Those of one thread, outermost first."""

    def __init__(self) -> None:
        self.open: list[_Step] = []


class OptimizerWatch(_Hooks):
    """torch's public global hooks of optimizers. What runs inside a step is no call but with `optimizer="calls"`."""

    def __init__(self, session: ApiSession, mode: object) -> None:
        super().__init__(session)
        self._own_mode = mode
        self._mode = session.plan.optimizer
        self._steps = _Steps()
        self._names: dict[str, _Names] = {}

    def install(self) -> None:
        """Watch every optimizer of the process."""
        self._handles = [register_optimizer_step_pre_hook(self._before), register_optimizer_step_post_hook(self._after)]
        self._session.recover = self._recover

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        session = self._session
        if session.state.off:
            self._recover()
        session.begin_due_step()
        if not session.on:
            return None
        call = None
        try:
            if not session.state.off and self._mode != "off":
                with unseen():
                    call = self._begin(optimizer)
        except Exception as error:
            session.fail("optimizers", error)
        hides = self._mode != "calls"
        place = self._hide() if hides else None
        self._steps.open.append(_Step(optimizer, call, hides, place, sys._getframe(1)))
        if hides and len(args) > 1 and callable(args[1]):  # the optimizer itself comes first
            return (args[0], self._watched(args[1]), *args[2:]), kwargs
        if hides and callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": self._watched(kwargs["closure"])}
        return None

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        session = self._session
        step = None
        while self._steps.open:
            step = self._close_last()
            if step.optimizer is optimizer:
                break
        try:
            # Fused and foreign steps may write where no version counter sees it.
            session.values.forget_all()
            if step is not None and step.call is not None and session.on:
                with unseen():
                    self._end(step.call, optimizer)
        except Exception as error:
            session.fail("optimizers", error)
        session.optimizer_stepped()

    def _recover(self) -> None:
        """Close steps that an exception has ended: torch does not tell of those."""
        while self._steps.open:
            own = self._steps.open[-1].frame
            if any(frame is own for frame in frames_from(sys._getframe(1))):
                return
            step = self._close_last()
            self._session.values.forget_all()
            if step.call is not None:
                step.call.notes.append("raised")
                self._session.submit(step.call.head, "forward", step.call.slots, tuple(step.call.notes))

    def _close_last(self) -> _Step:
        step = self._steps.open.pop()
        if step.hides:
            self._show(step.place)
        return step

    def _hide(self) -> int | None:
        self._session.state.off += 1
        return take_out(self._own_mode)

    def _show(self, place: int | None) -> None:
        self._session.state.off -= 1
        if place is not None and not self._session.closed:
            put_back(self._own_mode, place)

    def _begin(self, optimizer: Optimizer) -> OpenCall | None:
        session = self._session
        api = type(optimizer).__name__
        call = session.begin("optimizer", api, f"Optimizer.{api}", (api, "optimizer"), sys._getframe(3))
        if call is None:
            return None
        call.take_inputs((), dict(_hyperparameters(optimizer)))
        for names, parameter in self._parameters(optimizer):
            call.slots.append(session.values.slot(names.before, "parameter", parameter))
            grad = parameter.grad
            if grad is not None:
                call.slots.append(session.values.slot(names.grad, "grad_parameter", grad))
        return call

    def _end(self, call: OpenCall, optimizer: Optimizer) -> None:
        session = self._session
        for names, parameter in self._parameters(optimizer):
            call.slots.append(session.values.slot(names.after, "output", parameter))
            for key, value in optimizer.state.get(parameter, {}).items() if self._mode == "state" else ():
                if isinstance(value, torch.Tensor):
                    call.slots.append(session.values.slot(f"output.state.{names.name}.{key}", "output", value))
        session.submit(call.head, "forward", call.slots, tuple(call.notes))

    def _parameters(self, optimizer: Optimizer) -> Iterator[tuple[_Names, torch.Tensor]]:
        """With the names that the model gives, else those of the optimizer, else group and place."""
        for number, group in enumerate(optimizer.param_groups):
            own = group.get("param_names") or ()
            for place, parameter in enumerate(group["params"]):
                name = self._session.paths.parameter(parameter)
                if not name and place < len(own):
                    name = str(own[place])
                name = name or f"group{number}.{place}"
                names = self._names.get(name)
                if names is None:
                    names = self._names[name] = _Names(
                        name, f"parameter.{name}", f"grad_parameter.{name}", f"output.{name}"
                    )
                yield names, parameter

    def _watched(self, closure: Any) -> Any:
        def run() -> Any:
            place = self._steps.open[-1].place if self._steps.open else None
            self._show(place)
            try:
                return closure()
            finally:
                self._hide()

        return run


def _hyperparameters(optimizer: Optimizer) -> Iterator[tuple[str, Any]]:
    """By name; where groups of parameters differ, all values that there are, in the order of the groups."""
    for name in getattr(optimizer, "defaults", ()):  # what wraps an optimizer may have none
        values = [group[name] for group in optimizer.param_groups if name in group]
        if not has_tensor(values):
            values = list({scalar_of(value).text: value for value in values}.values())
        if values and name not in IMPLEMENTATION:
            yield name, values[0] if len(values) == 1 else values
