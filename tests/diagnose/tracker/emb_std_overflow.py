"""pytorch/pytorch#197089, see `std_overflow`: in an MLP that normalises very large values by their deviation."""

from diagnose.hosts import mlp


def normalise(h):
    large = h * 1e25
    return h + large / (large.std(-1, keepdim=True) + 1e-6)


def make():
    return mlp(inner=normalise, at=1)


EXPECT = {"kind": "nonfinite wrong_value", "stage": "decomposition", "ops": "aten.std aten.var aten.sqrt"}
