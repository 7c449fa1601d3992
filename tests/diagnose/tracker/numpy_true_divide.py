"""Integers divided by numpy are float64, compiled float32. Found by differential testing."""

import numpy as np


def program(a):
    return (a + 1) / 3


def make():
    return program, (np.arange(6),), {}


EXPECT = {"kind": "wrong_dtype", "stage": "dynamo", "ops": "operator.truediv", "lines": 60}
