from collections.abc import Callable
from typing import TypeVar

_Result = TypeVar("_Result")

VERSION: int

def stats(
    result_type: Callable[..., _Result],
    address: int,
    kind: int,
    shape: tuple[int, ...] | int,
    strides: tuple[int, ...] | None,
    threads: int,
    table_address: int,
    /,
) -> _Result: ...
def instruction_set() -> str: ...
def set_instruction_set(name: str, /) -> bool: ...
