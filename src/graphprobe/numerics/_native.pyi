from collections.abc import Callable
from typing import Any, TypeVar

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
def pair(
    candidate_address: int,
    candidate_kind: int,
    candidate_table: int,
    reference_address: int,
    reference_kind: int,
    reference_table: int,
    count: int,
    threads: int,
    smallest_normal: float,
    unit_roundoff: float,
    floor: float,
    limit: float,
    candidate_scale: float,
    reference_scale: float,
    /,
) -> tuple[Any, ...]: ...
def instruction_set() -> str: ...
def instruction_sets() -> tuple[str, ...]: ...
def set_instruction_set(name: str, /) -> bool: ...
