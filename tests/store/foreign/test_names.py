"""Names of calls: both schemes of ptdbg, msprobe's, and ours."""

import pytest

from graphprobe.store.foreign.names import (
    Counter,
    api_from_foreign,
    foreign_from_api,
    msprobe_name,
    ptdbg_name,
    source_of,
)


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
