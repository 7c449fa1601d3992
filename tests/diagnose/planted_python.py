"""Programs whose Python-level code Dynamo gets wrong once a fault is planted, and what is to be named then."""

import contextlib
import functools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
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
    text = "lambda right, compiled: lambda: 0.75 if compiled() else right()"
    wrong = eval(compile(text, "<planted>", "eval"))(
        random.random, torch.compiler.is_compiling
    )  # no code of the user's
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
    except KeyError as error:
        return x * len(str(error))  # here
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


def attribute_error(x: torch.Tensor) -> torch.Tensor:
    try:  # here
        return x * (3).missing  # type: ignore[attr-defined]
    except AttributeError as error:
        return x * len(str(error))


SEEN: list[int] = []
LAST = deque([1, 2, 3], maxlen=3)


@functools.lru_cache
def remembered(n: int) -> int:
    SEEN.append(n)
    return n


def cached(x: torch.Tensor) -> torch.Tensor:
    return x * remembered(2) * remembered(2)  # here


def full_deque(x: torch.Tensor) -> torch.Tensor:
    LAST.append(4)  # here
    return x * LAST[0]  # here


def median(x: torch.Tensor) -> torch.Tensor:
    return x * torch.as_tensor(np.median(SMALL)).dim()  # here


def divided(x: torch.Tensor) -> torch.Tensor:
    y = SMALL // np.array([0, 3, 7], dtype=np.int8)  # here
    return x * torch.as_tensor(y)[1]


class All(type):
    def __instancecheck__(cls, value: Any) -> bool:
        return True


class Anything(metaclass=All):
    pass


def metaclass(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if isinstance(3, Anything) else x * 3  # here


class Same:
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1


def equal_items(x: torch.Tensor) -> torch.Tensor:
    return x * len(set([Same(), Same()]))  # here  # noqa: C405


class Counting:
    count = 0

    def counted(self) -> int:
        type(self).count += 1
        return self.count  # here


def class_attribute(x: torch.Tensor) -> torch.Tensor:
    return x * Counting().counted()  # here


def dimensions(x: torch.Tensor) -> torch.Tensor:
    y = x.view(4, 1)
    y.squeeze_()
    return x * y.dim()  # here


def counting() -> Any:
    hits: list[int] = []

    class Helper:
        def touch(self) -> None:
            hits.append(1)

    def local_class(x: torch.Tensor) -> torch.Tensor:
        Helper().touch()  # here
        return x + 1

    return local_class


class Sized:
    def __init__(self, n: float) -> None:
        self.n = n

    @property
    def size(self) -> int:
        return round(self.n)  # here


def by_property(x: torch.Tensor, n: float) -> torch.Tensor:
    return x * Sized(n).size


def by_closure(x: torch.Tensor, n: float) -> torch.Tensor:
    k = 1

    def grow() -> None:
        nonlocal k
        k += round(n)  # here

    grow()
    return x * k


def by_generator(x: torch.Tensor, n: float) -> torch.Tensor:
    def numbers() -> Any:
        yield 1
        yield round(n)

    return x * sum(numbers())  # here


@dataclass
class Rounded:
    n: float

    def __post_init__(self) -> None:
        self.k = round(self.n)  # here


def by_dataclass(x: torch.Tensor, n: float) -> torch.Tensor:
    return x * Rounded(n).k


def in_a_block(x: torch.Tensor, n: float) -> torch.Tensor:
    with torch.no_grad():
        k = round(n)  # here
    return x * k


def in_a_try(x: torch.Tensor, n: float) -> torch.Tensor:
    try:
        k = round(n) + len(TABLE["a"])  # type: ignore[arg-type] # here
    except TypeError:
        k = round(n)  # here
    return x * k


def comprehension(x: torch.Tensor, n: float) -> torch.Tensor:
    return x * sum([round(v) for v in (n, n)])  # here


def partly(x: torch.Tensor, n: float) -> torch.Tensor:
    return functools.partial(times, k=round(n))(x)  # here


def matched(x: torch.Tensor, n: float) -> torch.Tensor:
    match round(n):  # here
        case 1:
            return torch.sin(x)
    return torch.cos(x)


def while_less(x: torch.Tensor, n: float) -> torch.Tensor:
    k = 0
    while k < round(n):  # here
        x, k = torch.sin(x), k + 1
    return x


X = (torch.linspace(0.5, 2, 4),)
WITH = (torch.linspace(0.5, 2, 4), 1.25)

SMALL = np.array([100, 100, 100], dtype=np.int8)
"""torch adds up numbers of one byte in one byte, numpy does not."""

Case = tuple[Callable[..., Any], tuple[Any, ...], Callable[[], Any], str]


class Width:
    def __index__(self):
        return 2


WIDTH = Width()


def sliced(x: torch.Tensor) -> torch.Tensor:
    return x[1:WIDTH].sin()  # here


CASES: list[Case] = [
    (rounded, WITH, answers(round, 7), "round"),
    (inside_a_call, WITH, answers(round, 7), "round"),
    (drawn, X, draws, "random.random"),
    (drawn_branch, X, draws, "random.random"),
    (formatted, WITH, formats, "format"),
    (in_a_helper, WITH, answers(round, 7), "round"),
    (passed_on, WITH, answers(round, 7), "round"),
    (one_of_two, WITH, answers(isinstance, False), "isinstance"),
    (in_a_branch, WITH, answers(isinstance, False), "isinstance"),
    (loops, WITH, answers(round, 3), "round"),
    (caught, X, answers(str, "?"), "str"),
    (entry, WITH, answers(round, 7), "round"),
    (unpacked, WITH, answers(round, 7), "round"),
    (returned, WITH, answers(round, 7), "round"),
    (in_a_helper, WITH, fails(round), "round"),
    (one_of_two, WITH, fails(isinstance), "isinstance"),
    (inside_a_call, WITH, fails(float), "float"),
    (same_calls, WITH, answers(isinstance, False), "isinstance"),
    (ends_early, WITH, answers(isinstance, False), "isinstance"),
    (rows, X, answers(len, 3), "len"),
    (refused, X, answers(int, 1), "int"),
    (summed, (SMALL,), contextlib.nullcontext, "numpy.cumsum"),
    (attribute_error, X, contextlib.nullcontext, "AttributeError"),
    (cached, X, contextlib.nullcontext, "remembered"),
    (full_deque, X, contextlib.nullcontext, "LAST.append"),
    (median, X, contextlib.nullcontext, "numpy.median"),
    (divided, X, contextlib.nullcontext, "operator.floordiv"),
    (metaclass, X, contextlib.nullcontext, "isinstance"),
    (equal_items, X, contextlib.nullcontext, "set"),
    (class_attribute, X, contextlib.nullcontext, "self.count"),
    (dimensions, X, contextlib.nullcontext, "torch.Tensor.dim"),
    (counting(), X, contextlib.nullcontext, "touch"),
    (by_property, WITH, answers(round, 7), "round"),
    (by_closure, WITH, answers(round, 7), "round"),
    (by_generator, WITH, answers(round, 7), "sum"),
    (by_dataclass, WITH, answers(round, 7), "round"),
    (in_a_block, WITH, answers(round, 7), "round"),
    (in_a_try, WITH, answers(round, 7), "round"),
    (comprehension, WITH, answers(round, 7), "round"),
    (partly, WITH, answers(round, 7), "round"),
    (matched, WITH, answers(round, 7), "round"),
    (while_less, WITH, answers(round, 3), "round"),
    (sliced, X, contextlib.nullcontext, "x[1:WIDTH]"),
]
