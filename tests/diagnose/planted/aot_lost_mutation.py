"""AOTAutograd does not see that an input is written to: the new value never reaches the caller."""

import torch
import torch._functorch._aot_autograd.collect_metadata_analysis as analysis

from diagnose.planting import attribute


def none(value):
    return False


def step(state, x):
    state.mul_(0.9).add_(x)
    return torch.tanh(state)


def make():
    return step, (torch.randn(4, 5), torch.randn(4, 5)), {}


PLANT = attribute(analysis, "has_data_mutation", none)
EXPECT = {
    "kind": "lost_mutation wrong_value",
    "stage": "aot",
    "ops": "aten.add_ aten.mul_ aten.copy_ aten.add aten.mul",
}
