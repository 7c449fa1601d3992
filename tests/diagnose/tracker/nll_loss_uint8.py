"""`nll_loss` takes targets of uint8, and its decomposition, which Dynamo runs on fake tensors, does not. Found by
differential testing."""

import torch


def program(x, t):
    scores = torch.nn.functional.log_softmax(torch.tanh(x) * 3, 1)
    return torch.nn.functional.nll_loss(scores, t, reduction="sum") * 2


def make():
    return program, (torch.randn(3, 4), torch.tensor([1, 2, 3], dtype=torch.uint8)), {}


EXPECT = {
    "kind": "extra_exception crash_compile",
    "stage": "decomposition",
    "ops": "torch.nn.functional.nll_loss aten.nll_loss_forward",
    "lines": 40,
}
