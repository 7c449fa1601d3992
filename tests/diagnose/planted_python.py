"""Programs whose Python-level code Dynamo gets wrong once a fault is planted, and what is to be named then."""

import contextlib
import random
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch._dynamo import symbolic_convert
from torch._dynamo.variables import ConstantVariable, builtin

TABLE = {"a": 2}


def answers(function: Any, result: Any) -> Any:
    """Dynamo takes a builtin of plain values to be `result`; it fails where that is None."""

    def plant() -> Any:
        right = builtin.BuiltinVariable.call_function

        def wrong(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
            if getattr(self, "fn", None) is not function or "/torch/" in tx.f_code.co_filename:
                return right(self, tx, args, kwargs)
            assert result is not None, "planted"
            return ConstantVariable.create(result)

        return mock.patch.object(builtin.BuiltinVariable, "call_function", wrong)

    return plant


def fails(function: Any) -> Any:
    """Dynamo fails where it reads a builtin of plain values."""
    return answers(function, None)


def draws() -> Any:
    """Dynamo takes each random number of Python's to be 0.75."""
    right = random.random

    def wrong() -> float:
        return 0.75 if torch.compiler.is_compiling() else right()

    return mock.patch.object(random, "random", wrong)


def formats() -> Any:
    """Dynamo takes each formatted value to be `?`."""

    def wrong(self: Any, spec: Any, flags: int) -> None:
        self.pop()
        self.push(ConstantVariable.create("?"))

    return mock.patch.object(symbolic_convert.InstructionTranslatorBase, "_format_value", wrong)


def rounded(x: torch.Tensor, n: float) -> torch.Tensor:
    y = torch.sin(x)
    factor = round(n * 2)  # here
    factor += 1
    return y * factor


def inside_a_call(x: torch.Tensor, n: float) -> torch.Tensor:
    return torch.full((len([1, 2]),), float(round(n)))  # here


def drawn(x: torch.Tensor) -> torch.Tensor:
    return x * random.random()  # here


def drawn_branch(x: torch.Tensor) -> torch.Tensor:
    x = x + 1
    if random.random() < 0.5:  # here
        return torch.sin(x)
    return torch.cos(x)


def formatted(x: torch.Tensor, n: float) -> torch.Tensor:
    text = f"{n:.3f}"  # here
    return x + len(text)


def scale_of(n: float) -> int:
    return round(n)  # here


def in_a_helper(x: torch.Tensor, n: float) -> torch.Tensor:
    return x * scale_of(n)


def times(x: torch.Tensor, k: int) -> torch.Tensor:
    return x * k


def passed_on(x: torch.Tensor, n: float) -> torch.Tensor:
    return times(x, round(n))  # here


def one_of_two(x: torch.Tensor, n: float) -> torch.Tensor:
    return torch.cos(x) if isinstance(n, float) else torch.sin(x)  # here


def in_a_branch(x: torch.Tensor, n: float) -> torch.Tensor:
    k = 2
    if isinstance(n, float):  # here
        k = 3
    return x * k


def loops(x: torch.Tensor, n: float) -> torch.Tensor:
    for _ in range(round(n)):  # here
        x = torch.sin(x)
    return x


def caught(x: torch.Tensor) -> torch.Tensor:
    try:
        k = TABLE["b"]
    except KeyError as error:  # here
        return x * len(str(error))
    return x * k


def entry(x: torch.Tensor, n: float) -> torch.Tensor:
    sizes = {}
    sizes["a"] = round(n)  # here
    return x * sizes["a"]


def unpacked(x: torch.Tensor, n: float) -> torch.Tensor:
    y, k = x + 1, round(n)  # here
    return y * k


def returned(x: torch.Tensor, n: float) -> Any:
    return x + 1, round(n)  # here


def same_calls(x: torch.Tensor, n: float) -> torch.Tensor:
    if isinstance(n, float):  # here
        y = torch.relu(x + 1)
    else:
        y = torch.relu(x + 2)
    return y * 2


def ends_early(x: torch.Tensor, n: float) -> torch.Tensor:
    y = torch.sin(x)
    if isinstance(n, float):  # here
        return y * 3
    return y * 3 + 1


def rows(x: torch.Tensor) -> torch.Tensor:
    count = len("ab")  # here
    return x[list(range(count))]


def refused(x: torch.Tensor) -> torch.Tensor:
    number = int("none")  # here
    return x + number


def summed(x: Any) -> Any:
    y = x + 1
    return np.cumsum(y)  # here


X = (torch.linspace(0.5, 2, 4),)
WITH = (torch.linspace(0.5, 2, 4), 1.25)

SMALL = np.array([100, 100, 100], dtype=np.int8)
"""torch adds up numbers of one byte in one byte, numpy does not."""

Case = tuple[Callable[..., Any], tuple[Any, ...], Callable[[], Any], str, list[str]]

CASES: list[Case] = [
    (rounded, WITH, answers(round, 7), "round", ["operator.mul"]),
    (inside_a_call, WITH, answers(round, 7), "round", ["float", "torch.full"]),
    (drawn, X, draws, "random.random", ["operator.mul"]),
    (drawn_branch, X, draws, "random.random", ["torch.cos"]),
    (formatted, WITH, formats, "format", ["len", "operator.add"]),
    (in_a_helper, WITH, answers(round, 7), "round", ["scale_of", "operator.mul"]),
    (passed_on, WITH, answers(round, 7), "round", ["operator.mul"]),
    (one_of_two, WITH, answers(isinstance, False), "isinstance", ["torch.sin"]),
    (in_a_branch, WITH, answers(isinstance, False), "isinstance", ["operator.mul"]),
    (loops, WITH, answers(round, 3), "round", ["range", "torch.sin"]),
    (caught, X, answers(str, "?"), "KeyError", ["str", "len", "operator.mul"]),
    (entry, WITH, answers(round, 7), "round", ["operator.mul"]),
    (unpacked, WITH, answers(round, 7), "round", ["operator.mul"]),
    (returned, WITH, answers(round, 7), "round", []),
    (in_a_helper, WITH, fails(round), "round", []),
    (one_of_two, WITH, fails(isinstance), "isinstance", []),
    (inside_a_call, WITH, fails(float), "float", ["round"]),
    (same_calls, WITH, answers(isinstance, False), "isinstance", ["operator.add"]),
    (ends_early, WITH, answers(isinstance, False), "isinstance", ["operator.add"]),
    (rows, X, answers(len, 3), "len", ["range", "list", "operator.getitem"]),
    (refused, X, answers(int, 1), "int", []),
    (summed, (SMALL,), contextlib.nullcontext, "numpy.cumsum", ["aten.cumsum.default"]),
]
