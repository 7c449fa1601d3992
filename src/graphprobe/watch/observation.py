"""Observes a step: loss, gradients and parameters, a few numbers that are read back together."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.nn.utils import get_total_norm
from torch.utils.weak import WeakIdKeyDictionary

from graphprobe.engine.tensor_stats import finish, stats_async, stats_of
from graphprobe.engine.values import why_not
from graphprobe.errors import UsageError
from graphprobe.internals.quiet import quiet
from graphprobe.internals.tensors import tree_leaves
from graphprobe.store.watch_file import StepObservation, figure


class OptimizerObserver:
    """Takes the observations of all optimizers of a program."""

    def __init__(self) -> None:
        self._optimizers = WeakKeyDictionary[torch.optim.Optimizer, int]()
        self._names: Any = WeakIdKeyDictionary()

    def number_of(self, optimizer: torch.optim.Optimizer | None) -> int:
        """The number of an optimizer, in the order of their first steps; of none 0."""
        return 0 if optimizer is None else self._optimizers.setdefault(optimizer, len(self._optimizers))

    def observe(
        self, seen: Sequence[torch.Tensor], loss: torch.Tensor | None, step: int, *, number: int, full: bool
    ) -> StepObservation:
        """What is to be seen of a step before a parameter is changed; changes nothing.

        Args:
            seen: the parameters, with gradients.
            loss: a scalar, any dtype and device; None where there is none.
            step: its number; `number`: of its optimizer.
            full: with the norm of each gradient and parameter, and their digests.
        """
        with quiet():
            gradients = [plain_tensor(p.grad) for p in seen]
            norm, value = _read(gradients, loss)
            finite = value is None or math.isfinite(value)
            # A norm of finite gradients may be beyond its dtype.
            finite = finite and (norm is None or math.isfinite(norm) or all(map(is_all_finite, gradients)))
            more = self._each(seen, gradients) if full else {}
        figures: dict[str, Any] = {k: figure(v) for k, v in (("loss", value), ("norm", norm)) if v is not None}
        return StepObservation(step=step, time_ns=time.time_ns(), finite=finite, optimizer=number, **figures, **more)

    def not_finite(self, seen: Sequence[torch.Tensor]) -> list[str]:
        """The names of the parameters whose gradients are not finite."""
        with quiet():
            found = [p for p in seen if not is_all_finite(plain_tensor(p.grad))]
        return [self.name_of(p) for p in found]

    def name_of(self, parameter: torch.Tensor) -> str:
        """The dotted name of a parameter in its outermost module; its shape where it is in none."""
        if parameter not in self._names:
            for module in all_modules():
                for name, one in module.named_parameters():
                    self._names.setdefault(one, name.replace("_orig_mod.", ""))
        return str(self._names.setdefault(parameter, f"a parameter of shape {tuple(parameter.shape)}"))

    def _each(self, seen: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> dict[str, Any]:
        sizes, digests = [], []
        for parameter in seen:
            values = plain_tensor(parameter)
            try:
                stats = stats_of(values) if values.is_cpu else finish(stats_async(values).cpu())
                lost = stats.nan + stats.positive_inf + stats.negative_inf
                sizes.append(figure(math.nan if lost else stats.l2 or 0.0))
                digests.append(stats.digest)
            except UsageError:  # quantised, or without memory of its own
                sizes.append(figure(float(torch.linalg.vector_norm(values))))
                digests.append("")
        norms = [figure(float(torch.linalg.vector_norm(gradient.float()))) for gradient in gradients]
        names = tuple(self.name_of(parameter) for parameter in seen)
        return {"names": names, "gradients": tuple(norms), "sizes": tuple(sizes), "digests": tuple(digests)}


def with_gradients(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The parameters that have a gradient which is no sparse tensor."""
    return [p for p in parameters if p.is_leaf and p.grad is not None and p.grad.layout is torch.strided]


def plain_tensor(tensor: Any) -> torch.Tensor:
    """The tensor without its history; of one that is spread over ranks, what this rank has."""
    local = getattr(tensor, "to_local", None)
    found: torch.Tensor = (tensor if local is None else local()).detach()
    return found


def is_all_finite(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds neither NaN nor infinity."""
    return bool(torch.isfinite(tensor).all())


def has_nan(result: Any) -> bool:
    """Whether a tensor among the leaves of a result holds a NaN; those that cannot tell count as without."""
    with quiet():
        tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor) and why_not(leaf) is None]
        return any(bool(torch.isnan(t).any()) for t in tensors if t.is_floating_point() or t.is_complex())


def _read(gradients: Sequence[torch.Tensor], loss: torch.Tensor | None) -> tuple[float | None, float | None]:
    """The norm of all gradients together, and the loss; read back with one wait for the device."""
    found = [get_total_norm(gradients)] if gradients else []
    found += [loss.detach()] if loss is not None else []
    if len(found) == 2:
        found = [torch.stack([value.to(found[0].device, torch.float64) for value in found])]
    numbers = [float(value) for one in found for value in one.reshape(-1).tolist()]
    norm = numbers.pop(0) if gradients else None
    return norm, numbers[0] if numbers else None


def all_modules() -> list[torch.nn.Module]:
    """All modules that there are, the outermost first."""
    modules = [found for found in gc.get_objects() if issubclass(type(found), torch.nn.Module)]
    inner = {id(child) for module in modules for child in module.children()}
    return sorted(modules, key=lambda module: id(module) in inner)
