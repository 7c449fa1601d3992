"""`np.fix` rounds to the nearest. Found by differential testing."""

import numpy as np
import torch


def program(x):
    a = np.fix(x.numpy() * 1.3)
    return torch.from_numpy(a) + x


def make():
    return program, (torch.linspace(-2, 2, 9),), {}


EXPECT = {"kind": "wrong_value", "stage": "dynamo", "ops": "numpy.fix np.fix", "lines": 60}
