"""`assert_compiles_like_eager`: fails where a program computes something else compiled than uncompiled."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from graphprobe.findings import Diagnosis

NEW_FOLDER: ContextVar[Callable[[], Path] | None] = ContextVar("graphprobe_new_folder", default=None)
"""What names the folder of the next dossiers where `out` does not: `pytest --graphprobe` has one folder a test."""


EXACT: ContextVar[bool] = ContextVar("graphprobe_exact", default=False)
"""Whether every bit counts where `exact` does not say so: `pytest --graphprobe-exact`."""


class CompiledDiffers(AssertionError):
    """The compiled program differs from the uncompiled one, or that could not be told.

    Attributes:
        name: of the function, with its file and line.
        diagnosis: with findings and the folders that prove them.
    """

    def __init__(self, message: str, name: str, diagnosis: Diagnosis) -> None:
        super().__init__(message)
        self.name = name
        self.diagnosis = diagnosis


def assert_compiles_like_eager(
    fn: Callable[..., Any],
    *args: Any,
    backend: str | Callable[..., Any] = "inductor",
    dynamic: bool | None = None,
    grad: bool | Literal["auto"] = "auto",
    budget_s: float | None = None,
    exact: bool = False,
    out: str | Path | None = None,
    **kwargs: Any,
) -> None:
    """Assert that `fn(*args, **kwargs)` computes the same compiled as uncompiled, as far as rounding allows.

    Outputs, changed inputs and gradients are held against the uncompiled program by the criterion of docs/metrics.md,
    which knows how far rounding may go in this program, so that there are no tolerances to choose. Only a program that
    differs is looked into, which takes a minute or so. Everything runs in child processes made by fork: module,
    arguments and random generators are left as they are. Where CUDA is in use it runs in this process.

    Args:
        fn: function or module, not compiled (a compiled one is taken apart).
        args, kwargs: of the one call to make.
        backend, dynamic: as `torch.compile` takes them.
        grad: "auto": forward, and backward where any input or parameter requires a gradient. False: under `no_grad`.
        budget_s: end after so many seconds, with what is known then.
        exact: every bit counts; `pytest --graphprobe-exact` sets it for all tests.
        out: a folder that is new or empty, for the dossiers; by default a new one under `graphprobe-diagnosis`, or
            with `pytest --graphprobe` that of the test.

    Raises:
        CompiledDiffers: an `AssertionError`. The text names stage, operation, line and error, and the folder with
            the proof. It is raised, too, where nothing could be told (`diagnosis.verdict` is "undecided"), with the
            reasons: what could not be checked has not passed.
        UsageError: an argument is not of the kind named above.
    """
    __tracebackhide__ = True
    from graphprobe.diagnose.api import diagnose
    from graphprobe.diagnose.script_calls import name_of

    new_folder = NEW_FOLDER.get()
    named = out is None and new_folder is not None
    out = new_folder() if out is None and new_folder is not None else out
    exact = exact or EXACT.get()
    how: dict[str, Any] = {"backend": backend, "dynamic": dynamic, "grad": grad, "budget_s": budget_s, "exact": exact}
    diagnosis = diagnose(fn, calls=[(args, kwargs)], out=out, workaround=False, **how)
    if named and out is not None:
        with contextlib.suppress(OSError):
            Path(out).rmdir()  # one that holds something stays
    if diagnosis.verdict == "healthy":
        if not diagnosis.raises:
            return
        # Of wrong arguments that would be so, too.
        diagnosis.verdict = "undecided"
        diagnosis.notes.insert(0, f"uncompiled and compiled it raises {diagnosis.raises}")
    fn = getattr(fn, "_orig_mod", fn)
    name = name_of(getattr(fn, "_torchdynamo_orig_callable", fn))
    raise CompiledDiffers(_message(name, backend, diagnosis), name, diagnosis)


def _message(name: str, backend: str | Callable[..., Any], diagnosis: Diagnosis) -> str:
    from graphprobe.report.diagnosis import lines_from

    shown = backend if isinstance(backend, str) else getattr(backend, "__name__", type(backend).__name__)
    if diagnosis.verdict == "fault":
        head = f"FAULT: compiled with {shown}, {name} does not compute what it computes uncompiled"
    else:
        head = (
            f"UNDECIDED: whether {name} computes the same compiled with {shown} could not be told, so this did not pass"
        )
    return "\n".join([head, *(f"  {line}" for line in lines_from(diagnosis))])
