"""Gradients of each call: its own share, by the edges of the autograd graph."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from graphprobe.internals.operators.autograd_edges import edge_of, plans_between, sequence_number


def test_linear_gives_all_three_gradients_and_its_own_share(dumped: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 4, requires_grad=True)
    weight, bias = torch.randn(3, 4, requires_grad=True), torch.randn(3, requires_grad=True)

    def program() -> None:
        (F.linear(x, weight, bias) + 2 * F.linear(x, weight, bias).sum()).sum().backward()

    read = dumped(program)
    shares: dict[str, np.ndarray[Any, Any]] = {}
    for number in range(2):
        label = f"nn.functional.linear.{number}.backward"
        assert list(read.slots(label)) == ["grad_output.0", "grad_input.0", "grad_input.1", "grad_input.2"]
        for name in ("grad_input.0", "grad_input.1", "grad_input.2"):
            shares[name] = shares.get(name, 0) + read.value(label, name)
    for name, tensor in (("grad_input.0", x), ("grad_input.1", weight), ("grad_input.2", bias)):
        np.testing.assert_allclose(shares[name], tensor.grad.numpy(), rtol=1e-5, atol=1e-5)
    assert read["nn.functional.linear.0.backward"].index == 0


@pytest.mark.parametrize("level", ["module", "mix"])
@pytest.mark.parametrize("inplace", [False, True])
def test_a_module_keeps_its_backward(dumped: Callable[..., Any], level: str, inplace: bool) -> None:
    """Also where its output, which may be a view, is changed in place afterwards."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=inplace), nn.Conv1d(5, 2, 1), nn.ReLU(inplace=inplace))
    x = torch.randn(2, 5, 4, requires_grad=True)

    def program() -> None:
        model(x).pow(2).sum().backward()

    read = dumped(program, level=level)
    linear, whole = "Module.0.Linear.0.backward", "Module.Sequential.0.backward"
    others = ["Module.3.ReLU.1.backward", "Module.2.Conv1d.0.backward", "Module.1.ReLU.0.backward"]
    labels = [label for label in read.labels if label.startswith("Module") and label.endswith("backward")]
    assert labels == [*others, linear, whole]
    slots = read.slots(linear)
    assert list(slots) == ["grad_output.0", "grad_input.0", "grad_parameter.weight", "grad_parameter.bias"]
    assert slots["grad_output.0"].meta.shape[-1] == 4
    same = np.testing.assert_array_equal
    same(read.value(linear, "grad_parameter.weight"), model[0].weight.grad.numpy())
    same(read.value(linear, "grad_output.0").reshape(-1, 4).sum(0), model[0].bias.grad.numpy())
    same(read.value(whole, "grad_input.0"), x.grad.numpy())


def test_an_input_used_twice(dumped: Callable[..., Any]) -> None:
    x = torch.tensor([3.0], requires_grad=True)
    y = torch.tensor([5.0], requires_grad=True)

    class Residual(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + x * y * x

    module = Residual()
    read = dumped(lambda: ((x * x).backward(), module(x).backward()), level="mix")
    assert read.value("Tensor.mul.0.backward", "grad_input.0").tolist() == [3.0]
    assert read.value("Tensor.mul.0.backward", "grad_input.1").tolist() == [3.0]
    assert read.value("Module.Residual.0.backward", "grad_input.0").tolist() == [31.0]


def test_retained_graph_and_double_backward(dumped: Callable[..., Any]) -> None:
    x = torch.tensor([2.0], requires_grad=True)

    def program() -> None:
        y = x.pow(3)
        y.backward(retain_graph=True)
        (first,) = torch.autograd.grad(y, x, create_graph=True)
        first.backward()

    read = dumped(program)
    found = [c for c in read.calls if c.label == "Tensor.pow.0.backward"]
    assert [c.notes for c in found] == [(), ("backward number 2 through this call",)]
    assert x.grad.tolist() == [24.0]


def test_a_part_of_the_graph(dumped: Callable[..., Any]) -> None:
    """Nodes that do not run leave a record of what did."""
    w = torch.randn(3, 3, requires_grad=True)
    x = torch.randn(2, 2, 3, requires_grad=True)
    read = dumped(lambda: torch.autograd.grad(F.linear(x, w).sum(), w))
    slots = read.slots("nn.functional.linear.0.backward")
    assert "grad_input.1" in slots and "grad_output.0" in slots


def test_no_gradients_no_backward(dumped: Callable[..., Any]) -> None:
    w = torch.ones(2, requires_grad=True)

    def program() -> None:
        with torch.no_grad():
            w.mul(2)
        with torch.inference_mode():
            w.mul(2)
        w.detach().mul(2)

    assert not any(c.direction == "backward" for c in dumped(program).calls)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_is_not_a_second_call(dumped: Callable[..., Any], reentrant: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    x = torch.randn(2, 4, requires_grad=True)
    read = dumped(lambda: checkpoint(model, x, use_reentrant=reentrant).sum().backward(), level="mix")
    assert read.forward.count("nn.functional.linear.0.forward") == 1
    assert not {"nn.functional.linear.1.forward", "Module.0.Linear.1.forward"} & set(read.forward)
    backward = [c for c in read.calls if c.direction == "backward" and "linear" in c.label]
    assert len(backward) == 1
    np.testing.assert_array_equal(read.value(backward[0].label, "grad_input.1"), model[0].weight.grad.numpy())
    assert bool(backward[0].notes) == reentrant
    assert any("checkpoint ran again" in note for note in read.notes)


def test_nothing_is_kept_alive(dumped: Callable[..., Any]) -> None:
    """Neither by a cycle through the hooks, nor by what is known of values."""
    seen: list[weakref.ref[Any]] = []

    class Held:
        """Saved by a node; gone when the graph is."""

    class Keep(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.held = Held()
            seen.append(weakref.ref(ctx.held))
            return x * 1

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad

    model = nn.Linear(4, 4)

    def program() -> None:
        gc.disable()
        try:
            for run_it in (True, False):
                y = Keep.apply(model(torch.randn(2, 4)))
                inner = F.linear(y, model.weight)
                seen.extend([weakref.ref(y), weakref.ref(inner)])
                loss = inner.sum()
                if run_it:
                    loss.backward()
                del y, inner, loss
            assert all(one() is None for one in seen)
        finally:
            gc.enable()

    dumped(program, level="mix")
    assert len(seen) == 6


def test_the_walk_ends_at_older_nodes() -> None:
    """A value from before the call that is no input of it must not lead the walk through all of the graph."""
    x = torch.ones(1, requires_grad=True)
    outside = x
    for _ in range(50):
        outside = outside * 2
    first = sequence_number()
    inner = torch.ones(1, requires_grad=True)
    edge = edge_of(inner)
    out = inner * outside
    (plan,) = plans_between([(0, edge)], [(1, out)], first)
    assert plan.outputs == [(0, 1)] and plan.inputs == [(0, 0)]
