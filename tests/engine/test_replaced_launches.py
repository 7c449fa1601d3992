"""A compiled graph with its launches replaced: nothing replaced changes nothing, everything replaced is as eager."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from graphprobe.engine.interpret import copied_together, flat_outputs
from graphprobe.engine.replaced_launches import CannotReplaceError, MixedGraph, MixedRun
from graphprobe.internals.inductor import stages
from graphprobe.internals.inductor.lowered_graph import LoweredGraph, watched_lowering

F = torch.nn.functional
ATTENTION = F.scaled_dot_product_attention


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)
        self.head = torch.nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.head(F.max_pool2d(self.norm(self.conv(x)).relu(), 2).mean((2, 3)))
        return F.layer_norm(y, (8,))


def attention(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = (x @ w).view(2, 5, 2, 8).transpose(1, 2)
    return ATTENTION(y, y, y).softmax(-1)


def several(x: torch.Tensor, y: torch.Tensor) -> Any:
    values, order = torch.sort(x, -1)
    joined = torch.cat([x.sin(), y.cos(), x + y], 0)
    y[1:3] = x[1:3].relu()
    x.add_(1)
    return values + 1, order, joined.softmax(-1), joined.cumsum(0), (x * y).sum(0), torch.tensor([1.0, 2.0]) + x[:, :2]


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def build(fn: Any, args: Any, *, grad: bool = False, dynamic: bool | None = None) -> list[tuple[MixedGraph, Any, Any]]:
    """Each compiled graph with its inputs of the first call and its outputs then."""
    found: list[tuple[LoweredGraph, Any, list[Any], list[Any]]] = []

    def inner(gm: Any, inputs: Any, settings: Any) -> Callable[[list[Any]], Any]:
        with watched_lowering() as lowered:
            compiled = stages.compile_kernels(gm, inputs, settings)

        def run(given: list[Any]) -> Any:
            before = copied_together(list(given))
            result = compiled(given)
            found.append((lowered[-1], compiled, before, copied_together(flat_outputs(result))))
            return result

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    torch._dynamo.reset()
    torch.manual_seed(0)
    given = [a.clone().requires_grad_(grad) for a in args]
    made = torch.compile(fn, backend=lambda gm, inputs: stages.kernels(gm, inputs, inner), dynamic=dynamic)
    out = made(*given)
    if grad:
        (out * torch.linspace(0.5, 1.5, out.numel()).view(out.shape)).sum().backward()
    return [(MixedGraph(lowered, compiled), before, outputs) for lowered, compiled, before, outputs in found]


def same(a: MixedRun, outputs: list[Any]) -> bool:
    pairs = zip(a.outputs, outputs, strict=True)
    return all(torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y for x, y in pairs)


def near(a: MixedRun, b: MixedRun) -> None:
    for x, y in zip([*a.outputs, *a.inputs], [*b.outputs, *b.inputs], strict=True):
        if isinstance(x, torch.Tensor):
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


CASES: dict[str, tuple[Callable[[], Any], list[torch.Tensor], bool, bool | None]] = {
    "net": (Net, [draw(2, 3, 10, 10)], True, None),
    "attention": (lambda: attention, [draw(2, 5, 16), draw(16, 16)], False, True),
    "several": (lambda: several, [draw(4, 8), draw(4, 8) * 2], False, None),
}


@functools.cache
def built(name: str) -> list[tuple[MixedGraph, Any, Any]]:
    make, args, grad, dynamic = CASES[name]
    return build(make(), args, grad=grad, dynamic=dynamic)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_none_and_all(name: str) -> None:
    assert len(built(name)) == (2 if name == "net" else 1)
    for mixed, inputs, outputs in built(name):
        plain = mixed.run(inputs)
        assert same(plain, outputs)
        everything = range(len(mixed.launches))
        assert plain.ran == list(everything)
        for replaced in (everything, *([at] for at in everything)):
            run = mixed.run(inputs, replaced)
            assert run.replaced == frozenset(replaced), [x.reason for x in mixed.launches]
            near(plain, run)
        assert {launch.how for launch in mixed.launches} <= {"graph", "ir"}
        assert all(launch.reason for launch in mixed.launches if launch.how == "ir")


def test_replaced_launch_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ((mixed, inputs, outputs),) = built("attention")
    name = next(launch.io.name for launch in mixed.launches if launch.io.kind == "kernel")

    def broken(*args: Any) -> None:
        raise ValueError("launched")

    monkeypatch.setattr(mixed.module, name, broken)
    with pytest.raises(ValueError, match="launched"):
        mixed.run(inputs)
    run = mixed.run(inputs, [at for at, launch in enumerate(mixed.launches) if launch.io.name == name])
    torch.testing.assert_close(run.outputs[0], outputs[0])


def test_random_launch_is_refused_with_its_reason() -> None:
    (mixed, inputs, _) = build(lambda x: F.dropout(x, 0.5) + 1, [draw(8, 8)])[0]
    everything = range(len(mixed.launches))
    with pytest.raises(CannotReplaceError, match="random"):
        mixed.run(inputs, everything)
    run = mixed.run(inputs, everything, forgiving=True)
    assert run.replaced == frozenset()
    assert {launch.how for launch in mixed.launches} == {"no"}
    assert all("random" in launch.reason for launch in mixed.launches)


@pytest.mark.cuda
def test_triton_kernels_are_replaced() -> None:
    args = [draw(64, 64).cuda(), draw(64, 64).cuda()]
    (mixed, inputs, outputs) = build(lambda x, w: torch.mm(x.relu(), w).softmax(-1), args)[0]
    assert any(launch.io.name.startswith("triton") for launch in mixed.launches)
    assert same(mixed.run(inputs), outputs)
    everything = range(len(mixed.launches))
    run = mixed.run(inputs, everything)
    assert run.replaced == frozenset(everything)
    torch.testing.assert_close(run.outputs[0], outputs[0])
