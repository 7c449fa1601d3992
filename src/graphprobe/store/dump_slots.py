"""Names of slots: an op's arguments and results, taken apart into tensors and the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from graphprobe.store.dump_records import Argument, Side

MAX_TEXT = 4096
"""Longest text kept of an argument that is no tensor, in characters."""

IsTensor = Callable[[object], bool]


def slots_from_inputs(
    args: Sequence[object], kwargs: Mapping[str, object], *, is_tensor: IsTensor
) -> Iterator[tuple[str, Side, object]]:
    """Each tensor among the arguments and each argument without any, as (slot, `input`, value), in order.

    The second positional argument is `input.1`, the third of a list in its place `input.1.2`, a keyword `kwarg.bias`.
    A list, tuple or mapping without a tensor is one value.
    """
    for index, value in enumerate(args):
        yield from _leaves(f"input.{index}", "input", value, is_tensor)
    for name, value in kwargs.items():
        yield from _leaves(f"kwarg.{name}", "input", value, is_tensor)


def slots_from_outputs(result: object, *, is_tensor: IsTensor) -> Iterator[tuple[str, Side, object]]:
    """The same for what an op returned: a tensor is `output.0`, the second of a tuple `output.1`."""
    results = result if isinstance(result, list | tuple) else (result,)
    for index, value in enumerate(results):
        yield from _leaves(f"output.{index}", "output", value, is_tensor)


def argument_from_value(name: str, value: object) -> Argument:
    """How an argument that is no tensor is kept; a value whose `repr` fails is named by its type."""
    try:
        text = repr(value)
    except Exception as error:
        text = f"<no repr: {type(error).__name__}>"
    if len(text) > MAX_TEXT:
        text = f"{text[:MAX_TEXT]}… ({len(text)} characters)"
    return Argument(name, type(value).__name__, text)


def _leaves(name: str, side: Side, value: object, is_tensor: IsTensor) -> Iterator[tuple[str, Side, object]]:
    if not is_tensor(value) and _holds_tensor(value, is_tensor):
        for key, item in _items(value):
            yield from _leaves(f"{name}.{key}", side, item, is_tensor)
    else:
        yield name, side, value


def _items(value: object) -> Iterator[tuple[object, object]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, list | tuple):
        yield from enumerate(value)


def _holds_tensor(value: object, is_tensor: IsTensor) -> bool:
    return is_tensor(value) or any(_holds_tensor(item, is_tensor) for _, item in _items(value))
