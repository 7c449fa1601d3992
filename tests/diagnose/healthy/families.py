"""Models of many architectures with random weights, tiny, and batches for them.

`FAMILIES` has for each a function that makes the model, with dropout in it, and one that draws a batch. A batch is
given as keywords, and the loss is the first thing the model returns.
"""

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
    mask = torch.ones_like(ids)
    mask[1, slice(0, 4) if left else slice(-4, None)] = 0
    return mask


LAYERED = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
CAUSAL = {"vocab_size": IDS, "num_key_value_heads": 2, "max_position_embeddings": 32, "attention_dropout": 0.1}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "output_router_logits": True}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4, "decoder_start_token_id": 0}
WHISPER = {f"{part}_{what}": n for part in ("encoder", "decoder") for what, n in (("layers", 1), ("ffn_dim", 64))}
WHISPER |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "decoder_start_token_id": 1, "use_cache": False}
WHISPER |= {"d_model": 32, "num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 16}
WHISPER |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
DROPOUTS = {"dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.1}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": IDS - 1, "max_position_embeddings": 16}
VISION = {"image_size": 16, "patch_size": 4}
VIT = {"num_labels": 5, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
CLIP = {**LAYERED, "attention_dropout": 0.1}
MODELS: dict[str, dict[str, Any]] = {
    "GPT2LMHeadModel": {"vocab_size": IDS, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2},
    "LlamaForCausalLM": {**LAYERED, **CAUSAL},
    "Qwen2MoeForCausalLM": {**LAYERED, **CAUSAL, **EXPERTS, "shared_expert_intermediate_size": 32},
    "T5ForConditionalGeneration": {**T5, "vocab_size": IDS, "use_cache": False},
    "BertForMaskedLM": {**LAYERED, "vocab_size": IDS, "max_position_embeddings": 16},
    "ViTForImageClassification": {**LAYERED, **VISION, **VIT},
    "WhisperForConditionalGeneration": {**WHISPER, **DROPOUTS, "vocab_size": IDS},
    "CLIPModel": {
        "text_config": {**CLIP, **TOKENS, "vocab_size": IDS},
        "vision_config": {**CLIP, **VISION},
        "projection_dim": 16,
    },
    "MambaModel": {"vocab_size": IDS, "hidden_size": 16, "state_size": 4, "num_hidden_layers": 1, "conv_kernel": 4},
}
"""By the class of the model: what is not its default."""


def model(name: str) -> nn.Module:
    kind = getattr(transformers, name)
    return kind(kind.config_class(**MODELS[name]))


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


FAMILIES: dict[str, tuple[Callable[[], nn.Module] | str, Callable[[], Batch]]] = {
    "gpt2": ("GPT2LMHeadModel", plain_causal_batch),
    "llama": ("LlamaForCausalLM", causal_batch),
    "t5": ("T5ForConditionalGeneration", translation_batch),
    "bert": ("BertForMaskedLM", masked_batch),
    "vit": (
        "ViTForImageClassification",
        lambda: {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.tensor([0, 3])},
    ),
    "whisper": (
        "WhisperForConditionalGeneration",
        lambda: {"input_features": torch.randn(2, 8, 32), "labels": ids(6)},
    ),
    "clip": ("CLIPModel", clip_batch),
    "mamba": (
        lambda: nets.Tagger(model("MambaModel"), 16, 5),
        lambda: {"input_ids": ids(6), "labels": torch.randint(0, 5, (2, 6))},
    ),
    "moe": ("Qwen2MoeForCausalLM", causal_batch),
    "unet": (nets.UNet, lambda: {"images": torch.randn(2, 3, 16, 16), "labels": torch.randint(0, 4, (2, 16, 16))}),
    "diffusion": (nets.Diffusion, diffusion_batch),
    "lstm": (nets.Lstm, lambda: {"ids": ids(8) % 50, "labels": ids(4) % 50}),
}


def made(family: str, precision: str) -> tuple[nn.Module, Callable[[], Batch]]:
    """A model with its weights in the precision, and what draws batches for it; the seed is set."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, and is {precision!r}")
    torch.manual_seed(0)
    made_by, draw = FAMILIES[family]
    found = model(made_by) if isinstance(made_by, str) else made_by()
    if precision != "bf16":
        return found, draw
    return found.to(torch.bfloat16), lambda: cast(draw(), torch.bfloat16)


def cast(batch: Batch, dtype: torch.dtype) -> Batch:
    floating = {key for key, x in batch.items() if isinstance(x, Tensor) and x.is_floating_point()}
    return {key: x.to(dtype) if key in floating else x for key, x in batch.items()}
