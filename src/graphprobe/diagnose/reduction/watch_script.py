"""Watches the graphs that a program compiles, and reduces the first that fails: in the place of torch's minifier.

Imports no torch before the program does.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from graphprobe.diagnose.reduction.watched import GraphsWatch, asked_by
from graphprobe.internals.dynamo.repro_hooks import Compile, GraphBackend, ReproHooks, asked_of_torch


class ScriptWatch(GraphsWatch):
    """Takes each graph that this process compiles, and reduces the first that fails."""

    @functools.cached_property
    def _hooks(self) -> ReproHooks:
        return ReproHooks(self.place, self._dynamo, self._aot)

    def install(self) -> None:
        """Begin; torch's own minifier is off from now on."""
        self.on = True
        self._hooks.install()

    def remove(self) -> None:
        """End; what was compiled meanwhile is not watched any more."""
        self.on = False
        self._hooks.remove()

    def _dynamo(self, backend: GraphBackend, gm: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        from graphprobe.diagnose.reduction.script_cases import Taken

        self.ended.graphs += 1
        return Taken(self, backend, gm).from_dynamo(inputs)

    def _aot(self, compile: Compile, gm: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        from graphprobe.diagnose.reduction.script_cases import Taken

        self.ended.graphs += 1
        return Taken(self, GraphBackend(compile, "inductor"), gm, grad=False).from_aot(inputs)


def watch_environment(environ: Mapping[str, str] | None = None) -> ScriptWatch | None:
    """A watch that obeys the environment and the settings of torch, not installed yet; None when neither asks for one.

    Raises:
        UsageError: a value that a variable cannot have.
    """
    asked = asked_by(os.environ if environ is None else environ)
    return None if asked is None and asked_of_torch()[0] is None else ScriptWatch()
