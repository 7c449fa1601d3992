"""Objects that are equal are one in a set. Found by differential testing."""

import torch


class Tag:
    def __init__(self, name):
        self.name = name

    def __eq__(self, other):
        return self.name == other.name

    def __hash__(self):
        return hash(self.name)


def program(x, names):
    tags = {Tag(name) for name in names}
    return torch.relu(x) * len(tags)


def make():
    return program, (torch.ones(4), ["a", "b", "a"]), {}


EXPECT = {"kind": "wrong_value", "stage": "dynamo", "ops": "Tag len tags", "lines": 60}
