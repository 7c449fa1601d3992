"""pytorch/pytorch#197089, see `std_overflow`: in an MLP under bfloat16 autocast, where the decomposition of each layer
norm also gives statistics of another dtype, which nobody sees."""

import torch

from diagnose.hosts import mlp


def normalise(h):
    large = h.float() * 1e20
    return h / (1 + large.std(-1, keepdim=True) * 1e-20)


def make():
    model, args, kwargs = mlp(inner=normalise, at=3)

    def step(x):
        with torch.autocast("cpu", torch.bfloat16):
            return model(x).float().square().mean()

    return step, args, kwargs


GRAD = True

EXPECT = {
    "kind": "nonfinite wrong_value wrong_gradient",
    "stage": "decomposition",
    "ops": "aten.std aten.var aten.sqrt",
    "lines": 60,
}
