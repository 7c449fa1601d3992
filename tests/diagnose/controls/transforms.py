"""Per-sample gradients, a Hessian and a product with a Jacobian, by torch.func."""

import torch
from torch.func import functional_call, grad, hessian, jvp, vmap


class Transforms(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))

    def loss(self, parameters, x, y):
        return (functional_call(self.model, parameters, (x,)) - y).square().mean()

    def forward(self, x, y):
        parameters = dict(self.model.named_parameters())
        each = vmap(grad(self.loss), (None, 0, 0))(parameters, x, y)
        curved = hessian(lambda one: self.model(one).sum().sin())(x[0])
        _, moved = jvp(lambda one: torch.logsumexp(self.model(one), 0), (x,), (torch.ones_like(x),))
        return [g.std(0) for g in each.values()], curved, moved


def make():
    return Transforms(), (torch.randn(6, 5), torch.randn(6, 1)), {}
