"""Reads the file of one tensor that `torch.save` wrote, by torch itself; nothing that the file names is called."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from graphprobe.errors import ArtifactNotFoundError
from graphprobe.store.dump_dtypes import STORED_DTYPES
from graphprobe.store.files import check_regular

_MOST_PICKLE_BYTES = 1 << 16
"""Of the part of the file that describes the tensor."""


def read_tensor(path: Path) -> tuple[np.ndarray[Any, Any], str]:
    """Values of a tensor file, mapped, and torch's name of the dtype.

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
