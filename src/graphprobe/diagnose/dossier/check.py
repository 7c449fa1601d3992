"""The lower half of every long repro: runs a program, uncompiled or compiled, and compares what a user can see.

What is between the marks is copied, as text, into each such repro, behind that of `proof_run`. It needs torch and the
standard library.
"""

from __future__ import annotations

# <check>
import contextlib
import functools
import importlib
import json
import random
import sys
import traceback
import types
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from graphprobe.diagnose.dossier.proof_run import REPORT, end_with_parent, options_of

PLAIN = (type(None), bool, int, complex, str, bytes, torch.dtype, torch.device)
SHOWN = 9
"""Differences that are reported of one call."""
Seen = dict[str, Any]
"""What there is to see after a call, by path: tensors with their kind, texts; or the exception that ended it."""


class Check:
    """A program, how it is compiled, and what there is to see of it.

    Args:
        calls: arguments, and arguments by name, of each.
        compiled: arguments of `torch.compile`.
        more: other attributes.
    """

    names: Mapping[str, Any] = types.MappingProxyType({})  # globals of the program
    between: Callable[[Any, int], Any] | None = None  # runs before each call but the first
    grad: bool | None = None  # True: run a backward, too; False: under no_grad
    watched: Sequence[str] = ()  # which of the globals are compared
    modules: Sequence[str] = ("__main__",)  # the program's; nothing of other modules is looked into
    tolerance: float | None = None  # None: the root of the dtype's epsilon; 0: every bit counts
    goes_on = False  # whether the next call comes where one has raised

    def __init__(self, fn: Any, calls: Sequence[Any], compiled: Mapping[str, Any], **more: Any) -> None:
        self.fn, self.calls, self.compiled = fn, calls, compiled
        vars(self).update(more)

    def given(self, i: int) -> Any:
        """The arguments of a call, and those by name."""
        return self.calls[i]

    def call(self, function: Callable[..., Any], i: int, args: Any, kwargs: Any) -> Any:
        """What a call returns."""
        with torch.no_grad() if self.grad is False else contextlib.nullcontext():
            return function(*args, **kwargs)

    def run(self, function: Callable[..., Any], tell: Callable[..., None] = lambda **_: None) -> list[Seen]:
        """What there is to see after each call."""
        seen: list[Seen] = []
        random.seed(0)
        torch.manual_seed(0)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(0)
        for i in range(len(self.calls)):
            tell(phase=f"call {i}")
            if i and self.between is not None:
                self.between(self.fn, i)
            try:
                args, kwargs = self.given(i)
                drawn = torch.get_rng_state()
                result = self.call(function, i, args, kwargs)
                if self.grad:
                    backward(tensors_in(result, []))
                if torch.cuda.is_available():
                    torch.cuda.synchronize()  # so that an error of a kernel shows here
            except Exception as error:
                seen.append({"raised": shown(error)})
                if self.goes_on:
                    continue
                break
            look = Look(self.modules)
            self.look(look, args, kwargs)
            look.result(result)
            # Compiled code draws other numbers by design: it only counts whether it draws any.
            look.found["torch's generator"] = "as before" if torch.equal(drawn, torch.get_rng_state()) else "moved"
            seen.append(look.found)
            for tensor in look.leaves if self.grad else ():
                tensor.grad = None
        return seen

    def look(self, look: Look, args: Any, kwargs: Any) -> None:
        """Look at what a call may have changed."""
        for name in (name for name in self.watched if name in self.names):
            look.at(self.names[name], name)
        for value, name in ((args, "args"), (kwargs, "kwargs"), (self.fn, "fn")):
            look.at(value, name)

    def uncompiled(self) -> list[Seen]:
        """What there is to see uncompiled."""
        return self.run(self.fn)

    def compare(self, wanted: Sequence[Seen], tell: Callable[..., None]) -> None:
        """Run it compiled, and report what is not as it is uncompiled."""
        self.report(wanted, self.run(torch.compile(self.fn, **self.compiled), tell), tell)

    def report(self, wanted: Sequence[Seen], got: Sequence[Seen], tell: Callable[..., None]) -> bool:
        """Whether anything differs."""
        lines = [
            f"call {i}: {line}"
            for i, (want, have) in enumerate(zip(wanted, got, strict=False))
            for line in list(differences(want, have, functools.partial(self.limit, i)))[:SHOWN]
        ]
        for line in lines:
            tell(difference=line)
        return bool(lines)

    def limit(self, call: int, path: str, value: torch.Tensor) -> torch.Tensor:
        """How far each element of a value may be off."""
        tolerance = torch.finfo(value.dtype).eps ** 0.5 if self.tolerance is None else self.tolerance
        return tolerance * size_of(value)


class Look:
    """What can be reached from values, by path: tensors with their kind, and texts for everything else."""

    def __init__(self, modules: Sequence[str]) -> None:
        self.modules, self.found = modules, dict[str, Any]()
        self.known: dict[int, tuple[str, Any]] = {}
        self.memory: dict[int, str] = {}
        self.leaves: list[torch.Tensor] = []

    def at(self, value: Any, path: str) -> None:
        kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        if isinstance(value, torch.Tensor):
            dense = value if value.layout is torch.strided and not value.is_quantized else value.to_dense()
            self.found[path] = (f"{value.dtype} {tuple(value.shape)}", plain(dense))
            if address_of(value):
                self.memory.setdefault(address_of(value), path)
            if (value.is_leaf or value.retains_grad) and value.grad is not None:
                self.at(value.grad, f"{path}.grad")
                self.leaves.append(value)
        elif isinstance(value, float):
            self.found[path] = (kind, torch.tensor(value))
        elif getattr(getattr(value, "dtype", None), "kind", "") in tuple("biufc"):  # of numpy
            self.found[path] = (f"{kind} {value.dtype} {value.shape}", torch.tensor(value.tolist()))
        elif isinstance(value, PLAIN):
            self.found[path] = f"{value!r:.500}"
        elif id(value) in self.known:
            self.found[path] = f"the same object as {self.known[id(value)][0]}"
        else:
            self.known[id(value)] = (path, value)
            self.found[path], parts = self.inside(value, kind)
            own = (
                isinstance(value, (type, types.ModuleType, types.FunctionType))
                or type(value).__module__ in self.modules
            )
            hidden = ".__" if own else "._"
            for name, part in parts.items():
                if not name.startswith((hidden, "._dynamo", "._torchdynamo", "._compiled", "._is_torch")):
                    self.at(part, (path + name).removeprefix("."))

    def inside(self, value: Any, kind: str) -> tuple[str, dict[str, Any]]:
        """One line about an object, and its parts."""
        parts: dict[str, Any] = {}
        if isinstance(value, (dict, types.MappingProxyType)):
            items = enumerate(value.items())
            parts = {f"[{k!r}]" if isinstance(k, PLAIN) else f"[{i}]": item for i, (k, item) in items}
            kind += f" with {', '.join(parts) or 'nothing in it'}"
        elif isinstance(value, (set, frozenset)):
            kind += f" of {len(value)}: {', '.join(sorted(repr(item) for item in value if isinstance(item, PLAIN)))}"
        elif isinstance(value, (list, tuple)) or kind == "collections.deque":
            plain = all(isinstance(item, PLAIN) for item in value)
            kind += f" {list(value)!r:.500}" if plain else f" of {len(value)}"
            parts = {} if plain else {f"[{i}]": item for i, item in enumerate(value)}
        elif isinstance(value, torch.nn.Module):
            parts = {**value._parameters, **value._buffers, **value._modules, "training": value.training}
            parts |= {name: part for name, part in vars(value).items() if name not in vars(torch.nn.Module())}
            parts = {f".{name}": part for name, part in parts.items()}
        elif isinstance(value, types.MethodType):
            parts = {".self": value.__self__}
        elif isinstance(value, types.FunctionType):
            if value.__module__ in self.modules:
                cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
                parts = {f".{name}": cell.cell_contents for name, cell in cells if cell != types.CellType()}
                parts |= {f".{name}": part for name, part in vars(value).items()}
                parts |= {f".default{i}": part for i, part in enumerate(value.__defaults__ or ())}
        elif isinstance(value, (type, types.ModuleType)):
            module = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
            parts = {f".{name}": part for name, part in vars(value).items()} if module in self.modules else {}
        elif isinstance(value, functools.partial):
            parts = {".func": value.func, ".args": value.args, ".keywords": value.keywords}
        elif is_data(type(value).__module__):
            slots = [name for owner in type(value).__mro__ for name in getattr(owner, "__slots__", ())]
            parts = {f".{name}": getattr(value, name) for name in slots if hasattr(value, name)}
            parts |= {f".{name}": part for name, part in getattr(value, "__dict__", {}).items()}
        return kind, parts

    def result(self, result: Any) -> None:
        """What a call has returned: strides and shared memory count, too."""
        memory = dict(self.memory)
        self.at(result, "result")
        for i, tensor in enumerate(tensors_in(result, [])):
            if tensor.layout is torch.strided and tensor.numel():
                steps = [step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]
                self.found[f"strides of tensor {i} of the result"] = str(steps)
                self.found[f"memory of tensor {i} of the result"] = memory.get(address_of(tensor), "its own")
                memory.setdefault(address_of(tensor), f"tensor {i} of the result")
        states = [random.getstate(), *(m.random.get_state() for m in [sys.modules.get("numpy")] if m)]
        self.found["generators of random and numpy"] = str(zlib.crc32(repr(states).encode()))


def is_data(module: str) -> bool:
    """Whether attributes of the module's objects are what a user sees, and not how a library works."""
    top = module.partition(".")[0]
    return not module.startswith(("torch._", "torch.library", "torch.fx")) and (
        top not in sys.stdlib_module_names or top in ("__main__", "collections", "dataclasses", "enum")
    )


def address_of(tensor: torch.Tensor) -> int:
    with contextlib.suppress(RuntimeError, NotImplementedError):
        return tensor.untyped_storage().data_ptr()
    return 0


def tensors_in(value: Any, found: list[torch.Tensor]) -> list[torch.Tensor]:
    """Those in lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        found.append(value)
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
        tensors_in(item, found)
    return found


def backward(tensors: Sequence[torch.Tensor]) -> None:
    """That of the sum of all elements, weighted from 0.5 to 1.5."""
    total: Any = 0.0
    for tensor in (tensor for tensor in tensors if tensor.requires_grad):
        ramp = torch.linspace(0.5, 1.5, tensor.numel(), dtype=torch.float64, device=tensor.device)
        total = total + (tensor * ramp.reshape(tensor.shape).to(tensor.dtype)).sum()
    if isinstance(total, torch.Tensor):
        torch.autograd.backward(total.abs() if total.is_complex() else total)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, in memory of its own."""
    return tensor.detach().cpu().resolve_conj().resolve_neg().as_subclass(torch.Tensor).clone()


def size_of(value: torch.Tensor) -> torch.Tensor:
    """Of each element, and of all of them."""
    wide = value.to(torch.complex128 if value.is_complex() else torch.float64)
    finite = wide[wide.isfinite()].abs()
    return torch.where(wide.isfinite(), wide.abs(), 0.0) + (finite.square().mean().sqrt() if finite.numel() else 0.0)


def shown(error: Exception) -> str:
    name = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    return f"{name}: {' '.join(str(error).split())[:300]}"


def differences(want: Seen, have: Seen, limit: Callable[[str, torch.Tensor], torch.Tensor]) -> Iterator[str]:
    """What is not as it is uncompiled. `limit`: returns how far the elements of a value may be off."""
    if "raised" in want or "raised" in have:
        both = [f"it raises {seen['raised']}" if "raised" in seen else "it does not raise" for seen in (want, have)]
        if not ("raised" in want and "raised" in have):
            yield f"uncompiled {both[0]}; compiled {both[1]}"
        return
    for path in dict.fromkeys([*want, *have]):
        a, b = want.get(path), have.get(path)
        if path.endswith(".grad") and (a is None or b is None) and not (a or b or (0, torch.zeros(1)))[1].any():
            continue  # none is like zeros
        if isinstance(a, str) or isinstance(b, str) or a is None or b is None or a[0] != b[0]:
            texts = [v if isinstance(v, str) else v[0] if v else "nothing" for v in (a, b)]
            if texts[0] != texts[1]:
                yield f"{path}: uncompiled {texts[0]}, compiled {texts[1]}"
        elif text := difference(a[1], b[1], functools.partial(limit, path)):
            yield f"{path}: {text}"


def difference(left: torch.Tensor, right: torch.Tensor, limit: Callable[[torch.Tensor], torch.Tensor]) -> str:
    """How a value differs from the uncompiled one, of the same dtype and shape; empty where it does not."""
    wrong, why = left != right, ", allowed is equality"
    excess = wrong.to(torch.float64)
    if left.is_floating_point() or left.is_complex():
        allowed = limit(left).to(torch.float64).nan_to_num(torch.inf, torch.inf).expand(left.shape)
        a, b = (t.to(torch.complex128 if t.is_complex() else torch.float64) for t in (left, right))
        gaps = torch.where(a.isfinite() & b.isfinite(), (a - b).abs(), torch.inf)
        wrong = (a != b) & ~(a.isnan() & b.isnan()) & (allowed != torch.inf) & ~(gaps <= allowed)
        excess = torch.where(wrong, gaps / allowed.clamp_min(torch.finfo(torch.float64).tiny), -1.0)
    if not wrong.any():
        return ""
    flat = int(excess.reshape(-1).argmax())
    at = tuple(int(n) for n in torch.unravel_index(torch.tensor(flat), left.shape)) if left.ndim else ()
    if left.is_floating_point() or left.is_complex():
        off = f", off by {gaps[at].item():.3g}, allowed {allowed[at].item():.3g}"
        why = off if gaps[at].isfinite() else ", NaN and infinity must agree"
    text = f"{int(wrong.sum())} of {left.numel()} values differ, the worst at {at}"
    return f"{text}: uncompiled {left[at].item()}, compiled {right[at].item()}{why}"


def write(seen: Sequence[Seen], file: Path) -> None:
    """Keep what was seen: a line of JSON, then the bytes of the tensors."""
    data, head = bytearray(), []
    for call in seen:
        told: dict[str, Any] = {}
        for path, value in call.items():
            told[path] = value
            if not isinstance(value, str):
                kind, tensor = value
                told[path] = [kind, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), len(data)]
                data += tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        head.append(told)
    file.write_bytes(json.dumps(head).encode() + b"\n" + data)


def read(file: Path) -> list[Seen]:
    """What `write` has kept."""
    head, _, data = file.read_bytes().partition(b"\n")
    seen: list[Seen] = json.loads(head)
    for call in seen:
        for path, value in call.items():
            if not isinstance(value, str):
                tensor = torch.empty(value[2], dtype=getattr(torch, value[1]))
                if tensor.numel():
                    raw = bytearray(data[value[3] : value[3] + tensor.numel() * tensor.itemsize])
                    tensor = torch.frombuffer(raw, dtype=tensor.dtype).reshape(value[2])
                call[path] = (value[0], tensor)
    return seen


def child(make: Callable[[], Check]) -> int:
    """One of two processes: runs uncompiled, and keeps what there is to see, or compiled, and compares with that."""
    options = options_of(sys.argv[1:])
    end_with_parent()
    with contextlib.suppress(ImportError, OSError, ValueError):
        resource = importlib.import_module("resource")
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def tell(**event: Any) -> None:
        with (options.child / REPORT).open("a", encoding="utf-8") as report:
            report.write(json.dumps(event) + "\n")

    try:
        for module in options.modules:
            importlib.import_module(module)
        kept, check = options.child / "uncompiled", make()
        if kept.exists():
            check.compare(read(kept), tell)
            tell(phase="after the calls", compiled=True)
        else:
            write(check.uncompiled(), kept)
            tell(uncompiled=True)
    except Exception as error:
        undecided = type(error).__name__ == "Undecided"
        if not undecided:
            traceback.print_exc()
        tell(undecided=str(error) if undecided else shown(error))
    return 0


# </check>
