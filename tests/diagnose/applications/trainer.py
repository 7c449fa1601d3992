"""The Trainer of transformers, told to compile."""

import sys
import tempfile

import fault
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


def main(steps: str = "2") -> None:
    torch.manual_seed(0)
    sizes = {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 32, "n_positions": 16}
    config = GPT2Config(**sizes, activation_function="relu", bos_token_id=0, eos_token_id=0, use_cache=False)
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 32, (8, 8))]
    with tempfile.TemporaryDirectory() as folder:
        asked = TrainingArguments(
            folder,
            torch_compile=True,
            max_steps=int(steps),
            per_device_train_batch_size=2,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        )
        model = GPT2LMHeadModel(config)
        done = Trainer(model, asked, train_dataset=rows).train()
    weights = sum(p.double().sum().item() for p in model.parameters())
    print("step", done.global_step, done.training_loss.hex(), weights.hex())


if __name__ == "__main__":
    main(*fault.arguments(sys.argv[1:]))
