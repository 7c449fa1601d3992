"""pytorch/pytorch#198095: a view of an input that aliases another, mutated one is rebuilt from the wrong base."""

import torch


def program(base, rest):
    base.add_(100)
    return rest[0]


def make():
    base = torch.arange(24.0).reshape(4, 6)
    return program, (base, base[1:]), {}


EXPECT = {
    "kind": "extra_exception crash_runtime wrong_value",
    "stage": "aot",
    "ops": "aten.select aten.add_ operator.getitem _operator.getitem torch.select",
}
