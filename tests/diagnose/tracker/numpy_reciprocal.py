"""The reciprocal of integers is an integer. Found by differential testing."""

import numpy as np


def program(a):
    return np.reciprocal(a) + 1


def make():
    return program, (np.array([1, 2, 4]),), {}


EXPECT = {"kind": "wrong_value wrong_dtype", "stage": "dynamo", "ops": "numpy.reciprocal np.reciprocal", "lines": 60}
