"""`sum` of texts raises uncompiled, and joins them compiled. Found by differential testing."""

import torch


def program(x, parts):
    name = sum((p for p in parts), "")
    return x * len(name)


def make():
    return program, (torch.ones(3), ["ab", "c"]), {}


EXPECT = {"kind": "missing_exception", "stage": "dynamo", "ops": "sum", "lines": 60}
