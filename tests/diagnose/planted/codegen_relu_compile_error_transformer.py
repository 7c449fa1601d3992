"""Inductor's own injected fault: the code of relu does not compile, in the activations of a transformer."""

from torch.nn import functional

from diagnose.hosts import transformer
from diagnose.planting import inductor


def make():
    return transformer(act=functional.relu)


def plant():
    return inductor(cpp__inject_relu_bug_TESTING_ONLY="compile_error")


EXPECT = {
    "kind": "crash_compile",
    "stage": "codegen",
    "culprit_ops": ["aten.relu.default"],
    "direction": "forward",
}
