"""An object with `__index__` as the end of a slice. Found by differential testing."""

import torch


class Width:
    def __index__(self):
        return 2


def program(x, width):
    return x[:, :width].sin()


def make():
    return program, (torch.ones(3, 4), Width()), {}


EXPECT = {
    "kind": "crash_compile crash_runtime wrong_exception",
    "stage": "dynamo",
    "ops": "x[:, :width] torch.Tensor.__getitem__ operator.getitem",
    "lines": 60,
}
