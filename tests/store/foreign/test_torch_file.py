"""Tensor files: read as torch writes them, and nothing else is touched."""

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from graphprobe.errors import ArtifactNotFoundError
from graphprobe.store.foreign.checked import read_tensor

DTYPES = [
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex32", "complex64", "complex128",
    "int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64", "bool",
]  # fmt: skip


def raw(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().resolve_conj().contiguous().reshape(-1)
    return plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b""


def made(dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    values = torch.randn(shape) * 3
    if dtype == "bool":
        return values > 0
    return (values.abs() if dtype.startswith("uint") else values).to(getattr(torch, dtype))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.pt"


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_shape(path: Path, dtype: str) -> None:
    for shape in ((), (3, 4), (0, 2), (2, 3, 4)):
        tensor = made(dtype, shape)
        torch.save(tensor, path)
        bits, name = read_tensor(path)
        assert (name, bits.shape) == (dtype, shape)
        assert np.ascontiguousarray(bits).tobytes() == raw(tensor)


def test_views_parameters_and_expanded_tensors(path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    lazy = torch.ones(2, dtype=torch.complex64).mul(1j).conj()
    views = (base.t(), base[1:, ::2], torch.ones(1).expand(5), torch.ones(1).expand(1 << 20, 1 << 20)[:2, :2], base[1])
    for tensor in (*views, torch.nn.Parameter(base), lazy):
        torch.save(tensor, path)
        bits, _ = read_tensor(path)
        assert np.ascontiguousarray(bits).tobytes() == raw(tensor)


class Trap:
    """Runs when it is unpickled."""

    def __reduce__(self) -> Any:
        return (exec, ("raise SystemExit('unpickled')",))


OTHERS = [{"a": 1}, [torch.ones(2)], Trap(), torch.device("cpu"), torch.ones(2).to_sparse()]


@pytest.mark.parametrize("value", OTHERS)
def test_anything_else_is_refused_and_not_run(path: Path, value: object) -> None:
    torch.save(value, path)
    with pytest.raises(ArtifactNotFoundError, match="cannot read the tensor file"):
        read_tensor(path)


def test_files_that_are_cut_off_or_no_archives(path: Path) -> None:
    torch.save(torch.ones(100), path)
    whole = path.read_bytes()
    for data in (whole[: len(whole) // 2], b"", b"\x80\x04N.", b"[]"):
        path.write_bytes(data)
        with pytest.raises(ArtifactNotFoundError, match=r"a\.pt"):
            read_tensor(path)
    path.unlink()
    with pytest.raises(ArtifactNotFoundError):
        read_tensor(path)


def rewritten(path: Path, how: int = zipfile.ZIP_STORED, **changed: bytes) -> None:
    """The archive with other members in the place of those named `data.pkl` and so on."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", how) as archive:
        for name, data in members.items():
            archive.writestr(name, changed.get(name.rpartition("/")[2].replace(".", "_"), data))


def test_no_damaged_byte_raises_anything_else(path: Path) -> None:
    torch.save(torch.arange(4, dtype=torch.float32), path)
    whole, refused = path.read_bytes(), 0
    for place in range(0, len(whole), 3):
        for value in (0, 8, 255):  # 8 is a way to compress a member
            path.write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
            try:
                bits, _ = read_tensor(path)
                bits.sum()
            except ArtifactNotFoundError:
                refused += 1
    assert refused > len(whole) // 20


MANY = b"\x80\x02" + b"N0" * (1 << 20) + b"N."
REFUSED: list[tuple[torch.Tensor, int, dict[str, bytes], str]] = [
    (torch.zeros(1 << 25), zipfile.ZIP_DEFLATED, {}, "compressed"),
    (
        torch.ones(3),
        zipfile.ZIP_STORED,
        {"data_pkl": MANY},
        "more than a single tensor",
    ),
    (torch.ones(4, 4), zipfile.ZIP_STORED, {"0": bytes(32)}, "beyond its values"),
]


@pytest.mark.parametrize(("tensor", "how", "changed", "said"), REFUSED, ids=[said for *_, said in REFUSED])
def test_archives_that_are_refused(
    path: Path, tensor: torch.Tensor, how: int, changed: dict[str, bytes], said: str
) -> None:
    torch.save(tensor, path)
    rewritten(path, how, **changed)
    assert said != "compressed" or path.stat().st_size < 1 << 20
    with pytest.raises(ArtifactNotFoundError, match=said):
        read_tensor(path)


def test_a_description_that_is_damaged_is_refused(path: Path) -> None:
    buffer = io.BytesIO()
    torch.save(torch.ones(3), buffer)
    with zipfile.ZipFile(buffer) as archive:
        good = archive.read(next(name for name in archive.namelist() if name.endswith("data.pkl")))
    replaced = [(b"_rebuild_tensor_v2", b"_rebuild_tensor_v9"), (b"FloatStorage", b"FlootStorage")]
    for text in (*(good[:cut] for cut in range(0, len(good), 5)), *(good.replace(*pair) for pair in replaced)):
        path.write_bytes(buffer.getvalue())
        rewritten(path, data_pkl=text)
        with pytest.raises(ArtifactNotFoundError):
            read_tensor(path)
