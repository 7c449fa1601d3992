"""`cumsum` of int32 is of int64. Found by differential testing."""

import numpy as np


def program(a):
    return (a * 2).cumsum()


def make():
    return program, (np.arange(6, dtype=np.int32),), {}


EXPECT = {"kind": "wrong_dtype", "stage": "dynamo", "ops": "numpy.cumsum cumsum", "lines": 60}
