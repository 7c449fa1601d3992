"""Debug backends by name: what each proves, where it stands on the ladder, and the function itself."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch

from graphprobe.backends.calling import BackendFunction
from graphprobe.backends.ladder import LADDER
from graphprobe.errors import UsageError
from graphprobe.internals.dynamo.torch_backends import lookup

PREFIX = "graphprobe:"
"""Before a name, in `torch.compile(backend=…)`, when graphprobe is installed."""


class Backend(msgspec.Struct, frozen=True):
    """A debug backend.

    Attributes:
        name: the name torch's own counterpart has, where there is one.
        proves: what is shown by a program that is right, or raises nothing, under it.
        target: `module:name` of the function.
        options: keyword options and what they mean.
        factory: `module:name` of what makes a configured backend, where options are not simply passed on.
    """

    name: str
    proves: str
    target: str
    options: dict[str, str] = {}
    factory: str | None = None

    @property
    def rung(self) -> int | None:
        """Its place on the ladder, from 0; None when it is beside it."""
        return next((index for index, rung in enumerate(LADDER) if rung.backend == self.name), None)

    @property
    def next_rung(self) -> str | None:
        """The rung to try when this one passes; None at the top and beside the ladder."""
        above = LADDER[self.rung + 1 :] if self.rung is not None else ()
        return next((rung.backend for rung in above if not rung.side), None)

    @property
    def function(self) -> BackendFunction:
        """The backend itself: `(gm, example_inputs, **options) -> callable`. The same object every time."""
        found: BackendFunction = _load(self.target)
        return found


class Configured:
    """A backend with options given in advance; those given at the call win."""

    def __init__(self, name: str, function: BackendFunction, options: dict[str, Any]) -> None:
        self.__name__ = name
        self._function = function
        self._options = options

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **given: Any) -> Any:
        return self._function(gm, example_inputs, **{**self._options, **given})

    def __repr__(self) -> str:
        listed = "".join(f", {name}={value!r}" for name, value in self._options.items())
        return f"graphprobe.backends.get({self.__name__!r}{listed})"


def names() -> list[str]:
    """The names of all debug backends, in the order of the documentation."""
    return list(_known())


def describe(name: str) -> Backend:
    """What is known of one backend; `graphprobe:` before the name is allowed.

    Raises:
        UsageError: there is no backend of that name; the nearest names are in the hint.
    """
    known = _known()
    bare = str(name).removeprefix(PREFIX)
    if bare not in known:
        near = difflib.get_close_matches(bare, known, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}"
        raise UsageError(f"graphprobe has no backend named {name!r}", hint=hint)
    return known[bare]


def get(name: str, **options: Any) -> Callable[..., Any]:
    """A debug backend for `torch.compile(backend=…)`.

    Args:
        name: one of `names()`.
        **options: as `describe(name).options` lists them.

    Returns:
        Without options always the same object, so that a second `torch.compile` with it finds the first one's code.

    Raises:
        UsageError: there is no such backend or no such option, or an option has a value that it cannot take.
    """
    backend = describe(name)
    for option in options:
        if option not in backend.options:
            near = difflib.get_close_matches(option, backend.options, n=1, cutoff=0.4)
            has = f"it takes {', '.join(backend.options)}" if backend.options else "it takes none"
            raise UsageError(
                f"backend {backend.name} has no option {option!r}", hint=f"did you mean {near[0]}?" if near else has
            )
    if not options:
        return backend.function
    if backend.factory is not None:
        made: Callable[..., Any] = _load(backend.factory)(**options)
        return made
    return Configured(backend.name, backend.function, options)


def resolve(inner: str | Callable[..., Any]) -> Callable[..., Any]:
    """A backend to put inside another: ours by name, torch's by name, or the callable itself.

    Raises:
        UsageError: nobody has a backend of that name, or `inner` is neither name nor callable.
    """
    if callable(inner):
        return inner
    ours = str(inner).removeprefix(PREFIX) in _known()
    if not ours and inner in torch.compiler.list_backends(exclude_tags=()):
        return lookup(inner)
    return get(inner)


def _load(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def _known() -> dict[str, Backend]:
    from graphprobe.backends.table import BACKENDS  # the table is made of the records above

    return BACKENDS
