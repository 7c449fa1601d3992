"""Writes each overflow in ptdbg's layout: `Overflow_info_<timestamp>.pkl` and a folder of the same name."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graphprobe.engine.tensor_stats import readable
from graphprobe.errors import UsageError
from graphprobe.probe.api.arguments import scalar_of
from graphprobe.probe.api.overflow import Overflow
from graphprobe.records import TensorMeta
from graphprobe.store.dump_dtypes import STORED_DTYPES
from graphprobe.store.foreign.names import foreign_from_api
from graphprobe.store.foreign.ptdbg_write import PtdbgWriter, timestamped

PREFIX = "Overflow_info"


class OverflowFiles:
    """Receiver of `OverflowWatch`. `written` lists the texts, in order."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.written: list[Path] = []

    def __call__(self, overflow: Overflow) -> None:
        """Write one overflow: full tensors and, as the format wants it, no statistics. Raises OSError."""
        data_dir = timestamped(self._folder / PREFIX)
        text = self._folder / f"{data_dir.name}.pkl"
        kind, name = foreign_from_api(overflow.api)
        call = f"{overflow.call}_{kind}_{name}_{overflow.direction}"
        with contextlib.closing(PtdbgWriter(text, data_dir)) as writer:
            if overflow.stack:
                writer.stack(call, overflow.stack)
            for slot, value in (*overflow.inputs, *overflow.outputs):
                head, _, path = slot.partition(".")
                place = f"{call}_{'output' if head == 'output' else 'input'}.{path}"
                if isinstance(value, torch.Tensor):
                    meta = TensorMeta(str(value.dtype).removeprefix("torch."), tuple(map(int, value.shape)))
                    writer.tensor(place, meta, None, _bits_of(value))
                else:
                    writer.scalar(place, scalar_of(value))
        self.written.append(text)


def _bits_of(tensor: torch.Tensor) -> np.ndarray[Any, Any] | None:
    """Values in numpy's own dtype, or as unsigned integers; None of a tensor without memory of its own."""
    try:
        plain = readable(tensor.detach()).to("cpu").contiguous()
    except (UsageError, RuntimeError):
        return None
    known = STORED_DTYPES.get(str(plain.dtype).removeprefix("torch."))
    if known is None:
        return None
    if known.numpy is not None:
        values: np.ndarray[Any, Any] = plain.numpy()
        return values
    raw = plain.reshape(-1).view(torch.uint8).numpy()
    return raw.view(f"uint{8 * known.size_bytes}").reshape(tuple(plain.shape))
