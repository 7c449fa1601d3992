"""Cases out of a running program: the graph that is about to be compiled or run, with its inputs, tried and reduced."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule

from graphprobe.diagnose.case import Case
from graphprobe.diagnose.dossier.own_backend import STAND_IN, own_backend, shown_name
from graphprobe.diagnose.dossier.writer import write_dossier
from graphprobe.diagnose.reduction.case_folder import finding_of
from graphprobe.diagnose.reduction.judge import Question, unresolved
from graphprobe.diagnose.reduction.problem import Problem
from graphprobe.diagnose.reduction.reduce_case import TIMEOUT_S
from graphprobe.diagnose.reduction.service import Job, Service
from graphprobe.diagnose.settings import changed_settings
from graphprobe.engine.memory import free_memory
from graphprobe.engine.replay import synthetic
from graphprobe.engine.values import capture
from graphprobe.internals.after_fork import can_fork as can_fork
from graphprobe.internals.after_fork import preload
from graphprobe.internals.dynamo.repro_hooks import GraphBackend, plain_graphs
from graphprobe.internals.inductor import stages
from graphprobe.internals.quiet import hint, is_fake, quiet
from graphprobe.probe import active
from graphprobe.reduce.outcome import Answer

CRASH = "segfault"
"""Asked for this, a judge compares no values; exceptions and hangs fail all the same."""


def copy_of(gm: GraphModule) -> GraphModule:
    """The graph as it is now; parameters and constants are shared."""
    with quiet(), plain_graphs():
        return stages.copy_graph(gm)


def case_of(graph: GraphModule, values: Sequence[Any], backend: GraphBackend, *, grad: bool) -> Case:
    """A case of one call; `grad`: gradients are on, so that the backward belongs to it where something asks for it."""
    formal = [n.meta.get("val") for n in graph.graph.nodes if n.op == "placeholder"]
    dynamic = any(isinstance(v, torch.SymInt) for v in (*values, *formal))
    with quiet():
        inputs = capture(list(values))
    changed = changed_settings().with_inductor(backend.settings)
    for name in [name for name in changed.configs["dynamo"] if name.startswith("repro_")]:
        del changed.configs["dynamo"][name]
    chosen = backend.name or backend.compile
    own, why = own_backend(chosen)
    state = [*graph.parameters(), *graph.buffers()]
    return Case(
        graph,
        [inputs],
        "wrong_value",
        backend=STAND_IN if own is not None or why else backend.name or STAND_IN,
        own_backend=own,
        unsaved=(why,) if why else (),
        dynamic=True if dynamic else None,
        grad=grad and any(isinstance(v, torch.Tensor) and v.requires_grad for v in (*values, *state)),
        **changed.of_case(),
    )


def made_up(values: Sequence[Any]) -> list[Any]:
    """Values like fake ones, drawn at random without touching the program's generators."""
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return [_made_up(value) for value in values]


def _made_up(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and is_fake(value):
        sizes = {"shape": [hint(n) for n in value.shape], "stride": [hint(n) for n in value.stride()]}
        dtype = str(value.dtype).removeprefix("torch.")
        return synthetic({**sizes, "dtype": dtype, "device": str(value.device), "requires_grad": value.requires_grad})
    return hint(value) if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) else value


@contextlib.contextmanager
def undisturbed(case: Case) -> Iterator[None]:
    """In the block, no mode of the program is active, gradients are as the case has them, nothing is recorded."""
    session = active.session()
    with contextlib.ExitStack() as stack:
        if session is not None:
            stack.enter_context(session.childless())
        stack.enter_context(quiet())
        stack.enter_context(torch.set_grad_enabled(case.grad))
        yield


def tried(
    case: Case, backend: GraphBackend, *, values: bool, timeout_s: float | None, memory_bytes: int | None
) -> tuple[Answer, Problem]:
    """Whether the case fails, found out in a child process; `values`: also when it only computes something else.

    The case with all its values comes along, for a reduction.

    Raises:
        UsageError: it cannot be run uncompiled.
    """
    if backend.name == "inductor":
        preload()
    timeout_s = timeout_s or TIMEOUT_S
    problem = Problem.of(case, timeout_s=timeout_s)
    whole = problem.whole()
    if whole is None:
        return unresolved("the graph cannot be rebuilt"), problem
    service = Service(problem, memory_bytes=memory_bytes or free_memory(), backend=maker_of(backend))
    return service.answer(Job(whole.recipe, Question("" if values else CRASH), timeout_s)), problem


def maker_of(backend: GraphBackend) -> Any:
    """What makes the backend anew; None where its name says all."""
    if backend.name is not None and own_backend(backend.name)[0] is None:
        return None
    named = _named(backend.compile, shown_name(backend.name or backend.compile))
    return lambda: named


def _named(compile: Any, name: str) -> Any:
    """The same under the name that the program has for it, which torch puts into its messages."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return compile(*args, **kwargs)

    if hasattr(compile, "get_compiler_config"):
        call.get_compiler_config = compile.get_compiler_config  # type: ignore[attr-defined]
    call.__name__ = name
    return call


def reduced_elsewhere(case: Case, folder: Path, *, timeout_s: float | None, fail_regex: str | None) -> int:
    """Reduce a case in a process of its own, where none can be forked. Returns the exit code of `graphprobe reduce`.

    The case itself goes to `<folder>-case`.
    """
    dossier = folder.with_name(f"{folder.name}-case")
    write_dossier(dossier, case, finding_of(case, "the case before it was reduced"))
    command = [sys.executable, "-m", "graphprobe", "reduce", str(dossier), "-o", str(folder)]
    command += ["--timeout", f"{timeout_s or TIMEOUT_S:g}"] + (["--fail-regex", fail_regex] if fail_regex else [])
    return subprocess.run(command, capture_output=True, check=False).returncode
