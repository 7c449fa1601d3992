"""A script, with every call of a compiled function diagnosed before it happens. Imports no torch before the script."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from graphprobe.errors import UsageError
from graphprobe.findings import Diagnosis
from graphprobe.internals.dynamo.compile_calls import CompileCalls, Compiled, flattened, mapped
from graphprobe.probe import script

if TYPE_CHECKING:
    import torch

MOST = 3
"""Sequences of calls that are diagnosed for one function."""

CRASHES = ("segfault", "hang", "crash_compile", "crash_runtime")
"""Kinds of faults after which the script goes on with the uncompiled function."""


@dataclass(frozen=True)
class Options:
    """What `diagnose` is asked for each function; None leaves it to the script.

    Attributes:
        backend, dynamic: in the place of what the script gives to `torch.compile`, for the script's own calls too.
        grad: "auto": with gradients where they are on at the call.
        budget_s: for one diagnosis.
        timeout_s: for one compilation with its runs; None: as `diagnose` has it.
        out: folder that gets one folder for each diagnosis.
        deep: look into functions that are right, too.
    """

    backend: str | None = None
    dynamic: bool | None = None
    grad: bool | Literal["auto"] = "auto"
    budget_s: float | None = None
    out: Path | None = None
    deep: bool = False
    timeout_s: float | None = None

    def overrides(self) -> dict[str, Any]:
        """The arguments of `torch.compile` that are replaced."""
        return {k: v for k, v in (("backend", self.backend), ("dynamic", self.dynamic)) if v is not None}

    def limits(self) -> dict[str, Any]:
        """The arguments of `diagnose` that say how far it goes."""
        limits: dict[str, Any] = {"budget_s": self.budget_s, "deep": self.deep}
        return limits if self.timeout_s is None else {**limits, "timeout_s": self.timeout_s}


@dataclass(frozen=True)
class Ended:
    """How the script ended.

    Attributes:
        diagnoses: name and diagnosis, in the order in which they were made.
        problem: what ended the script, one sentence; None where it ended well.
    """

    diagnoses: list[tuple[str, Diagnosis]]
    problem: str | None = None


def diagnose_script(path: str, argv: Sequence[str] = (), **options: Any) -> list[tuple[str, Diagnosis]]:
    """Run a script and diagnose every function that it compiles.

    Args:
        path: the script.
        argv: its own arguments.
        options: fields of `Options`.

    Returns:
        `name (file:line)` of each function, with its diagnosis.

    Raises:
        UsageError: there is no such script, or it compiled nothing.
    """
    return run_diagnosed(path, argv, Options(**options)).diagnoses


def run_diagnosed(
    path: str,
    argv: Sequence[str],
    options: Options,
    *,
    on_start: Callable[[str], None] = lambda name: None,
    on_step: Callable[[str], None] | None = None,
    on_diagnosis: Callable[[str, Diagnosis], None] = lambda name, diagnosis: None,
) -> Ended:
    """As `diagnose_script`, and tell of each diagnosis as soon as it is made, for the script may crash afterwards.

    An exception that the script does not catch is printed as python would.
    """
    program = script.Program("script", path, tuple(argv))
    script.check(program)
    watcher = _Watcher(options, on_start, on_step, on_diagnosis)
    calls = CompileCalls(watcher.before, overrides=options.overrides())
    calls.install()
    try:
        ended = script.run(program)
    finally:
        calls.remove()
    problem = None
    if ended.error is not None:
        problem = f"the script was ended by {ended.error.splitlines()[0]}"
    elif ended.code != 0:
        problem = f"the script ended with exit code {ended.code}"
    if not watcher.diagnoses and ended.error is not None and ended.code > script.INTERRUPTED:
        raise KeyboardInterrupt
    if not watcher.diagnoses:
        raise _nothing(path, len(calls.compiled), problem)
    return Ended(watcher.diagnoses, problem)


def _nothing(path: str, compiled: int, problem: str | None) -> UsageError:
    what = f"{path} compiled nothing: "
    what += f"it gave {compiled} functions to torch.compile and called none" if compiled else "no call of torch.compile"
    hint = "for a function that no script compiles: graphprobe diagnose FILE.py:CALLABLE"
    if problem is not None:
        hint = "run it with python first, and mend that"
    return UsageError(f"{what}; {problem}" if problem else what, hint=hint)


@dataclass
class _Past:
    """One function's calls that were diagnosed: mode and signature of each, and copies of the arguments."""

    name: str
    calls: int = 0
    seen: set[Any] = field(default_factory=set)
    kept: list[tuple[Any, tuple[Any, Mapping[str, Any]]]] = field(default_factory=list)


class _Watcher:
    """Decides which calls are diagnosed, and diagnoses them."""

    def __init__(
        self,
        options: Options,
        on_start: Callable[[str], None],
        on_step: Callable[[str], None] | None,
        on_diagnosis: Callable[[str, Diagnosis], None],
    ) -> None:
        self.options, self.on_start, self.on_step, self.on_diagnosis = options, on_start, on_step, on_diagnosis
        self.diagnoses: list[tuple[str, Diagnosis]] = []

    def before(self, compiled: Compiled, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Diagnose a call with a new signature; after a crash the script gets the function uncompiled."""
        past = compiled.kept.setdefault("past", _Past(name_of(compiled.fn)))
        past.calls += 1
        mode = mode_of(compiled.fn, args)
        signature = (mode, signature_of(args, kwargs))
        if len(past.seen) >= MOST or signature in past.seen:
            return
        past.seen.add(signature)
        name = past.name if past.calls == 1 else f"{past.name}, call {past.calls}"
        self.on_start(name)
        try:
            call = copied_call(compiled.fn, args, kwargs)
            earlier = [copied_call(compiled.fn, *kept) for was, kept in past.kept if was == mode]
            past.kept.append((mode, copied_call(compiled.fn, *call)))
            diagnosis = self._diagnose(compiled, name, [*earlier, call])
        except Exception as error:  # the program must go on as it would without being watched
            why = f"the diagnosis itself failed: {type(error).__name__}: {error}"
            diagnosis = Diagnosis(verdict="undecided", notes=[why])
        compiled.uncompiled = any(finding.kind in CRASHES for finding in diagnosis.findings)
        if compiled.uncompiled:
            diagnosis.notes.append("the script went on with the uncompiled function")
        self.diagnoses.append((name, diagnosis))
        self.on_diagnosis(name, diagnosis)

    def _diagnose(self, compiled: Compiled, name: str, calls: list[tuple[Any, Mapping[str, Any]]]) -> Diagnosis:
        import torch

        from graphprobe.diagnose.api import diagnose

        out = None
        if self.options.out is not None:
            short = "".join(c if c.isalnum() else "-" for c in name.partition(" ")[0]).strip("-")
            out = self.options.out / f"{len(self.diagnoses)}-{short}"
        grad = self.options.grad
        if not torch.is_grad_enabled():
            grad = False
        return diagnose(
            compiled.fn,
            backend=compiled.backend,
            dynamic=compiled.dynamic,
            mode=compiled.mode,
            options=compiled.options,
            fullgraph=compiled.fullgraph,
            grad=grad,
            calls=calls,
            **self.options.limits(),
            out=out,
            on_step=self.on_step,
        )


def watcher_of(options: Options) -> _Watcher:
    """What diagnoses the calls of `CompileCalls`, for somebody who runs the program: `before`, and `diagnoses`."""
    return _Watcher(options, lambda name: None, None, lambda name, diagnosis: None)


def name_of(fn: Any) -> str:
    """`name (file:line)` of a function; of a module its class and forward; the file relative if below here."""
    owner = getattr(fn, "__self__", fn)
    module = owner if hasattr(owner, "forward") and not inspect.isroutine(owner) else None
    code = getattr(inspect.unwrap(module.forward if module is not None else fn), "__code__", None)
    plain = getattr(fn, "__qualname__", None) or type(fn).__qualname__
    name = type(module).__qualname__ if module is not None else plain.replace("<locals>.", "")
    if code is None:
        return name
    file = code.co_filename
    below = os.path.relpath(file) if os.path.exists(file) else file
    return f"{name} ({file if below.startswith('..') else below}:{code.co_firstlineno})"


def mode_of(fn: Any, args: Sequence[Any]) -> tuple[Any, ...]:
    """What calls must have in common to be diagnosed as one sequence: gradients on or off, training or not."""
    import torch

    owners = [fn, getattr(fn, "__self__", None), *args]
    training = tuple(m.training for m in owners if isinstance(m, torch.nn.Module))
    return (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), training)


def signature_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a compiled function looks at to decide whether it must be compiled again, as far as arguments show it."""
    import torch

    leaves, structure = flattened((tuple(args), dict(kwargs)))

    def seen(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            stride = leaf.stride() if leaf.layout is torch.strided else ()
            return (tuple(leaf.shape), stride, leaf.dtype, leaf.device, leaf.requires_grad)
        plain = isinstance(leaf, (bool, int, float, complex, str, type(None)))
        return (type(leaf), repr(leaf)) if plain else type(leaf)

    return (structure, *map(seen, leaves))


def copied_call(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """The arguments with every tensor a copy without history; they share memory with each other as the originals do.

    The function's own parameters and buffers, and what cannot be copied, stay as they are.
    """
    import torch

    from graphprobe.diagnose.program import Program, tensors_of
    from graphprobe.engine.values import capture, why_not

    own = {id(tensor) for tensor in Program(fn, [(args, kwargs)]).state()}
    found = {id(t): t for t in tensors_of((args, kwargs)) if id(t) not in own and why_not(t) is None}
    with torch.inference_mode(False), torch.no_grad():
        copies = dict(zip(found, capture(list(found.values()), rng=False).restore(), strict=True))
    for key, copy in copies.items():
        _mark_alike(found[key], copy)
    result: tuple[Any, Mapping[str, Any]] = mapped(lambda t: copies.get(id(t), t), (tuple(args), dict(kwargs)))
    return result


def _mark_alike(original: torch.Tensor, copy: torch.Tensor) -> None:
    """What `mark_dynamic` and its like have noted on a tensor."""
    for name, value in vars(original).items():
        if name.startswith("_dynamo_"):
            setattr(copy, name, value)
