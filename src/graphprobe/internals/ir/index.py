"""Evaluates the sympy expressions of Inductor's IR, sizes and indices, over numbers and integer tensors."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch

Number = int | float | bool


class NotEvaluated(Exception):
    """Something in the IR that is not understood, or that depends on what was not understood; says what."""


def evaluate(expr: Any, env: Mapping[Any, Any]) -> Any:
    """The value of `expr`: a plain number where no symbol in it stands for a tensor, else a tensor.

    Args:
        expr: a sympy expression, a symbolic number or a plain number.
        env: what the symbols stand for: numbers, and int64 tensors that broadcast against each other.

    Raises:
        NotEvaluated: a symbol without a value, or a function that is not known.
    """
    if isinstance(expr, (bool, int, float, torch.Tensor)):
        return expr
    if isinstance(expr, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        expr = expr.node.expr
    if isinstance(expr, sympy.Symbol):
        if expr not in env:
            raise NotEvaluated(f"the symbol {expr} has no value")
        return env[expr]
    if expr is sympy.true or expr is sympy.false:
        return bool(expr)
    if isinstance(expr, sympy.Integer):
        return int(expr)
    name = type(expr).__name__
    if name in ("IntInfinity", "NegativeIntInfinity"):
        return math.inf if name == "IntInfinity" else -math.inf
    if isinstance(expr, sympy.Number) or not getattr(expr, "args", ()):
        return float(expr)
    if name not in _FUNCTIONS:
        raise NotEvaluated(f"the function {name} in an index is not known")
    return _FUNCTIONS[name](*(evaluate(arg, env) for arg in expr.args))


def numbers(exprs: Sequence[Any], env: Mapping[Any, Any]) -> list[int]:
    """Sizes or strides as plain integers."""
    return [int(evaluate(expr, env)) for expr in exprs]


def _fold(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda *args: functools.reduce(function, args)


def _either(plain: Callable[..., Any], tensors: Callable[..., Any]) -> Callable[..., Any]:
    """`plain` over numbers; `tensors` as soon as one argument is a tensor, the others made tensors of its device."""

    def call(*args: Any) -> Any:
        device = next((arg.device for arg in args if isinstance(arg, torch.Tensor)), None)
        if device is None:
            return plain(*args)
        return tensors(*(arg if isinstance(arg, torch.Tensor) else torch.tensor(arg, device=device) for arg in args))

    return call


def _power(base: Any, exponent: Any) -> Any:
    if isinstance(base, torch.Tensor) and not (isinstance(exponent, int) and exponent >= 0):
        base = base.double()
    return base**exponent


def _quotient(a: Any, b: Any) -> Any:
    return (a.double() if isinstance(a, torch.Tensor) else float(a)) / b


def _where(condition: Any, then: Any, other: Any) -> Any:
    return then if condition else other


def _piecewise(*pairs: Any) -> Any:
    result = pairs[-1][0]
    for value, condition in reversed(pairs[:-1]):
        result = _FUNCTIONS["Where"](condition, value, result)
    return result


def _whole(plain: Callable[[Any], int], tensors: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], Any]:
    return _either(plain, lambda x: tensors(x).to(torch.int64) if x.is_floating_point() else x)


_max, _min = _fold(_either(max, torch.maximum)), _fold(_either(min, torch.minimum))
_floor, _ceil = _whole(math.floor, torch.floor), _whole(math.ceil, torch.ceil)

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Add": _fold(operator.add),
    "Mul": _fold(operator.mul),
    "Pow": _power,
    "PowByNatural": _power,
    "FloatPow": _power,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "CeilDiv": lambda a, b: -(-a // b),
    "ModularIndexing": lambda base, divisor, modulus: (base // divisor) % modulus,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "IntTrueDiv": _quotient,
    "FloatTrueDiv": _quotient,
    "LShift": lambda a, b: a * 2**b,
    "RShift": lambda a, b: a // 2**b,
    "Identity": lambda a: a,
    "ToFloat": _either(float, torch.Tensor.double),
    "TruncToInt": _whole(math.trunc, torch.trunc),
    "FloorToInt": _floor,
    "CeilToInt": _ceil,
    "RoundToInt": _whole(round, torch.round),
    "floor": _floor,
    "ceiling": _ceil,
    "Abs": abs,
    "Max": _max,
    "Min": _min,
    "Where": _either(_where, torch.where),
    "Piecewise": _piecewise,
    "ExprCondPair": lambda value, condition: (value, condition),
    "Equality": operator.eq,
    "Unequality": operator.ne,
    "StrictLessThan": operator.lt,
    "LessThan": operator.le,
    "StrictGreaterThan": operator.gt,
    "GreaterThan": operator.ge,
    "And": _fold(operator.and_),
    "Or": _fold(operator.or_),
    "Not": _either(operator.not_, torch.logical_not),
}
