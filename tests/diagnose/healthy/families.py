"""Models of many architectures with random weights, tiny, and batches for them.

`FAMILIES` has for each a function that makes the model, with dropout in it, and one that draws a batch. A batch is
given as keywords, and the loss is the first thing the model returns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import nets
import torch
import transformers
from torch import Tensor, nn

Batch = dict[str, Any]
PRECISIONS = ("fp32", "bf16", "autocast")
IDS, LENGTH = 96, 12


def ids(length: int = LENGTH, *, batch: int = 2) -> Tensor:
    return torch.randint(3, IDS, (batch, length))


def padded(ids: Tensor, *, left: bool = False) -> Tensor:
    """A mask for ids of which the second row is shorter."""
    mask = torch.ones_like(ids)
    mask[1, slice(0, 4) if left else slice(-4, None)] = 0
    return mask


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(vocab_size=IDS, n_positions=16, n_embd=32, n_layer=2, n_head=2)
    return transformers.GPT2LMHeadModel(config)


def llama() -> nn.Module:
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "attention_dropout": 0.1}
    config = transformers.LlamaConfig(
        vocab_size=IDS, hidden_size=32, intermediate_size=64, num_hidden_layers=1, max_position_embeddings=32, **heads
    )
    return transformers.LlamaForCausalLM(config)


def moe() -> nn.Module:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "output_router_logits": True}
    config = transformers.Qwen2MoeConfig(
        vocab_size=IDS,
        hidden_size=32,
        intermediate_size=64,
        shared_expert_intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        attention_dropout=0.1,
        **experts,
    )
    return transformers.Qwen2MoeForCausalLM(config)


def t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=IDS,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=1,
        num_heads=4,
        decoder_start_token_id=0,
        use_cache=False,
    )
    return transformers.T5ForConditionalGeneration(config)


def bert() -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=IDS,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=16,
    )
    return transformers.BertForMaskedLM(config)


def vit() -> nn.Module:
    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=16,
        patch_size=4,
        num_labels=5,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
    )
    return transformers.ViTForImageClassification(config)


def whisper() -> nn.Module:
    layers = {f"{part}_{what}": n for part in ("encoder", "decoder") for what, n in (("layers", 1), ("ffn_dim", 64))}
    config = transformers.WhisperConfig(
        vocab_size=IDS,
        num_mel_bins=8,
        d_model=32,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        max_source_positions=16,
        max_target_positions=16,
        dropout=0.1,
        attention_dropout=0.1,
        activation_dropout=0.1,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        use_cache=False,
        **layers,
    )
    return transformers.WhisperForConditionalGeneration(config)


def clip() -> nn.Module:
    shared = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    shared["attention_dropout"] = 0.1
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": IDS - 1}
    config = transformers.CLIPConfig(
        text_config={**shared, "vocab_size": IDS, "max_position_embeddings": 16, **special},
        vision_config={**shared, "image_size": 16, "patch_size": 4},
        projection_dim=16,
    )
    return transformers.CLIPModel(config)


def mamba() -> nn.Module:
    config = transformers.MambaConfig(vocab_size=IDS, hidden_size=16, state_size=4, num_hidden_layers=1, conv_kernel=4)
    return nets.Tagger(transformers.MambaModel(config), 16, 5)


def causal_batch() -> Batch:
    drawn = ids()
    mask = padded(drawn)
    return {"input_ids": drawn, "attention_mask": mask, "labels": drawn.masked_fill(mask == 0, -100)}


def plain_causal_batch() -> Batch:
    drawn = ids()
    return {"input_ids": drawn, "labels": drawn}


def masked_batch() -> Batch:
    drawn = ids()
    labels = drawn.masked_fill(torch.rand(drawn.shape) > 0.3, -100)
    return {"input_ids": drawn.masked_fill(labels >= 0, 1), "attention_mask": padded(drawn), "labels": labels}


def translation_batch() -> Batch:
    drawn = ids()
    return {"input_ids": drawn, "attention_mask": padded(drawn), "labels": ids(7)}


def clip_batch() -> Batch:
    drawn = ids(batch=4)
    drawn[:, -1] = IDS - 1
    return {"input_ids": drawn, "pixel_values": torch.randn(4, 3, 16, 16), "return_loss": True}


def diffusion_batch() -> Batch:
    latents, noise = torch.randn(2, 3, 4, 8, 8)
    return {"latents": latents, "noise": noise, "times": torch.randint(0, 1000, (3,)), "labels": torch.arange(3)}


FAMILIES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Batch]]] = {
    "gpt2": (gpt2, plain_causal_batch),
    "llama": (llama, causal_batch),
    "t5": (t5, translation_batch),
    "bert": (bert, masked_batch),
    "vit": (vit, lambda: {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.tensor([0, 3])}),
    "whisper": (whisper, lambda: {"input_features": torch.randn(2, 8, 32), "labels": ids(6)}),
    "clip": (clip, clip_batch),
    "mamba": (mamba, lambda: {"input_ids": ids(6), "labels": torch.randint(0, 5, (2, 6))}),
    "moe": (moe, causal_batch),
    "unet": (nets.UNet, lambda: {"images": torch.randn(2, 3, 16, 16), "labels": torch.randint(0, 4, (2, 16, 16))}),
    "diffusion": (nets.Diffusion, diffusion_batch),
    "lstm": (nets.Lstm, lambda: {"ids": ids(8) % 50, "labels": ids(4) % 50}),
}


def made(family: str, precision: str) -> tuple[nn.Module, Callable[[], Batch]]:
    """A model with its weights in the precision, and what draws batches for it; the seed is set."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, and is {precision!r}")
    torch.manual_seed(0)
    make_model, draw = FAMILIES[family]
    model = make_model()
    if precision != "bf16":
        return model, draw
    return model.to(torch.bfloat16), lambda: cast(draw(), torch.bfloat16)


def cast(batch: Batch, dtype: torch.dtype) -> Batch:
    """The batch with its floating-point tensors in another type."""
    floating = {key for key, x in batch.items() if isinstance(x, Tensor) and x.is_floating_point()}
    return {key: x.to(dtype) if key in floating else x for key, x in batch.items()}
