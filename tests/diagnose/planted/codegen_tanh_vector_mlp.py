"""The vector code of tanh saturates too early, the scalar code is right, in an MLP."""

from diagnose.hosts import mlp
from diagnose.planting import cpp


def saturating(x):
    return f"at::vec::clamp({x}.tanh(), decltype({x})(-0.7f), decltype({x})(0.7f))"


def make():
    return mlp(d=32)


PLANT = cpp("tanh", saturating, scalar=False)
EXPECT = {"kind": "wrong_value", "stage": "codegen", "ops": "aten.tanh"}
