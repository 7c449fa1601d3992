"""`np.median` has a dimension too many. Found by differential testing."""

import numpy as np


def program(a):
    return a - np.median(a), np.median(a * 2)


def make():
    return program, (np.arange(7.0),), {}


EXPECT = {"kind": "wrong_shape", "stage": "dynamo", "ops": "numpy.median np.median", "lines": 60}
