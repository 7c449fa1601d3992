"""Tensor files: read as torch writes them, written so that torch reads them, and nothing else is touched."""

from __future__ import annotations

import io
import pickletools
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from graphprobe.errors import ArtifactNotFoundError
from graphprobe.store.foreign.pt_file import layout_from_pickle, read_tensor, write_tensor

DTYPES = [
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128",
    "int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64", "bool",
]  # fmt: skip


def raw(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().contiguous().reshape(-1)
    return plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b""


def made(dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    values = torch.randn(shape) * 3
    if dtype == "bool":
        return values > 0
    return (values.abs() if dtype.startswith("uint") else values).to(getattr(torch, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3, 4), (0, 2), (2, 3, 4)])
def test_there_and_back(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    tensor = made(dtype, shape)
    torch.save(tensor, tmp_path / "a.pt")
    bits, name = read_tensor(tmp_path / "a.pt")
    assert (name, bits.shape) == (dtype, shape)
    assert np.ascontiguousarray(bits).tobytes() == raw(tensor)
    write_tensor(tmp_path / "b.pt", bits, name)
    again = torch.load(tmp_path / "b.pt", weights_only=True)
    assert (again.dtype, tuple(again.shape), raw(again)) == (tensor.dtype, shape, raw(tensor))


def test_views_parameters_and_expanded_tensors(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    for tensor in (base.t(), base[1:, ::2], torch.nn.Parameter(base), torch.ones(1).expand(5), base[1]):
        torch.save(tensor, tmp_path / "a.pt")
        bits, _ = read_tensor(tmp_path / "a.pt")
        assert np.ascontiguousarray(bits).tobytes() == raw(tensor)


class Trap:
    """Runs when it is unpickled."""

    def __reduce__(self) -> Any:
        return (exec, ("raise SystemExit('unpickled')",))


@pytest.mark.parametrize(
    "value", [{"a": 1}, [torch.ones(2)], Trap(), torch.device("cpu"), torch.ones(2, dtype=torch.complex64).conj()]
)
def test_anything_else_is_refused_and_not_run(tmp_path: Path, value: object) -> None:
    torch.save(value, tmp_path / "a.pt")
    with pytest.raises(ArtifactNotFoundError, match="not the pickle of one plain tensor"):
        read_tensor(tmp_path / "a.pt")


def test_files_that_are_cut_off_or_no_archives(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save(torch.ones(100), path)
    whole = path.read_bytes()
    for data in (whole[: len(whole) // 2], b"", b"\x80\x04N.", b"[]"):
        path.write_bytes(data)
        with pytest.raises(ArtifactNotFoundError, match=r"a\.pt"):
            read_tensor(path)
    with pytest.raises(ArtifactNotFoundError):
        read_tensor(tmp_path / "none.pt")


def test_no_damaged_byte_raises_anything_else(tmp_path: Path) -> None:
    path, refused = tmp_path / "a.pt", 0
    write_tensor(path, np.arange(4, dtype=np.float32), "float32")
    whole = path.read_bytes()
    for place in range(len(whole)):
        for value in (0, 8, 12, 14, 255):  # 8, 12 and 14 are ways to compress a member
            path.write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
            try:
                read_tensor(path)
            except ArtifactNotFoundError:
                refused += 1
    assert refused > len(whole)


def test_compressed_values_are_bounded(tmp_path: Path) -> None:
    plain, bomb = io.BytesIO(), tmp_path / "bomb.pt"
    torch.save(torch.zeros(1 << 25), plain)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))
    assert bomb.stat().st_size < 1 << 20
    with pytest.raises(ArtifactNotFoundError, match="compressed"):
        read_tensor(bomb)


def test_a_shape_beyond_the_bytes_is_refused(tmp_path: Path) -> None:
    write_tensor(tmp_path / "a.pt", np.ones((4, 4), np.float32), "float32")
    with zipfile.ZipFile(tmp_path / "a.pt") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["a/data/0"] = members["a/data/0"][:32]
    with zipfile.ZipFile(tmp_path / "b.pt", "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    with pytest.raises(ArtifactNotFoundError, match="beyond its 8 elements"):
        read_tensor(tmp_path / "b.pt")


def test_opcodes_are_data() -> None:
    """Garbage of any kind is a ValueError, whatever the opcodes ask for."""
    buffer = io.BytesIO()
    torch.save(torch.ones(3), buffer)
    with zipfile.ZipFile(buffer) as archive:
        good = archive.read(next(name for name in archive.namelist() if name.endswith("data.pkl")))
    assert layout_from_pickle(good).shape == (3,)
    assert any(op.name == "GLOBAL" for op, _, _ in pickletools.genops(good))
    for cut in range(len(good)):
        with pytest.raises(ValueError):
            layout_from_pickle(good[:cut])
    for old, new in ((b"_rebuild_tensor_v2", b"_rebuild_tensor_v9"), (b"FloatStorage", b"FlootStorage")):
        with pytest.raises(ValueError, match="not the pickle"):
            layout_from_pickle(good.replace(old, new))
