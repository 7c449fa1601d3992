"""Inductor's own injected fault: relu adds one, in the activations of a transformer."""

from torch.nn import functional

from diagnose.hosts import transformer
from diagnose.planting import inductor


def make():
    return transformer(act=functional.relu)


def plant():
    return inductor(cpp__inject_relu_bug_TESTING_ONLY="accuracy")


EXPECT = {
    "kind": "wrong_value",
    "stage": "codegen",
    "culprit_ops": ["aten.relu.default"],
    "direction": "forward",
}
