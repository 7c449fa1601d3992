"""ptdbg's layout: read in both schemes, written and read back, and a real pickle refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from graphprobe.errors import ArtifactNotFoundError, UsageError
from graphprobe.store.foreign.names import (
    Counter,
    api_from_foreign,
    foreign_from_api,
    msprobe_name,
    ptdbg_name,
    source_of,
)
from graphprobe.store.foreign.ptdbg import EDGE, PtdbgDump, sample, write_ptdbg
from store.foreign_dumps import example

STACK = [["/x/site-packages/torch/functional.py", "9", "norm", "return f(x)"], ["net.py", "4", "forward", "norm(x)"]]


def text_of(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize("name", ["21_Torch_norm", "Torch_norm_21"])
def test_both_schemes(tmp_path: Path, name: str) -> None:
    pkl = tmp_path / "npu_dump.pkl"
    pkl.write_text(
        text_of(
            [f"{name}_forward_stack_info", STACK],
            [f"{name}_forward_input.0", 1, [], "torch.float32", [2, 2], [4.0, 1.0, 2.5, 5.5]],
            [f"{name}_forward_input.1", 1, [], "<class 'int'>", "[]", [2, 2, 2]],
            [f"{name}_forward_output.0.1", 1, [], "torch.bfloat16", [], [5.5, 5.5, 5.5]],
            [f"{name}_backward_input.0", 1, [], "torch.float32", [2, 2], [float("nan"), 1.0, float("nan")]],
        )
    )
    folder = tmp_path / "npu_dump_20230104_13434"
    folder.mkdir()
    np.save(folder / f"{name}_forward_input.0.npy", np.array([[1, 2], [3, 4]], np.float32))
    np.save(folder / f"{name}_forward_output.0.1.npy", np.array(5.5, np.float32))
    dump = PtdbgDump(pkl)
    forward, backward = dump.calls(0, 0)
    assert (forward.api, forward.label, forward.direction) == ("torch.norm", f"{name}_forward", "forward")
    assert forward.index == (21 if name.startswith("Torch") else -1)  # with stacks: part of a program
    assert forward.source == "net.py:4"
    assert forward.stack[1] == "net.py:4 in forward: norm(x)"
    values, number, output = forward.slots
    assert (values.name, values.role) == ("input.0", "input")
    assert values.stats is not None and (values.stats.max, values.stats.l2) == (4.0, 5.5)
    assert set(values.known) == {"max", "min", "mean", "l2"}
    assert dump.values(forward, values).tolist() == [[1, 2], [3, 4]]
    assert number.scalar is not None and (number.scalar.type, number.scalar.text) == ("int", "2")
    assert (output.name, output.known) == ("output.0.1", ("max", "min", "mean"))
    assert dump.values(forward, output).tolist() == 0x40B0  # 5.5 in bfloat16
    (grad,) = backward.slots
    assert (grad.name, grad.role) == ("grad_output.0", "grad_output")
    assert grad.stats is not None and np.isnan(grad.stats.max or 0)
    assert grad.missing.endswith("is not in npu_dump_20230104_13434")
    assert dump.problems() == ()


def test_a_whole_program_is_numbered_by_api(tmp_path: Path) -> None:
    pkl = tmp_path / "a.pkl"
    names = ["3_Tensor_add_forward", "4_Torch_norm_forward", "5_Tensor_add_forward", "5_Tensor_add_backward"]
    pkl.write_text(text_of(*([f"{n}_output.0", 1, [], "torch.float32", [1], [1, 1, 1]] for n in names)))
    assert [call.index for call in PtdbgDump(pkl).calls(0, 0)] == [0, 0, 1, 1]


def test_a_pickle_is_refused_unread(tmp_path: Path) -> None:
    pkl = tmp_path / "npu_dump.pkl"
    pkl.write_bytes(b"\x80\x04cos\nsystem\n(S'touch /tmp/never'\ntR.")
    with pytest.raises(UsageError, match="is a pickle") as caught:
        PtdbgDump(pkl)
    assert caught.value.slug == "foreign-dump"
    assert "text" in caught.value.hint
    pkl.write_text("hello")
    with pytest.raises(UsageError, match="not a text of JSON lists"):
        PtdbgDump(pkl)


def test_bad_lines_are_told_and_the_rest_is_read(tmp_path: Path) -> None:
    pkl = tmp_path / "a.pkl"
    good = ["1_Torch_norm_forward_input.0", 1, [], "torch.float32", [1], [1, 1, 1]]
    pkl.write_text(text_of(good) + "[1, 2\n" + text_of(["odd", 1], ["2_Torch_abs_forward_input.0", 1]) + "[")
    dump = PtdbgDump(pkl)
    assert [call.label for call in dump.calls(0, 0)] == ["1_Torch_norm_forward", "2_Torch_abs_forward"]
    told = "\n".join(dump.problems())
    for part in (
        "a.pkl:2:",
        "a.pkl:3:",
        "a.pkl:5:",
        "2_Torch_abs_forward_input.0: expected",
        "no folder a_<timestamp>",
    ):
        assert part in told


def test_wrong_paths(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no ptdbg dump"):
        PtdbgDump(tmp_path)
    (tmp_path / "a.pkl").write_text("")
    assert list(PtdbgDump(tmp_path).calls(0, 0)) == []
    with pytest.raises(UsageError, match="data_dir"):
        PtdbgDump(tmp_path / "a.pkl", data_dir=tmp_path / "none")
    (tmp_path / "b.pkl").write_text("")
    with pytest.raises(UsageError, match=r"2 \.pkl files"):
        PtdbgDump(tmp_path)


def test_ranks(tmp_path: Path) -> None:
    for rank in (1, 0):
        folder = tmp_path / f"rank{rank}"
        (folder / "dump").mkdir(parents=True)
        (folder / "dump.pkl").write_text(
            text_of(["Torch_norm_0_forward_input.0", 1, [], "torch.float32", [1], [rank, rank, rank]])
        )
        np.save(folder / "dump" / "Torch_norm_0_forward_input.0.npy", np.array([rank], np.float32))
    dump = PtdbgDump(tmp_path)
    assert dump.ranks() == (0, 1)
    (call,) = dump.calls(1, 0)
    assert call.rank == 1
    assert dump.values(call, call.slots[0]).tolist() == [1]


def test_written_and_read_back(tmp_path: Path) -> None:
    source = example()
    pkl = tmp_path / "npu_dump.pkl"
    folder = write_ptdbg(source, pkl, stacks=True)
    assert folder.parent == tmp_path and folder.name.startswith("npu_dump_2")
    rows = [json.loads(line) for line in pkl.read_text().splitlines()]
    assert rows[0] == [
        "1_Functional_linear_forward_stack_info",
        [["model.py", "3", "forward", "x = self.fc(x)"], ["train.py", "9", "<module>", "model(x)"]],
    ]
    assert rows[1] == ["1_Functional_linear_forward_input.0", 1, [], "torch.float32", [2, 3], [5.0, 0.0, 2.5, 55**0.5]]
    bf16 = folder / "2_Tensor_mul__forward_input.0.npy"
    assert np.load(bf16).dtype == np.float32 and np.load(bf16).tolist() == [1.5, -2.25, 3.0]  # before the call
    assert ["2_Tensor_mul__forward_input.1", 1, [], "<class 'float'>", [], [2.0, 2.0, 2.0]] in rows
    dump = PtdbgDump(pkl)
    wanted = [call for call in source.calls(0, 0) if call.kind == "api"]
    found = list(dump.calls(0, 0))
    assert [c.label for c in found] == [
        "1_Functional_linear_forward",
        "2_Tensor_mul__forward",
        "3_Torch_cat_forward",
        "4_Functional_linear_forward",
        "1_Functional_linear_backward",
    ]
    for ours, theirs in zip(wanted, found, strict=True):
        assert (ours.api, ours.direction, ours.stack) == (theirs.api, theirs.direction, theirs.stack)
        assert [s.name for s in ours.slots] == [s.name for s in theirs.slots]
        for mine, other in zip(ours.slots, theirs.slots, strict=True):
            assert mine.scalar == other.scalar
            assert mine.meta == other.meta
            if mine.value:
                np.testing.assert_array_equal(source.values(ours, mine), dump.values(theirs, other))
    last = found[2].slots[-1].stats
    assert last is not None and np.isnan(last.max or 0)  # as torch.max has it, where ours counts


@pytest.mark.parametrize("count", [0, 1, 511, 512, 513, 600, 5000])
@pytest.mark.parametrize("step", [1, 2, 7, 100])
def test_samples(count: int, step: int) -> None:
    whole = np.arange(count)
    found = sample(whole, step)
    assert len(found) == (count if count <= 2 * EDGE else 2 * EDGE + -(-(count - 2 * EDGE) // step))
    assert found[:256].tolist() == whole[:256].tolist()
    if count > 512:
        assert found[-256:].tolist() == whole[-256:].tolist()
        assert found[256:-256].tolist() == whole[256:-256][::step].tolist()


def test_a_sampled_dump(tmp_path: Path) -> None:
    source = example()
    source.add("torch.norm", 0, source.slot("input.0", "input", np.arange(700, dtype=np.float32).reshape(7, 100)))
    write_ptdbg(source, tmp_path / "a.pkl", dump_step=10)
    dump = PtdbgDump(tmp_path / "a.pkl")
    calls = list(dump.calls(0, 0))
    (slot,) = calls[-1].slots
    assert slot.sampled and slot.stats is not None and slot.stats.max == 699
    assert len(dump.values(calls[-1], slot)) == 531
    small = calls[0].slots[0]
    assert not small.sampled and dump.values(calls[0], small).shape == (2, 3)


def test_values_that_are_no_longer_what_the_line_says(tmp_path: Path) -> None:
    source = example()
    folder = write_ptdbg(source, tmp_path / "a.pkl")
    dump = PtdbgDump(tmp_path / "a.pkl")
    calls = list(dump.calls(0, 0))
    np.save(folder / "1_Functional_linear_forward_input.0.npy", np.ones(5, np.float32))
    with pytest.raises(ArtifactNotFoundError, match="5 elements"):
        dump.values(calls[0], calls[0].slots[0])
    np.save(folder / "2_Tensor_mul__forward_input.0.npy", np.array([0.1, 0.2, 0.3], np.float32))
    with pytest.raises(ArtifactNotFoundError, match="bfloat16 cannot hold"):
        dump.values(calls[1], calls[1].slots[0])
    (folder / "1_Functional_linear_forward_output.0.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(ArtifactNotFoundError, match="cannot be read"):
        dump.values(calls[0], calls[0].slots[2])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("21_Torch_norm", ("Torch", "norm", 21, False, "forward", "", "")),
        ("1484_Tensor_transpose_forward", ("Tensor", "transpose", 1484, False, "forward", "", "")),
        ("1484_Tensor_mul__backward_output.0.1", ("Tensor", "mul_", 1484, False, "backward", "output", "0.1")),
        ("Torch_norm_21", ("Torch", "norm", 21, True, "forward", "", "")),
        ("Functional_batch_norm_3_forward_input.0", ("Functional", "batch_norm", 3, True, "forward", "input", "0")),
        ("Tensor___add___0_forward_output.0", ("Tensor", "__add__", 0, True, "forward", "output", "0")),
        ("7_Torch_fft.fft_forward_input.dim", ("Torch", "fft.fft", 7, False, "forward", "input", "dim")),
        ("5_Torch_set_output_forward_output.0", ("Torch", "set_output", 5, False, "forward", "output", "0")),
    ],
)
def test_ptdbg_names_of_both_schemes(text: str, expected: tuple[object, ...]) -> None:
    name = ptdbg_name(text)
    assert name is not None
    assert (name.kind, name.name, name.number, name.counted, name.direction, name.side, name.path) == expected
    assert not name.is_stack


def test_ptdbg_stack_line_and_what_is_no_name() -> None:
    name = ptdbg_name("21_Torch_norm_forward_stack_info")
    assert name is not None and name.is_stack and name.call == "21_Torch_norm_forward"
    for text in ("", "norm", "21_norm", "Torch_norm", "21_Toch_norm", "_Torch_norm_forward"):
        assert ptdbg_name(text) is None, text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Torch.fft.fft.2.backward", ("Torch", "", "fft.fft", 2, "backward")),
        ("Module.blocks.0.ln1.LayerNorm.forward.3", ("Module", "blocks.0.ln1", "LayerNorm", 3, "forward")),
        ("Module.fc.Linear.parameters_grad", ("Module", "fc", "Linear", 0, "parameters_grad")),
        *((text, None) for text in ("", "Functional.relu", "Functional.relu.forward.0", "Module.forward.0", "a.b.c.d")),
    ],
)
def test_msprobe_names(text: str, expected: tuple[object, ...] | None) -> None:
    name = msprobe_name(text)
    assert (name and (name.kind, name.module, name.name, name.number, name.part)) == expected


@pytest.mark.parametrize(
    ("kind", "name", "api"),
    [
        ("Functional", "linear", "torch.nn.functional.linear"),
        ("Torch", "fft.fft", "torch.fft.fft"),
        ("Tensor", "add_", "torch.Tensor.add_"),
        ("Distributed", "all_reduce", "torch.distributed.all_reduce"),
        ("Aten", "sin", "torch.ops.aten.sin"),
        ("NPU", "npu_rms_norm", "torch_npu.npu_rms_norm"),
        ("Python", "mine.Scale.apply", "mine.Scale.apply"),
    ],
)
def test_names_there_and_back(kind: str, name: str, api: str) -> None:
    assert api_from_foreign(kind, name) == api
    assert foreign_from_api(api) == (kind, name)


@pytest.mark.parametrize(
    ("name", "method"), [("__add__", "add"), ("__iadd__", "add_"), ("__truediv__", "div"), ("__rsub__", "__rsub__")]
)
def test_operators_have_the_name_of_the_method_that_runs(name: str, method: str) -> None:
    assert api_from_foreign("Tensor", name) == f"torch.Tensor.{method}"


def test_numbers_count_an_api_whatever_it_was_called() -> None:
    counter = Counter()
    assert counter.number("api", "torch.Tensor.add", "Tensor.__add__.0", "forward") == 0
    assert counter.number("api", "torch.Tensor.add", "Tensor.add.0", "forward") == 1
    assert counter.number("api", "torch.Tensor.add", "Tensor.add.0", "backward") == 1
    assert counter.number("api", "torch.Tensor.add", "Tensor.__add__.0", "backward") == 0
    assert counter.number("api", "torch.Tensor.add", "Tensor.add.7", "backward") == -1


def test_source_is_the_innermost_line_outside_torch() -> None:
    inner = "/x/site-packages/torch/nn/modules/linear.py:12 in forward: return F.linear(x)"
    assert source_of((inner, "model.py:3 in forward: x = self.fc(x)", "train.py:9 in <module>")) == "model.py:3"
    assert source_of((inner,)) == "/x/site-packages/torch/nn/modules/linear.py:12"
    assert source_of(()) == ""
