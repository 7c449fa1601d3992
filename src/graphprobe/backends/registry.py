"""Debug backends by name: what each proves, where it stands on the ladder, and the function itself."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from graphprobe.backends.calling import BackendFunction
from graphprobe.backends.table import BACKENDS, DebugBackend, load
from graphprobe.errors import UsageError
from graphprobe.internals.dynamo.torch_backends import lookup

PREFIX = "graphprobe:"
"""Before a name, in `torch.compile(backend=…)`, when graphprobe is installed."""


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
    return list(BACKENDS)


def describe(name: str) -> DebugBackend:
    """What is known of one backend; `graphprobe:` before the name is allowed.

    Raises:
        UsageError: there is no backend of that name; the nearest names are in the hint.
    """
    known = BACKENDS
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
        made: Callable[..., Any] = load(backend.factory)(**options)
        return made
    return Configured(backend.name, backend.function, options)


def resolve(inner: str | Callable[..., Any]) -> Callable[..., Any]:
    """A backend to put inside another: ours by name, torch's by name, or the callable itself.

    Raises:
        UsageError: nobody has a backend of that name, or `inner` is neither name nor callable.
    """
    if callable(inner):
        return inner
    ours = str(inner).removeprefix(PREFIX) in BACKENDS
    if not ours and inner in torch.compiler.list_backends(exclude_tags=()):
        return lookup(inner)
    return get(inner)
