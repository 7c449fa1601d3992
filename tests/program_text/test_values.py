"""What a record holds comes back as it was: values, what they share, and classes of the program."""

from __future__ import annotations

import collections
import copy
import dataclasses
import datetime
import enum
import functools
import json
import math
import operator
import re
import struct
import sys
import threading
import types
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

from graphprobe.engine.values import safetensors_bytes
from graphprobe.program_text.loading import Placeholder, ProgramFile
from graphprobe.program_text.text import placed_text


class Round:
    """A value as text and back, as in another process: nothing of the first half is left in the second."""

    def __init__(self, value: Any, folder: Path) -> None:
        text = placed_text({"value": value})
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "program.py").write_text(text.text, "utf-8", "backslashreplace")
        (folder / "values.safetensors").write_bytes(safetensors_bytes(text.stored, {}))
        self.placeholders = text.lost
        self.program = ProgramFile(folder / "program.py", folder / "values.safetensors")

    def value(self) -> Any:
        with mock.patch.dict(sys.modules):
            return self.program.run()["value"]


def whole(value: Any, folder: Path) -> Any:
    """The value that came back; nothing of it was left out."""
    held = Round(value, folder)
    assert held.placeholders == []
    return held.value()


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    a: int
    b: Any = None


class Colour(enum.Flag):
    RED = 1
    BLUE = 2


class Pair(NamedTuple):
    left: Any
    right: int = 2

    def both(self) -> int:
        return int(self.left) + self.right


class Words(dict):  # type: ignore[type-arg]
    def __init__(self) -> None:
        raise AssertionError("nobody calls this")

    def __setitem__(self, key: Any, value: Any) -> None:
        raise AssertionError("nobody calls this")


class Touchy:
    """Every access that a class can watch is an error."""

    def __init__(self) -> None:
        self.value = 3

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(name)

    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared")

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        raise AssertionError("shown")


Loose = collections.namedtuple("Loose", "x y", defaults=(7,))

SAME = [
    *(None, True, 5, -(2**53) + 1, 2**80, "plain", "ä\n\x00", "\ud800", b"\x00\xff", bytearray(b"ab"), 1 + 2j, ...),
    *(0.1, -0.0, math.inf, slice(1, None, 2), range(2, 9, 3), NotImplemented, (1, (2,)), [1, [2]], {1, 2}),
    *(frozenset({("a", 1)}), {(1, "x"): [None], None: 2, 0.5: 3}, collections.OrderedDict(b=1, a=2)),
    *(collections.deque([1, 2], maxlen=3), collections.Counter("aab"), torch.float16, torch.strided),
    *(torch.channels_last, torch.device("cpu"), torch.Size([2, 3]), torch.nn.functional.relu, torch.add, operator.add),
    *(torch.ops.aten.add.Tensor, math.pi, math.sqrt, nn.Linear, int, len, str.upper, torch.Tensor.add, json),
    *(re.compile("a.", re.IGNORECASE), Path("/a/b"), datetime.date(2024, 2, 3), np.float32(1.5)),
    math.nan,
]


def exactly(a: Any, b: Any) -> bool:
    if type(a) is float and type(b) is float:
        return struct.pack("<d", a) == struct.pack("<d", b)
    return type(a) is type(b) and bool(a == b) and list(map(type, _parts(a))) == list(map(type, _parts(b)))


def _parts(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple, dict)) else []


def test_plain_values_come_back(tmp_path: Path) -> None:
    assert [(a, b) for a, b in zip(SAME, whole(SAME, tmp_path), strict=True) if not exactly(a, b)] == []


def test_what_is_shared_stays_shared_and_cycles_end(tmp_path: Path) -> None:
    shared: list[Any] = [1]
    loop: dict[str, Any] = {"first": shared, "second": (shared,)}
    loop["me"] = [loop]
    back = Round(loop, tmp_path).value()
    assert back["first"] is back["second"][0] and back["me"][0] is back
    node: Any = Frozen(1, [])
    node.b.append(node)
    back = Round(node, tmp_path / "second").value()
    assert back.b[0] is back and type(back).__name__ == "Frozen"


def test_tensors_share_memory_and_say_so_to_autograd(tmp_path: Path) -> None:
    base = torch.arange(6.0, requires_grad=True)
    plain = torch.arange(6.0).double()
    values = [base, base[1:4], plain[::2], plain, nn.Parameter(torch.ones(2)), torch.ones(2, 3).t(), torch.empty(0, 2)]
    values += [torch.empty(2, 3, device="meta"), torch.ones(2).to(torch.bfloat16), base * 2]
    base.grad = torch.full((6,), 3.0)
    setattr(plain, "tag", "kept")  # noqa: B010
    back = Round(values, tmp_path).value()
    for a, b in zip(values, back, strict=True):
        assert (a.dtype, a.shape, a.stride(), a.requires_grad, a.is_leaf, type(a), a.device) == (
            *(b.dtype, b.shape, b.stride(), b.requires_grad, b.is_leaf, type(b), b.device),
        )
        assert a.is_meta or torch.equal(a, b)
    assert back[1]._base is back[0] and back[2]._base is back[3] and back[3].tag == "kept"
    assert torch.equal(back[0].grad, base.grad)
    back[3].zero_()
    assert back[2].sum() == 0


def test_arrays(tmp_path: Path) -> None:
    values = [np.arange(6).reshape(2, 3).T, np.array(2.5, dtype=np.float16), np.array([], dtype=bool), np.array(["a"])]
    back = Round(values, tmp_path).value()
    for a, b in zip(values, back, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape and (a == b).all() and a.strides == b.strides
    held = Round(np.array([object()]), tmp_path / "second")
    assert "numpy ndarray of object" in held.placeholders[0]["reason"]


def test_classes_of_the_program_are_made_from_their_text(tmp_path: Path) -> None:
    words = dict.__new__(Words)
    dict.__setitem__(words, "a", [1])
    words.note = "kept"  # type: ignore[attr-defined]
    values = [Frozen(1, Frozen(2)), Colour.RED, Colour.RED | Colour.BLUE, Pair(3), Loose(1), words, ValueError("a", 2)]
    frozen, red, both, pair, loose, other, error = whole(values, tmp_path)
    assert (frozen.a, frozen.b.a) == (1, 2) and type(frozen) is not Frozen and type(frozen.b) is type(frozen)
    with pytest.raises(dataclasses.FrozenInstanceError):
        frozen.a = 2
    assert (red.name, both.value, pair.both(), pair._fields, loose.y) == ("RED", 3, 5, ("left", "right"), 7)
    assert dict.__getitem__(other, "a") == [1] and other.note == "kept" and error.args == ("a", 2)


def test_nothing_of_the_program_runs_while_it_is_recorded(tmp_path: Path) -> None:
    assert object.__getattribute__(whole([Touchy()], tmp_path)[0], "__dict__") == {"value": 3}


def test_functions_with_what_they_need(tmp_path: Path) -> None:
    count = [0]

    def outer(x: int, step: int = 2, *, more: Any = Colour.RED) -> int:
        count[0] += 1
        return x * step + helper(x) if x else outer(1) + more.value

    back = whole({"f": outer, "count": count, "p": functools.partial(outer, 0, step=3)}, tmp_path)
    assert back["f"] is not outer
    assert back["f"](0) == outer(0) and back["p"]() == outer(0, step=3)
    assert back["count"] == [4] and count == [4]
    (text,) = tmp_path.glob("*.py")
    assert "\nclass Touchy:" not in text.read_text("utf-8")


class Half(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x / 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient / 4


def test_a_method_of_a_class_that_it_inherits_from_a_library(tmp_path: Path) -> None:
    x = torch.ones(3, requires_grad=True)
    half = whole(Half.apply, tmp_path)
    half(x).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, torch.full((3,), 0.25))


def test_methods_caches_and_parts_of_libraries(tmp_path: Path) -> None:
    words = Pair([1], 2)
    values = [functools.lru_cache(maxsize=3)(helper), Pair(3).both, words.count, str.join, "a".upper, Pair._make]
    values += [types.MappingProxyType({"a": 1}), types.MethodType(helper, 4), Colour.RED.__str__]
    values += [collections.namedtuple("Made", "a b", defaults=(2,)), words]
    cached, both, count, join, upper, make, proxy, four, shown, made, other = whole(values, tmp_path)
    assert (cached(1), cached.cache_parameters()["maxsize"], four()) == (helper(1), 3, helper(4))
    assert (both(), upper()) == (5, "A")
    assert count.__self__ is other and count([1]) == 1 and join(",", "ab") == "a,b" and shown() == "Colour.RED"
    assert type(proxy) is types.MappingProxyType and proxy["a"] == 1
    assert make((5, 6)).both() == 11 and (made(1).b, made.__module__, made.__qualname__) == (2, __name__, "Made")


REGISTRY: dict[str, Any] = {}


def register(kind: Any) -> Any:
    REGISTRY[kind.__name__] = kind
    return kind


@register
class Registered:
    default: Any = None

    def __init__(self) -> None:
        self.size = 1


def local_class(k: int) -> Any:
    class Base:
        def run(self, x: int) -> int:
            return x * k

    class Local(Base):
        factor = k

        def run(self, x: int) -> int:
            return super().run(x) + self.factor

        @property
        def twice(self) -> int:
            return 2 * k

    return Local()


def test_classes_that_lead_back_to_themselves(tmp_path: Path) -> None:
    Registered.default = Registered()
    Registered.default.size = 7
    for i, value in enumerate((REGISTRY, Registered)):
        back, other = whole([value, Registered()], tmp_path / str(i))
        made = back["Registered"] if i == 0 else back
        assert type(other) is made and made.default.size == 7 and other.size == 1
        assert type(made.default) is made and made is not Registered


def test_classes_of_functions_and_those_made_at_run_time(tmp_path: Path) -> None:
    local = Round(local_class(3), tmp_path / "a").value()
    assert local.run(2) == 9 and local.twice == 6 and type(local).__mro__[1].__name__ == "Base"
    normed = torch.nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))
    assert torch.equal(whole(normed, tmp_path / "b")(torch.ones(3)), normed(torch.ones(3)))


def helper(x: int) -> int:
    return x + len(SAME[:3])


def test_modules_of_torch_with_parameters_and_hooks(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3)).eval()
    model[3].weight = nn.Parameter(model[0].weight.t())
    model.register_forward_hook(double)
    x = torch.ones(2, 3)
    back, weight = whole([model, model[0].weight], tmp_path)
    assert torch.equal(back(x), model(x)) and back[0].weight is weight
    assert not back.training and list(back.state_dict()) == list(model.state_dict())
    assert torch.equal(copy.deepcopy(back)(x), model(x))


def double(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
    return output * 2


def test_what_cannot_be_recorded_is_named_with_its_place(tmp_path: Path) -> None:
    sparse = torch.eye(2).to_sparse()
    held = Round({"a": [threading.Lock()], "g": (i for i in "ab"), "s": sparse, "t": list(range(100_001))}, tmp_path)
    told = {entry["path"]: entry["reason"] for entry in held.placeholders}
    assert list(told) == ["value['a'][0]", "value['g']", "value['s']", "value['t']"]
    assert "layout torch.sparse_coo" in told["value['s']"] and "100001 items" in told["value['t']"]
    assert isinstance(held.value()["a"][0], Placeholder)


def test_a_class_whose_text_is_gone_takes_its_objects_with_it(tmp_path: Path) -> None:
    names: dict[str, Any] = {"__name__": "elsewhere"}
    exec("import enum\nclass Made:\n    def f(self): return 1\nmade = Made()\nclass Kind(enum.Enum): A = 1", names)
    held = Round([names["made"], 1, names["Kind"].A, functools.partial(names["made"].f)], tmp_path)
    assert "there is no text of <string>" in held.placeholders[0]["reason"]
    told = {entry["path"]: entry["reason"] for entry in held.placeholders}
    assert "its class is not recorded" in told["value[0]"] and "is not recorded: " in told["value[2]"]
    assert held.value()[1] == 1


class Above(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.below, self.twice = nn.Linear(2, 2), self.double
        self.below.above = [self]  # type: ignore[assignment]

    def double(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.below(self.twice(x))  # type: ignore[no-any-return]


def test_a_module_that_its_parts_lead_back_to(tmp_path: Path) -> None:
    made = Above()
    back, x = whole(made, tmp_path), torch.ones(1, 2)
    assert torch.equal(back(x), made(x)) and back.below.above[0] is back and back.twice.__self__ is back


def test_memory_of_several_dtypes_and_elements_in_one_place(tmp_path: Path) -> None:
    flat = torch.randn(100)
    values = [flat, flat.view(torch.int32), flat[3].expand(4), torch.tensor([1 + 2j, 3j]).conj().imag]
    back = whole(values, tmp_path)
    assert all(torch.equal(a, b) and a.stride() == b.stride() for a, b in zip(values, back, strict=True))
    back[0].zero_()
    assert back[1].sum() == back[2].sum() == 0


def test_functions_that_share_a_variable_and_one_of_a_library(tmp_path: Path) -> None:
    def counter() -> Any:
        count = 0

        def step() -> int:
            """Adds
            one."""
            nonlocal count
            count += 1
            return count

        return step, lambda: count

    step = counter()
    back, average = Round([*step], tmp_path).value(), torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)
    assert (back[0](), back[1](), step[1]()) == (1, 1, 0)
    assert (back[0].__doc__, back[0].__qualname__) == (step[0].__doc__, "counter.<locals>.step")
    assert whole(average, tmp_path / "second").__code__.co_qualname == average.__code__.co_qualname


def test_in_place_definitions_have_their_own_files_and_lines(tmp_path: Path) -> None:
    held = Round([Above, local_class(2).run, lambda: 1], tmp_path)
    with mock.patch.dict(sys.modules):
        found = held.program.run(in_place=True)["value"]
    codes = [(f.__code__.co_filename, f.__code__.co_firstlineno) for f in (found[0].double, found[1], found[2])]
    here = test_in_place_definitions_have_their_own_files_and_lines.__code__.co_firstlineno
    assert codes[0] == (__file__, Above.double.__code__.co_firstlineno)
    assert codes[1] == (__file__, local_class(2).run.__code__.co_firstlineno)
    assert codes[2] == (__file__, here + 1)
