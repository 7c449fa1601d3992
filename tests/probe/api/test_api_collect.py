"""Which calls are seen, what is kept of them, and where they stand."""

import gc
import hashlib
import math
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import add as early_add
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrize

import graphprobe
from graphprobe.internals.operators.api_calls import UNTOLD, CompiledRegions
from graphprobe.store import CallSlot, open_api_dump


def test_functions_methods_operators_and_early_imports(dumped: Callable[..., Any]) -> None:
    def program() -> None:
        x = torch.ones(2, 3)
        y = early_add(x, 1.5, alpha=2)
        z = (y * x)[0].sum()
        torch.fft.fft(y)
        torch.ops.aten.sin(z)
        _ = y.T
        F.gelu(y, approximate="tanh")

    read = dumped(program)
    apis = "ones add Tensor.mul Tensor.__getitem__ Tensor.sum fft.fft ops.aten.sin Tensor.T nn.functional.gelu"
    assert [c.api for c in read.calls] == [f"torch.{api}" for api in apis.split()]
    assert [c.position for c in read.calls] == list(range(9))
    slots = read.slots("add.0.forward")
    assert list(slots) == ["input.0", "input.1", "kwarg.alpha", "output.0"]
    assert (slots["input.1"].scalar.type, slots["input.1"].scalar.text) == ("float", "1.5")
    np.testing.assert_array_equal(read.value("add.0.forward", "output.0"), np.full((2, 3), 4.0, np.float32))
    assert read.slots("nn.functional.gelu.0.forward")["kwarg.approximate"].scalar.text == "'tanh'"
    own = Path(__file__).name
    assert all(Path(c.source.rpartition(":")[0]).name == own for c in read.calls)
    line = int(read["add.0.forward"].source.rpartition(":")[2])
    assert "early_add(x" in Path(__file__).read_text().splitlines()[line - 1]


def test_questions_about_a_tensor_are_no_calls(dumped: Callable[..., Any]) -> None:
    x = torch.ones(2, 3)

    def program() -> None:
        _ = (x.shape, x.dtype, x.device, x.dim(), x.size(0), x.stride(), x.numel(), x.is_contiguous(), len(x))
        _ = (x.requires_grad, x.is_floating_point(), torch.is_tensor(x), x.data_ptr(), repr(x.shape), x.grad)
        torch.relu(x)

    assert dumped(program).labels == ["relu.0.forward"]


def test_reads_are_calls(dumped: Callable[..., Any]) -> None:
    x = torch.tensor([2.5])
    read = dumped(lambda: (x.item(), bool(x > 1), torch.equal(x, x)))
    assert read.labels == [f"{name}.0.forward" for name in ("Tensor.item", "Tensor.gt", "Tensor.__bool__", "equal")]
    assert read.slots("Tensor.item.0.forward")["output.0"].scalar.text == "2.5"


def test_index_counts_by_api_and_module_is_the_innermost(dumped: Callable[..., Any]) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.ReLU(), nn.Linear(3, 2)))
    read = dumped(lambda: model(torch.ones(1, 3)), level="mix")
    forward = [(c.label.removesuffix(".forward"), c.module) for c in read.calls if c.direction == "forward"]
    assert forward == [
        ("ones.0", ""),
        *[("nn.functional.linear.0", "0"), ("Module.0.Linear.0", "0")],
        *[("nn.functional.relu.0", "1.0"), ("Module.1.0.ReLU.0", "1.0")],
        *[("nn.functional.linear.1", "1.1"), ("Module.1.1.Linear.1", "1.1")],
        *[("Module.1.Sequential.1", "1"), ("Module.Sequential.0", "")],
    ]
    slots = read.slots("Module.0.Linear.0.forward")
    assert list(slots) == ["input.0", "parameter.weight", "parameter.bias", "output.0"]
    assert all(slot.role == name.partition(".")[0] for name, slot in slots.items())
    by_module = dumped(lambda: model(torch.ones(1, 3)), level="module")
    assert {c.kind for c in by_module.calls} == {"module"}


def test_buffers_and_keyword_arguments_of_modules(dumped: Callable[..., Any]) -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("factor", torch.tensor([3.0]))

        def forward(self, x: torch.Tensor, *, bias: torch.Tensor, name: str = "n") -> dict[str, Any]:
            return {"out": x * self.factor + bias, "more": [x]}

    model = Scale()
    read = dumped(lambda: model(torch.ones(2), bias=torch.zeros(2), name="m"), level="module")
    slots = read.slots("Module.Scale.0.forward")
    assert list(slots) == ["input.0", "kwarg.bias", "kwarg.name", "buffer.factor", "output.0.out", "output.0.more.0"]
    assert slots["kwarg.name"].scalar.text == "'m'"


def test_an_in_place_call_shows_its_input_as_before(dumped: Callable[..., Any]) -> None:
    def program() -> None:
        x = torch.full((3,), -2.0)
        y = x.clone()
        x.relu_()
        x += 5
        x[0] = 1.0
        torch.add(y, 1, out=y)

    read = dumped(program)
    read.assert_values(
        {
            ("Tensor.relu_.0", "input.0"): [-2.0] * 3,
            ("Tensor.relu_.0", "output.0"): [0.0] * 3,
            ("Tensor.add_.0", "input.0"): [0.0] * 3,
            ("Tensor.add_.0", "output.0"): [5.0] * 3,
            ("Tensor.__setitem__.0", "input.0"): [5.0] * 3,
            ("Tensor.__setitem__.0", "output.input.0"): [1.0, 5.0, 5.0],
            ("add.0", "input.0"): [-2.0] * 3,
            ("add.0", "kwarg.out"): [-2.0] * 3,
            ("add.0", "output.0"): [-1.0] * 3,
        }
    )
    assert not any(c.notes for c in read.calls)


def test_a_change_that_the_name_does_not_tell_is_shown_and_noted(dumped: Callable[..., Any]) -> None:
    mean, var = torch.zeros(2), torch.ones(2)
    x = torch.arange(8.0).reshape(4, 2)
    read = dumped(lambda: F.batch_norm(x, mean, var, training=True))
    call = read["nn.functional.batch_norm.0.forward"]
    assert call.notes == ("input.1 was changed by the call", "input.2 was changed by the call")
    assert read.value(call.label, "input.1").tolist() == [0.0, 0.0]
    np.testing.assert_array_equal(read.value(call.label, "output.input.1"), mean.numpy())


def test_gradients_that_a_scaler_unscales_are_looked_at_again(dumped: Callable[..., Any]) -> None:
    weight = nn.Parameter(torch.ones(3))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    optimizer = torch.optim.SGD([weight], lr=1.0)

    def program() -> None:
        scaler.scale(weight.sum()).backward()
        assert weight.grad is not None
        weight.grad.sin()
        scaler.unscale_(optimizer)
        weight.grad.cos()

    read = dumped(program)
    read.assert_values({("Tensor.sin.0", "input.0"): [8.0] * 3, ("Tensor.cos.0", "input.0"): [1.0] * 3})
    (call,) = [c for c in read.calls if "unscale" in c.label]
    assert read.value(call.label, "output.input.0.0").tolist() == [1.0] * 3


def test_memory_that_the_program_got_at_is_looked_at_again(dumped: Callable[..., Any]) -> None:
    x = torch.zeros(4)
    weight = nn.Parameter(torch.zeros(4))

    def program() -> None:
        x.sin()
        weight.cos()
        x.numpy()[:] = 7.0  # no version counter sees it
        weight.data.add_(3.0)
        x.sin()
        weight.cos()
        x.numpy()[:] = 8.0
        x.sin()

    expected = {"sin.0": 0.0, "sin.1": 7.0, "sin.2": 8.0, "cos.1": 3.0}
    dumped(program).assert_values({(f"Tensor.{call}", "input.0"): [value] * 4 for call, value in expected.items()})


def test_memory_that_is_used_again_is_not_taken_for_the_same(dumped: Callable[..., Any]) -> None:
    def program() -> None:
        for number in range(50):
            torch.full((1000,), float(number)).sum()

    read = dumped(program)
    for number in range(50):
        slot: CallSlot = read.slots(f"Tensor.sum.{number}.forward")["input.0"]
        assert slot.stats.max == number


def test_statistics_are_exact_in_half_precision_and_count_nan_and_inf(dumped: Callable[..., Any]) -> None:
    x = torch.full((8,), 60000.0, dtype=torch.float16)
    y = torch.tensor([float("nan"), float("inf"), -float("inf"), 1.0])
    read = dumped(lambda: (x.neg(), y.neg()), data="stats")
    stats = read.slots("Tensor.neg.0.forward")["input.0"].stats
    assert math.isclose(stats.l2, 60000.0 * 8**0.5)
    stats = read.slots("Tensor.neg.1.forward")["input.0"].stats
    assert (stats.nan, stats.positive_inf, stats.negative_inf, stats.count, stats.max) == (1, 1, 1, 4, 1.0)
    assert read.slots("Tensor.neg.0.forward")["input.0"].value == ""


def test_a_value_is_stored_once(dumped: Callable[..., Any]) -> None:
    x = torch.randn(64, 64)
    model = nn.Linear(64, 64)

    def program() -> None:
        for _ in range(3):
            model(x).reshape(-1).view(64, 64).flatten()

    read = dumped(program, level="mix")
    rank = read.dump.by_rank[0]
    # x, weight, bias, and one result, whatever its shape
    assert rank.manifest.values == 4
    assert rank.manifest.value_references > 30


def test_custom_function_is_a_call_with_its_inner_calls(dumped: Callable[..., Any]) -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return torch.mul(x, 2)

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad.mul(2)

    x = torch.ones(2, requires_grad=True)
    early = Double.apply  # bound before the dump begins
    apply = early if isinstance(early, types.MethodType) else lambda v: Double.apply(v)
    read = dumped(lambda: apply(x).sum().backward())
    forward = ["mul.0.forward", "Double.0.forward", "Tensor.sum.0.forward"]
    assert read.labels == [*forward, "Tensor.sum.0.backward", "Tensor.mul.0.forward", "Double.0.backward"]
    assert read["Double.0.forward"].api == f"{Double.__module__}.{Double.__qualname__}"
    assert read.value("Double.0.backward", "grad_input.0").tolist() == [2.0, 2.0]


def test_inside_vmap_and_func(dumped: Callable[..., Any]) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    read = dumped(lambda: (torch.vmap(torch.sin)(x), torch.func.grad(lambda v: v.pow(2).sum())(x[0])))
    call = read["sin.0.forward"]
    assert "torch.vmap" in call.notes[0]
    np.testing.assert_array_equal(read.value("sin.0.forward", "input.0"), x.numpy())
    np.testing.assert_array_equal(read.value("Tensor.pow.0.forward", "input.0"), x[0].numpy())


def test_what_raises_is_told_and_leaves_the_path_right(dumped: Callable[..., Any]) -> None:
    class Bad(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("no")

    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.ModuleDict({"bad": Bad(), "good": nn.ReLU()})

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with pytest.raises(ValueError, match="no"):
                self.inner["bad"](x)
            with pytest.raises(RuntimeError, match="cannot be multiplied"):
                torch.mm(torch.ones(2, 3), torch.ones(2, 3))
            return self.inner["good"](x.neg())

    root = Root()
    read = dumped(lambda: root(torch.ones(1)), level="mix")
    assert read["Module.inner.bad.Bad.0.forward"].notes == ("raised ValueError",)
    assert read["mm.0.forward"].notes == ("raised RuntimeError",)
    assert read["Tensor.neg.0.forward"].module == ""
    assert read["nn.functional.relu.0.forward"].module == "inner.good"


def test_a_lazy_view_shows_other_values_than_its_memory(dumped: Callable[..., Any]) -> None:
    """A conjugated or negated view lies where its base does, with its shape and strides."""
    z = torch.tensor([1 + 2j, 3 - 1j])
    x = torch.tensor([1.0, -2.0])

    def program() -> None:
        z.add(1)
        z.conj().mul(1)
        torch._neg_view(x.mul(1)).mul(1)

    dumped(program).assert_values(
        {
            ("Tensor.add.0", "input.0"): [1 + 2j, 3 - 1j],
            ("Tensor.mul.0", "input.0"): [1 - 2j, 3 + 1j],
            ("Tensor.mul.1", "output.0"): [1.0, -2.0],
            ("Tensor.mul.2", "input.0"): [-1.0, 2.0],
        }
    )


def test_what_waits_in_the_graph_and_the_queue_is_nothing_for_the_garbage_collector(tmp_path: Path) -> None:
    """It would look at the program's own objects again and again because of records."""
    x, calls = torch.ones(4, requires_grad=True), 50
    kept = []
    threshold, *_ = gc.get_threshold()
    with graphprobe.dump(tmp_path / "dump") as dump:
        x.mul(2)
        dump.flush()
        gc.collect()
        gc.set_threshold(0)
        try:
            before = gc.get_count()[0]
            kept.extend([x.mul(2) for _ in range(calls)])
            grown = gc.get_count()[0] - before
        finally:
            gc.set_threshold(threshold)
    assert grown <= 15 * calls  # the tensor, its node and their hooks among them


def test_other_tensors(dumped: Callable[..., Any]) -> None:
    class Tagged(torch.Tensor):
        pass

    def program() -> None:
        Tagged([1.0, 2.0]).mul(2)
        torch.eye(3).to_sparse().mul(2)
        torch.ones(2, dtype=torch.complex64).conj().mul(1)
        torch.empty(0).neg()
        torch.ones((), dtype=torch.bool).logical_not()
        with torch.inference_mode():
            x = torch.ones(2)
            x.add_(1)
        torch.empty(2, device="meta").neg()

    read = dumped(program, clean=False)
    changed = {("Tensor.add_.0", "input.0"): [1.0, 1.0], ("Tensor.add_.0", "output.0"): [2.0, 2.0]}
    read.assert_values({("Tensor.mul.0", "output.0"): [2.0, 4.0], **changed})
    assert "sparse" in read.slots("Tensor.mul.1.forward")["input.0"].missing
    assert "no values" in read.slots("Tensor.neg.1.forward")["input.0"].missing
    assert read.slots("Tensor.neg.0.forward")["input.0"].stats.count == 0


def test_samples(dumped: Callable[..., Any]) -> None:
    x = torch.arange(2000.0)
    read = dumped(lambda: (x.neg(), x[:100].neg()), sample=10)
    slot = read.slots("Tensor.neg.0.forward")["input.0"]
    assert slot.sampled and slot.stats.count == 2000 and slot.stats.max == 1999
    expected = np.concatenate([np.arange(256), np.arange(256, 1744, 10), np.arange(1744, 2000)])
    np.testing.assert_array_equal(read.value("Tensor.neg.0.forward", "input.0"), expected.astype(np.float32))
    assert not read.slots("Tensor.neg.1.forward")["input.0"].sampled


def test_stacks(dumped: Callable[..., Any]) -> None:
    def inner() -> None:
        torch.ones(1).neg()

    read = dumped(inner, stack=True)
    stack = read["Tensor.neg.0.forward"].stack
    assert stack[0].endswith("in inner: torch.ones(1).neg()")
    assert "test_stacks" in "".join(stack)
    assert not any("/torch/" in line for line in stack)


def test_torch_itself_is_not_changed(run_warm: Callable[..., Any]) -> None:
    """Off means that nothing is installed, and a dump that has ended leaves nothing."""
    code = """
import torch, tempfile, graphprobe
def state():
    m = torch.nn.modules.module
    import torch.optim.optimizer as o
    return (torch._C._len_torch_function_stack(), dict(m._global_forward_hooks), dict(m._global_forward_pre_hooks),
            vars(torch.autograd.Function)["apply"], getattr(torch.autograd.Function.apply, "__code__", None),
            dict(vars(torch.autograd.function)), torch.autograd._engine_run_backward, m._has_any_global_hook,
            torch.distributed.all_reduce, dict(o._global_optimizer_pre_hooks), dict(o._global_optimizer_post_hooks),
            dict(m._global_forward_hooks_always_called))
before = state()
graphprobe.dump
assert state() == before
with graphprobe.dump(tempfile.mkdtemp() + "/d", level="mix"):
    assert state() != before
    torch.ones(2).add(1)
assert state() == before
"""
    done = run_warm("-c", code)
    assert done.code == 0, done.err


@pytest.mark.parametrize("keeps", [True, False])
def test_a_wrapper_that_keeps_no_result_is_told_from_one_that_gives_none(keeps: bool) -> None:
    """As that of torch 2.11, which returns what the function gives without a name for it."""
    told: list[object] = []
    begin = CompiledRegions(lambda fn, args, kwargs: told.append)._make_begin(lambda callback: callback)

    def naming(fn: Callable[[], object]) -> None:
        cleanups: list[Callable[[], None]] = []
        begin(object())
        result = fn()  # noqa: F841
        cleanups[0]()

    def returning(fn: Callable[[], object]) -> object:
        cleanups: list[Callable[[], None]] = []
        begin(object())
        try:
            return fn()
        finally:
            cleanups[0]()

    (naming if keeps else returning)(lambda: None)
    assert told == [None if keeps else UNTOLD]


class Marked(torch.Tensor):
    """A subclass that does nothing of its own."""


def tied() -> list[torch.Tensor]:
    model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 4), nn.Linear(4, 8, bias=False))
    model[2].weight = model[0].weight
    parametrize.register_parametrization(model[1], "weight", nn.Tanh())
    loss = model(torch.arange(8)).square().sum()
    loss.backward()
    return [loss, *(p.grad for p in model.parameters() if p.grad is not None)]


def data_and_set() -> list[torch.Tensor]:
    w = nn.Parameter(torch.ones(3, 4))
    w.data = torch.full((3, 4), 2.0)
    w.data.mul_(3)
    with torch.no_grad():
        w.view(-1)[5] += 0.5
        w[1, 2] += 0.25
    other = torch.zeros(2)
    other.set_(torch.arange(6.0).untyped_storage(), 1, (2, 2), (2, 1))
    return [w * 2, other + 1, (w @ torch.ones(4)).sum()]


def emptied() -> list[torch.Tensor]:
    t = torch.arange(12.0).reshape(3, 4)
    part, size_bytes = t[1:], t.untyped_storage().nbytes()
    t.untyped_storage().resize_(0)
    shapes = torch.empty_like(part).shape
    t.untyped_storage().resize_(size_bytes)
    t.copy_(torch.arange(12.0).reshape(3, 4))
    return [part * 2, torch.tensor(list(shapes))]


def sparse() -> list[torch.Tensor]:
    s = torch.eye(4).to_sparse()
    return [
        torch.sparse.mm(s, torch.ones(4, 2)),
        (s + s).to_dense(),
        torch.eye(3).to_sparse_csr().matmul(torch.ones(3)),
    ]


def nested() -> list[torch.Tensor]:
    n = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
    return [(n * 2).values(), torch.sin(n).values()]


def quantised() -> list[torch.Tensor]:
    q = torch.quantize_per_tensor(torch.arange(6.0), 0.1, 2, torch.quint8)
    return [q.dequantize(), (q.dequantize() + 1)]


def meta() -> list[torch.Tensor]:
    m = torch.empty(5, 7, device="meta")
    return [
        torch.tensor((m @ m.t()).shape),
        nn.Linear(3, 2, device="meta")(torch.empty(4, 3, device="meta")).sum(0).new_ones(1, device="cpu"),
    ]


def subclass() -> list[torch.Tensor]:
    x = torch.arange(4.0).as_subclass(Marked)
    return [(x * 2).as_subclass(torch.Tensor), torch.exp(x).as_subclass(torch.Tensor)]


def transforms() -> list[torch.Tensor]:
    return [torch.vmap(torch.sin)(torch.ones(3, 2)), torch.func.grad(lambda x: (x**3).sum())(torch.ones(3))]


PROGRAMS: dict[str, Callable[[], list[torch.Tensor]]] = {
    f.__name__: f for f in (tied, data_and_set, emptied, sparse, nested, quantised, meta, subclass, transforms)
}


def digest(program: Callable[[], list[torch.Tensor]]) -> str:
    torch.manual_seed(7)
    found = hashlib.sha256()
    for value in program():
        found.update(value.detach().contiguous().view(-1).numpy().tobytes())
    found.update(torch.get_rng_state().numpy().tobytes())
    return found.hexdigest()


@pytest.mark.parametrize("level", ["api", "module", "mix"])
@pytest.mark.parametrize("data", ["stats", "tensor"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_computes_the_same_and_tells_what_is_missing(name: str, data: Any, level: Any, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = digest(PROGRAMS[name])
        with graphprobe.dump(tmp_path / "dump", data=data, level=level):
            assert digest(PROGRAMS[name]) == plain
        assert digest(PROGRAMS[name]) == plain
    dump = open_api_dump(tmp_path / "dump")
    assert dump.problems() == ()
    for step in dump.steps(0):
        for call in dump.calls(0, step):
            for slot in call.slots:
                known = slot.scalar is not None or slot.stats is not None or slot.missing
                assert known, f"{call.label} {slot.name} has neither statistics nor a reason"
