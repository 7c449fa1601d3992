"""The text of a KeyError has quotes, compiled it has none. Found by differential testing."""

import torch


def program(x, table):
    try:
        return x * table["gain"]
    except KeyError as error:
        return x * len(str(error))


def make():
    return program, (torch.ones(4), {}), {}


EXPECT = {"kind": "wrong_value", "stage": "dynamo", "ops": "KeyError str len", "lines": 60}
