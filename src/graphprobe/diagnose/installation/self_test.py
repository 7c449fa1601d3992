"""What `graphprobe doctor` tries: three operations through each feature, and what comes out held against eager values.

A row of `TRIALS` tells whether a feature, or a part of it, works: by values, so that one that yields nothing is lost.
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from graphprobe.analysis.breaks_facts import facts_from_lines
from graphprobe.backends.explain import ExplainWithBackend
from graphprobe.backends.table import get
from graphprobe.diagnose.case import Case
from graphprobe.diagnose.culprit import named, shortened
from graphprobe.diagnose.evidence import loops_of
from graphprobe.diagnose.kernel_check import CompiledGraph, check_graph
from graphprobe.diagnose.rungs import Watch, graphs_rung, kernel_rung, show
from graphprobe.dump_plan.build import plan_from
from graphprobe.engine.forked_child import isolated
from graphprobe.engine.interpret import copied_together
from graphprobe.engine.naming import op_of
from graphprobe.engine.replaced_launches import MixedGraph
from graphprobe.engine.tensor_stats import stats_of
from graphprobe.errors import raised_from
from graphprobe.internals import names
from graphprobe.internals.bus import Subscription
from graphprobe.internals.dynamo.compile_calls import CompileCalls, Compiled
from graphprobe.internals.dynamo.dynamo_taps import compiled_before, follow_run_dir
from graphprobe.internals.inductor.lowered_graph import watched
from graphprobe.internals.inductor.stages import inductor_config
from graphprobe.internals.ir.evaluation import evaluate_ir
from graphprobe.internals.operators.operators import decomposition_of, operator_of, writes_nothing
from graphprobe.internals.tensors.trees import tree_leaves
from graphprobe.internals.tensors.weak_storage import storage_ids
from graphprobe.probe.api.dump import dump
from graphprobe.probe.dump.backend import DumpBackend
from graphprobe.probe.dump.sessions import begin_single_ops, session_for
from graphprobe.probe.profile import profile
from graphprobe.probe.session import open_session
from graphprobe.settings import resolve
from graphprobe.store import layout
from graphprobe.store.api_reader import open_api_dump
from graphprobe.store.dump_reader import open_dump
from graphprobe.store.frame_record import FRAMES, RECORD
from graphprobe.store.reader import Run

LIMIT_S = 300.0
"""For all trials: a compiler that hangs is ended then."""

QUICK = {"cpp.vec_isa_ok": False, "cpp_cache_precompile_headers": False}
"""Settings of Inductor's for kernels of a few numbers: no test programs for vector instructions, no headers ahead."""


PHASES = ("pre_grad_passes", "joint_passes", "post_grad_passes")
SILU = torch.ops.aten.silu.default


class Trial(NamedTuple):
    """One row: a feature, the part of it that is tried (empty: all of it), how; whether it takes a C++ compiler."""

    feature: str
    part: str
    works: Callable[[Trials], Any]
    kernels: bool = False


def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Three operations, one of them a reduction."""
    return (x.sin() * w).sum()


def in_libraries(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What Inductor has others compute: a fallback with two results, a product of matrices."""
    values, order = x.sort()
    return values.mm(w.reshape(4, 3)), order


@torch.compiler.disable  # type: ignore[untyped-decorator]
def left_alone(x: torch.Tensor) -> torch.Tensor:
    """Not traced."""
    return x


def cosine(x: torch.Tensor) -> torch.Tensor:
    """Compiled for each shape."""
    return x.cos()


def broken(x: torch.Tensor) -> torch.Tensor:
    """Two graphs."""
    apart: torch.Tensor = left_alone(x.sin())
    return apart.cos()


def looping(x: torch.Tensor) -> torch.Tensor:
    """Left uncompiled: a graph break in a loop."""
    for _ in range(2):
        x = left_alone(x.sin())
    return x


class Trials:
    """The trials of one process, in a folder of theirs; what several of them need is made once.

    Attributes:
        missing: see `names.missing`, of those that are there only while torch lowers.
    """

    def __init__(self, folder: Path, *, kernels: bool) -> None:
        self.folder, self.kernels = folder, kernels
        self.x, self.w = torch.linspace(-2, 2, 12).reshape(3, 4), torch.linspace(0.5, 3, 12).reshape(3, 4)
        self.watch = Watch()
        self.missing: dict[str, str] = {}
        self._made: dict[str, Any] = {}

    def once(self, make: Callable[[Trials], Any]) -> Any:
        """What `make` gives, or raises, the first time."""
        name = make.__name__
        if name not in self._made:
            try:
                self._made[name] = make(self)
            except Exception as error:
                self._made[name] = error
        if isinstance(made := self._made[name], Exception):
            raise made
        return made

    def trained(self, backend: Any) -> bool:
        """Whether loss and gradient of the program, compiled with `backend`, are the uncompiled one's."""
        torch.compiler.reset()
        found = [_trained(fn, self.x, self.w) for fn in (torch.compile(program, backend=backend), program)]
        return all(torch.allclose(a, b) for a, b in zip(*found, strict=True))

    def dumped(self, engine: str) -> list[torch.Tensor]:
        """The outputs in a dump of the program compiled by this engine."""
        path = self.folder / engine
        path.mkdir()
        plan = plan_from(options={"enable_dump": True, "dump_path": str(path), "engine": engine})
        assert self.trained(DumpBackend(plan)), "the program computes something else"
        session_for(plan).close()
        return _outputs_in(path)

    def holds(self, values: Iterable[Any], *wanted: Any) -> bool:
        """Whether each tensor of `wanted` is among the values."""
        kept = [v for v in values if isinstance(v, torch.Tensor)]
        tensors = [one for one in wanted if isinstance(one, torch.Tensor)]
        found = [any(v.shape == one.shape and torch.allclose(v, one) for v in kept) for one in tensors]
        return bool(found) and all(found)


def _trained(fn: Callable[..., torch.Tensor], x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    loss = fn(x, w)
    loss.backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    return [loss.detach(), x.grad]


def _outputs_in(path: Path) -> list[torch.Tensor]:
    ops = (op for folder in open_dump(path).folders for op in folder.ops())
    slots = (slot for op in ops for slot in op.values().values() if slot.side == "output" and slot.is_there)
    return [torch.from_numpy(slot.array()) for slot in slots]


def recorded(trials: Trials) -> Run:
    """A run, and beside it all that can watch the same compiles: kernels with exposed values, a profile, calls."""
    settings = resolve(arguments={"logs": "dynamo", "record_frames": True, "save_inputs": True}, environ={})
    calls = CompileCalls(lambda compiled, args, kwargs: None)
    torch.compiler.reset()
    session = open_session(settings, everything=True, root=trials.folder / "run")
    calls.install()
    rung = kernel_rung(trials.watch, expose=True) if trials.kernels else graphs_rung(trials.watch, "post_grad")

    def look_up(*_: Any) -> None:
        trials.missing = names.missing(while_lowering=True)

    try:
        with profile() as timed, watched(all_threads=True, done=look_up), trials.watch.snapshots.active():
            _trained(torch.compile(program, backend=rung), trials.x, trials.w)
            for function in (broken, looping):
                torch.compile(function, backend="eager")(trials.x)
            for values in (trials.x, trials.x[:2]):
                torch.compile(cosine, backend="eager", dynamic=False)(values)
            with contextlib.suppress(RuntimeError):  # is refused
                torch.compile(looping, backend="eager", fullgraph=True)(trials.x)
        trials._made |= {
            "profile": timed,
            "calls": calls.compiled,
            "compiled": compiled_before(),
            "missing": trials.missing,
        }
        trials._made["snapshots"] = {log.phase for log in trials.watch.snapshots.logs if log.snapshots}
    finally:
        calls.remove()
        session.stop()
    return Run.open(session.writer.run_dir)


def _run(trials: Trials) -> Run:
    run: Run = trials.once(recorded)
    return run


def _beside(trials: Trials, what: str) -> Any:
    trials.once(recorded)
    return trials._made[what]


def _facts(trials: Trials, model: int = 0) -> dict[str, Any]:
    return _run(trials).models()[model].compile


def _phases(trials: Trials) -> set[str | None]:
    return {event.where.phase for event in _run(trials).events() if event.kind in ("pass", "graph")}


def _kinds(trials: Trials) -> set[str]:
    return {event.kind for event in _run(trials).events() if event.where.direction in ("forward", "backward")}


def _lines(trials: Trials, name: str) -> bytes:
    return (_run(trials).tool_dir / name).read_bytes()


def _compiled(trials: Trials) -> list[CompiledGraph]:
    trials.once(recorded)
    assert {graph.direction for graph in trials.watch.compiled} == {"forward", "backward"}, "no graph was compiled"
    return trials.watch.compiled


def _shown(trials: Trials) -> bool:
    for graph in _compiled(trials):
        show(trials.watch, graph)
    reports = [check_graph(graph, 0) for graph in trials.watch.compiled]
    return all(r.checked and r.whole.answer == "ok" and not r.suspects for r in reports)


def _mixes(trials: Trials, how: Any) -> bool:
    for graph in _compiled(trials):
        assert graph.lowered is not None and graph.compiled is not None
        mixed = MixedGraph(graph.lowered, graph.compiled)
        for launch in mixed.launches:
            assert launch.how == "graph", launch.reason
            launch.how = how
        run = mixed.run(graph.inputs[0], range(len(mixed.launches)))
        kept = all(launch.how == how for launch in mixed.launches)
        if not (kept and run.ran and set(run.ran) == run.replaced and trials.holds(run.outputs, *graph.outputs[0])):
            return False
    return True


def _is_right(graph: torch.fx.GraphModule, inputs: list[Any]) -> bool:
    """Whether the IR of a graph, evaluated, gives what the graph gives, and all of it."""
    values = evaluate_ir(graph, copied_together(inputs))
    assert not values.unsupported, values.unsupported[0]
    return loops_of(graph, inputs) == "right"


def _evaluates(trials: Trials) -> bool:
    trials.once(recorded)
    pairs = [(graph.final, graph.inputs) for graph in trials.watch.compiled]
    pairs += [(graph.graph, graph.inputs) for graph in trials.watch.graphs]
    return len(pairs) == 2 and all(_is_right(graph, inputs[0]) for graph, inputs in pairs)


def _evaluates_traced(function: Callable[..., Any], trials: Trials) -> bool:
    inputs = [trials.x, trials.w]
    return _is_right(make_fx(function, tracing_mode="symbolic")(*inputs), inputs)


def _rungs(trials: Trials) -> bool:
    for point in ("dynamo", "aot", "joint"):
        watch = Watch()
        if not trials.trained(graphs_rung(watch, point)) or not (watch.graphs or point == "dynamo"):
            return False
    return True


def _reduces(trials: Trials) -> bool:
    trials.once(recorded)
    first = trials.watch.dynamo[0]

    def refusing(gm: torch.fx.GraphModule, _: Any) -> Any:
        if any(op_of(node).endswith("sin") for node in gm.graph.nodes):
            raise RuntimeError("there is a sin")
        return gm.forward

    case = Case(first.graph, first.calls, "crash_compile", backend="eager")
    short = shortened(case, budget_s=30, timeout_s=30, backend=lambda: refusing)
    return short is not None and [op_of(node).rpartition(".")[2] for node in named(short)] == ["sin"]


def called(trials: Trials) -> dict[str, list[torch.Tensor]]:
    """The calls of the program, uncompiled and compiled, in a dump of the API: outputs by label."""
    with dump(trials.folder / "calls", data="tensor"):
        for fn in (program, torch.compile(program, backend="eager")):
            _trained(fn, trials.x, trials.w)
    read = open_api_dump(trials.folder / "calls")
    return {
        call.label: [
            torch.from_numpy(read.values(call, one).copy()) for one in call.slots if "put" in one.role and one.value
        ]
        for call in read.calls(0, 0)
    }


def _is_one_record(trials: Trials) -> bool:
    """Whether the compiled program is one call, with its result, and what it calls is none."""
    calls = trials.once(called)
    inside = [label for label in calls if label.startswith("Tensor.sin.") and label.endswith(".forward")]
    return len(inside) == 1 and trials.holds(calls["compiled.program.0.forward"], program(trials.x, trials.w))


def _single_ops(trials: Trials) -> bool:
    path, file = trials.folder / "single", trials.folder / "dump.json"
    path.mkdir()
    file.write_bytes(msgspec.json.encode({"dump": {"dump_path": str(path), "dump_op_switch": "on"}}))
    session = session_for(plan_from(options={"enable_dump": True, "dump_config_path": str(file)}))
    begin_single_ops(session)
    wanted = program(trials.x, trials.w)
    session.close()
    return trials.holds(_outputs_in(path), wanted)


def _explains(trials: Trials) -> bool:
    torch.compiler.reset()
    with ExplainWithBackend("eager") as backend:
        torch.compile(broken, backend=backend)(trials.x)
        return len(backend.output().graphs) == 2 and len(backend.output().break_facts) == 1


def _sizes_by_value(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return w[x > 0] * 2


K = True

TRIALS: tuple[Trial, ...] = (
    Trial("dynamo_graph", "", lambda t: _facts(t)["ops"] == 3),
    Trial("function_names", "", lambda t: _facts(t)["function"] == "program"),
    Trial("guards", "", lambda t: _facts(t)["guards"]),
    Trial("metrics", "", lambda t: _facts(t)["timings_ms"]),
    Trial("aot_graphs", "", lambda t: _run(t).models()[0].directions().keys() >= {"joint", "forward", "backward"}),
    Trial("passes", "", lambda t: any(e.kind == "pass" and e.changed is not None for e in _run(t).events())),
    Trial("silent_passes", "", lambda t: any(e.name == "view_to_reshape" for e in _run(t).events())),
    *(Trial(name, "", functools.partial(lambda p, t: p in _phases(t), name)) for name in PHASES),
    Trial("lowering", "", lambda t: _kinds(t) >= {"ir", "code"}, K),
    Trial("inductor_result", "", lambda t: _kinds(t) >= {"ops", "inputs"}, K),
    Trial("steps", "", lambda t: b"program" in _lines(t, layout.STEPS)),
    Trial("steps", "of Inductor", lambda t: b"generate code" in _lines(t, layout.STEPS), K),
    Trial("graph_breaks", "", lambda t: len(facts_from_lines(_lines(t, layout.BREAKS))[0]) == 2),
    Trial("uncompiled", "", lambda t: len(facts_from_lines(_lines(t, layout.BREAKS))[1]) == 1),
    Trial("recompiles", "", lambda t: _lines(t, layout.RECOMPILES).count(b"\n") == 1),
    Trial("recompile_reason", "", lambda t: "size mismatch" in (_facts(t, -1)["recompile_reason"] or "")),
    Trial("component_logs", "", lambda t: _lines(t, layout.log_file("dynamo"))),
    Trial("frame_records", "", lambda t: list(_run(t).tool_dir.glob(f"{FRAMES}/*/{RECORD}"))),
    Trial("compile_calls", "", lambda t: _beside(t, "calls")[0].fn is program),
    Trial("compiled_before", "", lambda t: "program" in " ".join(_beside(t, "compiled"))),
    Trial("profile", "", lambda t: _beside(t, "profile").result.spans),
    Trial("profile_passes", "", lambda t: any(s.name.startswith("pass.") for s in _beside(t, "profile").result.spans)),
    Trial("profile_details", "", lambda t: any(s.kind == "build" for s in _beside(t, "profile").result.spans), K),
    Trial("diagnose_stages", "graphs op by op", _rungs),
    Trial("diagnose_stages", "values inside of kernels", _shown, K),
    Trial("diagnose_passes", "", lambda t: _beside(t, "snapshots") >= {"joint", "post_grad"}),
    Trial("diagnose_settings", "", lambda t: Compiled(program, "inductor", mode="max-autotune").inductor_settings()),
    Trial("scheduler_ir", "", lambda t: all(g.lowered and g.lowered.nodes for g in _compiled(t)), K),
    Trial("mixing", "by parts of the graph", lambda t: _mixes(t, "graph"), K),
    Trial("mixing", "by the IR", lambda t: _mixes(t, "ir"), K),
    Trial("ir_evaluation", "loops", _evaluates),
    Trial("ir_evaluation", "calls into libraries", lambda t: _evaluates_traced(in_libraries, t)),
    Trial("ir_evaluation", "sizes that hang on values", lambda t: _evaluates_traced(_sizes_by_value, t)),
    Trial("decompositions", "", lambda t: t.holds([decomposition_of(SILU)(t.x)], SILU(t.x))),  # type: ignore[misc]
    Trial("operators", "", lambda t: operator_of(SILU) is not None and not writes_nothing(torch.ops.aten.sin_.default)),
    Trial("containers", "", lambda t: any(leaf is t.x for leaf in tree_leaves([1, {"a": (t.x,)}]))),
    Trial("scheduler_ir", "names", lambda t: not _beside(t, "missing"), K),
    Trial("backends", "", lambda t: t.trained(get("aot_eager"))),
    Trial("checking_backends", "", lambda t: t.trained(get("eager_debug"))),
    Trial("explain", "", _explains),
    Trial("reduce", "", _reduces),
    Trial("dump_interpreter", "", lambda t: t.holds(t.once(by_interpreter), t.x.sin(), program(t.x, t.w))),
    Trial("dump_instrument", "", lambda t: t.holds(t.dumped("instrument"), t.x.sin(), program(t.x, t.w)), K),
    Trial("dump_kernel", "", lambda t: t.holds(t.dumped("kernel"), program(t.x, t.w)), K),
    Trial("dump", "", lambda t: t.once(by_interpreter)),
    Trial("dump_single_ops", "", _single_ops),
    Trial("dump_stats", "", lambda t: stats_of(t.x).max == 2.0 and stats_of(t.x).digest != stats_of(t.w).digest),
    Trial("api_dump", "", lambda t: t.holds(chain(*t.once(called).values()), t.x.sin(), program(t.x, t.w))),
    Trial("api_dump", "gradients", lambda t: any("backward" in label for label in t.once(called))),
    Trial("api_regions", "", _is_one_record),
    Trial("profile_facts", "", lambda t: _beside(t, "profile").result.compiles),
    Trial("dump_steps", "", lambda t: storage_ids([t.x]) == storage_ids([t.x[0]]) != storage_ids([t.w])),
)


def by_interpreter(trials: Trials) -> list[torch.Tensor]:
    """What the engine of that name leaves."""
    return trials.dumped("interpreter")


def try_features(*, kernels: bool, trials: Iterable[Trial] = TRIALS) -> dict[str, dict[str, str | None]]:
    """By feature and part, empty where it works, else what went wrong; None where there is no compiler to try it.

    It runs in child processes, with caches of its own: one that ends for a trial is followed by another for the rest.

    Args:
        kernels: there is a C++ compiler.
    """
    found: dict[str, dict[str, str | None]] = {}
    waiting = list(trials)
    while waiting:
        with tempfile.TemporaryDirectory(prefix="graphprobe-doctor-") as folder:
            told, now = Path(folder) / "told", tuple(waiting)
            outcome = isolated(functools.partial(_try, now, Path(folder), told, kernels), timeout_s=LIMIT_S)
            answers = told.read_bytes().split(b"\n")[:-1] if told.is_file() else []
        for trial, answer in zip(waiting, answers, strict=False):
            found.setdefault(trial.feature, {})[trial.part] = msgspec.json.decode(answer, type=str | None)
        waiting = waiting[len(answers) :]
        if waiting:
            end = outcome.end if outcome.died else outcome.raised.line if outcome.raised else "it was not tried"
            found.setdefault(waiting[0].feature, {})[waiting[0].part] = end
            waiting = waiting[1:]
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
    if trial.kernels and not trials.kernels:
        return None
    try:
        return "" if trial.works(trials) else "what came out is not what the program computes, or nothing did"
    except Exception as error:
        return raised_from(error).line
