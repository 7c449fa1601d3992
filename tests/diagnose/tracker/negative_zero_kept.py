"""A float is guarded by ==: -0.0 runs what was compiled for 0.0, and divides to the other infinity
(pytorch/pytorch#192604)."""


def program(x, settings):
    return 1 / (x * settings["scale"])


def make():
    import torch

    return program, (torch.ones(3), {"scale": 0.0}), {}


def extra_calls():
    import torch

    return [((torch.ones(3), {"scale": -0.0}), {})]


EXPECT = {
    "kind": "wrong_value nonfinite",
    "stage": "dynamo runtime",
    "ops": "settings['scale'] operator.mul aten.mul torch.Tensor.mul",
}
