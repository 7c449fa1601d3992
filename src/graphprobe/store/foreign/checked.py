"""Values of files that somebody else wrote, checked before anything is made of them; the other tools' statistics.

Their four statistics are of all elements, ours of the finite ones and counts.
"""

from __future__ import annotations

import json
import math
import tokenize
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from graphprobe.errors import ArtifactNotFoundError
from graphprobe.records import TensorStats
from graphprobe.store.calls import shape_problem
from graphprobe.store.dump_dtypes import STORED_DTYPES
from graphprobe.store.files import check_regular
from graphprobe.store.schema import UNREADABLE

MOST_DIMENSIONS = 64
"""torch has no more."""

MOST_LEVELS, MOST_BITS = 64, 1024
"""Of JSON: levels of lists and objects, and bits of an integer."""

_MOST_PICKLE_BYTES = 1 << 16
"""Of the part of a `.pt` file that describes the tensor."""

_NOT_NPY = (OSError, ValueError, TypeError, EOFError, SyntaxError, SystemError, OverflowError, tokenize.TokenError)
"""What numpy raises of a file that is no `.npy` file, or a damaged one: its header is parsed as Python."""


def mapped_npy(path: Path) -> npt.NDArray[Any]:
    """The array of a `.npy` file, mapped; raises ArtifactNotFoundError for anything else. Nothing is unpickled."""
    try:
        check_regular(path)
        array: npt.NDArray[Any] = np.lib.format.open_memmap(path, mode="r")
    except _NOT_NPY as error:
        raise ArtifactNotFoundError(f"{path} cannot be read as a .npy file: {error}") from error
    return array


def decoded(data: bytes) -> Any:
    """JSON, as Python writes it, NaN and Infinity included; None for what is none, or is nested beyond any sense."""
    try:
        value = msgspec.json.decode(data)
    except UNREADABLE:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            return None
    level: list[Any] = [value]
    for _ in range(MOST_LEVELS):
        if any(type(item) is int and item.bit_length() > MOST_BITS for item in level):
            return None
        level = [inner for item in level for inner in _inside(item)]
        if not level:
            return value
    return None


def _inside(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def float_of(value: float) -> float | None:
    """A number as a float; None for one that is beyond them."""
    try:
        return float(value)
    except OverflowError:
        return None


def shape_of(value: Any) -> tuple[int, ...] | None:
    """A list of sizes as a shape; None for anything else, and for a shape that no tensor has."""
    if not isinstance(value, list) or len(value) > MOST_DIMENSIONS:
        return None
    if not all(type(size) is int and size >= 0 for size in value) or shape_problem(tuple(value)):
        return None
    return tuple(value)


def read_tensor(path: Path) -> tuple[npt.NDArray[Any], str]:
    """Values of a file that `torch.save` wrote, mapped, and torch's name of the dtype; by torch, and nothing is called.

    Returns:
        In numpy's own dtype; as unsigned integers of the item size for a dtype that numpy lacks.

    Raises:
        ArtifactNotFoundError: there is no such file, it is cut off, or it holds something else than one tensor.
    """
    import torch

    try:
        check_regular(path)
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
        sizes = {"data.pkl": 0, "0": 0} | {m.filename.rpartition("/")[2]: m.file_size for m in members}
        if any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise ValueError("it is compressed: torch.save never does that")
        if sizes["data.pkl"] > _MOST_PICKLE_BYTES:
            raise ValueError("it describes more than a single tensor")
        value = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided:
            raise ValueError("it holds something else than one plain tensor")
        if value.untyped_storage().nbytes() > sizes["0"]:
            raise ValueError("its shape goes beyond its values")
        dtype = str(value.dtype).removeprefix("torch.")
        known = STORED_DTYPES[dtype]
        value = value.detach().resolve_conj().resolve_neg()
        bits = value if known.numpy else value.view(getattr(torch, f"uint{8 * known.size_bytes}"))
        return bits.numpy(), dtype
    except Exception as error:  # whatever torch says of a file that it cannot read
        reason = str(error).partition("\n")[0] or "it is cut off"
        raise ArtifactNotFoundError(
            f"cannot read the tensor file {path}: {reason}",
            hint="only files of one plain tensor written by torch.save are read; nothing is unpickled",
        ) from error


class TorchSummary(NamedTuple):
    """Of all elements, as torch computes them: a NaN makes each of them NaN. None is unknown."""

    max: float | None
    min: float | None
    mean: float | None
    l2: float | None


def summary_from_stats(stats: TensorStats | None) -> TorchSummary:
    """What torch's own reductions give for a tensor of these statistics."""
    if stats is None:
        return TorchSummary(None, None, None, None)
    if stats.nan:
        return TorchSummary(math.nan, math.nan, math.nan, math.nan)
    high = math.inf if stats.positive_inf else stats.max
    low = -math.inf if stats.negative_inf else stats.min
    mean, norm = stats.mean, stats.l2
    if stats.positive_inf or stats.negative_inf:
        both = stats.positive_inf and stats.negative_inf
        mean, norm = (math.nan if both else math.inf if stats.positive_inf else -math.inf), math.inf
    # Without a finite element, all are infinite, and of one sign if only one of both is known.
    return TorchSummary(low if high is None else high, high if low is None else low, mean, norm)


def stats_from_known(count: int, known: Mapping[str, float]) -> TensorStats | None:
    """Statistics of which only some fields are known, as the tool wrote them, NaN and Inf included."""
    if not known:
        return None
    low, high, mean, norm = (known.get(name) for name in ("min", "max", "mean", "l2"))
    return TensorStats(count=count, min=low, max=high, mean=mean, l2=norm)
