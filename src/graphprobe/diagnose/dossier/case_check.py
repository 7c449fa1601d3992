"""What a repro of a graph has beside other long ones: recorded values, settings and bounds, and no need of Dynamo.

What is between the marks is copied, as text, into each such repro, behind `engine.replay` and `seen`.
"""

from __future__ import annotations

# <case>
import contextlib
import copy
import functools
import importlib
import linecache
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from graphprobe.diagnose.dossier.seen import RAISED, Seen, seen_of, within
from graphprobe.engine.replay import Undecided, brief, load, load_constants, restore_all, set_state

CONFIG = "torch._{}.config"
BACKENDS, REFUSED = "torch._dynamo.backends.registry", ("torch._dynamo.exc", "Unsupported")
QUIET: dict[str, dict[str, Any]] = {
    "inductor": {"fx_graph_cache": False, "fx_graph_remote_cache": False, "compile_threads": 1},
    "functorch": {"enable_autograd_cache": False, "enable_remote_autograd_cache": False},
}
LAID_OUT = {"strides of": "wrong_stride", "memory of": "aliasing", "torch's generator": "", "generators of": ""}
"""What is compared of a graph only where the fault is of this kind."""
ROUNDOFFS = 16
"""How many roundoffs a value may be off where nothing else is known."""


def seen_of_graph(
    build: Callable[[], torch.fx.GraphModule],
    given: Mapping[str, Any],
    problems: Sequence[str],
    here: Path,
    *,
    compiled: bool,
) -> Seen:
    """All there is to see of a graph, in as many runs as the settings say.

    Args:
        problems: why it cannot be run.
        here: the folder of the script and the values.
    """
    if problems:
        raise Undecided("; ".join(problems))
    settings, found = with_own(given, str(here / "repro.py")), Seen()
    configure(settings)
    module = build()
    state = {f"fn.{name}": value for name, value in (*module.named_parameters(), *module.named_buffers())}
    start = {name: value.detach().clone() for name, value in state.items()}
    function: Callable[..., Any] = module
    if compiled:
        function = whole_or_directly(module, settings["backend"], settings["dynamic"], sys.stderr.write)
    called = (lambda *args: function(*map(loosened, args))) if settings["loose"] else function
    check = {"fn": None, "names": state, "grad": settings["grad"]}
    for i in range(settings["repeats"]):
        with torch.no_grad():
            for name, value in state.items():
                value.copy_(start[name])
        run = f"run {i}, " if i else ""
        found |= seen_of({**check, "calls": recorded(settings, here)}, called, run=run)
    raised = [value for path, value in found.items() if path.endswith(RAISED)]
    if raised and not compiled and settings["kind"] != "missing_exception":
        raise Undecided(f"the uncompiled graph itself raises {raised[0]}")
    aside = tuple(start for start, kind in LAID_OUT.items() if kind != settings["kind"])
    return {path: value for path, value in found.items() if not path.partition(": ")[2].startswith(aside)}


def recorded(settings: Mapping[str, Any], here: Path) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """The arguments of each call; until the next one, autocast and random generators are as they were."""
    for i in range(settings["calls"]):
        saved = load(here, f"call{i}.inputs")
        if saved is None:
            raise Undecided(f"call{i}.inputs.safetensors or call{i}.inputs.json is missing in {here}")
        args = restore_all(*saved)
        set_state(*saved)
        with contextlib.ExitStack() as modes:
            for device, dtype in saved[1]["state"]["autocast"].items() if settings["autocast"] else ():
                modes.enter_context(torch.autocast(device, getattr(torch, dtype)))
            yield args, {}


def whole_or_directly(
    module: torch.fx.GraphModule, backend: Any, dynamic: bool | None, tell: Callable[[str], object] = len
) -> Callable[..., Any]:
    """The compiled graph: by Dynamo in one piece or, where that does not trace it again, by the backend alone.

    `tell`: called with a line where the backend takes it directly.
    """
    whole, direct = torch.compile(module, backend=backend, dynamic=dynamic, fullgraph=True), list[Callable[..., Any]]()

    def call(*args: Any) -> Any:
        if not direct:
            try:
                return whole(*args)
            except Exception as error:
                if (type(error).__module__, type(error).__name__) != REFUSED:
                    raise
                tell(f"Dynamo does not trace this graph again ({error}): its backend takes it directly\n")
                direct.append(directly(module, backend))
        return direct[0](*args)

    return call


def bounds_of(expected: Seen, settings: Mapping[str, Any], here: Path) -> Callable[[str, torch.Tensor], torch.Tensor]:
    """How far each value may be off: the file has results first, then arguments and state, then their gradients."""
    bounds: dict[str, torch.Tensor] = {}
    values = {path: v[1] for path, v in expected.items() if not isinstance(v, str) and v[0].startswith("torch.")}
    noisy = [path for path, value in values.items() if value.is_floating_point() or value.is_complex()]

    def order(path: str) -> tuple[bool, int]:
        first = path.partition(": ")[2]
        return path.endswith(".grad"), next(
            i for i, top in enumerate(("result", "args", "fn")) if first.startswith(top)
        )

    for i, row in enumerate(load_constants(here / "allowed.safetensors")["allowed"] if settings["allowed"] else ()):
        paths = sorted((path for path in noisy if path.startswith(f"call {i}: ")), key=order)
        bounds |= zip(paths, row, strict=False)
    usual = within(lambda eps: ROUNDOFFS * eps)

    def limit(path: str, value: torch.Tensor) -> torch.Tensor:
        bound = bounds.get(path[path.index("call ") :])  # every run has the same
        return usual(path, value) if bound is None else bound

    return limit


def configure(settings: Mapping[str, Any]) -> None:
    """The recorded settings of the compiler, and no cache of compiled graphs: an old one may hide the fault or fake it.

    The cache of compiled C++ stays, since it goes by the generated text; `force_disable_caches` would end it as well,
    and make each run twice as long.
    """
    for name in ("inductor", "functorch", "dynamo"):
        changes = {**settings["configs"].get(name, {}), **settings.get("hooks", {}).get(name, {})}
        module = importlib.import_module(config := CONFIG.format(name))
        defaults = {key: value for key, value in QUIET.get(name, {}).items() if hasattr(module, key)}
        for path, value in {**defaults, **changes}.items():
            *holders, leaf = path.split(".")
            try:
                holder: Any = functools.reduce(getattr, holders, module)
                getattr(holder, leaf)
                setattr(holder, leaf, value)
            except (AttributeError, TypeError) as error:
                raise Undecided(f"this torch does not take the setting {config}.{path} = {value!r}") from error


def with_own(settings: Mapping[str, Any], file: str) -> dict[str, Any]:
    """The settings with what the program has made itself: its backend, and functions in settings of the compiler."""
    hooks: dict[str, dict[str, Any]] = {}
    made = {**settings, "hooks": hooks}
    for key, own in settings.get("own", {}).items():
        value = made_of(own["text"], own["name"], own["shown"], file)
        if key == "backend":
            made["backend"] = value
        else:
            package, _, name = key.partition(".")
            hooks.setdefault(package, {})[name] = value
    return made


def made_of(text: str, name: str, shown: str, file: str) -> Any:
    """The value of an expression once a text has run that takes `file` for its own."""
    shown = f"<{shown or name}>"
    linecache.cache[shown] = (len(text), None, text.splitlines(keepends=True), shown)
    defined: dict[str, Any] = {"__name__": "__main__", "__file__": file}
    exec(compile(text, shown, "exec"), defined)
    value = eval(name, defined)
    if not isinstance(value, (types.FunctionType, type)):  # so that torch's messages call it so
        with contextlib.suppress(AttributeError, TypeError):
            value.__name__ = name
    return value


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


def directly(module: torch.fx.GraphModule, chosen: Any) -> Callable[..., Any]:
    """The backend applied to the graph itself, without Dynamo: one compiled function per shapes of the arguments."""
    ready: dict[str, Callable[..., Any]] = {}
    backend = importlib.import_module(BACKENDS).lookup_backend(chosen)
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


# </case>
