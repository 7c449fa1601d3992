"""Eight threads compile eight functions at once; the backwards are called by other threads than the forwards."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

THREADS = 8
barrier = threading.Barrier(THREADS)
losses: dict[int, torch.Tensor] = {}
inputs: dict[int, torch.Tensor] = {}


def function_of(number: int) -> Any:
    namespace: dict[str, Any] = {}
    # A constant that no other function has, in the forward and, through the chain rule, in the backward.
    exec(f"def thread_{number}(x):\n    return ((x * {1000 + number}.0).sin() * x.cos()).sum()\n", namespace)
    return namespace[f"thread_{number}"]


functions = [function_of(number) for number in range(THREADS)]


def forward(number: int) -> None:
    inputs[number] = torch.linspace(0, 1, 5 + number, requires_grad=True)
    compiled = torch.compile(functions[number], dynamic=False)
    barrier.wait()
    losses[number] = compiled(inputs[number])


def backward(number: int) -> None:
    barrier.wait()
    losses[number].backward()


def together(work: Any) -> list[Any]:
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(work, range(THREADS)))


def same_function_in_all() -> None:
    """One compiled graph, first called by eight threads at once, and one that eight threads compile alike."""
    layer = torch.compile(lambda x: (x @ x.t()).relu() * 77)

    def call(_: int) -> torch.Tensor:
        barrier.wait()
        return layer(torch.full((4, 4), 1.0))

    assert all(torch.equal(result, torch.full((4, 4), 308.0)) for result in together(call))


def main() -> None:
    together(forward)
    together(backward)
    for number in range(THREADS):
        x = inputs[number].detach().requires_grad_()
        expected = functions[number](x)
        expected.backward()
        assert torch.allclose(losses[number], expected, rtol=1e-3), number
        # sin of up to 1007 radians: the argument's rounding is what limits the precision.
        assert torch.allclose(inputs[number].grad, x.grad, rtol=1e-2, atol=0.5), number
    same_function_in_all()
    config = torch._inductor.config
    print("THREADS RIGHT", config.fx_graph_cache, torch._functorch.config.enable_autograd_cache)

    from torch._inductor.codecache import PyCodeCache

    left = {type(v).__module__ for m in PyCodeCache.modules for v in vars(m).values()}
    print("LEFT", sorted(name for name in left if name.startswith("graphprobe")))


main()
