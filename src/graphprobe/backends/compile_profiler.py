"""A backend that reports the recompilations of what it compiles, as torch's CompileProfiler did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule

from graphprobe.backends.table import resolve
from graphprobe.internals.dynamo.dynamo_taps import backend_name
from graphprobe.probe.recompile_watch import Recompiles


class CompileProfiler(Recompiles):
    """Counts the recompilations of the functions that it compiles, and of no others.

        with graphprobe.CompileProfiler() as prof:
            compiled = torch.compile(fn, backend=prof)
            ...
            print(prof.report())

    Outside of a `with` block it begins with the first graph that it compiles, and ends with `close()`.

    Attributes:
        compiler_fn: the inner backend, which does the compiling.
        compiles: how many graphs it has compiled.
    """

    def __init__(self, inner: str | Callable[..., Any] = "eager", *, allowed: int = 0) -> None:
        """`inner` is a name of graphprobe's or torch's, or a callable; `allowed` as in `recompiles`.

        Raises:
            UsageError: there is no such backend, or `allowed` is no number from 0 on.
        """
        super().__init__(allowed=allowed, wants=self._is_own)
        self.compiler_fn = resolve(inner)
        self.__name__ = f"recompiles({inner if isinstance(inner, str) else backend_name(inner)})"
        self.compiles = 0
        self._begun = False

    def open(self) -> None:
        """Begin to note; also what comes before the first graph, which is nothing."""
        self._begun = True
        super().open()

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any], **given: Any) -> Any:
        if not self._begun:
            self.open()
        self.compiles += 1
        return self.compiler_fn(gm, example_inputs, **given)

    def report(self) -> str:
        """As `Recompiles.report`; says so when the backend was never used."""
        text = super().report()
        return text if self.compiles else f"{text}: nothing was compiled with this backend"

    def __enter__(self) -> CompileProfiler:
        self.open()
        return self

    def __repr__(self) -> str:
        return f"CompileProfiler({self.__name__[11:-1]})"

    def _is_own(self, backend: object) -> bool:
        """Whether a backend as Dynamo holds it is this object, or has it inside."""
        inner: object | None = backend
        for _ in range(8):
            if inner is None or inner is self:
                return inner is self
            inner = getattr(inner, "_torchdynamo_orig_backend", None) or getattr(inner, "compiler_fn", None)
        return False
