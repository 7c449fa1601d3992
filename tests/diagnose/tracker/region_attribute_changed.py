"""A region that is compiled once reads an attribute that the program sets between its two calls: the second call has
the first one's value. Found by differential testing, near pytorch#192905."""

import torch


class Schedule:
    rate = 1


def make():
    schedule = Schedule()

    @torch.compiler.nested_compile_region
    def scaled(x):
        return x * schedule.rate

    def program(x):
        first = scaled(x)
        schedule.rate = 5
        return first, scaled(x)

    return program, (torch.ones(3),), {}


EXPECT = {"kind": "wrong_value", "stage": "dynamo", "ops": "schedule.rate invoke_subgraph", "lines": 65}
