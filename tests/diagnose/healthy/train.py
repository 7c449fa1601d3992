"""A training script: `train.py FAMILY PRECISION` takes two steps of AdamW with dropout on, the model compiled.

Autocast, where asked for, is around the compiled model, as trainers have it.
"""

import sys

import torch
from families import made

STEPS = 2


def main(family: str, precision: str) -> None:
    model, draw = made(family, precision)
    compiled = torch.compile(model.train())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.5, total_iters=STEPS)
    for step in range(STEPS):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
            loss = compiled(**draw())[0]
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        print(step, float(loss), float(norm))


if __name__ == "__main__":
    main(*sys.argv[1:])
