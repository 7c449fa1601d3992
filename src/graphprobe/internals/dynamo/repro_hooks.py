"""The two places where torch's own minifier comes in: somebody else can stand there instead."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from graphprobe.internals.bus import Patch, Subscription
from graphprobe.internals.caches import bypassed
from graphprobe.internals.names import require

VARIABLES = ("TORCHDYNAMO_REPRO_AFTER", "TORCHDYNAMO_REPRO_LEVEL")
AFTER_DYNAMO, COMPILE_FX = "torch._dynamo.repro.after_dynamo", "torch._inductor.compile_fx"

Compile = Callable[[Any, Sequence[Any]], Callable[..., Any]]
"""Compiles a graph for example inputs."""


@dataclass(frozen=True)
class GraphBackend:
    """What a graph is about to be compiled with.

    Attributes:
        compile: does it.
        name: for `torch.compile`; None where no name stands for exactly this backend.
        settings: Inductor's, as mode and options of `torch.compile` ask for them.
    """

    compile: Compile
    name: str | None
    settings: Mapping[str, Any] = field(default_factory=dict)


class ReproHooks(Subscription):
    """Stands where torch's minifier would, while it is installed.

    Args:
        place: where a graph is wanted now: `dynamo`, `aot`, `nowhere`, or None, which leaves torch to itself.
        on_dynamo: gets each of Dynamo's graphs; compiles it.
        on_aot: gets each graph that AOTAutograd gives to Inductor, with fake inputs; compiles it.
    """

    def __init__(
        self,
        place: Callable[[], str | None],
        on_dynamo: Callable[[GraphBackend, Any, Sequence[Any]], Callable[..., Any]],
        on_aot: Callable[[Compile, Any, Sequence[Any]], Callable[..., Any]],
    ) -> None:
        self._place, self._on_dynamo, self._on_aot = place, on_dynamo, on_aot
        super().__init__(
            [
                Patch("reducer", AFTER_DYNAMO, "WrapBackendDebug.__call__", self._make_backend),
                Patch("reducer", COMPILE_FX, "wrap_compiler_debug", self._make_compiler),
            ]
        )

    def _make_backend(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def __call__(wrapper: Any, gm: Any, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
            place = self._place()
            if place is None:
                return original(wrapper, gm, example_inputs, **kwargs)
            inner = wrapper._torchdynamo_orig_backend
            if place == "aot":
                with bypassed():  # what comes out of AOTAutograd's cache has no graph
                    return inner(gm, example_inputs, **kwargs)
            if place != "dynamo":
                return inner(gm, example_inputs, **kwargs)
            return self._on_dynamo(_backend_of(inner, wrapper._compiler_name, kwargs), gm, example_inputs)

        return __call__

    def _make_compiler(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrap_compiler_debug(compiler_fn: Callable[..., Any], compiler_name: str) -> Callable[..., Any]:
            place = self._place()
            if place is None:
                return original(compiler_fn, compiler_name)  # type: ignore[no-any-return]
            if place != "aot":
                return compiler_fn

            def compile(gm: Any, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
                return self._on_aot(functools.partial(compiler_fn, **kwargs), gm, example_inputs)

            return compile

        return wrap_compiler_debug


def _backend_of(inner: Any, name: str | None, kwargs: Mapping[str, Any]) -> GraphBackend:
    compile = functools.partial(inner, **kwargs) if kwargs else inner
    settings = getattr(inner, "config", None)
    if name == "inductor" and isinstance(settings, dict):
        return GraphBackend(compile, name, dict(settings))
    return GraphBackend(compile, name if name is not None and _stands_for(name, inner) else None)


def _stands_for(name: str, inner: Any) -> bool:
    """Whether the name gives exactly this backend, without options."""
    from torch._dynamo.backends.registry import list_backends, lookup_backend

    if name not in list_backends(exclude_tags=()) or getattr(inner, "kwargs", None):
        return False
    return lookup_backend(name) in (inner, getattr(inner, "compiler_fn", None))


def asked_of_torch() -> tuple[str | None, int]:
    """What `repro_after` and `repro_level` of `torch._dynamo.config` say now; torch reads the environment into them."""
    config = sys.modules.get("torch._dynamo.config")
    return getattr(config, "repro_after", None), getattr(config, "repro_level", 2)


@contextlib.contextmanager
def plain_graphs() -> Iterator[None]:
    """In the block, graph modules are made as they are outside of a compile, where Dynamo can trace them.

    While it compiles, Dynamo has them made without code, and marks their code as not to be traced.
    """
    purpose = "graphs made during a compile"
    lazy = require("torch.fx._lazy_graph_module", "_use_lazy_graph_module", purpose=purpose)
    module = require("torch.fx", "graph_module", purpose=purpose)
    dynamo: Any = sys.modules.get("torch._dynamo.convert_frame")
    kept = module._forward_from_src
    with lazy(False):
        module._forward_from_src = getattr(dynamo, "original_forward_from_src", kept)
        try:
            yield
        finally:
            module._forward_from_src = kept


@contextlib.contextmanager
def switched_off() -> Iterator[None]:
    """In the block, torch's minifier is off: here, in children, and in processes that are started.

    So are torch's own debug files, of which every child would get a folder.
    """
    kept = {name: os.environ.pop(name) for name in (*VARIABLES, "TORCH_COMPILE_DEBUG") if name in os.environ}
    config: Any = sys.modules.get("torch._dynamo.config")
    with contextlib.ExitStack() as stack:
        stack.callback(os.environ.update, kept)
        stack.enter_context(plain_graphs())
        if config is not None:
            stack.enter_context(config.patch(repro_after=None))
        yield
