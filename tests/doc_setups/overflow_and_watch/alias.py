import torch


@torch.library.custom_op("app::normalise", mutates_args=())
def normalise(x: torch.Tensor) -> torch.Tensor:
    x[1].mul_(2)
    return x + 1


@normalise.register_fake
def _(x):
    return torch.empty_like(x)


@torch.compile
def step(a, b):
    hidden = a @ b
    return torch.ops.app.normalise(hidden), hidden


torch.manual_seed(0)
step(torch.randn(4, 6), torch.randn(6, 6))
