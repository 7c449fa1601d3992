"""pytorch/pytorch#191203: attention whose scale is a tensor is fused into an op that takes a number only."""

import torch


def program(q, k, v, mask, scale):
    scores = q @ k.transpose(-2, -1) / scale
    return torch.softmax(scores + mask, dim=-1) @ v


def make():
    q, k, v = (torch.randn(1, 2, 8, 8) for _ in range(3))
    mask = torch.triu(torch.full((8, 8), -1e9), diagonal=1)
    return program, (q, k, v, mask, torch.tensor(0.5)), {}


EXPECT = {
    "kind": "crash_compile",
    "stage": "joint",
    "ops": "aten.bmm aten.div aten.add aten._softmax aten.amax aten.sub aten.exp aten.sum",
}
