"""Cases out of a running program: the graph that is about to be compiled or run, with its inputs, tried and reduced."""

from __future__ import annotations

import contextlib
import functools
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule

from graphprobe.diagnose.case import Case
from graphprobe.diagnose.dossier.own_backend import STAND_IN, own_backend, shown_name
from graphprobe.diagnose.dossier.writer import write_dossier
from graphprobe.diagnose.reduction.case_folder import finding_of
from graphprobe.diagnose.reduction.problem import Problem
from graphprobe.diagnose.reduction.reduce_case import TIMEOUT_S, CaseReduction, reduce_case
from graphprobe.diagnose.reduction.service import Job, Question, Service, unresolved
from graphprobe.diagnose.reduction.signature import kind_of
from graphprobe.diagnose.reduction.watched import LEVELS, GraphDiedError, GraphsWatch, ReducedExit
from graphprobe.diagnose.settings import changed_settings
from graphprobe.engine.memory import free_memory
from graphprobe.engine.replay import synthetic
from graphprobe.engine.values import capture
from graphprobe.errors import EXIT_FOUND, UsageError
from graphprobe.internals.after_fork import can_fork, preload
from graphprobe.internals.dynamo.dynamo_taps import is_restart
from graphprobe.internals.dynamo.repro_hooks import GraphBackend, plain_graphs, switched_off
from graphprobe.internals.inductor import stages
from graphprobe.internals.quiet import hint, is_fake, quiet
from graphprobe.probe import active
from graphprobe.reduce.outcome import Answer, OracleVerdict

CRASH = "segfault"
"""Asked for this, a judge compares no values; exceptions and hangs fail all the same."""

_NAMELESS = re.compile(r"backend='(<[^']*>|compiler_fn)'")
"""What torch calls a backend that is no function."""


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


def _named(compile: Any, name: str) -> Any:
    """The same under the name that the program has for it, which torch puts into its messages."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return compile(*args, **kwargs)

    if hasattr(compile, "get_compiler_config"):
        call.get_compiler_config = compile.get_compiler_config  # type: ignore[attr-defined]
    call.__name__ = name
    return call


class Taken:
    """One graph of the program: copied before it is compiled.

    Args:
        gm: what the program is about to compile.
        grad: whether gradients are on; None: as they are when a case is made.
    """

    def __init__(self, watch: GraphsWatch, backend: GraphBackend, gm: Any, *, grad: bool | None = None) -> None:
        self.watch, self.backend, self.grad = watch, backend, grad
        self.graph: GraphModule | None = None
        try:
            self.graph = copy_of(gm)
        except Exception as error:  # the program must go on as it would without being watched
            watch.note(f"a graph could not be copied: {type(error).__name__}: {error}")
        self._compile = functools.partial(backend.compile, gm)

    def from_dynamo(self, inputs: Sequence[Any]) -> Callable[..., Any]:
        """The compiled graph of Dynamo; what fails is reduced."""
        case = self._case(inputs)
        if self.watch.level > LEVELS[0]:
            self._trial(case, values=self.watch.level == LEVELS[-1])
        compiled = self._compiled(inputs, lambda: case)

        def run(*args: Any) -> Any:
            nonlocal case
            first, case = case, None
            return self._called(compiled, args, list(args), first)

        return run

    def from_aot(self, inputs: Sequence[Any]) -> Callable[..., Any]:
        """The compiled graph of AOTAutograd, whose inputs are fake while it is compiled; what fails is reduced."""
        level = self.watch.level
        if level > LEVELS[0]:
            self._trial(self._case(made_up(inputs)), values=False)
        compiled = self._compiled(inputs, lambda: self._case(made_up(inputs)))
        first = True

        def run(args: list[Any]) -> Any:
            nonlocal first
            if not self.watch.watching:
                return compiled(args)
            values = list(args)
            case = self._case(values) if first else None
            if first and level > LEVELS[0]:
                self._trial(case, values=level == LEVELS[-1])
            first = False
            return self._called(compiled, (args,), values, case)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def _case(self, values: Sequence[Any]) -> Case | None:
        """The graph with these inputs; None when they cannot be kept, which is noted."""
        if self.graph is None:
            return None
        try:
            grad = torch.is_grad_enabled() if self.grad is None else self.grad
            case = case_of(self.graph, values, self.backend, grad=grad)
        except Exception as error:
            self.watch.note(f"the inputs of a graph could not be kept: {type(error).__name__}: {error}")
            return None
        if case.calls[0].opaque:
            self.watch.note(f"a graph cannot be repeated: {'; '.join(case.calls[0].opaque)}")
            return None
        return case

    def _compiled(self, inputs: Sequence[Any], case: Callable[[], Case | None]) -> Any:
        try:
            return self._compile(inputs)
        except Exception as error:
            if not is_restart(error):
                self._raised(case(), error)
            raise

    def _called(self, compiled: Callable[..., Any], args: Sequence[Any], values: list[Any], case: Case | None) -> Any:
        """What the call returns; what it raises is reduced, and raised.

        Args:
            values: the inputs, kept alive so that there is a case where none was made before the call.
            case: of this call.
        """
        try:
            return compiled(*args)
        except Exception as error:
            if self.watch.watching:
                self._raised(case or self._case(values), error)
            raise

    def _raised(self, case: Case | None, error: Exception) -> None:
        if case is not None:
            line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
            named = _NAMELESS.sub(f"backend={case.backend_shown!r}", line)
            self._reduce(case, f"{type(error).__name__}: {named}")

    def _trial(self, case: Case | None, *, values: bool) -> None:
        """Compile and run the case in a child process first, and reduce it if it fails there.

        Raises:
            GraphDiedError: it would end the program.
        """
        try:
            tried = self._tried(case, values=values) if case is not None else None
        except Exception as error:
            self.watch.note(f"a graph could not be tried: {type(error).__name__}: {error}")
            return
        if case is None or tried is None:
            return
        answer = tried[0]
        if answer.verdict is OracleVerdict.UNRESOLVED:
            self.watch.note(f"a graph could not be judged: {answer.detail}")
        if answer.verdict is not OracleVerdict.FAILS:
            return
        self._reduce(case, answer.detail, tried)
        if kind_of(answer.signature) in ("segfault", "hang"):
            raise GraphDiedError(
                f"a compiled graph was not run here, because {answer.detail} when it was tried",
                hint=f"the smallest such graph: {self.watch.ended.folder}" if self.watch.ended.folder else "",
            )

    def _tried(self, case: Case, *, values: bool) -> tuple[Answer, Problem] | None:
        """Whether the case fails in a child process, and the case with all its values, for a reduction.

        None where no child can be made. `values`: it also fails when it only computes something else.

        Raises:
            UsageError: it cannot be run uncompiled.
        """
        if not can_fork():
            self.watch.note("CUDA is in use: graphs are not tried in a child process first")
            return None
        options = self.watch.options
        timeout_s: float = options.get("timeout_s") or TIMEOUT_S
        with self._alone(case):
            if self.backend.name == "inductor":
                preload()
            problem = Problem.of(case, timeout_s=timeout_s)
            whole = problem.whole()
            if whole is None:
                return unresolved("the graph cannot be rebuilt"), problem
            memory_bytes = options.get("memory_bytes") or free_memory()
            service = Service(problem, memory_bytes=memory_bytes, backend=self._maker())
            return service.answer(Job(whole.recipe, Question("" if values else CRASH), timeout_s)), problem

    def _maker(self) -> Callable[[], Any] | None:
        """What makes the backend anew; None where its name says all."""
        backend = self.backend
        if backend.name is not None and own_backend(backend.name)[0] is None:
            return None
        named = _named(backend.compile, shown_name(backend.name or backend.compile))
        return lambda: named

    def _reduce(self, case: Case, failure: str, tried: tuple[Answer, Problem] | None = None) -> None:
        """Reduce the case, unless one has been; what goes wrong with it is noted.

        Args:
            tried: what the case was seen to do, with its values.

        Raises:
            ReducedExit: it was reduced, and that is all that was wanted.
        """
        watch = self.watch
        with watch.turn:
            if not watch.watching:
                return
            folder = watch.folder()
            watch.on_note(f"a graph fails: {failure}; reducing it into {folder}")
            result: CaseReduction | None = None
            try:
                with self._alone(case):
                    if can_fork():
                        result = reduce_case(case, folder, backend=self._maker(), tried=tried, **watch.options)
                        failed = result.reduction.failed
                    else:
                        failed = self._reduced_elsewhere(case, folder)
            except Exception as error:
                watch.note(f"the graph could not be reduced: {type(error).__name__}: {error}")
                return
            if not failed:
                watch.note("the graph does not fail when it is compiled by itself")
                return
            watch.ended.folder, watch.ended.reduction = folder, result
            if result is not None and watch.on_reduction is not None:
                watch.on_reduction(result)
            elif result is not None:
                watch.on_note(f"reduced from {result.before} calls to {result.after}: {folder / 'repro'}")
            if result is not None and result.unproven:
                watch.on_note(f"its repro.py is no proof: {result.unproven}")
        if watch.exit:
            raise ReducedExit

    def _reduced_elsewhere(self, case: Case, folder: Path) -> bool:
        """CUDA is in use, so that no child can judge: another process reduces the case from `<folder>-case`."""
        if case.unsaved:
            raise UsageError(f"CUDA is in use, so that another process must reduce it; {'; '.join(case.unsaved)}")
        dossier = folder.with_name(f"{folder.name}-case")
        write_dossier(dossier, case, finding_of(case, "the case before it was reduced"))
        command = [sys.executable, "-m", "graphprobe", "reduce", str(dossier), "-o", str(folder)]
        command += ["--timeout", f"{self.watch.options.get('timeout_s') or TIMEOUT_S:g}"]
        if fail_regex := self.watch.options.get("fail_regex"):
            command += ["--fail-regex", fail_regex]
        return subprocess.run(command, capture_output=True, check=False).returncode == EXIT_FOUND

    @contextlib.contextmanager
    def _alone(self, case: Case) -> Iterator[None]:
        """In the block, nothing that is compiled is watched or recorded, here and in children.

        No mode of the program is active, and gradients are as the case has them.
        """
        session = active.session()
        childless = session.childless() if session is not None else contextlib.nullcontext()
        self.watch.busy = True
        try:
            with switched_off(), childless, quiet(), torch.set_grad_enabled(case.grad):
                yield
        finally:
            self.watch.busy = False
