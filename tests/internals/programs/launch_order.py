"""Profiles the second call of compiled models whose first was recorded by graphprobe: `launch_order.py OUT`."""

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import graphprobe

LIBRARY = {"addmm", "mm", "bmm", "convolution", "convolution_backward", "randint", "cumsum", "sort", "topk"}
"""What may be called outside a generated kernel here; everything else that the profiler shows is a part of these."""


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda y: self.left(y).relu(), lambda y: self.right(y).sin(), (x,)) * 2


def dropped(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.dropout(torch.randn_like(x) + x, 0.5)


def fallbacks(x: torch.Tensor) -> torch.Tensor:
    values, order = torch.sort(x.cos(), dim=1)
    return values.cumsum(0) * 2 + order + torch.topk(x, 4)[0].sum()


CASES: dict[str, tuple[Any, torch.Tensor]] = {
    "mlp": (nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(3, 4)),
    "conv": (nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)), torch.randn(1, 3, 8, 8)),
    "dropout": (dropped, torch.randn(4, 4)),
    "cond_true": (Branching(), torch.ones(2, 6)),
    "cond_false": (Branching(), -torch.ones(2, 6)),
    "fallbacks": (fallbacks, torch.randn(6, 8)),
}


def launched(profiled: Any) -> list[str]:
    """Kernels and library calls by the time they began; of calls inside one another the outermost."""
    events = sorted(profiled.events(), key=lambda e: (e.time_range.start, -e.time_range.end))
    found: list[str] = []
    until = -1.0
    for event in events:
        name = event.name.removeprefix("aten::")
        if event.time_range.start < until or not ("cpp_fused" in name or name in LIBRARY):
            continue
        until = event.time_range.end
        found.append(name[name.index("cpp_fused") :] if "cpp_fused" in name else name)
    return found


def short(name: str) -> str:
    return name.split(".")[1] if "." in name else name


def main(out: str) -> None:
    torch._inductor.config.cpp.enable_kernel_profile = True
    result: dict[str, Any] = {}
    for name, (function, x) in CASES.items():
        torch._dynamo.reset()
        x.requires_grad_()
        compiled = torch.compile(lambda x, function=function: function(x))
        with graphprobe.trace(out) as folder:
            compiled(x).sum().backward()
        seen = {}
        with profile(activities=[ProfilerActivity.CPU]) as forward:
            loss = compiled(x).sum()
        with profile(activities=[ProfilerActivity.CPU]) as backward:
            loss.backward()
        for direction, profiled in (("forward", forward), ("backward", backward)):
            path = Path(folder) / f"graphprobe/model__0/{direction}/captured_ops.json"
            events = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
            recorded, starts = [short(event["name"]) for event in events], [event["ts"] for event in events]
            seen[direction] = {"recorded": recorded, "profiled": launched(profiled), "starts": starts}
        result[name] = seen
    print("RESULT", json.dumps(result))


with contextlib.redirect_stderr(io.StringIO()):
    main(sys.argv[1])
