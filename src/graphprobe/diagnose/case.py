"""A case: one FX graph with the values it was called with, that fails when compiled. What a repro is written from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from graphprobe.diagnose.dossier.own_backend import OwnBackend
from graphprobe.engine.values import CapturedValues


@dataclass(frozen=True)
class Case:
    """A graph that is right uncompiled and wrong compiled.

    Attributes:
        graph: FX graph of torch or aten calls; its parameters and buffers are attributes of the module.
        calls: the flat values of the placeholders, captured before each call, in order; one compiled function gets
            them all, so that a fault that needs a second call shows.
        backend: name for `torch.compile`, one that stock torch knows.
        dynamic: as `torch.compile` takes it.
        grad: run the backward of the sum of all outputs that require gradients, each weighted by a ramp from 0.5 to
            1.5, and compare the gradients of the inputs and parameters that require them.
        configs: settings of `torch._inductor.config`, … other than the defaults, by package (`inductor`, `functorch`,
            `dynamo`) and dotted name; JSON values only.
        allowed: for every call, for every floating-point leaf of (outputs, inputs after the call, gradients), in this
            order, a float64 tensor of its shape, or one that broadcasts to it: how far compiled and eager may be
            apart; infinity where an element is not judged. Complex leaves count. Parameters come in order of their
            names. Empty: a bound of a few roundoffs is used.
        kind: of the finding it stands for.
        own_backend: a backend of the program, which a repro takes in the place of `backend`.
        hooks: what the program has put into settings and JSON cannot hold (functions, objects), by the name of the
            package and the dotted name: `inductor.post_grad_custom_post_pass`.
        unsaved: why the repro cannot be run, where the backend is one that cannot be saved.
        unsaved_settings: settings other than the defaults that cannot be saved, with the reason. A repro without them
            may still show the fault, and cannot tell where it does not.
        caches: torch's graph caches stay as torch has them, for a fault that comes out of a cache.
    """

    graph: torch.fx.GraphModule
    calls: list[CapturedValues]
    kind: str
    backend: str = "inductor"
    dynamic: bool | None = None
    grad: bool = False
    configs: dict[str, dict[str, Any]] = field(default_factory=dict)
    allowed: list[list[torch.Tensor]] = field(default_factory=list)
    caches: bool = False
    own_backend: OwnBackend | None = None
    hooks: dict[str, OwnBackend] = field(default_factory=dict)
    unsaved: tuple[str, ...] = ()
    unsaved_settings: tuple[str, ...] = ()

    @property
    def backend_shown(self) -> str:
        """The backend as the program names it, for messages."""
        return f'"{self.backend}"' if self.own_backend is None else self.own_backend.shown or self.own_backend.name
