"""Tensors of every dtype for the tests of statistics."""

import torch

from graphprobe.engine.tensor_stats import _BY_DTYPE

DTYPES = sorted(_BY_DTYPE, key=str)


def random_bits(dtype: torch.dtype, count: int, seed: int = 0) -> torch.Tensor:
    """Any bits at all, NaN and Inf among them; booleans are 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randint(0, 256, (count * dtype.itemsize,), dtype=torch.uint8, generator=generator)
    return (raw % 2).bool() if dtype is torch.bool else raw.view(dtype)
