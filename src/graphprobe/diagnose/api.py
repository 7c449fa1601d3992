"""`diagnose`: its arguments, checked, and the ladder that is climbed with them."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import torch

from graphprobe.diagnose.ladder import Ladder
from graphprobe.diagnose.program import Program
from graphprobe.diagnose.searches.exactness import look_at_bits
from graphprobe.diagnose.searches.registrations import registered_wrongly
from graphprobe.diagnose.settings import Compilation, Limits
from graphprobe.diagnose.unexplained import accuse
from graphprobe.diagnose.workarounds.search import find_workarounds
from graphprobe.errors import UsageError
from graphprobe.findings import Diagnosis, Finding, LargestZ, NamedStep
from graphprobe.internals.dynamo.compile_calls import Compiled, mode_names, settings_of_compiled
from graphprobe.report.terminal import shown_in_notebook
from graphprobe.settings.limits import TimeBudget, limits_from

__all__ = ["Diagnosis", "Finding", "LargestZ", "diagnose"]


def diagnose(
    fn: Callable[..., Any],
    *args: Any,
    backend: str | Callable[..., Any] | None = None,
    dynamic: bool | None = None,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    fullgraph: bool | None = None,
    grad: bool | Literal["auto", "apart"] = "auto",
    calls: Sequence[tuple[Sequence[Any], Mapping[str, Any]]] | None = None,
    between: Callable[[Any, int], Any] | None = None,
    budget_s: float | None = None,
    step_limit_s: float | None = None,
    first: bool | None = None,
    exact: bool | None = None,
    workaround: bool | None = None,
    deep: bool = False,
    out: str | Path | None = None,
    on_step: Callable[[NamedStep], None] | None = None,
    **kwargs: Any,
) -> Diagnosis:
    """Find out whether `fn` computes the same compiled as uncompiled, and if not, which stage, pass and op is to blame.

    The program is run as its user compiles it and held against the uncompiled one. Only where the two differ, or cannot
    be judged, is it looked into. Everything runs in child processes made by fork, so that the caller's modules,
    arguments and random generators are left as they are and a crash of the compiled program is a finding. Where CUDA
    is in use a fork is impossible: then each step runs in a fresh process, from what was saved of the program.

    Args:
        fn: function or module; of a compiled one, what `torch.compile` was given counts where nothing is given here.
        args, kwargs: of the one call to make.
        backend, dynamic, mode, options, fullgraph: as `torch.compile` takes them; "inductor" is looked into by stages.
        grad: "auto" or True: a backward, too, if anything requires one; "apart": one of each output. False: `no_grad`.
        calls: `[(args, kwargs), …]`: several calls of one compiled function, in the place of `args` and `kwargs`.
        between: called as `between(fn, i)` before call i, i ≥ 1.
        budget_s: seconds after which it ends, whatever runs then.
        step_limit_s: 600 by default; a compilation that takes longer, with its runs, is endless.
        first: stop at the first rung that is wrong, and at the first fault on it.
        exact: make a fault (`not_bitwise`) of results that are right and differ in their last bits.
        workaround: True by default: try changes of a program that is wrong until it is right; two minutes at the most.
        deep: look into a program that is right, too; what disagrees inside is told as `latent`.
        out: folder for the dossiers; by default a new one under `graphprobe-diagnosis`.
        on_step: called with the name of each step when it begins, "uncompiled", "plain", "float64", then the rungs,
            and each second while it runs. The name is a `str` with `seconds` and `doing`, what it does right now.

    Returns:
        the Diagnosis.

    Raises:
        UsageError: an argument is not of the kind named above.
    """
    given = {"budget_s": budget_s, "step_limit_s": step_limit_s, "first": first, "exact": exact}
    given["workaround"] = workaround
    found = limits_from(given, os.environ, called=lambda name: f"diagnose({name}=…)")
    switches = {name: bool(found.get(name, name == "workaround")) for name in ("exact", "first", "workaround")}
    limits = Limits(TimeBudget(found.pop("budget_s", None)), deep, **switches)
    asked = CompileOverrides(backend, dynamic, mode, options, fullgraph)
    program, compilation = prepared(fn, args, kwargs, asked, grad=grad, calls=calls, between=between, out=out)
    with shown_in_notebook(on_step) as shown:
        return climbed(program, with_limits(compilation, found), limits, on_step=shown)


def with_limits(compilation: Compilation, found: Mapping[str, Any]) -> Compilation:
    """The same with the limits that were asked for, as `limits_from` gives them."""
    limit, first = found.get("step_limit_s"), found.get("first", False)
    return replace(compilation, timeout_s=compilation.timeout_s if limit is None else limit, first=first)


def climbed(
    program: Program, compilation: Compilation, limits: Limits, *, on_step: Callable[[NamedStep], None] | None = None
) -> Diagnosis:
    """The diagnosis of a program."""
    return Ladder(program, compilation, limits, on_step).climb(
        accuse, look_at_bits, registered_wrongly, find_workarounds
    )


@dataclass(frozen=True)
class CompileOverrides:
    """What the caller wants in the place of what a compiled function was compiled with; None: as it was."""

    backend: str | Callable[..., Any] | None = None
    dynamic: bool | None = None
    mode: str | None = None
    options: Mapping[str, Any] | None = None
    fullgraph: bool | None = None

    def check(self) -> None:
        """Refuse what `torch.compile` would refuse."""
        backend = self.backend
        if backend is not None and not isinstance(backend, str) and not callable(backend):
            raise UsageError(f"diagnose(backend={backend!r:.80}): it takes a name or a function, as torch.compile does")
        if isinstance(backend, str) and backend not in torch.compiler.list_backends(exclude_tags=()):
            hint = f"torch knows {', '.join(sorted(torch.compiler.list_backends(exclude_tags=())))}"
            raise UsageError(f"diagnose(backend={backend!r}): there is no such backend", hint=hint)
        for name, value in (("dynamic", self.dynamic), ("fullgraph", self.fullgraph)):
            if value not in (True, False, None):
                raise UsageError(f"diagnose({name}={value!r}): it takes True, False or None")
        if self.mode is not None and self.mode not in mode_names():
            raise UsageError(f"diagnose(mode={self.mode!r}): it takes {', '.join(map(repr, mode_names()))}")
        if self.options is not None and not isinstance(self.options, Mapping):
            raise UsageError(f"diagnose(options={self.options!r:.80}): it takes a dict, as torch.compile does")
        if self.mode is not None and self.options is not None:
            raise UsageError("diagnose(mode=…, options=…): torch.compile takes one of them, not both")

    def over(self, compiled: Compiled) -> Compiled:
        """The settings of a compiled function, with what was asked for in their place."""
        named = {name: value for name, value in vars(self).items() if value is not None}
        if "mode" in named or "options" in named:
            named = {"mode": None, "options": None, **named}
        return replace(compiled, **named)


def prepared(
    fn: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    asked: CompileOverrides,
    *,
    grad: Any = "auto",
    calls: Any = None,
    between: Any = None,
    out: str | Path | None = None,
) -> tuple[Program, Compilation]:
    """The program and how it is compiled, from arguments that are checked here."""
    if not callable(fn):
        raise UsageError(f"diagnose(fn={fn!r:.80}): fn must be a function or module")
    if calls is not None and (args or kwargs) and not _is_first(args, kwargs, calls):
        raise UsageError(
            "diagnose got arguments that are not those of the first of calls=…",
            hint="put them into the first call, or leave them out",
        )
    if grad not in (True, False, "auto", "apart"):
        raise UsageError(f"diagnose(grad={grad!r}): it takes True, False, 'auto' or 'apart'")
    asked.check()
    listed = [(args, kwargs)] if calls is None else _checked_calls(calls)
    folder = Path(out) if out is not None else new_folder_for_proofs()
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()))):
        raise UsageError(f"diagnose(out={str(folder)!r}): it exists and is not an empty folder")
    compiled = asked.over(settings_of_compiled(fn))
    program = Program(compiled.fn, listed, between, grad=False if grad is False else None)
    if grad is not False and program.wants_gradients():
        program = Program(compiled.fn, listed, between, grad="apart" if grad == "apart" else True)
    return program, Compilation(
        compiled.lone_backend(),
        compiled.dynamic,
        folder,
        fullgraph=bool(compiled.fullgraph),
        inductor_settings=_inductor_settings(compiled),
        guard_filter=compiled.guard_filter,
    )


def _inductor_settings(compiled: Compiled) -> dict[str, Any]:
    try:
        return compiled.inductor_settings()
    except (AttributeError, KeyError, RuntimeError, TypeError) as error:
        given = f"mode={compiled.mode!r}" if compiled.mode else f"options={dict(compiled.options or {})!r:.80}"
        why = textwrap.shorten(str(error), 200, placeholder=" …")
        raise UsageError(f"diagnose({given}): torch refuses it: {why}") from error


def _is_first(args: Sequence[Any], kwargs: Mapping[str, Any], calls: Any) -> bool:
    """Whether the very same objects are the first call's."""
    try:
        first, named = calls[0]
        same = len(first) == len(args) and all(a is b for a, b in zip(first, args, strict=True))
        return same and named.keys() == kwargs.keys() and all(named[key] is kwargs[key] for key in kwargs)
    except (TypeError, IndexError, ValueError, AttributeError):
        return False


def _checked_calls(calls: Any) -> list[tuple[Sequence[Any], Mapping[str, Any]]]:
    listed = list(calls)
    for i, call in enumerate(listed):
        shape = isinstance(call, (list, tuple)) and len(call) == 2
        if not shape or not isinstance(call[0], (list, tuple)) or not isinstance(call[1], Mapping):
            raise UsageError(f"diagnose(calls=…): call {i} is {call!r:.80}, expected (args, kwargs)")
    if not listed:
        raise UsageError("diagnose(calls=[]): there must be at least one call")
    return listed


def new_folder_for_proofs() -> Path:
    """One that nobody has named, and that is not there yet."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")
    return Path("graphprobe-diagnosis").resolve() / stamp
