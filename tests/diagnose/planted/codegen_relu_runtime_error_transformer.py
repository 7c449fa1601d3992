"""Inductor's own injected fault: the code of relu throws, in the activations of a transformer."""

from torch.nn import functional

from diagnose.hosts import transformer
from diagnose.planting import inductor


def make():
    return transformer(act=functional.relu)


def plant():
    return inductor(cpp__inject_relu_bug_TESTING_ONLY="runtime_error")


EXPECT = {
    "kind": ["crash_runtime", "segfault", "extra_exception"],
    "stage": ["codegen", "runtime"],
    "culprit_ops": ["aten.relu.default"],
    "direction": "forward",
}
