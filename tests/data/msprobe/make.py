"""Made the dumps of this folder: `python make.py FOLDER KIND`, in an environment with `mindstudio-probe` 26.2.

One run for each KIND, on the CPU, of networks so small that a dump takes some KB: `statistics` of modules and APIs in
bfloat16, two steps; `tensor`: values of APIs; `modules`: values of modules, without a rank; `md5`: checksums of APIs.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812


class Attention(nn.Module):
    """A language model of one layer of attention over a vocabulary of seven."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.norm = nn.LayerNorm(4)
        self.qkv = nn.Linear(4, 12)
        self.head = nn.Linear(4, 7, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(x)


class Convolutions(nn.Module):
    """An image classifier with a batch norm and an activation in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.norm = nn.BatchNorm2d(2)
        self.fc = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        x.mul_(2.0)
        x = F.relu(self.norm(x))
        return self.fc(torch.cat([x.flatten(1)], dim=1))


def run(
    folder: Path,
    model: nn.Module,
    batch: torch.Tensor,
    target: torch.Tensor,
    steps: int,
    rank: int | None = 0,
    **config: object,
) -> None:
    from msprobe.pytorch import PrecisionDebugger

    folder.mkdir(parents=True)
    task = str(config["task"])
    whole = {"dump_path": str(folder), "rank": [], "step": [], **config}
    whole.setdefault(task, {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"})
    path = folder.with_suffix(".config.json")
    path.write_text(json.dumps(whole))
    debugger = PrecisionDebugger(config_path=str(path))
    for _ in range(steps):
        debugger.start(model, rank_id=rank)
        out = model(batch)
        loss = F.cross_entropy(out.float().flatten(0, out.dim() - 2), target.flatten())
        loss.backward()
        debugger.stop()
        debugger.step()
        model.zero_grad()
    path.unlink()
    for file in folder.rglob("*.json"):
        file.write_text(without_places(file.read_text()))
    for process in folder.glob("step*/proc*"):
        process.rename(process.with_name("proc1000"))


def without_places(text: str) -> str:
    """The stacks with the same paths wherever this was run; nothing else in the files is changed."""
    packages = Path(torch.__file__).parent.parent
    text = text.replace(str(packages), "/usr/lib/python3/site-packages")
    text = re.sub(r"[^\s\"]+(?=/(?:statistics|tensor|modules)/step\d+/)", "/dumps", text)
    text = re.sub(r"proc\d+", "proc1000", text)
    return text.replace(f"{Path(__file__).parent}/", "")


def main(target: Path, which: str) -> None:
    torch.manual_seed(0)
    tokens = torch.randint(0, 7, (2, 3))
    labels = torch.randint(0, 7, (2, 3))
    image, classes = torch.randn(2, 1, 4, 4), torch.tensor([0, 2])
    if which == "statistics":
        run(target / which, Attention().bfloat16(), tokens, labels, 2, task="statistics", level="mix")
    elif which == "tensor":
        run(target / which, Convolutions(), image, classes, 1, task="tensor", level="L1")
    elif which == "md5":
        md5 = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "md5"}
        run(target / which, Attention(), tokens, labels, 1, task="statistics", level="L1", statistics=md5)
    elif which == "modules":
        run(target / which, Convolutions(), image, classes, 1, rank=None, task="tensor", level="L0")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
