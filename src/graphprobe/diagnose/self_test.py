"""Calls each public function once, on a program of three operations, and checks what comes out: `graphprobe doctor`."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch

import graphprobe
from graphprobe.engine.forked_child import isolated
from graphprobe.errors import raised_from
from graphprobe.internals import names
from graphprobe.internals.bus import Subscription
from graphprobe.internals.dynamo.dynamo_taps import follow_run_dir
from graphprobe.internals.inductor.lowered_graph import watched
from graphprobe.internals.inductor.stages import inductor_config

LIMIT_S = 300.0
"""For all trials: a compiler that hangs is ended then."""

QUICK = {"cpp.vec_isa_ok": False, "cpp_cache_precompile_headers": False}
"""Settings of Inductor's for kernels of a few numbers: no test programs for vector instructions, no headers ahead."""


def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Three operations, one of them a reduction."""
    return (x.sin() * w).sum()


@torch.compiler.disable  # type: ignore[untyped-decorator]
def left_alone(x: torch.Tensor) -> torch.Tensor:
    """Not traced."""
    return x


def broken(x: torch.Tensor) -> torch.Tensor:
    """Two graphs."""
    apart: torch.Tensor = left_alone(x.sin())
    return apart.cos()


class Trials:
    """The program and its inputs, the backend to compile it with, and a folder for what the trials write."""

    def __init__(self, folder: Path, *, kernels: bool) -> None:
        self.folder, self.backend, self.engine = folder, "aot_eager", "interpreter"
        if kernels:
            self.backend, self.engine = "inductor", "kernel"
        self.x, self.w = torch.linspace(-2, 2, 12).reshape(3, 4), torch.linspace(0.5, 3, 12).reshape(3, 4)

    def trained(self, backend: Any) -> bool:
        """Whether loss and gradient of the program, compiled with `backend`, are the uncompiled one's."""
        torch.compiler.reset()
        found = [_trained(fn, self.x, self.w) for fn in (torch.compile(program, backend=backend), program)]
        return all(torch.allclose(a, b) for a, b in zip(*found, strict=True))

    def run(self) -> Path:
        """A run of the compiled program."""
        folder = self.folder / "run"
        if not folder.exists():
            with graphprobe.trace(folder):
                self.trained(self.backend)
        return folder

    def calls(self) -> Path:
        """A dump of the program's calls."""
        folder = self.folder / "calls"
        if not folder.exists():
            with graphprobe.dump(folder, data="tensor"):
                _trained(program, self.x, self.w)
        return folder

    def proof(self) -> Path:
        """The dossier of a planted fault."""
        out = self.folder / "proofs"
        if not out.exists():
            backend = graphprobe.faulty(op="sin")
            found = graphprobe.diagnose(program, self.x, self.w, backend=backend, out=out, workaround=False)
            assert (found.verdict, found.findings[0].proof is not None) == ("fault", True), found.notes
        return Path(next(out.glob("*/finding.json"))).parent


def _trained(fn: Callable[..., torch.Tensor], x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    loss = fn(x, w)
    loss.backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    return [loss.detach(), x.grad]


def _is_among(wanted: torch.Tensor, path: Path) -> bool:
    """Whether a dump holds a value."""
    kept = (torch.from_numpy(value.copy()) for value in _values_in(path))
    return any(value.shape == wanted.shape and torch.allclose(value, wanted) for value in kept)


def _values_in(path: Path) -> Iterator[Any]:
    opened = graphprobe.open_dump(path)
    for call in opened.calls(0, opened.steps(0)[0]):
        yield from (opened.values(call, slot) for slot in call.slots if slot.value)


def _traces(t: Trials) -> bool:
    run = graphprobe.open_run(t.run())
    kinds = {event.kind for event in run.events()}
    wanted = {"pass", "code", "ops"} if t.backend == "inductor" else {"graph"}
    return run.models()[0].graphs().keys() >= {"joint", "forward", "backward"} and kinds >= wanted


def _names_while_lowering(t: Trials) -> bool:
    missing = {"nothing was lowered": ""}

    def look_up(*_: Any) -> None:
        missing.clear()
        missing.update(names.missing(while_lowering=True))

    with watched(all_threads=True, done=look_up):
        t.trained("inductor")
    return not missing


def _explains(t: Trials) -> bool:
    torch.compiler.reset()
    found = graphprobe.explain(broken)(t.x)
    return (len(found.graphs), len(found.break_facts)) == (2, 1)


def _counts(t: Trials) -> bool:
    torch.compiler.reset()
    compiled = torch.compile(torch.cos, backend="eager", dynamic=False)
    with graphprobe.recompiles(allowed=1) as found:
        for values in (t.x, t.x[:2]):
            compiled(values)
    return len(found.facts) == 1


def _profiles(t: Trials) -> bool:
    with graphprobe.profile() as found:
        t.trained(t.backend)
    return bool(found.result.spans and found.result.compiles)


def _dumps_graphs(t: Trials) -> bool:
    (t.folder / "graphs").mkdir()
    config = graphprobe.CompilerConfig()
    options: Any = config.dump_config
    options.enable_dump, options.dump_path, options.engine = True, str(t.folder / "graphs"), t.engine
    backend = graphprobe.get_backend(compiler_config=config, backend=t.backend)
    return t.trained(backend) and _is_among(program(t.x, t.w), t.folder / "graphs")


def _compares(t: Trials) -> bool:
    with graphprobe.compare(candidate=t.calls(), reference=t.calls()) as found:
        return found.summary.outcome == "same"


def _reduces(t: Trials) -> bool:
    found = graphprobe.reduce(t.proof(), out=t.folder / "reduced")
    return found.case is not None and found.repro_exit == 1


class Trial(NamedTuple):
    """A public function, whether it works, and whether that takes a C++ compiler."""

    verb: str
    works: Callable[[Trials], Any]
    kernels: bool = False


TRIALS: tuple[Trial, ...] = (
    Trial("trace", _traces),
    Trial("trace while a graph is lowered", _names_while_lowering, True),
    Trial("report", lambda t: graphprobe.report(t.run(), out=t.folder / "report.html").stat().st_size),
    Trial("export", lambda t: graphprobe.export(t.run(), t.folder / "trace.json", "chrome-trace")),
    Trial("explain", _explains),
    Trial("recompiles", _counts),
    Trial("profile", _profiles),
    Trial("dump", lambda t: _is_among(t.x.sin(), t.calls())),
    Trial("compare", _compares),
    Trial("get_backend", _dumps_graphs),
    Trial("backends", lambda t: t.trained(graphprobe.backends.get("eager_debug"))),
    Trial("wrap", lambda t: t.trained(graphprobe.wrap("aot_eager"))),
    Trial("faulty", lambda t: not t.trained(graphprobe.faulty(op="sin"))),
    Trial("diagnose", lambda t: t.proof()),
    Trial("reduce", _reduces),
)


def try_functions(*, kernels: bool, trials: Iterable[Trial] = TRIALS) -> dict[str, str | None]:
    """By public function: empty where it works, else what went wrong; None where there is no compiler to try it.

    It runs in child processes, with caches of its own: one that ends for a trial is followed by another for the rest.

    Args:
        kernels: there is a C++ compiler.
    """
    found: dict[str, str | None] = {}
    waiting = list(trials)
    while waiting:
        with tempfile.TemporaryDirectory(prefix="graphprobe-doctor-") as folder:
            told, now = Path(folder) / "told", tuple(waiting)
            outcome = isolated(functools.partial(_try, now, Path(folder), told, kernels), timeout_s=LIMIT_S)
            answers = told.read_bytes().split(b"\n")[:-1] if told.is_file() else []
        for trial, answer in zip(waiting, answers, strict=False):
            found[trial.verb] = msgspec.json.decode(answer, type=str | None)
        waiting = waiting[len(answers) :]
        if waiting:
            end = outcome.end if outcome.died else outcome.raised.line if outcome.raised else "it was not tried"
            found[waiting.pop(0).verb] = end
    return found


def _try(waiting: tuple[Trial, ...], folder: Path, told: Path, kernels: bool) -> None:
    """Tries one after the other, and writes a line of each."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "cache")
    os.chdir(folder)
    Subscription([follow_run_dir(str(folder))]).install()
    torch.manual_seed(0)
    trials = Trials(folder, kernels=kernels)
    with inductor_config().patch(QUICK), told.open("ab", buffering=0) as file:
        for trial in waiting:
            file.write(msgspec.json.encode(_tried(trial, trials)) + b"\n")


def _tried(trial: Trial, trials: Trials) -> str | None:
    if trial.kernels and trials.backend != "inductor":
        return None
    try:
        return "" if trial.works(trials) else "what came out is not what the program computes, or nothing did"
    except Exception as error:
        return raised_from(error).line
