"""A float that `full` fills with keeps the value of the first call, out of the cache of AOTAutograd
(pytorch/pytorch#197554, of another op)."""


def program(x, s):
    import torch

    return x * s, torch.full((2,), s)


def make():
    import torch

    return program, (torch.ones(4), 2.5), {}


def extra_calls():
    import torch

    return [((torch.ones(4), 3.5), {}), ((torch.ones(4), -0.5), {})]


COMPILE = {"dynamic": True}

EXPECT = {"kind": "wrong_value", "stage": "dynamo runtime aot", "ops": "torch.full aten.full", "lines": 40}
