"""A decimal argument. Found by differential testing."""

import decimal

import torch


def program(x, price):
    return torch.sin(x) * float(price)


def make():
    return program, (torch.ones(4), decimal.Decimal("2.5")), {}


def extra_calls():
    return [((torch.ones(4), decimal.Decimal("3.5")), {})]


EXPECT = {"kind": "crash_compile crash_runtime", "stage": "dynamo", "ops": "float", "lines": 60}
