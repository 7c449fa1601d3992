"""Stands before `torch.autograd.Function.apply`, also where a program has taken `MyFunction.apply` long before.

Such a reference is bound to the one function `apply` of torch. Replacing an attribute does not reach it; replacing the
code of that function does, and keeps its identity.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

Around = Callable[[Callable[..., Any], type, tuple[Any, ...], dict[str, Any]], Any]
"""`around(original, cls, args, kwargs)` calls `original(cls, *args, **kwargs)` and returns what that returned."""

_NAME = "_graphprobe_apply"


class FunctionApply:
    """Puts `around` in and takes it out."""

    def __init__(self, around: Around) -> None:
        self._around = around
        self._function: Any = None
        self._code: types.CodeType | None = None
        self._own: types.CodeType | None = None

    def install(self) -> bool:
        """Stand before it; False where this torch has it in another form."""
        function = getattr(vars(torch.autograd.Function).get("apply"), "__func__", None)
        if self._code is not None or not isinstance(function, types.FunctionType):
            return self._code is not None
        own = _template(torch.autograd.Function)
        if function.__code__.co_freevars != own.co_freevars or _NAME in function.__globals__:
            return False
        code = function.__code__
        original = types.FunctionType(
            code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        around = self._around
        function.__globals__[_NAME] = lambda cls, args, kwargs: around(original, cls, args, kwargs)
        function.__code__ = own
        self._function, self._code, self._own = function, code, own
        return True

    def remove(self) -> list[str]:
        """Restore it; its name where somebody else has replaced the code since, which is then left alone."""
        function, code, own = self._function, self._code, self._own
        self._function = self._code = self._own = None
        if function is None or code is None:
            return []
        if function.__code__ is not own:
            return ["torch.autograd.function:Function.apply"]
        function.__code__ = code
        del function.__globals__[_NAME]
        return []


def _template(owner: type) -> types.CodeType:
    """Code with the free variable that a function with `super()` has; its global name is that of torch's module."""
    __class__ = owner

    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        __class__  # noqa: B018
        return _graphprobe_apply(cls, args, kwargs)  # type: ignore[name-defined]  # noqa: F821

    return apply.__code__.replace(co_filename=torch.autograd.function.__file__ or "", co_qualname="Function.apply")
