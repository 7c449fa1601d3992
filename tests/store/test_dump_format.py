import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file

from graphprobe.errors import ArtifactNotFoundError, SchemaError
from graphprobe.probe.dump.tensors import dump_value
from graphprobe.records import TensorMeta
from graphprobe.store.calls import Scalar, WrittenSlot
from graphprobe.store.dump_dtypes import STORED_DTYPES
from graphprobe.store.dump_format import OpFile, numbers_text
from graphprobe.store.dump_queue import CopyPool
from graphprobe.store.dump_reader import DumpedOp, open_dump
from graphprobe.store.dump_records import DumpValue, view_from_buffer
from store.dump_helpers import OP, PLACE, new_writer, value

PACKED = "float4_e2m1fn_x2"


def values_from_tensors(tensors: list[torch.Tensor]) -> list[DumpValue]:
    result = []
    for index, tensor in enumerate(tensors):
        dense = tensor.contiguous()
        data = dense.reshape(-1).view(torch.uint8).numpy() if tensor.numel() else b""
        meta = TensorMeta(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tuple(tensor.stride()))
        result.append(DumpValue(f"input.{index}", "input", meta, data))
    return result


def dumped(tmp_path: Path, values: list[DumpValue], **fields: Any) -> DumpedOp:
    writer = new_writer(tmp_path, queue_bytes=0)
    assert writer.submit(OP, PLACE, values, **fields) == 0
    writer.close()
    assert writer.manifest.missing == []
    (op,) = open_dump(writer.time_dir).ops()
    return op


def tensor_of(dtype: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Random bits, so that NaN payloads, infinities and signed zeros come up."""
    bits = np.random.default_rng(seed).integers(0, 256, (*shape, STORED_DTYPES[dtype].size_bytes), dtype=np.uint8)
    if dtype == "bool":
        bits &= 1
    if 0 in shape:
        return torch.empty(shape, dtype=getattr(torch, dtype))
    return torch.from_numpy(bits).view(getattr(torch, dtype)).reshape(shape)


def same_bits(tensor: torch.Tensor, raw: np.ndarray[Any, Any]) -> bool:
    if not tensor.numel():
        return raw.size == 0
    return tensor.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes() == raw.tobytes()


shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(STORED_DTYPES)), shapes, st.integers(0, 99)), max_size=6))
def test_every_dtype_and_shape_comes_back_bit_by_bit(
    tmp_path_factory: pytest.TempPathFactory, cases: list[tuple[str, tuple[int, ...], int]]
) -> None:
    tensors = [tensor_of(*case) for case in cases]
    op = dumped(tmp_path_factory.mktemp("dump"), values_from_tensors(tensors))
    loaded = op.values()
    assert list(loaded) == [f"input.{index}" for index in range(len(cases))]
    for tensor, one in zip(tensors, loaded.values(), strict=True):
        assert (one.meta.dtype, one.meta.shape) == (str(tensor.dtype)[6:], tuple(tensor.shape))
        assert same_bits(tensor, one.raw())
        if one.meta.dtype != PACKED:
            assert one.array().shape == tuple(tensor.shape)
    with safe_open(op.path, framework="pt") as file:
        assert set(file.keys()) == set(loaded)
        for name, tensor in zip(loaded, tensors, strict=True):
            stored = file.get_tensor(name)
            assert same_bits(stored, loaded[name].raw())
            assert stored.data_ptr() % max(1, tensor.element_size()) == 0 or tensor.numel() == 0


@pytest.mark.parametrize("dtype", sorted(STORED_DTYPES.keys() - {PACKED}))
def test_values_are_those_of_torch(tmp_path: Path, dtype: str) -> None:
    every = np.arange(256, dtype=np.uint8)
    size_bytes = STORED_DTYPES[dtype].size_bytes
    if dtype == "bool":
        every &= 1
    if size_bytes == 2:
        every = np.arange(65536, dtype=np.uint16).view(np.uint8)
    tensor = torch.from_numpy(every).view(getattr(torch, dtype))
    (one,) = dumped(tmp_path, values_from_tensors([tensor])).values().values()
    array, note = one.array_and_conversion()
    assert bool(note) == (STORED_DTYPES[dtype].numpy is None)
    wide = {"complex32": torch.complex64}.get(dtype, torch.float32 if note else tensor.dtype)
    np.testing.assert_array_equal(array, tensor.to(wide).numpy())
    assert array.dtype == tensor.to(wide).numpy().dtype
    if wide is torch.float32:
        negative = ~np.isnan(array)
        np.testing.assert_array_equal(np.signbit(array)[negative], np.signbit(tensor.float().numpy())[negative])


def test_packed_and_unknown_dtypes(tmp_path: Path) -> None:
    packed = DumpValue("input.0", "input", TensorMeta(PACKED, (1, 2)), np.array([[0x10, 0xF8]], dtype=np.uint8))
    unknown = DumpValue("input.1", "input", TensorMeta("quint4x2", (5,)), b"abc")
    found = dumped(tmp_path, [packed, unknown]).values()
    array = found["input.0"].array()
    assert array.tolist() == [[0.0, 0.5, 0.0, -6.0]] and np.signbit(array[0, 2])
    array, note = found["input.1"].array_and_conversion()
    assert (array.tolist(), note) == ([97, 98, 99], "quint4x2 as raw bytes")


def test_the_record_tells_everything(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    values = [
        *values_from_tensors([base.t()]),
        DumpValue("kwarg.out", "output", TensorMeta("float32", (2,)), lambda: np.ones(2, np.float32)),
        DumpValue("output.0", "output", TensorMeta("float32", (7,), (1,), "cuda:1")),
    ]
    scalars = [
        WrittenSlot("input.1", "input", scalar=Scalar("NoneType", "None")),
        WrittenSlot("kwarg.eps", "input", scalar=Scalar("float", "nan")),
    ]
    op = dumped(tmp_path, values, scalars=scalars, notes=["output.0 is input.0"], stream_id=3, time_ns=1234567890)
    record = op.record
    assert (record.seq, record.time_us, record.op, record.place, record.stream_id) == (0, 1234567, OP, PLACE, 3)
    assert record.file == "0/ResNet-50/1/0/add.add_1.0.1234567"
    assert record.slots[3:] == tuple(scalars)
    assert record.notes == ("output.0 is input.0",)
    assert record.slots[0].meta == TensorMeta("float32", (4, 3), (1, 4))
    assert [(slot.name, slot.role, slot.value) for slot in record.slots[:3]] == [
        ("input.0", "input", "input.0"),
        ("kwarg.out", "output", "kwarg.out"),
        ("output.0", "output", ""),
    ]
    loaded = op.values()
    np.testing.assert_array_equal(loaded["input.0"].array(), base.t().numpy())
    assert [one.is_there for one in loaded.values()] == [True, True, False]
    with pytest.raises(ArtifactNotFoundError, match=r"no values of output\.0"):
        loaded["output.0"].array()
    assert OpFile(op.path).record == record


@pytest.mark.parametrize("keep", [0, 7, 8, 100, -1])
def test_a_file_that_is_cut_off_is_refused(tmp_path: Path, keep: int) -> None:
    op = dumped(tmp_path, [value("input.0", np.arange(100.0))])
    data = op.path.read_bytes()
    op.path.write_bytes(data[:keep])
    with pytest.raises(SchemaError, match="cut off|no header"):
        op.values()
    op.path.write_bytes(data)
    assert op.values()["input.0"].array()[99] == 99


def test_foreign_files_and_newer_ones_are_refused(tmp_path: Path) -> None:
    save_file({"a": np.ones(3)}, tmp_path / "foreign")
    (tmp_path / "text").write_text("hello, this is no tensor at all")
    (tmp_path / "long").write_bytes((2**62).to_bytes(8, "little") + b"{}")
    for name, said in (("foreign", "not of an op dump"), ("text", "no safetensors"), ("long", "no safetensors file")):
        with pytest.raises(SchemaError, match=said):
            OpFile(tmp_path / name)
    with pytest.raises(ArtifactNotFoundError, match="No such file"):
        OpFile(tmp_path / "absent")
    op = dumped(tmp_path, [value("input.0", np.ones(3))])
    data = op.path.read_bytes()
    op.path.write_bytes(data.replace(b'"graphprobe.dump_schema":"1"', b'"graphprobe.dump_schema":"9"'))
    with pytest.raises(SchemaError, match="schema 9"):
        op.values()


def test_views_of_buffers() -> None:
    array = np.arange(6, dtype=np.complex128).reshape(2, 3)
    assert view_from_buffer(array).nbytes == 96
    assert view_from_buffer(memoryview(array.real.copy())).nbytes == 48
    assert view_from_buffer(np.zeros((0, 3))).nbytes == view_from_buffer(b"").nbytes == 0
    assert view_from_buffer(np.array(1.0)).nbytes == 8
    refused = (
        (array.T, "contiguous"),
        (memoryview(b"abcdef")[::2], "contiguous"),
        (np.arange(3, dtype=">i4"), "native"),
    )
    for buffer, said in refused:
        with pytest.raises(ValueError, match=said):
            view_from_buffer(buffer)


NUMBERS = st.lists(st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats()).map(tuple)


@given(NUMBERS)
def test_the_text_of_numbers_reads_back_as_the_same(numbers: tuple[float | int | None, ...]) -> None:
    text = numbers_text(numbers)
    fields = text.split(",") if numbers else []
    for number, field in zip(numbers, fields, strict=True):
        if number is None:
            assert field == ""
        elif isinstance(number, float) and math.isnan(number):
            assert field == "nan"
        else:
            assert type(number)(field) == number


def test_the_text_of_numbers_around_powers_of_ten_and_two() -> None:
    """Where Python goes over from places to exponents, and where the shortest text is hard to find."""
    powers = [10.0**e for e in range(-320, 309)] + [2.0**e for e in range(-1074, 1024)]
    near = [math.nextafter(value, to) for value in powers for to in (0.0, math.inf)]
    numbers = tuple(sign * value for value in [0.0, 123456.789, 0.00012345, *powers, *near] for sign in (1, -1))
    assert numbers_text(numbers) == ",".join(map(repr, numbers))


@pytest.mark.parametrize("stats", [False, True])
@pytest.mark.parametrize(
    ("layout", "why"),
    [
        ("sparse", "layout torch.sparse_coo"),
        ("meta", "fake or on the meta device"),
        ("emptied", "its storage has 0 bytes"),
    ],
)
def test_what_has_no_memory_says_so(layout: str, why: str, stats: bool) -> None:
    x = torch.empty(3, 3, device="meta") if layout == "meta" else torch.eye(3)
    x = x.to_sparse() if layout == "sparse" else x
    if layout == "emptied":  # as FSDP leaves a parameter between two uses
        x.untyped_storage().resize_(0)
    value = dump_value("input.0", "input", x, stats=stats, pool=CopyPool(0))
    assert callable(value.data) and value.meta.shape == (3, 3)
    with pytest.raises(Exception, match=why):
        value.data()


def test_a_value_is_a_copy_and_gives_its_memory_back() -> None:
    pool = CopyPool(1 << 30)
    x = torch.zeros(1 << 16)
    value = dump_value("input.0", "input", x, stats=False, pool=pool)
    x.fill_(1)
    assert not np.asarray(value.data()).any()
    assert pool.idle_bytes == 0
    del value
    assert pool.idle_bytes == x.nbytes
