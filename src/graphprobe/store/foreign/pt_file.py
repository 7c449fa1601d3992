"""Tensor files of `torch.save`, read and written without torch and without unpickling.

Such a file is a zip archive of a small pickle, which says dtype, shape and strides, and of the bytes. The pickle of one
tensor uses a dozen opcodes and four names; they are read here as data. Anything else in it is refused, nothing is
looked up or called, so that a file from anywhere can be opened.
"""

from __future__ import annotations

import io
import lzma
import math
import mmap
import pickletools
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from graphprobe.errors import ArtifactNotFoundError
from graphprobe.store.dump_dtypes import STORED_DTYPES
from graphprobe.store.files import check_regular, open_file

Array = np.ndarray[Any, Any]

STORAGES: dict[str, str] = {
    "torch FloatStorage": "float32",
    "torch DoubleStorage": "float64",
    "torch HalfStorage": "float16",
    "torch BFloat16Storage": "bfloat16",
    "torch LongStorage": "int64",
    "torch IntStorage": "int32",
    "torch ShortStorage": "int16",
    "torch CharStorage": "int8",
    "torch ByteStorage": "uint8",
    "torch BoolStorage": "bool",
    "torch ComplexFloatStorage": "complex64",
    "torch ComplexDoubleStorage": "complex128",
    "torch.storage UntypedStorage": "",
}
"""Class of the storage in the pickle, and its dtype; newer dtypes have an untyped storage and say theirs apart."""

_CLASSES = {dtype: name for name, dtype in STORAGES.items() if dtype}
_REBUILD = "torch._utils _rebuild_tensor_v2"
_REBUILD_DTYPE = "torch._utils _rebuild_tensor_v3"
_PARAMETER = "torch._utils _rebuild_parameter"
_DICT = "collections OrderedDict"
_MOST_INFLATED_BYTES = 64 << 20
"""Of values that are compressed, which torch.save never does: a small file could fill the memory."""
_MOST_PICKLE_BYTES = 1 << 16
_MARK = object()


class _GlobalName(NamedTuple):
    """A global of the pickle, by name only."""

    text: str


_NOT_READ = (
    OSError, ValueError, KeyError, RuntimeError, EOFError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error
)  # fmt: skip
"""What an archive raises that is damaged, or is none."""


class _Storage(NamedTuple):
    dtype: str
    key: str


class TensorLayout(NamedTuple):
    """What the pickle of a tensor says: `key` names the member with the bytes; offset and strides count elements."""

    dtype: str
    key: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Refused(Exception):
    pass


def layout_from_pickle(data: bytes) -> TensorLayout:
    """The layout of the one tensor that a pickle of `torch.save` holds.

    Raises:
        ValueError: the pickle holds anything else.
    """
    try:
        found = _interpreted(data)
    except (_Refused, IndexError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not the pickle of one plain tensor: {error}") from error
    if not isinstance(found, TensorLayout):
        raise ValueError("the pickle holds something else than one tensor")
    return found


def read_tensor(path: Path) -> tuple[Array, str]:
    """Values of a tensor file, mapped where that is possible, and torch's name of the dtype.

    Returns:
        In numpy's own dtype; as unsigned integers of the item size for a dtype that numpy lacks.

    Raises:
        ArtifactNotFoundError: there is no such file, it is cut off, or it holds something else than one tensor.
    """
    try:
        check_regular(path)
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            pickle = next((name for name in names if name.endswith("/data.pkl")), None)
            if pickle is None or archive.getinfo(pickle).file_size > _MOST_PICKLE_BYTES:
                raise ValueError("it has no pickle of a single tensor")
            layout = layout_from_pickle(archive.read(pickle))
            root = pickle.removesuffix("data.pkl")
            order = root + "byteorder"
            if order in names and (archive.getinfo(order).file_size > 16 or archive.read(order) != b"little"):
                raise ValueError("its bytes are big-endian")
            member = archive.getinfo(f"{root}data/{layout.key}")
            if member.compress_type != zipfile.ZIP_STORED and member.file_size > _MOST_INFLATED_BYTES:
                raise ValueError(f"its values are compressed, {member.file_size} bytes: torch.save never does that")
            raw = _mapped(path, member) if member.compress_type == zipfile.ZIP_STORED else archive.read(member)
        return _array(raw, layout), layout.dtype
    except _NOT_READ as error:
        raise ArtifactNotFoundError(
            f"cannot read the tensor file {path}: {str(error) or 'it is cut off'}",
            hint="only files of one plain tensor written by torch.save are read; nothing is unpickled",
        ) from error


def write_tensor(path: Path, bits: Array, dtype: str) -> None:
    """Write a contiguous tensor so that `torch.load(path, weights_only=True)` gives it back. Replaces a file.

    Args:
        path: by convention ending in `.pt`.
        bits: values as `CallDump.values` gives them.
        dtype: torch's name.

    Raises:
        ValueError: no storage class is known for the dtype.
    """
    data = np.ascontiguousarray(bits).reshape(bits.shape)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        root = path.stem or "archive"
        archive.writestr(f"{root}/data.pkl", _pickle_of(data.shape, dtype))
        archive.writestr(f"{root}/byteorder", b"little")
        archive.writestr(f"{root}/data/0", data.tobytes())
        archive.writestr(f"{root}/version", b"3\n")


def _mapped(path: Path, member: zipfile.ZipInfo) -> mmap.mmap | memoryview | bytes:
    """The bytes of a member that is not compressed, where they lie in the file."""
    if not member.file_size:
        return b""
    with open_file(path) as file:
        file.seek(member.header_offset)
        header = file.read(30)
        if header[:4] != b"PK\x03\x04":
            raise ValueError("the archive is damaged")
        name, extra = struct.unpack("<HH", header[26:30])
        start = member.header_offset + 30 + name + extra
        whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if start + member.file_size > len(whole):
        raise ValueError("the archive is cut off")
    return memoryview(whole)[start : start + member.file_size]


def _array(raw: mmap.mmap | memoryview | bytes, layout: TensorLayout) -> Array:
    known = STORED_DTYPES.get(layout.dtype)
    if known is None:
        raise ValueError(f"dtype {layout.dtype} is unknown")
    flat = np.frombuffer(raw, dtype=known.numpy or f"uint{8 * known.size_bytes}")
    if len(layout.shape) != len(layout.strides) or min((*layout.shape, *layout.strides, layout.offset), default=0) < 0:
        raise ValueError("its sizes and strides do not fit")
    count = math.prod(layout.shape)
    last = layout.offset + sum((n - 1) * s for n, s in zip(layout.shape, layout.strides, strict=True))
    if count and last >= flat.size:
        raise ValueError(f"its shape {layout.shape} goes beyond its {flat.size} elements")
    if not count:
        return flat[:0].reshape(layout.shape)
    strides = tuple(s * flat.itemsize for s in layout.strides)
    return np.lib.stride_tricks.as_strided(flat[layout.offset :], layout.shape, strides, writeable=False)


_CONSTANTS = {"NEWTRUE": True, "NEWFALSE": False, "NONE": None}
_PUSHED = ("BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "SHORT_BINUNICODE")
_FIXED = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def _interpreted(data: bytes) -> Any:
    """Runs the opcodes on a stack of plain data; a call is one of four shapes, or refused."""
    stack: list[Any] = []
    memo: dict[Any, Any] = {}
    for opcode, argument, _ in pickletools.genops(io.BytesIO(data)):
        name = opcode.name
        if name in ("PROTO", "FRAME"):
            continue
        if name == "STOP":
            return stack[-1]
        if name == "GLOBAL":
            stack.append(_GlobalName(str(argument)))
        elif name in _PUSHED:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name == "EMPTY_TUPLE":
            stack.append(())
        elif name == "MARK":
            stack.append(_MARK)
        elif name == "TUPLE":
            start = len(stack) - 1 - stack[::-1].index(_MARK)
            stack[start:] = [tuple(stack[start + 1 :])]
        elif name in _FIXED:
            stack[-_FIXED[name] :] = [tuple(stack[-_FIXED[name] :])]
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name == "BINPERSID":
            stack.append(_storage(stack.pop()))
        elif name == "REDUCE":
            arguments = stack.pop()
            stack.append(_called(stack.pop(), arguments))
        else:
            raise _Refused(f"opcode {name}")
    raise _Refused("no end")


def _storage(parts: Any) -> _Storage:
    kind, storage, key = parts[:3]
    if (
        kind != "storage"
        or not isinstance(storage, _GlobalName)
        or storage.text not in STORAGES
        or not str(key).isdigit()
    ):
        raise _Refused(f"storage {storage!r}")
    return _Storage(STORAGES[storage.text], str(key))


def _called(function: Any, arguments: tuple[Any, ...]) -> Any:
    text = function.text
    if text == _DICT and arguments == ():
        return None
    if text == _PARAMETER and isinstance(arguments[0], TensorLayout):
        return arguments[0]
    if text not in (_REBUILD, _REBUILD_DTYPE):
        raise _Refused(f"call of {text}")
    storage, offset, shape, strides = arguments[:4]
    dtype = storage.dtype
    if text == _REBUILD_DTYPE:
        dtype = arguments[6].text.removeprefix("torch ")
    if not (isinstance(storage, _Storage) and isinstance(offset, int)):
        raise _Refused("arguments of a tensor")
    if not all(isinstance(n, int) for n in (*shape, *strides)):
        raise _Refused("sizes of a tensor")
    if len(arguments) > 6 and text == _REBUILD and arguments[6] is not None:
        raise _Refused("a tensor with metadata, such as a conjugated view")
    return TensorLayout(dtype, storage.key, offset, tuple(shape), tuple(strides))


def _pickle_of(shape: tuple[int, ...], dtype: str) -> bytes:
    """The pickle, protocol 2, of a contiguous tensor in storage 0."""
    known = STORED_DTYPES.get(dtype)
    if known is None:
        raise ValueError(f"no tensor file of dtype {dtype}")
    count = math.prod(shape)
    strides = tuple(max(1, math.prod(shape[i + 1 :])) for i in range(len(shape)))
    typed = dtype in _CLASSES
    storage = _CLASSES[dtype] if typed else "torch.storage UntypedStorage"
    size = count if typed else count * known.size_bytes
    parts = [b"\x80\x02", _global(_REBUILD if typed else _REBUILD_DTYPE), b"("]
    parts += [b"(", _text("storage"), _global(storage), _text("0"), _text("cpu"), _int(size), b"tQ"]
    parts += [_int(0), b"(", *map(_int, shape), b"t(", *map(_int, strides), b"t\x89"]
    parts += [_global(_DICT), b")R"]
    if not typed:
        parts.append(_global(f"torch {dtype}"))
    return b"".join([*parts, b"tR."])


def _global(name: str) -> bytes:
    module, _, attribute = name.partition(" ")
    return f"c{module}\n{attribute}\n".encode()


def _text(value: str) -> bytes:
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def _int(value: int) -> bytes:
    if 0 <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    data = value.to_bytes((value.bit_length() + 8) // 8, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data
