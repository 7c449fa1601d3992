"""No issue known; found by comparing ops: multilabel_margin_loss is too large for fewer
targets than classes."""

import torch


def program(x, target):
    return torch.nn.functional.multilabel_margin_loss(x.tanh(), target) * 2


def make():
    return (program, (torch.randn(3, 5), torch.tensor([[0, 2, -1, 1, 1]] * 3)), {})


EXPECT = {
    "kind": "wrong_value",
    "stage": "decomposition aot",
    "ops": "aten.multilabel_margin_loss_forward torch.nn.functional.multilabel_margin_loss",
}
