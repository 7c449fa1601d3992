"""The lower half of a repro that is a program: runs it uncompiled and compiled, and compares what a user can see.

What is between the marks is copied, as text, into each such repro. It needs torch and the standard library.
"""

from __future__ import annotations

# <check>
import argparse
import contextlib
import functools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import types
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

PLAIN = (type(None), bool, int, complex, str, bytes, torch.dtype, torch.device)


@dataclass
class Check:
    """A program, how it is compiled, and what there is to see of it."""

    fn: Any
    calls: Sequence[tuple[Sequence[Any], Mapping[str, Any]]]
    compiled: Mapping[str, Any]  # arguments of torch.compile
    names: Mapping[str, Any] = field(default_factory=dict)  # globals of the program
    between: Callable[[Any, int], Any] | None = None  # runs before each call but the first
    grad: bool | None = None  # True: run a backward, too; False: under no_grad
    watched: Sequence[str] = ()  # which of the globals are compared
    modules: Sequence[str] = ("__main__",)  # the program's; nothing of other modules is looked into
    tolerance: float | None = None  # None: the root of the dtype's epsilon; 0: every bit counts
    hang: bool = False  # whether not ending is the fault

    def run(self, function: Callable[..., Any]) -> list[dict[str, Any]]:
        """What there is to see after each call; an exception ends them."""
        seen: list[dict[str, Any]] = []
        random.seed(0)
        torch.manual_seed(0)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(0)
        for i, (args, kwargs) in enumerate(self.calls):
            if i and self.between is not None:
                self.between(self.fn, i)
            try:
                drawn = torch.get_rng_state()
                with torch.no_grad() if self.grad is False else contextlib.nullcontext():
                    result = function(*args, **kwargs)
                if self.grad:
                    backward(tensors_in(result, []))
            except Exception as error:
                return [*seen, {"raised": f"{type(error).__qualname__}: {' '.join(str(error).split())[:200]}"}]
            look = Look(self.modules)
            for name in (name for name in self.watched if name in self.names):
                look.at(self.names[name], name)
            for value, name in ((args, "args"), (kwargs, "kwargs"), (self.fn, "fn")):
                look.at(value, name)
            look.result(result)
            # Compiled code draws other numbers by design: it only counts whether it draws any.
            look.found["torch's generator"] = "as before" if torch.equal(drawn, torch.get_rng_state()) else "moved"
            seen.append(look.found)
            for tensor in look.leaves if self.grad else ():
                tensor.grad = None
        return seen


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
            self.found[path] = (f"{value.dtype} {tuple(value.shape)}", dense.detach().cpu().resolve_conj().clone())
            if address_of(value):
                self.memory.setdefault(address_of(value), path)
            if value.is_leaf and value.grad is not None:
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


def differences(want: Mapping[str, Any], have: Mapping[str, Any], tolerance: float | None) -> list[str]:
    """What is not as it is uncompiled."""
    if "raised" in want or "raised" in have:
        both = [f"it raises {seen['raised']}" if "raised" in seen else "it does not raise" for seen in (want, have)]
        return [] if "raised" in want and "raised" in have else [f"uncompiled {both[0]}; compiled {both[1]}"]
    found = []
    for path in dict.fromkeys([*want, *have]):
        a, b = want.get(path), have.get(path)
        if path.endswith(".grad") and (a is None or b is None) and not (a or b or (0, torch.zeros(1)))[1].any():
            continue  # none is like zeros
        if isinstance(a, str) or isinstance(b, str) or a is None or b is None or a[0] != b[0]:
            texts = [v if isinstance(v, str) else v[0] if v else "nothing" for v in (a, b)]
            found += [f"{path}: uncompiled {texts[0]}, compiled {texts[1]}"] if texts[0] != texts[1] else []
            continue
        left, right = a[1], b[1]
        exact = not (left.is_floating_point() or left.is_complex())
        x, y = (t.to(torch.complex128 if t.is_complex() else torch.float64).reshape(-1) for t in (left, right))
        wrong = left.reshape(-1) != right.reshape(-1)
        if not exact:
            finite = x[x.isfinite()].abs()
            size = x.abs() + (finite.square().mean().sqrt() if finite.numel() else 0.0)
            allowed = (torch.finfo(left.dtype).eps ** 0.5 if tolerance is None else tolerance) * size
            wrong = (wrong & ~((x - y).abs() <= allowed)) & ~(x.isnan() & y.isnan())
        if wrong.any():
            i = int(wrong.to(torch.uint8).argmax())
            text = f"{int(wrong.sum())} of {len(wrong)} values differ, the first"
            found.append(
                f"{path}: {text}: uncompiled {left.reshape(-1)[i].item()}, compiled {right.reshape(-1)[i].item()}"
            )
    return found


def write(seen: Sequence[Mapping[str, Any]], file: Path) -> None:
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


def read(file: Path) -> list[dict[str, Any]]:
    """What `write` has kept."""
    head, _, data = file.read_bytes().partition(b"\n")
    seen: list[dict[str, Any]] = json.loads(head)
    for call in seen:
        for path, value in call.items():
            if not isinstance(value, str):
                tensor = torch.empty(value[2], dtype=getattr(torch, value[1]))
                if tensor.numel():
                    raw = bytearray(data[value[3] : value[3] + tensor.numel() * tensor.itemsize])
                    tensor = torch.frombuffer(raw, dtype=tensor.dtype).reshape(value[2])
                call[path] = (value[0], tensor)
    return seen


def child_of(file: Path, timeout: float) -> int | None:
    """Run this script's compiled half in a process of its own; its exit code, None where it did not end."""
    command = [sys.executable, *(["-I"] if sys.flags.isolated else []), str(Path(sys.argv[0]).resolve())]
    child = subprocess.Popen([*command, "--child", str(file)], stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        return child.wait(timeout)
    except subprocess.TimeoutExpired:
        return None
    finally:  # workers of the compiler included
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL) if hasattr(os, "killpg") else child.kill()
        child.wait()


def main(check: Check) -> int:
    """1: compiled, the program does something else. 0: it does the same. 125: undecided."""
    parser = argparse.ArgumentParser(description="Exits 1 while the fault is there, 0 when it is gone, 125: undecided.")
    parser.add_argument("--timeout", metavar="SECONDS", type=float, default=300.0, help="default: %(default)s")
    parser.add_argument("--child", metavar="FILE", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        write(check.run(torch.compile(check.fn, **check.compiled)), options.child)
        os._exit(0)
    want = check.run(check.fn)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        file = Path(folder) / "compiled.pt"
        code = child_of(file, options.timeout)
        have = read(file) if file.exists() and code == 0 else None
    if have is not None:
        pairs = enumerate(zip(want, have, strict=False))
        lines = [f"call {i}: {line}" for i, (a, b) in pairs for line in differences(a, b, check.tolerance)]
        sys.stdout.write("".join(f"{line}\n" for line in lines[:2]))
        sys.stdout.write("FAULT\n" if lines else f"GONE: compiled and uncompiled agree in {len(want)} call(s)\n")
        return 1 if lines else 0
    if code == 125 or (code is None and not check.hang):
        sys.stdout.write(f"CANNOT DECIDE: compiled, it {'cannot be run' if code else 'did not end; see --timeout'}\n")
        return 125
    how = "does not end" if code is None else f"ends the process with exit code {code}"
    if code is not None and code < 0:
        how = f"is killed by {signal.Signals(-code).name}"
    sys.stdout.write(f"compiled, the program {how}; uncompiled it runs\nFAULT\n")
    return 1


# </check>
