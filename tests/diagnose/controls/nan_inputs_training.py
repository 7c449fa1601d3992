"""NaN and infinity among the inputs of an MLP, with its backward."""

from diagnose.hosts import mlp

GRAD = True


def make():
    model, (x,), kwargs = mlp()
    x[1, 3], x[2, 0] = float("nan"), float("inf")
    return model, (x,), kwargs
