"""Records small torch programs into dumps that live in memory: every function call, forward and backward.

Not the collector of the package: it is short, so that the tests of comparison stand on their own.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import torch
from torch.overrides import TorchFunctionMode, resolve_name

from graphprobe.numerics.stats import stats_from_memory
from graphprobe.records import TensorMeta, TensorStats
from graphprobe.store.calls import Call, CallSlot, Scalar

KNOWN = ("min", "max", "mean", "std", "l2", "nan", "positive_inf", "negative_inf", "zeros")


class MemoryDump:
    """A `CallDump` of calls that somebody made up or recorded."""

    format = "memory"

    def __init__(
        self, calls: Sequence[Call] = (), values: dict[str, np.ndarray] | None = None, *, title: str = "memory"
    ) -> None:
        self.title = title
        self.facts: dict[str, str] = {}
        self.list = list(calls)
        self.arrays = values or {}
        self.read = 0

    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted({c.rank for c in self.list}))

    def steps(self, rank: int) -> tuple[int, ...]:
        return tuple(sorted({c.step for c in self.list if c.rank == rank}))

    def calls(self, rank: int, step: int) -> Iterator[Call]:
        return iter([c for c in self.list if (c.rank, c.step) == (rank, step)])

    def values(self, call: Call, slot: CallSlot) -> np.ndarray:
        self.read += 1
        return self.arrays[slot.value]

    def problems(self) -> tuple[str, ...]:
        return ()

    def without_values(self) -> MemoryDump:
        """The same with statistics only."""
        calls = [
            msgspec.structs.replace(c, slots=tuple(msgspec.structs.replace(s, value="") for s in c.slots))
            for c in self.list
        ]
        return MemoryDump(calls, title=self.title)

    def without_modules(self) -> MemoryDump:
        return MemoryDump([msgspec.structs.replace(c, module="") for c in self.list], self.arrays)


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
        self,
        model: torch.nn.Module | None = None,
        *,
        plant: dict[str, Callable[..., Any]] | None = None,
        plant_gradient: dict[str, Callable[..., Any]] | None = None,
        step: int = 0,
        rank: int = 0,
    ) -> None:
        super().__init__()
        self.dump = MemoryDump()
        self.plant, self.plant_gradient = plant or {}, plant_gradient or {}
        self.count: Counter[str] = Counter()
        self.modules: list[str] = []
        self.step, self.rank = step, rank
        self.open: dict[str, dict[str, Any]] = {}
        self.hooks: list[Any] = []
        for name, module in model.named_modules() if model is not None else ():
            self.hooks.append(module.register_forward_pre_hook(lambda m, a, name=name: self.modules.append(name)))
            self.hooks.append(module.register_forward_hook(lambda m, a, o: void(self.modules.pop())))

    def __exit__(self, *args: Any) -> None:
        super().__exit__(*args)
        for hook in self.hooks:
            hook.remove()
        for call in self.open.values():
            self.add(**call)
        self.dump.list.sort(key=lambda c: c.position)
        self.dump.list = [msgspec.structs.replace(c, position=i) for i, c in enumerate(self.dump.list)]

    def slot(self, name: str, role: str, value: Any) -> CallSlot:
        if not isinstance(value, torch.Tensor):
            return CallSlot(name=name, role=role, scalar=Scalar(type(value).__name__, repr(value)))
        with torch._C.DisableTorchFunction():
            array = bits_of(value)
            dtype = str(value.dtype).removeprefix("torch.")
            stats: TensorStats = stats_from_memory(array.ctypes.data, dtype, array.shape)
            key = f"v{len(self.dump.arrays)}"
            self.dump.arrays[key] = array
        meta = TensorMeta(dtype, tuple(value.shape))
        return CallSlot(
            name=name,
            role=role,
            meta=meta,
            stats=stats,
            known=KNOWN,
            digest=stats.digest,
            digest_kind="graphprobe",
            value=key,
        )

    def add(self, **fields: Any) -> None:
        self.dump.list.append(Call(step=self.step, rank=self.rank, **{**fields, "slots": tuple(fields["slots"])}))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        api = resolve_name(func) or ""
        if (
            not api
            or "__get__" in api
            or "__set__" in api
            or api.endswith(("backward", "requires_grad_", "detach", "item"))
        ):
            return func(*args, **kwargs)
        index = self.count[api]
        self.count[api] += 1
        label = f"{api.rpartition('.')[2]}.{index}"
        position = len(self.dump.list) + len(self.open)
        frame = next(f for f in inspect.stack()[1:] if "torch" not in f.filename.split("site-packages")[-1])
        source = f"{frame.filename.rpartition('/')[2]}:{frame.lineno}"
        common = {
            "kind": "api",
            "api": api,
            "index": index,
            "module": self.modules[-1] if self.modules else "",
            "source": source,
        }
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
        call = self.open.setdefault(
            label,
            {
                "position": len(self.dump.list) + len(self.open),
                "label": label,
                "direction": "backward",
                "slots": [],
                **common,
            },
        )
        call["slots"].append(self.slot(name, "grad_output", grad))

    def gradient(self, label: str, name: str, grad: torch.Tensor) -> torch.Tensor:
        planted = self.plant_gradient.get(f"{label}.{name}")
        grad = planted(grad) if planted else grad
        if label in self.open:
            self.open[label]["slots"].append(self.slot(name, "grad_input", grad))
        return grad


def void(_: Any) -> None:
    return None
