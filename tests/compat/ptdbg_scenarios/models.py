"""GPT-2 and a convnet, as somebody trains them, and an operator that can be made wrong."""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils._python_dispatch import TorchDispatchMode


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in ((3, 8), (8, 8), (8, 8), (8, 16)))
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in (8, 8, 8, 16))
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.dropout(F.relu(norm(conv(x))), 0.1, self.training)
        return self.head(F.avg_pool2d(x, 8).flatten(1))


def build(name):
    if name == "convnet":
        return ConvNet()
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_layer=3, n_embd=48, n_head=4, n_positions=32, vocab_size=96))


def loss_of(model, name, dtype=torch.float32):
    generator = torch.Generator().manual_seed(7)
    if name == "convnet":
        return model(torch.randn(4, 3, 16, 16, generator=generator).to(dtype)).square().mean()
    ids = torch.randint(0, 96, (2, 16), generator=generator)
    return model(ids, labels=ids).loss


WRONG = {"gpt2": torch.ops.aten.tanh.default, "convnet": torch.ops.aten.convolution.default}


class WrongOp(TorchDispatchMode):
    """The second run of an operator gives a result that is 3 % too large, as a broken kernel might."""

    def __init__(self, op):
        super().__init__()
        self.op, self.seen = op, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunction():  # the program has not called this operator
            result = func(*args, **(kwargs or {}))
            self.seen += func is self.op
            return result * 1.03 if func is self.op and self.seen == 2 else result
