"""The child half of every repro: runs its graph uncompiled and compiled on the saved values, and compares.

The part between the marks is copied, as text, into each repro, after the parent half (`watch`) and the code of
`engine.replay`, on which it stands; the imports of graphprobe are left out there.
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
Leaves = list[tuple[str, Any]]


def flatten(value: Any, label: str) -> Leaves:
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in flatten(item, f"{label}[{key!r}]")]
    if isinstance(value, (list, tuple)):
        return [leaf for i, item in enumerate(value) for leaf in flatten(item, f"{label}[{i}]")]
    return [(label, value)]


def numbered(values: Sequence[Any], label: str) -> Leaves:
    return [leaf for i, value in enumerate(values) for leaf in flatten(value, f"{label} {i}")]


def sharing(leaves: Leaves) -> list[str]:
    """For each tensor that lies in the same memory as an earlier one: the two labels."""
    first: dict[int, str] = {}
    shared = []
    for label, value in leaves:
        if isinstance(value, torch.Tensor) and value.layout is torch.strided and value.numel():
            other = first.setdefault(value.untyped_storage().data_ptr(), label)
            shared += [f"{label} shares the memory of {other}"] if other != label else []
    return shared


class CallOutcome:
    """One call: what it raised, or its leaves: outputs, inputs after the call, gradients, attributes of the graph."""

    def __init__(self) -> None:
        self.raised: Exception | None = None
        self.leaves: Leaves = []
        self.strides: dict[str, tuple[int, ...]] = {}
        self.sharing: list[str] = []


def is_noisy(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def wide(value: torch.Tensor) -> torch.Tensor:
    value = (value.to_dense() if value.layout is not torch.strided else value).cpu().resolve_conj()
    return torch.view_as_real(value.to(torch.complex128)) if value.is_complex() else value.to(torch.float64)


def default_allowed(want: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    finite = want[want.isfinite()]
    rms = finite.square().mean().sqrt() if finite.numel() else 0.0
    return 16 * torch.finfo(dtype).eps * (want.nan_to_num(0.0, 0.0, 0.0).abs() + rms)


def compare(want: Any, have: Any, allowed: torch.Tensor | None) -> str | None:
    """How one compiled value differs from the uncompiled one; None when it does not."""
    if isinstance(want, float) and isinstance(have, float):
        want, have, allowed = torch.tensor(want), torch.tensor(have), None
    if not (isinstance(want, torch.Tensor) and isinstance(have, torch.Tensor)):
        given = have if want is None else want if have is None else None
        if isinstance(given, torch.Tensor):  # no gradient and a gradient of zeros are the same
            return None if not given.any() else f"{brief(have)}, expected {brief(want)}"
        return None if type(want) is type(have) and want == have else f"{brief(have)}, expected {brief(want)}"
    for what in ("dtype", "shape"):
        if (left := getattr(want, what)) != (right := getattr(have, what)):
            return f"{what} {right}, expected {left}"
    if not is_noisy(want):
        unequal = (want != have).cpu()
        if not unequal.any():
            return None
        at = tuple(unequal.nonzero()[0].tolist())
        gap = f"first at {at}: compiled {have[at].item()}, expected {want[at].item()}, allowed is equality"
        return f"{int(unequal.sum())} of {want.numel()} elements differ, {gap}"
    a, b = wide(want), wide(have)
    limit = (
        default_allowed(a, want.dtype)
        if allowed is None
        else allowed.to(torch.float64).nan_to_num(torch.inf, torch.inf)
    )
    if allowed is not None and want.is_complex():
        limit = limit.unsqueeze(-1)
    try:
        limit = limit.expand(a.shape)
    except RuntimeError as error:
        raise Undecided(f"allowed has shape {list(limit.shape)}, the value {list(a.shape)}") from error
    equal = (a == b) | (a.isnan() & b.isnan()) | (limit == torch.inf)
    finite = a.isfinite() & b.isfinite()
    gaps = torch.where(finite, (a - b).abs(), torch.inf)
    bad = ~equal & ~(gaps <= limit)
    if not bad.any():
        return None
    excess = torch.where(bad, gaps / limit.clamp_min(torch.finfo(torch.float64).tiny), -1.0)
    at = tuple(int(n) for n in torch.unravel_index(excess.reshape(-1).argmax(), a.shape)) if a.ndim else ()
    return (
        f"{int(bad.sum())} of {a.numel()} elements are further off than allowed, worst at {at}: "
        f"compiled {b[at].item():.9g}, expected {a[at].item():.9g}, "
        + (
            f"off by {gaps[at].item():.3g}, allowed {limit[at].item():.3g}"
            if finite[at]
            else "NaN and infinity must agree"
        )
    )


def shown(error: Exception) -> str:
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__module__}.{type(error).__qualname__}: {first[:300]}".removeprefix("builtins.")


def moved(value: torch.Tensor, left: Sequence[int], right: Sequence[int]) -> bool:
    """Whether strides differ where they matter: in dimensions of more than one element."""
    return value.numel() > 1 and any(x != y for n, x, y in zip(value.shape, left, right, strict=True) if n > 1)


def compare_call(want: CallOutcome, have: CallOutcome, allowed: Sequence[torch.Tensor] | None, kind: str) -> list[str]:
    """One line for every difference of a compiled call from the uncompiled one."""
    if want.raised or have.raised:
        if want.raised and have.raised:
            return []
        error = want.raised or have.raised
        assert error is not None
        who = (
            ("compiled does not raise", "uncompiled raises")
            if want.raised
            else ("uncompiled does not", "compiled raises")
        )
        return [f"{who[1]} {shown(error)}; {who[0]}"]
    labels = [[label for label, _ in outcome.leaves] for outcome in (want, have)]
    if labels[0] != labels[1]:
        names = [f"{len(names)} values ({', '.join(names)})" for names in labels]
        return [f"compiled gives {names[1]}, expected {names[0]}"]
    lines, position = [], 0
    for (label, a), (_, b) in zip(want.leaves, have.leaves, strict=True):
        limit = None
        if is_noisy(a) and not label.startswith("attribute "):
            limit = allowed[position] if allowed is not None and position < len(allowed) else None
            position += 1
        if (text := compare(a, b, limit)) is not None:
            lines.append(f"{label}: {text}")
        elif kind == "wrong_stride" and label in want.strides and moved(a, want.strides[label], have.strides[label]):
            lines.append(f"{label}: stride {have.strides[label]}, expected {want.strides[label]}")
    if kind == "aliasing":
        lines += [f"{text}, only when compiled" for text in have.sharing if text not in want.sharing]
        lines += [f"{text}, not when compiled" for text in want.sharing if text not in have.sharing]
    return lines


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
