"""Values as Python that a person can read: tensors as lists or drawn, modules of torch by the calls that make them."""

from __future__ import annotations

import builtins
import inspect
import itertools
import keyword
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import torch

MOST_INLINE = 64
"""Values of a tensor that are written out; one with more is drawn, or in the file."""
FEW = 16
"""Values of a tensor that is written out in any case, in whatever order they are."""
WIDTH = 110

KEPT_AT = {
    "encoder_layer": "layers.0",
    "decoder_layer": "layers.0",
    "d_model": "self_attn.embed_dim",
    "nhead": "self_attn.num_heads",
    "dim_feedforward": "linear1.out_features",
    "layer_norm_eps": "norm1.eps",
    "batch_first": "self_attn.batch_first",
    "dropout": "dropout.p",
}
"""Where a module keeps an argument that is no attribute of the same name."""

PARTS = ("_parameters", "_buffers", "_modules")


class Unwritable(Exception):
    """Why something cannot be told as Python, in words."""


class FreeNames:
    """Names of a script; each is given once.

    Attributes:
        taken: those that are.
    """

    def __init__(self, taken: Iterable[str]) -> None:
        self.taken = {*taken, *keyword.kwlist, *dir(builtins), "torch"}

    def free(self, hint: str) -> str:
        """A name like this that is not taken, and is from now on."""
        name = re.sub(r"\W", "_", hint).strip("_")
        name = name if name.isidentifier() else f"value_{name}".rstrip("_")
        found = next(n for i in itertools.count(1) if (n := f"{name}_{i}" if i > 1 else name) not in self.taken)
        self.taken.add(found)
        return found


def joined(head: str, parts: Sequence[str], tail: str) -> str:
    """`head`, the parts with commas between them, `tail`: on one line where it is short enough."""
    line = f"{head}{', '.join(parts)}{tail}"
    if len(line) <= WIDTH and "\n" not in line:
        return line
    if all(len(part) <= 24 and "\n" not in part and "=" not in part for part in parts):
        inner = textwrap.fill(", ".join(parts), WIDTH - 4, break_long_words=False, break_on_hyphens=False)
    else:
        inner = "\n".join(f"{part}," for part in parts)
    return f"{head}\n{textwrap.indent(inner, '    ')}\n{tail}"


def number_text(value: Any) -> str:
    """A number; infinity and NaN by torch's names."""
    if isinstance(value, complex):
        return f"complex({number_text(value.real)}, {number_text(value.imag)})"
    if isinstance(value, float) and not math.isfinite(value):
        return "torch.nan" if math.isnan(value) else "torch.inf" if value > 0 else "-torch.inf"
    return repr(value)


def short_number(value: Any, dtype: torch.dtype) -> str:
    """A number with as few digits as tell it from all others of its dtype."""
    if isinstance(value, float) and math.isfinite(value) and dtype != torch.float64:
        for digits in range(1, 17):
            text = repr(float(f"{value:.{digits}g}"))
            if torch.tensor(float(text), dtype=dtype).item() == value:
                return text
    return number_text(value)


def list_text(values: Any, number: Callable[[Any], str], *, wide: bool = False) -> str:
    """Nested lists of numbers; `wide`: in one line, however long that is."""
    if isinstance(values, list):
        parts = [list_text(value, number, wide=wide) for value in values]
        return f"[{', '.join(parts)}]" if wide else joined("[", parts, "]")
    return number(values)


def dense_text(tensor: torch.Tensor, *, most: int = MOST_INLINE, wide: bool = False) -> str | None:
    """An expression for a contiguous tensor with the same values; None where they are more than `most`, or no numbers.

    `wide`: in one line, however long that is.
    """
    shape, dtype, count = tuple(tensor.shape), tensor.dtype, tensor.numel()
    sizes = ", ".join(map(str, shape)) if shape else "()"
    kind = "" if dtype == torch.get_default_dtype() else f", dtype={dtype}"
    if count == 0:
        return f"torch.empty({sizes}{kind})"
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().reshape(-1).contiguous()
    bits = flat.view(torch.uint8).reshape(count, -1)
    if count > 1 and bool((bits == bits[0]).all()):
        for name in ("zeros", "ones"):
            if torch.equal(getattr(torch, name)(1, dtype=dtype).view(torch.uint8), bits[0]):
                return f"torch.{name}({sizes}{kind})"
        return f"torch.full({shape}, {short_number(flat[0].item(), dtype)}, dtype={dtype})"
    if count > most:
        return None
    values = flat.reshape(shape).tolist()
    if count > FEW and not dtype.is_complex and flat.tolist() == list(range(count)):
        text = f"torch.arange({count}{'' if dtype == torch.int64 else f', dtype={dtype}'})"
        return text if len(shape) == 1 else f"{text}.view{shape}"
    text = list_text(values, lambda value: short_number(value, dtype), wide=wide)
    kind = "" if dtype in (torch.int64, torch.bool) else kind
    return f"torch.tensor({text}{kind})" if _remade(text, dtype, flat) else None


def _remade(values: str, dtype: torch.dtype, flat: torch.Tensor) -> bool:
    """Whether the text gives the same bits; those of a NaN count only as being one."""
    made = torch.tensor(eval(values, {"torch": torch}), dtype=dtype).reshape(-1)
    same = made.view(torch.uint8).reshape(len(flat), -1) == flat.view(torch.uint8).reshape(len(flat), -1)
    number = flat if dtype.is_complex else flat.to(torch.float64)
    return bool((same.all(1) | (number != number)).all())


def contiguous_of(value: torch.Tensor) -> tuple[torch.Tensor, str]:
    """A contiguous tensor, and what to write behind it to have `value` with its strides."""
    if value.is_contiguous():
        return value, ""
    if value.ndim == 4 and value.is_contiguous(memory_format=torch.channels_last):
        return value.contiguous(), ".to(memory_format=torch.channels_last)"
    order = sorted(range(value.ndim), key=lambda d: -value.stride()[d])
    permuted = value.permute(order)
    if permuted.is_contiguous():
        back = tuple(order.index(d) for d in range(value.ndim))
        return permuted, ".t()" if value.ndim == 2 else f".permute{back}"
    size = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
    return value.as_strided((size,), (1,)), f".as_strided({tuple(value.shape)}, {value.stride()})"


def drawn_text(value: torch.Tensor) -> str:
    """An expression that draws a tensor of its shape and dtype, in its range.

    Raises:
        Unwritable: torch draws no such values.
    """
    size = ", ".join(map(str, value.shape)) if value.ndim else "()"
    shape = f"({size})" if value.ndim > 1 else f"({size},)" if value.ndim else "()"
    if value.dtype is torch.bool:
        return f"torch.rand({size}) > 0.5"
    if not (value.is_floating_point() or value.is_complex()):
        numbers = value.numpy()  # torch has neither the least of unsigned integers nor draws them
        low, high = int(numbers.min()), int(numbers.max())
        if high - low >= 2**62 or high >= 2**63 - 1:
            raise Unwritable("integers of a range that randint does not take")
        return f"torch.randint({low}, {high + 1}, {shape}){'' if value.dtype == torch.int64 else f'.to({value.dtype})'}"
    wide = value.abs().to(torch.float64)
    if not bool(wide.isfinite().all()):
        raise Unwritable("values that are not finite")
    drawable = value.dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64)
    kind = "" if value.dtype == torch.float32 or not drawable else f", dtype={value.dtype}"
    positive = not value.is_complex() and float(value.to(torch.float64).min()) >= 0
    scale = float(wide.max()) if positive else float(wide.square().mean().sqrt())
    factor = "" if (0.5 if positive else 0.2) <= scale <= (1 if positive else 3) else f" * {scale:.1g}"
    text = f"torch.{'rand' if positive else 'randn'}({size}{kind}){factor}"
    text = f"({text})" if factor else text
    return text if drawable else f"{text}.to({value.dtype})"


def constructor_text(module: torch.nn.Module, name_of: Callable[[type], str]) -> str | None:
    """The call that makes such a module, with new parameters; None where none is found.

    Args:
        name_of: returns the text of a class.
    """
    try:
        with torch.device("meta"):
            text, made = _constructed(module, name_of)
            same = _facts(made.train(module.training)) == _facts(module)
    except Exception:  # whatever a class says to arguments that are a guess
        return None
    return f"{text}{'' if module.training else '.eval()'}" if same else None


def _constructed(module: torch.nn.Module, name_of: Callable[[type], str]) -> tuple[str, torch.nn.Module]:
    kind: Any = type(module)
    if not kind.__module__.startswith("torch.nn."):
        raise TypeError(kind)
    values: list[tuple[str, Any]] = []
    if kind in (torch.nn.Sequential, torch.nn.ModuleList):
        values = [("", part) for part in module.children()]
    else:
        for name, parameter in inspect.signature(kind).parameters.items():
            value = _argument(module, name, parameter.default)
            if name not in ("device", "dtype") and (value is not parameter.default and value != parameter.default):
                values.append((name, value))
    pairs = [_constructed(v, name_of) if isinstance(v, torch.nn.Module) else (repr(v), v) for _, v in values]
    texts = [text for text, _ in pairs]
    if kind is torch.nn.ModuleList:
        return f"{name_of(kind)}([{', '.join(texts)}])", kind([part for _, part in pairs])
    if kind is torch.nn.Sequential:
        return f"{name_of(kind)}({', '.join(texts)})", kind(*(part for _, part in pairs))
    given = {name: made for (name, _), (_, made) in zip(values, pairs, strict=True)}
    required = [n for n, p in inspect.signature(kind).parameters.items() if p.default is p.empty]
    named = [text if n in required else f"{n}={text}" for (n, _), text in zip(values, texts, strict=True)]
    return f"{name_of(kind)}({', '.join(named)})", kind(**given)


def _argument(module: torch.nn.Module, name: str, default: Any) -> Any:
    """What a module was given, as far as it is still to be seen."""
    if name == "bias":
        return any(key.rpartition(".")[2].endswith("bias") for key in dict(module.named_parameters()))
    for place in (name, KEPT_AT.get(name, name)):
        try:
            value = attrgetter(place)(module)
        except AttributeError:
            continue
        if isinstance(value, torch.nn.Module | bool | int | float | str | tuple | None) and (
            not isinstance(value, torch.nn.Module) or name.endswith(("layer", "norm"))
        ):
            return value
    return default


def _facts(module: torch.nn.Module) -> list[Any]:
    """What two modules have in common that differ in the values of their parameters only."""
    found: list[Any] = [
        (n, t.shape, t.dtype, t.requires_grad) for n, t in module.named_parameters(remove_duplicate=False)
    ]
    found += [(name, tensor.shape, tensor.dtype) for name, tensor in module.named_buffers(remove_duplicate=False)]
    for name, part in module.named_modules(remove_duplicate=False):
        found.append((name, type(part), {key: value for key, value in vars(part).items() if key not in PARTS}))
    return found
