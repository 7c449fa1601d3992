"""A function with a cache of results runs its body again. Found by differential testing."""

import functools

import torch

calls = []


@functools.lru_cache
def gain(k):
    calls.append(k)
    return k * 2.0


def program(x):
    return x * gain(3)


def make():
    return program, (torch.ones(4),), {}


def extra_calls():
    return [((torch.ones(4),), {})]


EXPECT = {"kind": "side_effect", "stage": "dynamo", "ops": "gain", "lines": 60}
