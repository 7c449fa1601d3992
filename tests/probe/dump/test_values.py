"""What is written is what the op read and wrote: every dtype and layout, lists, keywords, before and after in place."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from graphprobe.engine.tensor_stats import stats_of
from graphprobe.probe.dump import recorder
from graphprobe.probe.dump.recorder import StatsMemo
from graphprobe.probe.dump.tensors import MAX_TEXT, scalar_of, slots_from_inputs, slots_from_outputs
from graphprobe.records import TensorMeta
from graphprobe.store import DumpedOp

DTYPES = [
    *("float64", "float32", "float16", "bfloat16"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    *("complex64", "complex128", "bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"),
]


def random_tensor(name: str, *shape: int) -> torch.Tensor:
    dtype = getattr(torch, name)
    if dtype.is_complex or name in ("float64", "float32", "float16", "bfloat16"):
        return torch.randn(*shape, dtype=dtype)
    if dtype == torch.bool:
        return torch.rand(*shape) > 0.5
    data = torch.randint(0, 100, (*shape, dtype.itemsize), dtype=torch.uint8)
    return data.view(dtype).reshape(shape)


def raw(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def holds(op: DumpedOp, slot: str, tensor: torch.Tensor) -> None:
    value = op.values()[slot]
    assert value.slot.missing == ""
    assert value.meta.dtype == str(tensor.dtype).removeprefix("torch.")
    assert value.meta.shape == tuple(tensor.shape)
    assert value.raw().tobytes() == raw(tensor)


def test_every_dtype(dump_of: Callable[..., Any]) -> None:
    xs = [random_tensor(dtype, 3, 5) for dtype in DTYPES]
    before = [x.clone() for x in xs]
    found = dump_of(lambda xs: [x.view(5, 3) for x in xs], xs, backend="eager")
    for op, x in zip(found.ops(op_type="view"), before, strict=True):
        holds(op, "input.0", x)
        holds(op, "output.0", x.view(5, 3))


LAYOUTS = {
    "0-d": torch.tensor(2.5),
    "empty": torch.empty(0, 4),
    "transposed": torch.randn(4, 6).t(),
    "slice": torch.randn(4, 6)[::2, 1:4],
    "expanded": torch.randn(1, 3).expand(5, 3),
    "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "conjugated": torch.randn(3, dtype=torch.complex64).conj(),
    "negated": torch.randn(3, dtype=torch.complex64).conj().imag,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(layout: str, dump_of: Callable[..., Any]) -> None:
    x = LAYOUTS[layout]
    (op,) = dump_of(lambda x: x * 2, x, backend="eager").ops(op_type="mul")
    holds(op, "input.0", x)
    holds(op, "output.0", x * 2)
    assert op.values()["input.0"].meta.strides == tuple(x.stride())


def test_lists_with_none_and_what_is_no_tensor(dump_of: Callable[..., Any]) -> None:
    x, index = torch.randn(4, 5), torch.tensor([0, 3])
    found = dump_of(lambda x, i: x[:, i].sum(1, keepdim=True), x, index)
    (op,) = found.ops(op_type="index")
    assert list(op.values()) == ["input.0", "input.1.1", "output.0"]
    holds(op, "input.1.1", index)
    assert [(s.name, s.scalar.text) for s in op.record.slots if s.scalar] == [("input.1.0", "None")]
    (total,) = found.ops(op_type="sum")
    arguments = [(s.name, s.scalar.type, s.scalar.text) for s in total.record.slots if s.scalar]
    assert arguments == [("input.1", "immutable_list", "[1]"), ("input.2", "bool", "True")]


def test_keywords_and_several_results(dump_of: Callable[..., Any]) -> None:
    b, x, w = torch.randn(2), torch.randn(3, 4), torch.randn(4, 2)
    found = dump_of(lambda b, x, w: torch.addmm(b, x, mat2=w, beta=0.5).max(dim=1), b, x, w, backend="eager")
    (op,) = found.ops(op_type="addmm")
    holds(op, "kwarg.mat2", w)
    assert [(s.name, s.scalar.text) for s in op.record.slots if s.scalar] == [("kwarg.beta", "0.5")]
    (largest,) = found.ops(op_type="max")
    values, indices = torch.addmm(b, x, w, beta=0.5).max(dim=1)
    holds(largest, "output.0", values)
    holds(largest, "output.1", indices)


def test_an_op_in_place_shows_its_input_as_it_was(dump_of: Callable[..., Any]) -> None:
    x = torch.randn(3)
    before = x.clone()

    found = dump_of(lambda x: x.add_(1).mul_(2), x, backend="eager")
    holds(found.op("add_"), "input.0", before)
    holds(found.op("add_"), "output.0", before + 1)
    holds(found.op("mul_"), "input.0", before + 1)
    holds(found.op("mul_"), "output.0", (before + 1) * 2)
    assert torch.equal(x, (before + 1) * 2)


def test_statistics_instead_of_values(dump_of: Callable[..., Any]) -> None:
    x = torch.tensor([[1.0, float("nan")], [-float("inf"), 3.0]])
    found = dump_of(lambda x: x * 2, x, dump_data="stats")
    rows = [row for row in found.folder.stats() if row.op_name == "mul"]
    assert [(row.slot, row.side, row.shape) for row in rows] == [
        (f"{side}.0", side, (2, 2)) for side in ("input", "output")
    ]
    stats = rows[1].stats
    assert (stats["Max"], stats["Min"], stats["Nan"], stats["Negative Inf"]) == (6.0, 2.0, 1, 1)
    assert np.isclose(stats["L2norm"], np.sqrt(4 + 36))
    assert not any(op.has_values for op in found.ops())


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_statistics_are_of_the_moment(backend: str, dumping: Any) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.sum() * x  # reads x before it is overwritten
        x.mul_(2)
        return (x @ x) + y

    x = torch.randn(4, 4)
    before = x.clone()
    dumping.compile(program, backend, dump_data="stats", dump_path=str(dumping.path))(x)
    found = dumping.end()
    rows = list(found.folder.stats())
    digests = {stats_of(t).digest for t in (before, x)}
    assert len(digests) == 2
    assert digests <= {row.digest for row in rows if row.side == "input"}
    product = {row.digest for row in rows if row.op_type in ("mm", "addmm") and row.side == "input"}
    assert stats_of(x).digest in product
    assert stats_of(before).digest not in product


def test_statistics_after_an_op_that_writes_into_a_list(dumping: Any) -> None:
    @torch.library.custom_op("graphprobe_test::double_all", mutates_args=["xs"])
    def double_all(xs: list[torch.Tensor]) -> None:
        for x in xs:
            x.mul_(2)

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = x * y  # reads both before they are overwritten
        double_all([x, y])
        return z + x.cos()

    x, y = torch.randn(4), torch.randn(4)
    before = x.clone()
    dumping.compile(program, "eager", dump_data="stats", dump_path=str(dumping.path))(x, y)
    read = {row.digest for row in dumping.end().folder.stats() if row.op_name.startswith("cos") and row.side == "input"}
    assert read == {stats_of(x).digest} != {stats_of(before).digest}


def test_statistics_are_computed_once_until_the_memory_is_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    known, made = StatsMemo(), []

    def counted(name: str) -> None:
        real = getattr(recorder, name)
        monkeypatch.setattr(recorder, name, lambda *args: made.append(name) or real(*args))

    def stats(x: torch.Tensor) -> Any:
        meta, found = known.look(x)
        assert (meta.shape, meta.strides) == (tuple(x.shape), x.stride())
        return found

    counted("stats_in_memory")
    counted("live_stats")
    x = torch.ones(4)
    assert stats(x).max == stats(x).max == 1.0
    assert len(made) == 1
    assert stats(x[:2]).count == 2, "a view is another value"
    assert stats(x.view(torch.int32)).max == 0x3F800000, "so is another dtype"
    assert stats(x.view(2, 2)) is stats(x) and stats(x.view(2, 2).t()) is not stats(x), "not another shape of all of it"
    x.fill_(3)
    known.written([x[1:]])
    assert stats(x).max == 3.0
    assert stats(torch.ones(0)).count == 0
    assert len(made) == 6
    negative = torch.ones(4, dtype=torch.complex64).mul_(1j).conj().imag
    assert negative.is_neg() and stats(negative).max == -1.0
    assert stats(torch._neg_view(negative)).max == 1.0, "the same memory shows another value"


def test_the_stream_is_asked_for_where_anything_that_was_kept_is_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    execution: Any = SimpleNamespace(inputs=(("input.0", torch.ones(1)),), outputs=(("output.0", torch.ones(2)),))
    asked: list[torch.Tensor] = []
    monkeypatch.setattr(recorder, "stream_of", lambda tensor: asked.append(tensor) or 7)
    kept = recorder._Kept()
    assert recorder._stream(kept, execution) == 0
    kept.add("input.0", "input", TensorMeta("float32", (1,), (1,), "cpu"), None, None)
    assert recorder._stream(kept, execution) == 0 and asked == []
    kept.add("output.0", "output", TensorMeta("float32", (2,), (1,), "cuda:0"), None, None)
    assert recorder._stream(kept, execution) == 7 and asked[0].shape == (2,)


@pytest.mark.cuda
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("data", ["tensor", "stats"])
def test_values_on_a_device(backend: str, data: str, dumping: Any) -> None:
    x = torch.randn(64, 64, device="cuda")
    before = x.clone().cpu()
    dumping.compile(lambda x: x.t().relu_() * 2, backend, dump_data=data)(x)
    found = dumping.end()
    assert found.manifest.missing == []
    (op,) = found.ops(op_type="Data")
    if data == "tensor":
        assert op.values()["output.0"].raw().tobytes() == raw(before)
    else:
        assert stats_of(before).digest in {row.digest for row in found.folder.stats()}


def test_slots_of_inputs_and_outputs() -> None:
    a, b, c = torch.ones(1), torch.ones(2), torch.ones(3)
    args = (a, 2.0, [None, b, [c]], [1, 2], [], None, {"x": a, "y": 1})
    found = list(slots_from_inputs(args, {"bias": b, "dim": 1}))
    names = "input.0 input.1 input.2.0 input.2.1 input.2.2.0 input.3 input.4 input.5 input.6.x input.6.y"
    assert [name for name, _ in found] == [*names.split(), "kwarg.bias", "kwarg.dim"]
    by_name = dict(found)
    assert by_name["input.2.1"] is b and by_name["input.2.2.0"] is c and by_name["input.2.0"] is None
    assert by_name["input.3"] == [1, 2]
    assert [name for name, _ in slots_from_outputs(a)] == ["output.0"]
    found = list(slots_from_outputs((a, None, [b])))
    assert [name for name, _ in found] == ["output.0", "output.1", "output.2.0"]


def test_texts_of_arguments() -> None:
    told = [(one.type, one.text) for one in (scalar_of(value) for value in (None, -0.0, float("nan")))]
    assert told == [("NoneType", "None"), ("float", "-0.0"), ("float", "nan")]
    assert scalar_of([torch.float32, (1,)]).text == "[torch.float32, (1,)]"
    long = scalar_of("x" * 10_000).text
    assert long.endswith("… (10002 characters)")
    assert len(long) < MAX_TEXT + 30
    assert scalar_of(object()).text == "<builtins.object>"
