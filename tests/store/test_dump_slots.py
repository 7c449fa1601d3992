from __future__ import annotations

import numpy as np

from graphprobe.store.dump_records import MAX_TEXT, Argument, argument_from_value, slots_from_inputs, slots_from_outputs

A, B, C = np.ones(1), np.ones(2), np.ones(3)


def is_tensor(value: object) -> bool:
    return isinstance(value, np.ndarray)


def names(slots: object) -> list[tuple[str, str, object]]:
    return list(slots)  # type: ignore[call-overload]


def test_inputs() -> None:
    args = (A, 2.0, [None, B, [C]], [1, 2], [], None, {"x": A, "y": 1})
    found = names(slots_from_inputs(args, {"bias": B, "dim": 1}, is_tensor=is_tensor))
    assert [(name, side) for name, side, _ in found] == [
        ("input.0", "input"),
        ("input.1", "input"),
        ("input.2.0", "input"),
        ("input.2.1", "input"),
        ("input.2.2.0", "input"),
        ("input.3", "input"),
        ("input.4", "input"),
        ("input.5", "input"),
        ("input.6.x", "input"),
        ("input.6.y", "input"),
        ("kwarg.bias", "input"),
        ("kwarg.dim", "input"),
    ]
    by_name = {name: value for name, _, value in found}
    assert by_name["input.2.1"] is B
    assert by_name["input.2.2.0"] is C
    assert by_name["input.3"] == [1, 2]
    assert by_name["input.2.0"] is None


def test_outputs() -> None:
    assert [name for name, *_ in slots_from_outputs(A, is_tensor=is_tensor)] == ["output.0"]
    found = names(slots_from_outputs((A, None, [B]), is_tensor=is_tensor))
    assert [(name, side) for name, side, _ in found] == [
        ("output.0", "output"),
        ("output.1", "output"),
        ("output.2.0", "output"),
    ]


def test_arguments() -> None:
    assert argument_from_value("input.1", None) == Argument("input.1", "NoneType", "None")
    assert argument_from_value("input.1", 0.1) == Argument("input.1", "float", "0.1")
    assert argument_from_value("input.1", float("nan")) == Argument("input.1", "float", "nan")
    long = argument_from_value("input.1", "x" * 10_000).text
    assert long.endswith("… (10002 characters)")
    assert len(long) < MAX_TEXT + 30

    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError

    assert argument_from_value("input.1", Broken()).text == "<no repr: RuntimeError>"
