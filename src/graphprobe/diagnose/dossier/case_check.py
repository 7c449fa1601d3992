"""What a repro of a graph has beside other long ones: recorded values, settings and bounds, and no need of Dynamo.

What is between the marks is copied, as text, into each such repro, behind `engine.replay` and `check`.
"""

from __future__ import annotations

# <case>
import contextlib
import copy
import functools
import importlib
import linecache
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from graphprobe.diagnose.dossier.check import Check, Look, Seen, size_of
from graphprobe.engine.replay import Undecided, brief, load, load_constants, restore_all, set_state

CONFIGS = {
    "inductor": "torch._inductor.config",
    "functorch": "torch._functorch.config",
    "dynamo": "torch._dynamo.config",
}
BACKENDS, REFUSED = "torch._dynamo.backends.registry", "torch._dynamo.exc.Unsupported"
QUIET: dict[str, dict[str, Any]] = {
    "inductor": {"fx_graph_cache": False, "fx_graph_remote_cache": False, "compile_threads": 1},
    "functorch": {"enable_autograd_cache": False, "enable_remote_autograd_cache": False},
}
RAISING = ("crash_compile", "crash_runtime", "extra_exception")
LAID_OUT = {"strides of": "wrong_stride", "memory of": "aliasing", "torch's generator": "", "generators of": ""}
"""What is compared of a graph only where the fault is of this kind."""


class CaseCheck(Check):
    """A graph with the values that it was recorded with."""

    goes_on = True

    def __init__(
        self,
        build: Callable[[], torch.fx.GraphModule],
        settings: Mapping[str, Any],
        problems: Sequence[str],
        here: Path,
    ) -> None:
        if problems:
            raise Undecided("; ".join(problems))
        self.settings = settings = with_own(settings, str(here / "repro.py"))
        configure(settings)
        saved = []
        for i in range(settings["calls"]):
            if (values := load(here, f"call{i}.inputs")) is None:
                raise Undecided(f"call{i}.inputs.safetensors or call{i}.inputs.json is missing in {here}")
            saved.append(values)
        compiled = {"backend": settings["backend"], "dynamic": settings["dynamic"], "fullgraph": True}
        super().__init__(build(), saved, compiled, grad=settings["grad"])
        self.allowed = load_constants(here / "allowed.safetensors")["allowed"] if settings["allowed"] else None
        self.bounds: dict[tuple[int, str], torch.Tensor] = {}
        self.loose = False  # whether arguments that require gradients are no leaves, as in the middle of a program
        self.state = sorted([*self.fn.named_parameters(), *self.fn.named_buffers()], key=lambda item: str(item[0]))
        self.start = [(value, value.detach().clone()) for _, value in self.state]

    def given(self, i: int) -> Any:
        args = restore_all(*self.calls[i])
        set_state(*self.calls[i])
        return args, {}

    def call(self, function: Callable[..., Any], i: int, args: Any, kwargs: Any) -> Any:
        with contextlib.ExitStack() as modes:
            modes.enter_context(torch.set_grad_enabled(self.settings["grad"]))
            for device, dtype in self.calls[i][1]["state"]["autocast"].items() if self.settings["autocast"] else ():
                modes.enter_context(torch.autocast(device, getattr(torch, dtype)))
            return function(*(loosened(args) if self.loose else args))

    def look(self, look: Look, args: Any, kwargs: Any) -> None:
        look.at(args, "args")
        for name, value in self.state:
            look.at(value, f"fn.{name}")

    def run(self, function: Callable[..., Any], tell: Callable[..., None] = lambda **_: None) -> list[Seen]:
        with torch.no_grad():
            for value, old in self.start:
                value.copy_(old)
        aside = tuple(start for start, kind in LAID_OUT.items() if kind != self.settings["kind"])
        return [{p: v for p, v in seen.items() if not p.startswith(aside)} for seen in super().run(function, tell)]

    def uncompiled(self) -> list[Seen]:
        seen = self.run(self.fn)
        if any("leaf Variable" in call.get("raised", "") for call in seen):
            self.loose = True
            seen = self.run(self.fn)
        for i, call in enumerate(seen):
            if "raised" in call and self.settings["kind"] not in ("missing_exception", "segfault", "hang"):
                raise Undecided(f"call {i}: the uncompiled graph itself raises {call['raised']}")
        return [{**call, "loose": str(self.loose)} for call in seen]

    def compare(self, wanted: Sequence[Seen], tell: Callable[..., None]) -> None:
        self.loose = any(call.pop("loose") == "True" for call in list(wanted))
        self._bound(wanted)
        function, direct = torch.compile(self.fn, **self.compiled), False
        for _ in range(self.settings["repeats"]):
            got = self.run(function, tell)
            errors = [b["raised"] for a, b in zip(wanted, got, strict=True) if "raised" in b and "raised" not in a]
            refused = next((error for error in errors if error.startswith(REFUSED)), None)
            if refused and not direct:
                tell(note=f"Dynamo does not trace this graph again ({refused}): its backend gets it directly")
                function, direct = directly(self.fn, self.settings), True
                got = self.run(function, tell)
                errors = [b["raised"] for a, b in zip(wanted, got, strict=True) if "raised" in b and "raised" not in a]
                if self.settings["kind"] not in RAISING and errors:
                    raise Undecided(f"neither way of compiling the graph works: {errors[0]}")
            if self.report(wanted, got, tell):
                return
        if self.settings.get("unsaved"):
            raise Undecided(f"no difference, but this could not be saved: {'; '.join(self.settings['unsaved'])}")

    def _bound(self, wanted: Sequence[Seen]) -> None:
        """Give each bound its value: results come first, then arguments, their gradients, those of parameters."""
        for i, (call, bounds) in enumerate(zip(wanted, self.allowed or (), strict=False)):
            tensors = {p: v[1] for p, v in call.items() if not isinstance(v, str) and v[0].startswith("torch.")}
            noisy = [p for p, v in tensors.items() if v.is_floating_point() or v.is_complex()]
            groups = [[p for p in noisy if p.startswith("result")]]
            groups.append([p for p in noisy if p.startswith("args") and not p.endswith(".grad")])
            groups += [[p for p in noisy if p.startswith(top) and p.endswith(".grad")] for top in ("args", "fn")]
            paths = [p for group in groups for p in group]
            self.bounds |= {(i, path): bound for path, bound in zip(paths, bounds, strict=False)}

    def limit(self, call: int, path: str, value: torch.Tensor) -> torch.Tensor:
        bound = self.bounds.get((call, path))
        return 16 * torch.finfo(value.dtype).eps * size_of(value) if bound is None else bound


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


# </case>
