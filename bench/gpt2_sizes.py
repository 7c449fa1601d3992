"""What a diagnosis of GPT-2 takes, by its size: memory, time and processor, beside a plain compiled run of the same model.

    python bench/gpt2_sizes.py [--sizes 2x128,6x512,12x768] [--json FILE]

Sizes are layers x hidden; the vocabulary is that of GPT-2, the sequence 64, so that 12x768 is the model of 124 M parameters. Each is
run forward and backward, healthy and with a relu in the middle that Inductor makes x + 1. Each row is a run of `diagnose_memory.py`:
`peak` is of all processes together, `over` how far it lies above the plain run's in units of parameters and gradients.
"""  # noqa: E501 - a command line

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VOCABULARY, SEQUENCE = 50257, 64


def make() -> tuple[Any, tuple[Any, ...]]:
    """GPT-2 that returns its loss, of the size that `LAYERS` and `HIDDEN` say, with a relu in its middle."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    layers, hidden = int(os.environ["LAYERS"]), int(os.environ["HIDDEN"])

    class WithLoss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = {"n_layer": layers, "n_embd": hidden, "n_head": max(2, hidden // 64), "n_positions": SEQUENCE}
            without = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "use_cache": False}
            self.gpt = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, **sizes, **without))
            self.gpt.transformer.h[layers // 2].mlp.act = torch.nn.ReLU()

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            loss: torch.Tensor = self.gpt(input_ids=ids, labels=ids).loss
            return loss

    torch.manual_seed(0)
    return WithLoss().train(), (torch.randint(0, VOCABULARY, (1, SEQUENCE)),)


@contextlib.contextmanager
def plant() -> Iterator[None]:
    """Inductor's own fault: its relu is x + 1."""
    import torch._inductor.config

    with torch._inductor.config.patch({"cpp.inject_relu_bug_TESTING_ONLY": "accuracy"}):
        yield


def main() -> None:
    import diagnose_memory

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="2x128,6x512,12x768", metavar="LAYERSxHIDDEN,…")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    rows = []
    print("layers hidden          verdict   peak GiB  over   wall s  processor s  × plain")
    for size in options.sizes.split(","):
        os.environ["LAYERS"], os.environ["HIDDEN"] = layers, hidden = size.split("x")
        plain: dict[str, Any] = {}
        for what, fault in (("plain", ""), ("diagnose", ""), ("diagnose", __file__)):
            row = diagnose_memory.measured(what, argparse.Namespace(program=__file__, fault=fault))
            plain = plain or row
            over = (row["peak"] - plain["peak"]) / row["bytes"]
            told = (
                "plain" if what == "plain" else " ".join([row.get("verdict", "failed"), *(["(relu)"] if fault else [])])
            )
            line = (
                f"{layers:>6} {hidden:>6} {told:>16} {row['peak'] / (1 << 30):10.2f} {over:5.1f} {row['wall_s']:8.0f}"
            )
            print(
                f"{line} {row['cpu_s']:12.0f} {row['cpu_s'] / plain['cpu_s']:8.2f}",
                *row.get("findings", []),
                flush=True,
            )
            rows.append(row | {"layers": layers, "hidden": hidden, "fault": bool(fault)})
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
