"""A training loop as accelerate makes it, by hand: autocast, accumulated gradients, clipping, a schedule."""

import sys
from collections.abc import Iterator

import fault
import torch
from transformers import GPT2Config, GPT2LMHeadModel

ACCUMULATED = 2


def batches(count: int) -> Iterator[torch.Tensor]:
    drawn = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield torch.randint(0, 32, (2, 8), generator=drawn)


def main() -> None:
    torch.manual_seed(0)
    sizes = {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 32, "n_positions": 16}
    config = GPT2Config(**sizes, activation_function="relu", bos_token_id=0, eos_token_id=0, use_cache=False)
    model = GPT2LMHeadModel(config).train()
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.5, total_iters=2)
    for number, batch in enumerate(batches(2 * ACCUMULATED)):
        with torch.autocast("cpu", torch.bfloat16):
            loss = compiled(input_ids=batch, labels=batch).loss / ACCUMULATED
        loss.backward()
        if (number + 1) % ACCUMULATED == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
    print("step", bool(loss.isfinite()))


if __name__ == "__main__":
    main(*fault.arguments(sys.argv[1:]))
