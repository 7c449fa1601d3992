"""The child half of every repro: runs its graph uncompiled and compiled on the saved values, and compares.

The part between the marks is copied, as text, into each repro, after the parent half (`watch`), the code of
`engine.replay` and `comparison`, on which it stands; the imports of graphprobe are left out there.
"""

from __future__ import annotations

# <check>
import contextlib
import copy
import functools
import importlib
import json
import linecache
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from graphprobe.diagnose.dossier.comparison import CallOutcome, Leaves, compare_call, numbered, sharing, shown
from graphprobe.diagnose.dossier.watch import end_with_parent, options_of
from graphprobe.engine.replay import Undecided, brief, load, load_constants, restore_all, set_state

CONFIGS = {
    "inductor": "torch._inductor.config",
    "functorch": "torch._functorch.config",
    "dynamo": "torch._dynamo.config",
}
BACKENDS, EXCEPTIONS = "torch._dynamo.backends.registry", "torch._dynamo.exc"
QUIET: dict[str, dict[str, Any]] = {
    "inductor": {"fx_graph_cache": False, "fx_graph_remote_cache": False, "compile_threads": 1},
    "functorch": {"enable_autograd_cache": False, "enable_remote_autograd_cache": False},
}
RAISING = ("crash_compile", "crash_runtime", "extra_exception")
Saved = tuple[dict[str, torch.Tensor], dict[str, Any]]


def configure(settings: Mapping[str, Any]) -> None:
    """The recorded settings of the compiler, and no cache of compiled graphs: an old one may hide the fault or fake it.

    The cache of compiled C++ stays, since it goes by the generated text; `force_disable_caches` would end it as well,
    and make each run twice as long.
    """
    for name in CONFIGS:
        changes = {**settings["configs"].get(name, {}), **settings.get("hooks", {}).get(name, {})}
        module = importlib.import_module(CONFIGS[name])
        defaults = {key: value for key, value in QUIET.get(name, {}).items() if hasattr(module, key)}
        for path, value in {**defaults, **changes}.items():
            *holders, leaf = path.split(".")
            try:
                holder: Any = functools.reduce(getattr, holders, module)
                getattr(holder, leaf)
                setattr(holder, leaf, value)
            except (AttributeError, TypeError) as error:
                raise Undecided(f"this torch does not take the setting {CONFIGS[name]}.{path} = {value!r}") from error


def with_own(settings: Mapping[str, Any], file: str) -> dict[str, Any]:
    """The settings with what the program has made itself: its backend, and functions in settings of the compiler."""
    hooks: dict[str, dict[str, Any]] = {}
    made = {**settings, "hooks": hooks}
    for key, own in settings.get("own", {}).items():
        shown = f"<{own['shown'] or own['name']}>"
        linecache.cache[shown] = (len(own["text"]), None, own["text"].splitlines(keepends=True), shown)
        defined: dict[str, Any] = {"__name__": "__main__", "__file__": file}
        exec(compile(own["text"], shown, "exec"), defined)
        value = eval(own["name"], defined)
        if key == "backend":
            made["backend"] = value
            if not isinstance(value, types.FunctionType):  # so that torch's messages call it so
                with contextlib.suppress(AttributeError, TypeError):
                    value.__name__ = own["name"]
        else:
            package, _, name = key.partition(".")
            hooks.setdefault(package, {})[name] = value
    return made


def gradients(outputs: Leaves, inputs: Leaves, module: torch.nn.Module) -> Leaves:
    """Of the outputs weighted by a ramp from 0.5 to 1.5: by the inputs, then by the parameters in order of name."""
    parameters = sorted(module.named_parameters(), key=lambda item: item[0])
    sources = [*inputs, *((f"parameter {name}", value) for name, value in parameters)]
    sources = [(label, v) for label, v in sources if isinstance(v, torch.Tensor) and v.requires_grad]
    roots = [v for _, v in outputs if isinstance(v, torch.Tensor) and v.requires_grad]
    ramps = [
        torch.linspace(0.5, 1.5, v.numel(), device=v.device, dtype=torch.float64).reshape(v.shape).to(v.dtype)
        for v in roots
    ]
    found: Sequence[Any] = [None] * len(sources)
    if roots and sources:
        found = torch.autograd.grad(roots, [v for _, v in sources], ramps, allow_unused=True)
    return [(f"gradient of {label}", grad) for (label, _), grad in zip(sources, found, strict=True)]


class Loose(torch.autograd.Function):
    """A tensor in the same memory that is no leaf of autograd, so that it may be changed in place."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0]


def loosened(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)([loosened(item) for item in value])
    if isinstance(value, dict):
        return {key: loosened(item) for key, item in value.items()}
    if not (isinstance(value, torch.Tensor) and value.requires_grad):
        return value
    loosen: Any = Loose.apply
    return loosen(value)


def run_call(
    function: Callable[..., Any],
    module: torch.nn.Module,
    saved: Saved,
    settings: Mapping[str, Any],
    *,
    loose: bool = False,
) -> CallOutcome:
    """Calls `function`, which computes what `module` does, with its arguments and random generators as captured.

    `loose`: arguments that require gradients are no leaves, as for a graph in the middle of a program.
    """
    outcome, args = CallOutcome(), restore_all(*saved)
    leaves = numbered(args, "input")
    set_state(*saved)
    try:
        with contextlib.ExitStack() as modes:
            modes.enter_context(torch.set_grad_enabled(settings["grad"]))
            for device, dtype in saved[1]["state"]["autocast"].items() if settings["autocast"] else ():
                modes.enter_context(torch.autocast(device, getattr(torch, dtype)))
            args = loosened(args) if loose else args
            result = function(*args)
        outputs = numbered(result if isinstance(result, (list, tuple)) else [result], "output")
        inputs = numbered(args, "input")
        outcome.leaves = outputs + [(f"{label} after the call", v) for label, v in inputs if torch.is_tensor(v)]
        outcome.sharing = sharing(outcome.leaves)
        if settings["grad"]:
            outcome.leaves += gradients(outputs, leaves, module)
        if any(torch.is_tensor(value) and value.is_cuda for _, value in outcome.leaves):
            torch.cuda.synchronize()  # so that an error of a kernel shows here
    except Exception as error:
        outcome.raised = error
        return outcome
    outcome.strides = {k: v.stride() for k, v in outputs if torch.is_tensor(v) and v.layout is torch.strided}
    state = sorted([*module.named_parameters(), *module.named_buffers()], key=lambda item: item[0])
    outcome.leaves += [(f"attribute {name} after the call", value) for name, value in state]
    outcome.leaves = [(k, v.detach().clone() if torch.is_tensor(v) else v) for k, v in outcome.leaves]
    return outcome


def directly(module: torch.fx.GraphModule, settings: Mapping[str, Any]) -> Callable[..., Any]:
    """The backend applied to the graph itself, without Dynamo: one compiled function per shapes of the arguments."""
    ready: dict[str, Callable[..., Any]] = {}
    backend = importlib.import_module(BACKENDS).lookup_backend(settings["backend"])
    output = next(node for node in module.graph.nodes if node.op == "output").args[0]
    single = not isinstance(output, (list, tuple))

    def call(*args: Any) -> Any:
        key = "; ".join(brief(value) + str(value.stride() if torch.is_tensor(value) else "") for value in args)
        if key not in ready:
            graph = copy.deepcopy(module.graph)
            if single:
                last = next(node for node in graph.nodes if node.op == "output")
                last.args = ((last.args[0],),)
            with torch.random.fork_rng():
                ready[key] = backend(torch.fx.GraphModule(module, graph), list(args))
        result = ready[key](*args)
        return result[0] if single else result

    return call


def run_compiled(
    build: Callable[[], torch.fx.GraphModule],
    saved: Sequence[Saved],
    settings: Mapping[str, Any],
    tell: Callable[..., None],
    via: str,
    loose: bool,
) -> Iterator[list[CallOutcome]]:
    """All calls with one compiled function, again and again, each round from the same parameters and buffers."""
    module = build()
    start = [(value, value.detach().clone()) for value in [*module.parameters(), *module.buffers()]]
    if via == "aot":
        function = directly(module, settings)
    else:
        function = torch.compile(module, backend=settings["backend"], dynamic=settings["dynamic"], fullgraph=True)
    while True:
        outcomes = []
        for i, values in enumerate(saved):
            tell(phase=f"call {i}")
            outcomes.append(run_call(function, module, values, settings, loose=loose))
        yield outcomes
        with torch.no_grad():
            for value, old in start:
                value.copy_(old)


def extra_error(
    wanted: Sequence[CallOutcome], got: Sequence[CallOutcome], *, cls: type = Exception
) -> Exception | None:
    """The first exception of class `cls` that only the compiled run raises."""
    errors = [have.raised for want, have in zip(wanted, got, strict=True) if have.raised and not want.raised]
    return next((error for error in errors if isinstance(error, cls)), None)


def check_case(
    build: Callable[[], torch.fx.GraphModule], settings: Mapping[str, Any], here: Path, tell: Callable[..., None]
) -> None:
    """Runs uncompiled, then compiled, and tells the differences."""
    settings = with_own(settings, str(here / "repro.py"))
    configure(settings)
    saved = []
    for i in range(settings["calls"]):
        if (values := load(here, f"call{i}.inputs")) is None:
            raise Undecided(f"call{i}.inputs.safetensors or call{i}.inputs.json is missing in {here}")
        saved.append(values)
    allowed = load_constants(here / "allowed.safetensors")["allowed"] if settings["allowed"] else None
    module, kind = build(), settings["kind"]
    wanted = [run_call(module, module, values, settings) for values in saved]
    if loose := any("leaf Variable" in str(outcome.raised) for outcome in wanted):
        module = build()
        wanted = [run_call(module, module, values, settings, loose=True) for values in saved]
    for i, outcome in enumerate(wanted):
        if outcome.raised and kind not in ("missing_exception", "segfault", "hang"):
            raise Undecided(f"call {i}: the uncompiled graph itself raises {shown(outcome.raised)}")
    tell(eager=True)
    runs = run_compiled(build, saved, settings, tell, settings["via"], loose)
    for _ in range(settings["repeats"]):
        got = next(runs)
        refused = extra_error(wanted, got, cls=importlib.import_module(EXCEPTIONS).Unsupported)
        if refused and settings["via"] == "dynamo":
            tell(note=f"Dynamo does not trace this graph again ({shown(refused)}): its backend gets it directly")
            runs = run_compiled(build, saved, settings, tell, "aot", loose)
            got = next(runs)
            if kind not in RAISING and (error := extra_error(wanted, got)):
                raise Undecided(f"neither way of compiling the graph works: {shown(error)}")
        found = False
        for i, (want, have) in enumerate(zip(wanted, got, strict=True)):
            for line in compare_call(want, have, allowed[i] if allowed else None, kind):
                found = True
                tell(difference=f"call {i}: {line}")
            if have.raised and want.raised:
                tell(note=f"call {i}: both raise; compiled: {shown(have.raised)}; uncompiled: {shown(want.raised)}")
        if found:
            return
    if settings.get("unsaved"):
        raise Undecided(f"no difference, but this could not be saved: {'; '.join(settings['unsaved'])}")


def check_in_child(
    build: Callable[[], torch.fx.GraphModule], settings: Mapping[str, Any], problems: Sequence[str], file: str
) -> int:
    """Runs and compares, and writes what happens to the report line by line, as it happens."""
    options = options_of(sys.argv[1:])
    end_with_parent()
    with contextlib.suppress(ImportError, OSError, ValueError):
        resource = importlib.import_module("resource")
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def tell(**event: Any) -> None:
        with options.child.open("a", encoding="utf-8") as report:
            report.write(json.dumps(event) + "\n")

    try:
        if problems:
            raise Undecided("; ".join(problems))
        for module in options.modules:
            importlib.import_module(module)
        check_case(build, settings, Path(file).resolve().parent, tell)
        tell(phase="after the calls", done=True)
    except Undecided as reason:
        tell(undecided=str(reason))
    except Exception as error:
        traceback.print_exc()
        tell(undecided=shown(error))
    return 0


# </check>
