"""Watches the graphs that a program compiles, and reduces the first that fails: in the place of torch's minifier.

Imports no torch before the program does.
"""

from __future__ import annotations

import os
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphprobe.errors import GraphprobeError, GraphprobeWarning, UsageError
from graphprobe.internals.dynamo import repro_hooks
from graphprobe.internals.dynamo.dynamo_taps import is_restart
from graphprobe.internals.dynamo.repro_hooks import Compile, GraphBackend, ReproHooks

if TYPE_CHECKING:
    from graphprobe.diagnose.case import Case
    from graphprobe.diagnose.reduction.problem import Problem
    from graphprobe.diagnose.reduction.reduce_case import CaseReduction
    from graphprobe.reduce.outcome import Answer

PLACES, LEVELS = ("dynamo", "aot"), (2, 3, 4)
AFTER, LEVEL = repro_hooks.VARIABLES
FOLDER = "graphprobe-reduced"
NOWHERE = "nowhere"
_NAMELESS = re.compile(r"backend='(<[^']*>|compiler_fn)'")
"""What torch calls a backend that is no function."""


class GraphDiedError(GraphprobeError):
    """A graph ended the child process that compiled and ran it first, as it would have ended the program."""

    slug = "graph-died"


class ReducedExit(SystemExit):
    """Ends the program as `sys.exit()` would, because what was wanted of it is on disk."""


@dataclass(frozen=True)
class Asked:
    """After which stage graphs are taken, and what is looked for."""

    after: str  # `dynamo`: Dynamo's graphs. `aot`: those of AOTAutograd, as Inductor gets them.
    level: int  # 2: exceptions. 3: also crashes and hangs, by a trial in a child process. 4: also wrong values.


def asked_by(environ: Mapping[str, str]) -> Asked | None:
    """What TORCHDYNAMO_REPRO_AFTER and TORCHDYNAMO_REPRO_LEVEL ask for; None when they are not set.

    Raises:
        UsageError: a value that they cannot have.
    """
    after, level = environ.get(AFTER), environ.get(LEVEL)
    if after is not None and after not in PLACES:
        raise UsageError(f"{AFTER}={after!r}: it takes dynamo or aot", hint=f"unset {AFTER} to switch it off")
    if level is not None and level not in map(str, LEVELS):
        raise UsageError(
            f"{LEVEL}={level!r}: it takes 2, 3 or 4", hint="2: exceptions, 3: also crashes, 4: also wrong values"
        )
    if level is not None and after is None:
        raise UsageError(f"{LEVEL}={level} says nothing without {AFTER}", hint=f"set {AFTER}=dynamo or {AFTER}=aot")
    return None if after is None else Asked(after, int(level or 2))


@dataclass
class WatchOutcome:
    """What came of watching.

    Attributes:
        notes: failures that could not be reduced, graphs that could not be judged.
    """

    graphs: int = 0  # that were seen
    reduction: CaseReduction | None = None  # of the first graph that failed
    folder: Path | None = None  # of the reduction, also where it was made by another process
    notes: list[str] = field(default_factory=list)


class ScriptWatch:
    """Takes each graph that this process compiles, and reduces the first that fails.

    Args:
        asked: None: as `torch._dynamo.config` says at each graph, which the environment or the program sets.
        out: folder for the reduction; None: a new one in `graphprobe-reduced`.
        on_note: is told what happens, one sentence each.
        on_reduction: is told the result; None: `on_note` is told where it lies.
        options: of `reduce_case`.
        exit: whether the program is left, by `ReducedExit`, once a graph was reduced; else it goes on, and fails as it
            would have.
    """

    def __init__(
        self,
        asked: Asked | None = None,
        *,
        out: Path | None = None,
        on_note: Callable[[str], None] | None = None,
        on_reduction: Callable[[CaseReduction], None] | None = None,
        options: Mapping[str, Any] | None = None,
        exit: bool = False,
    ) -> None:
        self.asked, self.out = asked, out
        self.ended = WatchOutcome()
        self._on_note, self._on_reduction = on_note or _warned, on_reduction
        self._options, self._exit = dict(options or {}), exit
        self._base = Path.cwd()  # the program may go elsewhere
        self._hooks = ReproHooks(self._place, self._dynamo, self._aot)
        self._turn = threading.Lock()
        self._on = self._busy = False

    def install(self) -> None:
        """Begin; torch's own minifier is off from now on."""
        self._on = True
        self._hooks.install()

    def remove(self) -> None:
        """End; what was compiled meanwhile is not watched any more."""
        self._on = False
        self._hooks.remove()

    # -- what is wanted -----------------------------------------------------------------------------------------------

    def _wanted(self) -> Asked | None:
        after, level = repro_hooks.asked_of_torch()
        asked = self.asked or (Asked(after, level) if after is not None else None)
        return asked if asked is not None and asked.after in PLACES and asked.level in LEVELS else None

    def _place(self) -> str | None:
        if self._on and self._busy:
            return NOWHERE  # in children too: torch's minifier stays off
        asked = self._wanted() if self._on else None
        if asked is None:
            return None
        return NOWHERE if self.ended.folder is not None else asked.after

    def _watching(self) -> bool:
        return self._on and not self._busy and self.ended.folder is None

    def _level(self) -> int:
        asked = self._wanted()
        return asked.level if asked is not None else LEVELS[0]

    # -- graphs -------------------------------------------------------------------------------------------------------

    def _dynamo(self, backend: GraphBackend, gm: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        self.ended.graphs += 1
        taken = self._taken(backend, gm)
        case = taken.case(inputs)
        if self._level() > LEVELS[0]:
            taken.trial(case, values=self._level() == LEVELS[-1])
        compiled = taken.compiled(lambda: backend.compile(gm, inputs), lambda: case)

        def run(*args: Any) -> Any:
            nonlocal case
            first, case = case, None
            return taken.called(compiled, args, list(args), first)

        return run

    def _aot(self, compile: Compile, gm: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        from graphprobe.diagnose.reduction import script_cases

        self.ended.graphs += 1
        taken = self._taken(GraphBackend(compile, "inductor"), gm, grad=False)
        level = self._level()
        case = taken.case(script_cases.made_up(inputs)) if level > LEVELS[0] else None
        taken.trial(case, values=False)
        compiled = taken.compiled(lambda: compile(gm, inputs), lambda: taken.case(script_cases.made_up(inputs)))
        first = True

        def run(args: list[Any]) -> Any:
            nonlocal first
            if not self._watching():
                return compiled(args)
            values = list(args)
            case = taken.case(values) if first else None
            if first and level > LEVELS[0]:
                taken.trial(case, values=level == LEVELS[-1])
            first = False
            return taken.called(compiled, (args,), values, case)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def _taken(self, backend: GraphBackend, gm: Any, *, grad: bool | None = None) -> _Taken:
        from graphprobe.diagnose.reduction import script_cases

        try:
            graph = script_cases.copy_of(gm)
        except Exception as error:  # the program must go on as it would without being watched
            self.note(f"a graph could not be copied: {type(error).__name__}: {error}")
            graph = None
        return _Taken(self, backend, graph, grad)

    # -- what is done with a failing case -----------------------------------------------------------------------------

    def note(self, text: str) -> None:
        """Keep and tell what could not be done."""
        self.ended.notes.append(text)
        self._on_note(text)

    def reduce(
        self, case: Case, backend: GraphBackend, failure: str, tried: tuple[Answer, Problem] | None = None
    ) -> None:
        """Reduce the case, unless one has been; what goes wrong with it is noted.

        Args:
            tried: what the case was seen to do, with its values.

        Raises:
            ReducedExit: it was reduced, and that is all that was wanted.
        """
        from graphprobe.diagnose.reduction import script_cases
        from graphprobe.diagnose.reduction.reduce_case import reduce_case

        with self._turn:
            if not self._watching():
                return
            folder = self._folder()
            self._on_note(f"a graph fails: {failure}; reducing it into {folder}")
            result: CaseReduction | None = None
            try:
                with self.alone(case):
                    if script_cases.can_fork():
                        maker = script_cases.maker_of(backend)
                        result = reduce_case(case, folder, backend=maker, tried=tried, **self._options)
                        failed = result.reduction.failed
                    else:
                        failed = self._elsewhere(case, folder)
            except Exception as error:
                self.note(f"the graph could not be reduced: {type(error).__name__}: {error}")
                return
            if not failed:
                self.note("the graph does not fail when it is compiled by itself")
                return
            self.ended.folder, self.ended.reduction = folder, result
            if result is not None and self._on_reduction is not None:
                self._on_reduction(result)
            elif result is not None:
                self._on_note(f"reduced from {result.before} calls to {result.after}: {folder / 'repro'}")
            if result is not None and result.unproven:
                self._on_note(f"its repro.py is no proof: {result.unproven}")
        if self._exit:
            raise ReducedExit

    def _elsewhere(self, case: Case, folder: Path) -> bool:
        """CUDA is in use, so that no child can judge: another process reduces what is on disk."""
        from graphprobe.diagnose.reduction import script_cases

        if case.unsaved:
            raise UsageError(f"CUDA is in use, so that another process must reduce it; {'; '.join(case.unsaved)}")
        how = {name: self._options.get(name) for name in ("timeout_s", "fail_regex")}
        return script_cases.reduced_elsewhere(case, folder, **how) == 1

    def try_out(self, case: Case, backend: GraphBackend, *, values: bool) -> tuple[Answer, Problem] | None:
        """Judge a case in a child process, see `tried`; None where that cannot be done."""
        from graphprobe.diagnose.reduction import script_cases

        if not script_cases.can_fork():
            self.note("CUDA is in use: graphs are not tried in a child process first")
            return None
        how = {name: self._options.get(name) for name in ("timeout_s", "memory_bytes")}
        with self.alone(case):
            return script_cases.tried(case, backend, values=values, **how)

    def _folder(self) -> Path:
        if self.out is None:
            return self._base / FOLDER / datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")
        if self._options.get("resume"):
            return self.out
        folder, number = self.out, 1
        while folder.exists() and any(folder.iterdir()):  # that of a graph before, which does not fail by itself
            number += 1
            folder = self.out.with_name(f"{self.out.name}-{number}")
        return folder

    @contextmanager
    def alone(self, case: Case) -> Iterator[None]:
        """In the block, nothing that is compiled is watched, here and in children."""
        from graphprobe.diagnose.reduction import script_cases

        self._busy = True
        try:
            with ExitStack() as stack:
                stack.enter_context(repro_hooks.switched_off())
                stack.enter_context(script_cases.undisturbed(case))
                yield
        finally:
            self._busy = False


class _Taken:
    """One graph of the program: copied before it was compiled."""

    def __init__(self, watch: ScriptWatch, backend: GraphBackend, graph: Any, grad: bool | None) -> None:
        self.watch, self.backend, self.graph, self.grad = watch, backend, graph, grad

    def case(self, values: Sequence[Any]) -> Case | None:
        """The graph with these inputs; None when they cannot be kept, which is noted."""
        from graphprobe.diagnose.reduction import script_cases

        if self.graph is None:
            return None
        import torch

        try:
            grad = torch.is_grad_enabled() if self.grad is None else self.grad
            case = script_cases.case_of(self.graph, values, self.backend, grad=grad)
        except Exception as error:
            self.watch.note(f"the inputs of a graph could not be kept: {type(error).__name__}: {error}")
            return None
        if case.calls[0].opaque:
            self.watch.note(f"a graph cannot be repeated: {'; '.join(case.calls[0].opaque)}")
            return None
        return case

    def trial(self, case: Case | None, *, values: bool) -> None:
        """Compile and run it in a child process first, and reduce it if it fails there.

        Raises:
            GraphDiedError: it would end the program.
        """
        if case is None:
            return
        try:
            tried = self.watch.try_out(case, self.backend, values=values)
        except Exception as error:
            self.watch.note(f"a graph could not be tried: {type(error).__name__}: {error}")
            return
        if tried is None or (answer := tried[0]).verdict.value == "passes":
            return
        if answer.verdict.value == "unresolved":
            self.watch.note(f"a graph could not be judged: {answer.detail}")
            return
        self.watch.reduce(case, self.backend, answer.detail, tried)
        if answer.signature.split(" ", 1)[0] in ("segfault", "hang"):
            raise GraphDiedError(
                f"a compiled graph was not run here, because {answer.detail} when it was tried",
                hint=f"the smallest such graph: {self.watch.ended.folder}" if self.watch.ended.folder else "",
            )

    def compiled(self, compile: Callable[[], Callable[..., Any]], case: Callable[[], Case | None]) -> Any:
        """What `compile` returns; what it raises is reduced, and raised."""
        try:
            return compile()
        except Exception as error:
            if not is_restart(error):
                self._reduce(case(), error)
            raise

    def called(self, compiled: Callable[..., Any], args: Sequence[Any], values: list[Any], case: Case | None) -> Any:
        """What the call returns; what it raises is reduced, and raised.

        Args:
            values: the inputs, kept alive so that there is a case where none was made before the call.
            case: of this call.
        """
        if not self.watch._watching():
            return compiled(*args)
        try:
            return compiled(*args)
        except Exception as error:
            self._reduce(case or self.case(values), error)
            raise

    def _reduce(self, case: Case | None, error: Exception) -> None:
        if case is not None:
            line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
            named = _NAMELESS.sub(f"backend={case.backend_shown!r}", line)
            self.watch.reduce(case, self.backend, f"{type(error).__name__}: {named}")


def _warned(text: str) -> None:
    warnings.warn(f"graphprobe: {text}", GraphprobeWarning, stacklevel=3)


def watch_environment(environ: Mapping[str, str] | None = None) -> ScriptWatch | None:
    """A watch that obeys the environment and the settings of torch, not installed yet; None when neither asks for one.

    Raises:
        UsageError: a value that a variable cannot have.
    """
    asked = asked_by(os.environ if environ is None else environ)
    return None if asked is None and repro_hooks.asked_of_torch()[0] is None else ScriptWatch()
