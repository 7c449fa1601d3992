"""pytorch/pytorch#198031: a custom op that writes to a clone of its other argument gets the same tensor for both."""

import torch


@torch.library.custom_op("graphprobe_cases::accumulate_", mutates_args=("y",))
def accumulate_(y: torch.Tensor, x: torch.Tensor) -> None:
    y.mul_(2).add_(x)


def program(x):
    x = x + 1
    y = x.clone()
    torch.ops.graphprobe_cases.accumulate_(y, x)
    return y


def make():
    return program, (torch.randn(8),), {}


EXPECT = {
    "kind": "wrong_value aliasing",
    "stage": "post_grad",
    "ops": "graphprobe_cases.accumulate_ higher_order.auto_functionalized_v2 auto_functionalized_v2 aten.clone",
}
