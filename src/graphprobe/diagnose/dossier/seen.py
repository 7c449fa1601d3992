"""The lower half of a long repro: all there is to see of a program's calls, which run in processes of their own.

What is between the marks is copied, as text, into each such repro. It needs torch and the standard library.
"""

from __future__ import annotations

# <seen>
import contextlib
import functools
import importlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import traceback
import types
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

PLAIN = (type(None), bool, int, complex, str, bytes, torch.dtype, torch.device)
SHOWN = 9
"""Differences that are reported."""
CHILD, COMPILED, RAISED = "--child", "--compiled", "the exception"
ARGUMENTS = sys.argv[1:]
Seen = dict[str, Any]
"""What there is to see after calls, by path: tensors with their kind, texts; of a call that raises its exception."""


class Look:
    """What can be reached from values, by path.

    Args:
        call: what each path begins with.
        modules: of the program; nothing of other modules is looked into.
    """

    def __init__(self, call: str = "", modules: Sequence[str] = ("__main__",)) -> None:
        self.call, self.modules, self.found = call, modules, Seen()
        self.known: dict[int, tuple[str, Any]] = {}
        self.memory: dict[int, str] = {}
        self.leaves: list[torch.Tensor] = []

    def at(self, value: Any, path: str) -> None:
        kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        where = self.call + path
        if isinstance(value, torch.Tensor):
            dense = value if value.layout is torch.strided and not value.is_quantized else value.to_dense()
            self.found[where] = (f"{value.dtype} {tuple(value.shape)}", plain(dense))
            if address_of(value):
                self.memory.setdefault(address_of(value), path)
            if (value.is_leaf or value.retains_grad) and value.grad is not None:
                self.at(value.grad, f"{path}.grad")
                self.leaves.append(value)
        elif isinstance(value, float):
            self.found[where] = (kind, torch.tensor(value))
        elif getattr(getattr(value, "dtype", None), "kind", "") in tuple("biufc"):  # of numpy
            self.found[where] = (f"{kind} {value.dtype} {value.shape}", torch.tensor(value.tolist()))
        elif isinstance(value, PLAIN):
            self.found[where] = f"{value!r:.500}"
        elif id(value) in self.known:
            self.found[where] = f"the same object as {self.known[id(value)][0]}"
        else:
            self.known[id(value)] = (path, value)
            self.found[where], parts = self.inside(value, kind)
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
                self.found[f"{self.call}strides of tensor {i} of the result"] = str(steps)
                self.found[f"{self.call}memory of tensor {i} of the result"] = memory.get(address_of(tensor), "its own")
                memory.setdefault(address_of(tensor), f"tensor {i} of the result")
        states = [random.getstate(), *(m.random.get_state() for m in [sys.modules.get("numpy")] if m)]
        self.found[self.call + "generators of random and numpy"] = str(zlib.crc32(repr(states).encode()))


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
    paths = list(dict.fromkeys([*want, *have]))
    if raised := [path for path in paths if path.endswith(RAISED)]:
        paths = [path for path in want if path in have and path not in raised]  # what comes behind is not compared
    for path in raised:
        texts = [f"it raises {seen[path]}" if path in seen else "it does not raise" for seen in (want, have)]
        if (path in want) != (path in have):
            yield f"{path.removesuffix(RAISED)}uncompiled {texts[0]}; compiled {texts[1]}"
    for path in paths:
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


def seen_of(check: Mapping[str, Any], function: Callable[..., Any], *, run: str = "") -> Seen:
    """All there is to see after each call of a program, up to one that raises.

    Args:
        check: `fn`, the program; `calls`, arguments and arguments by name of each. Where they are there: `between`,
            which runs before each call but the first; `grad`, True: run a backward, too, "apart": one for each tensor,
            False: under no_grad; `names`, the program's globals, and `watched`, those that are compared; `modules`, the
            program's.
        function: what is called: the program, uncompiled or compiled.
        run: what each path begins with.
    """
    found, fn, grad, names = Seen(), check["fn"], check.get("grad"), check.get("names", {})
    random.seed(0)
    torch.manual_seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    for i, (args, kwargs) in enumerate(check["calls"]):
        if i and "between" in check:
            check["between"](fn, i)
        drawn = torch.get_rng_state()
        try:
            with torch.no_grad() if grad is False else contextlib.nullcontext():
                result = function(*args, **kwargs)
            tensors = tensors_in(result, [])
            for start in [[tensor] for tensor in tensors] if grad == "apart" else [tensors] if grad else []:
                backward(start)
            if torch.cuda.is_available():
                torch.cuda.synchronize()  # so that an error of a kernel shows here
        except Exception as error:
            return found | {f"{run}call {i}: {RAISED}": shown(error)}
        look = Look(f"{run}call {i}: ", check.get("modules", ("__main__",)))
        watched = {name: names[name] for name in check.get("watched", names) if name in names}
        for name, value in {**watched, "args": args, "kwargs": kwargs, "fn": fn}.items():
            look.at(value, name)
        look.result(result)
        # Compiled code draws other numbers by design: it only counts whether it draws any.
        same = torch.equal(drawn, torch.get_rng_state())
        found |= look.found | {f"{look.call}torch's generator": "as before" if same else "moved"}
        for tensor in look.leaves if grad else ():
            tensor.grad = None
    return found


def keep(look: Callable[[bool], Seen]) -> None:
    """In a process that `apart` has started: keep what is seen, uncompiled or compiled, and end."""
    for flag, name in itertools.pairwise(ARGUMENTS):
        if flag == "--import":
            importlib.import_module(name)
    if CHILD not in ARGUMENTS:
        return
    folder, kept = Path(ARGUMENTS[1]), dict[str, Any]()
    try:
        for path, value in look(COMPILED in ARGUMENTS).items():
            kept[path] = value
            if not isinstance(value, str):
                kind, tensor = value
                data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes().hex() if tensor.numel() else ""
                kept[path] = [kind, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), data]
    except Exception as error:
        traceback.print_exc()
        (folder / "undecided").write_text(shown(error).removeprefix(f"{__name__}.Undecided: "), "utf-8")
        os._exit(125)
    (folder / "seen").write_text(json.dumps(kept), "utf-8")
    os._exit(0)


def apart(file: str, kind: str, *mode: str, limit_s: float = 240.0) -> Seen:
    """What is seen in a process of its own, which runs the file again, and may crash or hang.

    Args:
        kind: of the fault.
        mode: `COMPILED`, or nothing.
        limit_s: after which it is ended: it hangs, or whether the fault is there is not known.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [sys.executable, *["-I"] * sys.flags.isolated, file, CHILD, folder, *mode, *ARGUMENTS]
        code, ended = None, f"did not end within {limit_s:g} s"
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = subprocess.run(command, stdout=subprocess.DEVNULL, timeout=limit_s, check=False).returncode
            signals = {int(one): one.name for one in signal.Signals}
            ended = f"was killed by {signals.get(-code, -code)}" if code < 0 else f"ended with exit code {code}"
        left = {kept.name: kept.read_text("utf-8") for kept in Path(folder).iterdir()}
    if code == 125 or ("seen" not in left and (not mode or (code is None and kind != "hang"))):
        why = left.get("undecided", f"the process {ended} before the {'' if mode else 'un'}compiled run was done")
        sys.stdout.write(f"CANNOT DECIDE: {why}\n")
        sys.exit(125)
    if "seen" not in left:
        sys.stdout.write(f"the process {ended}; the uncompiled run went well\nFAULT: {kind}\n")
        sys.exit(1)
    seen: Seen = json.loads(left["seen"])
    for path, value in seen.items():
        if not isinstance(value, str):
            data, dtype = bytearray.fromhex(value[3]), getattr(torch, value[1])
            tensor = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
            seen[path] = (value[0], tensor.reshape(value[2]))
    return seen


def reported(kind: str, found: Iterator[str], unsaved: str = "") -> int:
    """The exit code; what differs is printed, else what could not be saved, without which nothing can be said."""
    lines = list(itertools.islice(found, SHOWN))
    if lines:
        sys.stdout.write("\n".join([*lines, f"FAULT: {kind}\n"]))
        return 1
    if unsaved:
        sys.stdout.write(f"CANNOT DECIDE: no difference, but this could not be saved: {unsaved}\n")
        return 125
    sys.stdout.write("GONE: compiled and uncompiled agree\n")
    return 0


def within(tolerance: Callable[[float], float]) -> Callable[[str, torch.Tensor], torch.Tensor]:
    """How far each element of a value may be off, relative to it and to the rms of all; `tolerance`: of an epsilon."""
    return lambda path, value: size_of(value) * tolerance(torch.finfo(value.dtype).eps)


# </seen>
