"""Integers rounded to tens. Found by differential testing."""

import numpy as np


def program(a):
    return np.round(a, -1) + 1


def make():
    return program, (np.array([14, 26, -17]),), {}


EXPECT = {"kind": "wrong_value", "stage": "dynamo", "ops": "numpy.round np.round", "lines": 60}
