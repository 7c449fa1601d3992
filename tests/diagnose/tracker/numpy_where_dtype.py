"""`np.where` of Python numbers. Found by differential testing."""

import numpy as np


def program(a):
    mask = np.where(a > 1, 1.1, 0)
    return mask * 2


def make():
    return program, (np.arange(6.0),), {}


EXPECT = {"kind": "wrong_dtype wrong_value", "stage": "dynamo", "ops": "numpy.where np.where", "lines": 60}
