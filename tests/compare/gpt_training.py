# ruff: noqa: E501
"""A GPT in training, as text, and what people change in such a program, with the call to be named."""

import dataclasses
from pathlib import Path
from typing import Any

import torch

import graphprobe
from graphprobe.compare.result import WrongCall

PROGRAM = """
import torch
import torch.nn.functional as F
from torch import nn


class Cap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 4 * torch.tanh(x / 4)

    @staticmethod
    def backward(ctx, grad):
        return grad * (1 - torch.tanh(ctx.saved_tensors[0] / 4) ** 2)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out, self.drop = nn.Linear(32, 96), nn.Linear(32, 32), nn.Dropout(0.1)
        self.register_buffer("mask", torch.ones(12, 12).tril().bool())

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q = q.reshape(4, 12, 4, 8).transpose(1, 2)
        k = k.reshape(4, 12, 4, 8).transpose(1, 2)
        v = v.reshape(4, 12, 4, 8).transpose(1, 2)
        scores = q @ k.transpose(-2, -1) / 8**0.5
        scores = scores.masked_fill(~self.mask, float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        weights = self.drop(weights)
        mixed = weights @ v
        mixed = mixed.transpose(1, 2).reshape(4, 12, 32)
        return self.out(mixed)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.attn, self.ln2 = nn.LayerNorm(32), Attention(), nn.LayerNorm(32)
        self.up, self.down = nn.Linear(32, 128), nn.Linear(128, 32)
        self.share = nn.Parameter(torch.tensor(0.3))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        h = F.layer_norm(x, (32,), self.ln2.weight, self.ln2.bias)
        h = self.down(F.gelu(self.up(h)))
        return x + torch.lerp(h, Cap.apply(h), self.share)


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.place = nn.Embedding(64, 32), nn.Embedding(16, 32)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 64, bias=False)
        self.head.weight = self.token.weight
        self.register_buffer("seen", torch.zeros(32))

    def forward(self, ids):
        x = self.token(ids) + self.place(torch.arange(12))
        for block in self.blocks:
            x = block(x)
        with torch.no_grad():
            self.seen.mul_(0.9).add_(x.mean((0, 1)), alpha=0.1)
        return self.head(self.norm(x))


def prepare():
    torch.manual_seed(0)
    model, average = Gpt(), Gpt()
    average.load_state_dict(model.state_dict())
    rows = list(torch.randint(0, 64, (4, 4, 13), generator=torch.Generator().manual_seed(1)))
    torch.manual_seed(2)
    return model, average, rows


def train(model, average, rows):
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    net = model
    data = iter(rows)
    for step in range(2):
        optimizer.zero_grad()
        for part in range(2):
            batch = next(data)
            logits = net(batch[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()) / 2
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            for mean, p in zip(average.parameters(), model.parameters(), strict=True):
                mean.mul_(0.9).add_(p, alpha=0.1)
"""


@dataclasses.dataclass(frozen=True)
class Change:
    """A text that is replaced by another; of the first finding a part of its API, its module, and its kind."""

    old: str
    new: str
    api: str = ""
    module: str = ""
    kind: str = ""

    def names(self, first: WrongCall) -> bool:
        """Whether a finding is of the call that has the change."""
        calls = [call for call in (first.candidate, first.reference) if call is not None]
        found = any(self.api in call.api and call.module.startswith(self.module) for call in calls)
        return found and first.kind.startswith(self.kind)


LINEAR = "self.down(F.gelu(self.up(h)))"
STEP = "        optimizer.step()\n"
LOSS = "F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())"
NORM = "F.layer_norm(x, (32,), self.ln2.weight, self.ln2.bias)"
OPTIMIZER = "lr=1e-3, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.01"
CLIP = "        nn.utils.clip_grad_norm_(model.parameters(), 0.5)\n"
BY_HAND = """        norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
        for p in model.parameters():
            if p.grad is not None:
                p.grad.mul_((0.5 / (norm + 1e-6)).clamp(max=1.0))
"""
ATTENTION = """        scores = q @ k.transpose(-2, -1) / 8**0.5
        scores = scores.masked_fill(~self.mask, float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        weights = self.drop(weights)
        mixed = weights @ v
"""
SOFTMAX = "torch.softmax(scores, dim=-1)"

FAULTS: dict[str, Change] = {
    "attn_scale": Change("/ 8**0.5", "/ 8**0.49", "div", "blocks.0.attn"),
    "attn_scale_missing": Change(" / 8**0.5", "", "div", "blocks.0.attn"),
    "qk_swap": Change("q @ k.transpose(-2, -1)", "k @ q.transpose(-2, -1)", "", "blocks.0.attn"),
    "mask_one": Change("~self.mask, float", "~self.mask ^ (torch.arange(144) == 7).view(12, 12), float", "", "blocks.0.attn"),
    "mask_diag": Change("~self.mask, float", "~self.mask.tril(-1) & (torch.arange(12) > 0)[:, None], float", "", "blocks.0.attn"),
    "buffer_inplace": Change("alpha=0.1)\n        return", "alpha=0.2)\n        return", "add_"),
    "softmax_dim": Change("(scores, dim=-1)", "(scores, dim=-2)", "softmax", "blocks.0.attn"),
    "softmax_bf16": Change(SOFTMAX, "torch.softmax(scores.bfloat16(), dim=-1).float()", "softmax", "blocks.0.attn", "dtype"),
    "dropout_noscale": Change("self.drop(weights)", "self.drop(weights) * 0.9", "mul", "blocks.0.attn"),
    "fn_grad": Change("ctx.saved_tensors[0] / 4) ** 2", "ctx.saved_tensors[0] / 4)", "__pow__"),
    "grad_hook": Change("h = " + LINEAR, f"h = {LINEAR}\n        h.register_hook(lambda g: g * 1.01)", "mul"),
    "half_trip": Change(LINEAR, "self.down(F.gelu(self.up(h)).half().float())", "", "blocks.0"),
    "lowp_out": Change("return self.out(mixed)", "return F.linear(mixed.bfloat16(), self.out.weight.bfloat16(), self.out.bias.bfloat16()).float()", "", "blocks.0.attn"),
    "ln_eps": Change("self.ln2.bias)", "self.ln2.bias, 1e-3)", "layer_norm", "blocks.0"),
    "ln_biased": Change(NORM, "(x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt() * self.ln2.weight + self.ln2.bias", "", "blocks.0"),
    "lerp_swap": Change("lerp(h, Cap.apply(h)", "lerp(Cap.apply(h), h", "lerp", "blocks.0"),
    "no_transpose": Change("mixed.transpose(1, 2).reshape", "mixed.reshape", "", "blocks.0.attn"),
    "chunk_order": Change("q, k, v = self", "q, v, k = self", "", "blocks.0.attn", "moved_call"),
    "pos_off": Change("torch.arange(12)", "torch.arange(1, 13)", "arange"),
    "label_shift": Change("batch[:, 1:]", "batch[:, :-1]", "__getitem__"),
    "smoothing": Change("batch[:, 1:].flatten())", "batch[:, 1:].flatten(), label_smoothing=0.01)", "cross_entropy"),
    "ignore": Change("batch[:, 1:].flatten())", "batch[:, 1:].flatten(), ignore_index=7)", "cross_entropy"),
    "loss_scale": Change("loss.backward()", "(loss * 1.0005).backward()", "mul"),
    "accum_nodiv": Change(LOSS + " / 2", LOSS, "div"),
    "accum_less": Change("range(2):\n            batch", "range(1):\n            batch", ""),
    "accum_lost": Change("loss.backward()", "loss.backward()\n            if part == 0 and step: optimizer.zero_grad()", "norm"),
    "zero_missing": Change("        optimizer.zero_grad()\n", "        if not step: optimizer.zero_grad()\n", "norm"),
    "clip_missing": Change(CLIP, "", ""),
    "lr": Change("lr=1e-3", "lr=1.1e-3", "AdamW"),
    "beta": Change("0.99)", "0.98)", "AdamW"),
    "wd": Change("weight_decay=0.01", "weight_decay=0.1", "AdamW"),
    "opt_eps": Change("eps=1e-8", "eps=1e-6", "AdamW"),
    "adam_for_adamw": Change("optim.AdamW(", "optim.Adam(", "Adam"),
    "sched_before": Change(STEP + "        schedule.step()\n", "        schedule.step()\n" + STEP, "AdamW"),
    "ema_decay": Change("mean.mul_(0.9).add_(p, alpha=0.1)", "mean.mul_(0.99).add_(p, alpha=0.01)", "mul_"),
    "param_left_out": Change("list(model.parameters())", "[p for n, p in model.named_parameters() if n != 'blocks.1.down.bias']", "AdamW", kind="parameters"),
    "untied": Change("self.head.weight = self.token.weight", "self.head.weight = nn.Parameter(self.token.weight.detach().clone())", "AdamW", kind="parameters"),
    "frozen": Change("parameters = list", "model.blocks[1].up.weight.requires_grad_(False)\n    parameters = list", "", "blocks.1.up"),
    "seed": Change("manual_seed(0)", "manual_seed(7)", "", ""),
    "numpy_weight": Change(STEP, STEP + "        if not step: model.blocks[1].up.weight.detach().numpy()[3, 4] *= 1.5\n", "add_"),
    "numpy_act": Change(LINEAR, "self.up(h); h.detach().numpy()[0, 2, 3] += 0.5; h = self.down(F.gelu(h))", "gelu", "blocks.0"),
    "data_one": Change("    torch.manual_seed(2)", "    rows[2][1, 5] = (rows[2][1, 5] + 1) % 64\n    torch.manual_seed(2)", "__getitem__", kind="unrecorded_origin"),
    "data_order": Change("iter(rows)", "iter(rows[:2] + rows[:1:-1])", "__getitem__", kind="data_order"),
}  # fmt: skip

HEALTHY: dict[str, Change] = {
    "rerun": Change("", ""),
    "sdpa": Change(ATTENTION, "        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1)\n"),
    "einsum": Change("q @ k.transpose(-2, -1)", 'torch.einsum("bhqd,bhkd->bhqk", q, k)'),
    "softmax by hand": Change(SOFTMAX, "(scores - scores.amax(-1, keepdim=True)).exp()\n        weights = weights / weights.sum(-1, keepdim=True)"),
    "linear by @": Change("return self.out(mixed)", "return mixed @ self.out.weight.t() + self.out.bias"),
    "gelu by erf": Change(LINEAR, "self.up(h)\n        h = self.down(h * 0.5 * (1 + torch.erf(h / 2**0.5)))"),
    "layer_norm by hand": Change(NORM, "(x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt() * self.ln2.weight + self.ln2.bias"),
    "nll_loss by hand": Change(LOSS, "-torch.log_softmax(logits.flatten(0, 1), -1).gather(1, batch[:, 1:].flatten()[:, None]).mean()"),
    "in-place residual": Change("x = x + self.attn(self.ln1(x))", "y = self.attn(self.ln1(x))\n        x = y.add_(x)"),
    "checkpoint": Change("x = block(x)", "x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)"),
    "clipping by hand": Change(CLIP, BY_HAND),
    "fused AdamW": Change("weight_decay=0.01", "weight_decay=0.01, fused=True"),
    "two threads": Change("    net =", "    torch.set_num_threads(2)\n    net ="),
    ".item() logging": Change("loss.backward()", "loss.backward(); print(end=str(loss.item())[:0])"),
    "lerp EMA": Change("mean.mul_(0.9).add_(p, alpha=0.1)", "mean.lerp_(p, 0.1)"),
    "linear in slices": Change("self.qkv(x).chunk(3, dim=-1)", "(F.linear(x, w, b) for w, b in zip(self.qkv.weight.split(32), self.qkv.bias.split(32), strict=True))"),
    "float64": Change("    torch.manual_seed(2)", "    model.double(), average.double()\n    torch.manual_seed(2)"),
    "compiled": Change("net = model", 'net = torch.compile(model)'),
}  # fmt: skip


def dumped(name: str, folder: Path, data: str) -> Path:
    """The dump of the program with a change, or as it is; its text is in a file, which the lines of calls name."""
    change = {**FAULTS, **HEALTHY}.get(name, Change("", ""))
    assert change.old in PROGRAM, change.old
    text = PROGRAM.replace(change.old, change.new) if change.old else PROGRAM
    file, dump = folder / "program.py", folder / "dump"
    file.write_text(text)
    names: dict[str, Any] = {"__name__": "program"}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        exec(compile(text, str(file), "exec"), names)
        model, average, rows = names["prepare"]()
        with graphprobe.dump(dump, data=data, level="mix", model=model):
            names["train"](model, average, rows)
    finally:
        torch.set_num_threads(threads)
    return dump
