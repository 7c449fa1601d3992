"""The private names needed to record API calls: what a call is, and where compiled code begins and ends.

`torch.autograd.Function.apply` is a function of Python to torch 2.14. A program may have taken `MyFunction.apply` long
before, bound to this one function: replacing an attribute does not reach it; replacing the code of the function does,
and keeps its identity. From 2.15 on it is a method in C, whose attribute is replaced; what was taken before goes past
it.
"""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch

from graphprobe.internals.bus import Patch, PatchSet
from graphprobe.internals.dynamo.compile_facts import frames_from
from graphprobe.internals.names import require

_EVAL_FRAME = "torch._dynamo.eval_frame"
_MODULE = "torch.nn.modules.module"

UNTOLD = object()
"""In place of a result: the wrapper of a compiled function keeps none in torch 2.11."""

_PURPOSE = "recording calls of torch's API"
_depth: Callable[[], int] = require("torch._C", "_len_torch_function_stack", purpose=_PURPOSE)
_mode_at: Callable[[int], object] = require("torch._C", "_get_function_stack_at", purpose=_PURPOSE)
_push_mode: Callable[[object], None] = require("torch.overrides", "_push_mode", purpose=_PURPOSE)
_pop_mode: Callable[[], object] = require("torch.overrides", "_pop_mode", purpose=_PURPOSE)

Around = Callable[[Callable[..., Any], type, tuple[Any, ...], dict[str, Any]], Any]
"""`around(original, cls, args, kwargs)` calls `original(cls, *args, **kwargs)` and returns what that returned."""

_PLACE = "graphprobe"
_APPLY = "torch.autograd.function:Function.apply"


def own_parameters(module: torch.nn.Module) -> dict[str, torch.nn.Parameter | None]:
    """Parameters of a module itself, by name; without what the generator of the public method costs."""
    return module._parameters


def own_buffers(module: torch.nn.Module) -> dict[str, torch.Tensor | None]:
    """Buffers of a module itself, by name."""
    return module._buffers


def keywords_of_call(module: torch.nn.Module) -> dict[str, Any]:
    """Keyword arguments of the call of `module` that runs a global forward pre-hook, which is not given them.

    To be called from the hook. Empty where this torch calls its hooks in another way.
    """
    for frame in itertools.islice(frames_from(sys._getframe(2)), 3):
        local = frame.f_locals
        if local.get("self") is module and isinstance(local.get("kwargs"), dict):
            return dict(local["kwargs"])
    return {}


def running_modules() -> Iterator[Any]:
    """The modules whose calls are on this thread's stack, the innermost first."""
    frames = frames_from(sys._getframe(1))
    return (frame.f_locals.get("self") for frame in frames if frame.f_code.co_name == "_call_impl")


def is_compiled_module(module: torch.nn.Module) -> bool:
    """Whether it is what `torch.compile(module)` returned."""
    optimized = getattr(sys.modules.get(_EVAL_FRAME), "OptimizedModule", None)
    return optimized is not None and isinstance(module, optimized)


def original_of(module: torch.nn.Module) -> torch.nn.Module:
    """The module that was compiled."""
    found = vars(module).get("_modules", {}).get("_orig_mod", module)
    return found if isinstance(found, torch.nn.Module) else module


class CompiledRegions:
    """Says when a function that `torch.compile` made begins and ends, so that nobody watches while it runs.

    Dynamo guards on modes and global hooks, and would compile anew, or trace into them.
    """

    def __init__(self, enter: Callable[[Any, tuple[Any, ...], dict[str, Any]], Callable[[Any], None] | None]) -> None:
        """`enter` gets the function and its arguments; what it returns is called at the end with the result, with None
        when the function raised, or with `UNTOLD`."""
        self._enter = enter
        self._patches = PatchSet()
        self.watching = False

    def install(self) -> bool:
        """Patch Dynamo, if the program has loaded it; whether that worked."""
        module = sys.modules.get(_EVAL_FRAME)
        if self.watching or module is None or not hasattr(module, "OptimizedModule"):
            return self.watching
        patch = Patch("api_regions", _EVAL_FRAME, "_callback_from_stance", self._make_begin)
        self.watching = self._patches.apply(module, patch)
        return self.watching

    def hide_hooks(self, others: Callable[[], bool]) -> None:
        """Keep `torch.compile(module)` from warning of our own global hooks; `others`: whether there are more."""

        def make(original: Callable[[], bool]) -> Callable[[], bool]:
            def _has_any_global_hook() -> bool:
                return original() and others()

            return _has_any_global_hook

        self._patches.apply(torch.nn.modules.module, Patch("api_regions", _MODULE, "_has_any_global_hook", make))

    def remove(self) -> None:
        """Take the patches out."""
        self._patches.undo()
        self.watching = False

    def _make_begin(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def _callback_from_stance(callback: Any) -> Any:
            local = sys._getframe(1).f_locals
            cleanups = local.get("cleanups")
            if isinstance(cleanups, list) and callback is not None:
                frame = sys._getframe(1)
                end = self._enter(local.get("fn"), local.get("args", ()), local.get("kwargs", {}))
                if end is not None:
                    cleanups.append(_Leaving(end, frame))
            return original(callback)

        return _callback_from_stance


class _Leaving:
    """Called by the wrapper of a compiled function as the last of its clean-ups."""

    __slots__ = ("_end", "_frame")

    def __init__(self, end: Callable[[Any], None], frame: FrameType) -> None:
        self._end = end
        self._frame: FrameType | None = frame

    def __call__(self) -> None:
        frame, self._frame = self._frame, None
        told = frame is not None and "result" in frame.f_code.co_varnames
        self._end(frame.f_locals.get("result") if frame is not None and told else UNTOLD)


class BackwardRuns:
    """Keeps a mode on while a backward runs: `Tensor.backward` is a call itself, and inside it its mode is off."""

    def __init__(self, mode: object, wanted: Callable[[], bool]) -> None:
        self._mode = mode
        self._wanted = wanted
        self._patches = PatchSet()

    def install(self) -> bool:
        """Patch what starts the autograd engine; False where this torch has it elsewhere."""
        address = ("torch.autograd", "_engine_run_backward")
        return self._patches.apply(torch.autograd, Patch("api_calls", *address, self._make))

    def remove(self) -> None:
        """Take the patch out."""
        self._patches.undo()

    def _make(self, original: Callable[..., Any]) -> Callable[..., Any]:
        mode = self._mode

        def _engine_run_backward(*args: Any, **kwargs: Any) -> Any:
            if not self._wanted() or is_in(mode):
                return original(*args, **kwargs)
            _push_mode(mode)
            try:
                return original(*args, **kwargs)
            finally:
                take_out(mode)

        return _engine_run_backward


def global_hooks() -> int:
    """How many global hooks there are on modules, of whatever kind."""
    module = torch.nn.modules.module
    backward: tuple[Any, ...] = (module._global_backward_pre_hooks, module._global_backward_hooks)
    forward: tuple[Any, ...] = (module._global_forward_pre_hooks, module._global_forward_hooks)
    return sum(map(len, (*backward, *forward, module._global_forward_hooks_always_called)))


def take_out(mode: object) -> int | None:
    """Take a TorchFunctionMode out of this thread's stack; its place, None if it was not there."""
    stack = _emptied()
    place = next((number for number, one in enumerate(stack) if one is mode), None)
    for number, one in enumerate(stack):
        if number != place:
            _push_mode(one)
    return place


def put_back(mode: object, place: int) -> None:
    """Undo `take_out`."""
    stack = _emptied()
    stack.insert(min(place, len(stack)), mode)
    for one in stack:
        _push_mode(one)


def is_in(mode: object) -> bool:
    """Whether a TorchFunctionMode is in this thread's stack."""
    return any(_mode_at(number) is mode for number in range(_depth()))


def _emptied() -> list[object]:
    stack = []
    while _depth():
        stack.append(_pop_mode())
    return stack[::-1]


class FunctionApply:
    """Puts `around` in and takes it out."""

    def __init__(self, around: Around) -> None:
        self._around = around
        self._undo: Callable[[], bool] | None = None

    def install(self) -> bool:
        """Stand before it; False where this torch has it in another form."""
        if self._undo is None:
            found = vars(torch.autograd.Function).get("apply")
            function = getattr(found, "__func__", None)
            if isinstance(found, types.ClassMethodDescriptorType):
                self._undo = self._replaced(found)
            elif isinstance(function, types.FunctionType):
                self._undo = self._with_other_code(function)
        return self._undo is not None

    def remove(self) -> list[str]:
        """Restore it; its name where somebody else has replaced it since, who is then left alone."""
        undo, self._undo = self._undo, None
        return [] if undo is None or undo() else [_APPLY]

    def _replaced(self, method: types.ClassMethodDescriptorType) -> Callable[[], bool]:
        around = self._around

        def original(cls: type, *args: Any, **kwargs: Any) -> Any:
            return method.__get__(None, cls)(*args, **kwargs)

        def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
            return around(original, cls, args, kwargs)

        in_its_place: object = classmethod(apply)
        setattr(torch.autograd.Function, "apply", in_its_place)  # noqa: B010 - mypy minds an assignment

        def undo() -> bool:
            if vars(torch.autograd.Function).get("apply") is not in_its_place:
                return False
            setattr(torch.autograd.Function, "apply", method)  # noqa: B010 - mypy minds an assignment
            return True

        return undo

    def _with_other_code(self, function: types.FunctionType) -> Callable[[], bool] | None:
        own, code, around = _template(torch.autograd.Function), function.__code__, self._around
        if code.co_freevars != own.co_freevars:
            return None
        original = types.FunctionType(
            code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )

        def call(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return around(original, cls, args, kwargs)

        # A constant, not a global name, which would be gone for another thread that is just in there.
        own = own.replace(co_consts=tuple(call if one == _PLACE else one for one in own.co_consts))
        function.__code__ = own

        def undo() -> bool:
            if function.__code__ is not own:
                return False
            function.__code__ = code
            return True

        return undo


def _template(owner: type) -> types.CodeType:
    """Code with the free variable that a function with `super()` has; the constant `_PLACE` is to be replaced."""
    __class__ = owner

    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        __class__  # noqa: B018
        around: Any = "graphprobe"
        return around(cls, args, kwargs)

    return apply.__code__.replace(co_filename=torch.autograd.function.__file__ or "", co_qualname="Function.apply")
