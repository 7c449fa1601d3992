"""Inductor's own injected fault: log1p adds one to its argument, in a bf16 transformer."""

import torch

from diagnose.hosts import transformer
from diagnose.planting import inductor


def compress(h):
    return h.sign() * torch.log1p(h.abs())


def make():
    return transformer(torch.bfloat16, inner=compress, at=3)


def plant():
    return inductor(cpp__inject_log1p_bug_TESTING_ONLY="accuracy")


EXPECT = {
    "kind": "wrong_value",
    "stage": "codegen",
    "culprit_ops": ["aten.log1p.default"],
    "direction": "forward",
}
