"""Records small torch programs into dumps that live in memory: every function call, forward and backward."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode, resolve_name

from compare.made import KNOWN, MemoryDump, replaced, scalar
from graphprobe.numerics import stats_from_memory
from graphprobe.records import TensorMeta, TensorStats
from graphprobe.store import Call, CallSlot


def bits_of(t: torch.Tensor) -> np.ndarray:
    t = t.detach().contiguous()
    if t.dtype is torch.bfloat16:
        return t.view(torch.int16).numpy().view(np.uint16).copy()
    return t.numpy().copy()


class _Tap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, notify: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        ctx.notify = notify
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.notify(grad), None


class Recorder(TorchFunctionMode):
    """Records what runs inside `with`.

    Args:
        plant: `{label: f}`: the result of that call becomes `f(result, args, kwargs)`.
        plant_gradient: `{label.grad_input.i: f}`: the gradient becomes `f(gradient)`.
    """

    def __init__(
        self, *, plant: dict[str, Callable[..., Any]] | None = None, plant_gradient: dict[str, Any] | None = None
    ) -> None:
        super().__init__()
        self.dump = MemoryDump()
        self.plant, self.plant_gradient = plant or {}, plant_gradient or {}
        self.count: Counter[str] = Counter()
        self.open: dict[str, dict[str, Any]] = {}

    def __exit__(self, *args: Any) -> None:
        super().__exit__(*args)
        for call in self.open.values():
            self.add(**call)
        self.dump.list.sort(key=lambda c: c.position)
        self.dump.list = [replaced(c, position=i) for i, c in enumerate(self.dump.list)]

    def slot(self, name: str, role: str, value: Any) -> CallSlot:
        if not isinstance(value, torch.Tensor):
            return replaced(scalar(name, value), role=role)
        with torch._C.DisableTorchFunction():
            array = bits_of(value)
            dtype = str(value.dtype).removeprefix("torch.")
            stats: TensorStats = stats_from_memory(array.ctypes.data, dtype, array.shape)
            key = f"v{len(self.dump.arrays)}"
            self.dump.arrays[key] = array
        meta, digest = TensorMeta(dtype, tuple(value.shape)), {"digest": stats.digest, "digest_kind": "graphprobe"}
        return CallSlot(name=name, role=role, meta=meta, stats=stats, known=KNOWN, value=key, **digest)

    def add(self, **fields: Any) -> None:
        self.dump.list.append(Call(**{**fields, "slots": tuple(fields["slots"])}))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        api = resolve_name(func) or ""
        ignored = ("backward", "requires_grad_", "detach", "item")
        if not api or "__get__" in api or "__set__" in api or api.endswith(ignored):
            return func(*args, **kwargs)
        index = self.count[api]
        self.count[api] += 1
        label = f"{api.rpartition('.')[2]}.{index}"
        position = len(self.dump.list) + len(self.open)
        common = {"kind": "api", "api": api, "index": index}
        slots = []
        place = iter(range(1000))
        back = f"{label}.backward"

        def take(value: Any, name: str) -> Any:
            if isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
                return type(value)([take(v, f"{name}.{i}") for i, v in enumerate(value)])
            slots.append(self.slot(name, "input", value))
            if isinstance(value, torch.Tensor) and value.requires_grad and torch.is_grad_enabled():
                value = _Tap.apply(value, lambda g: self.gradient(back, f"grad_{name}", g))
            return value

        args = [take(a, f"input.{next(place)}") for a in args]
        kwargs = {k: take(v, f"kwarg.{k}") for k, v in kwargs.items()}
        result = func(*args, **kwargs)
        if label in self.plant:
            with torch._C.DisableTorchFunction():
                result = self.plant[label](result, args, kwargs)
        flat = result if isinstance(result, (list, tuple)) else [result]
        outputs = [self.slot(f"output.{i}", "output", v) for i, v in enumerate(flat) if v is not None]
        self.add(position=position, label=f"{label}.forward", slots=slots + outputs, **common)
        for i, v in enumerate(flat):
            if isinstance(v, torch.Tensor) and v.requires_grad:
                v.register_hook(lambda g, i=i: self.begin(back, f"grad_output.{i}", g, common))
        return result

    def begin(self, label: str, name: str, grad: torch.Tensor, common: dict[str, Any]) -> None:
        position = len(self.dump.list) + len(self.open)
        begun = {"position": position, "label": label, "direction": "backward", "slots": [], **common}
        call = self.open.setdefault(label, begun)
        call["slots"].append(self.slot(name, "grad_output", grad))

    def gradient(self, label: str, name: str, grad: torch.Tensor) -> torch.Tensor:
        planted = self.plant_gradient.get(f"{label}.{name}")
        grad = planted(grad) if planted else grad
        if label in self.open:
            self.open[label]["slots"].append(self.slot(name, "grad_input", grad))
        return grad
