"""Real models, exported with a dynamic batch, decomposed, and packaged by AOTInductor: `python ways_models.py NAME`."""

import sys
from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from torch import nn


class Residual(nn.Module):
    """Two convolutions with batch norm around a shortcut."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.na, self.nb = nn.BatchNorm2d(out), nn.BatchNorm2d(out)
        self.short = nn.Conv2d(channels, out, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.nb(self.b(torch.relu(self.na(self.a(x))))) + self.short(x))


class Recurrent(nn.Module):
    """A recurrent layer over embedded tokens; its last state is classified."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.embed, self.layer, self.head = nn.Embedding(50, 16), layer, nn.Linear(24, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.layer(self.embed(tokens))[0][:, -1])
        return found


class Mixer(nn.Module):
    """Patches, mixed along both dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.cut, self.norm = nn.Conv2d(3, 24, 8, 8), nn.LayerNorm(24)
        self.tokens, self.channels = nn.Linear(16, 16), nn.Linear(24, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.cut(x).flatten(2).transpose(1, 2)
        h = h + nn.functional.gelu(self.tokens(self.norm(h).transpose(1, 2))).transpose(1, 2)
        return (h + nn.functional.silu(self.channels(self.norm(h)))).mean(1)


class Unet(nn.Module):
    """Down, up, and a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.low = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 1, 1)
        self.up, self.out, self.norm = nn.ConvTranspose2d(8, 8, 2, 2), nn.Conv2d(11, 3, 1), nn.GroupNorm(2, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.up(nn.functional.elu(self.norm(self.low(self.down(x)))))
        up: torch.Tensor = nn.functional.interpolate(self.out(torch.cat([h, x], 1)), scale_factor=2.0, mode="bilinear")
        return up


class Head(nn.Module):
    """The tensor that a model of transformers computes."""

    def __init__(self, model: nn.Module, name: str, given: str) -> None:
        super().__init__()
        self.model, self.name, self.given = model, name, given

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        extra = {"decoder_input_ids": x} if self.name == "t5" else {}
        found: torch.Tensor = self.model(**{self.given: x}, **extra, return_dict=False)[0]
        return found


def tokens() -> torch.Tensor:
    return torch.randint(0, 50, (3, 12))


def image() -> torch.Tensor:
    return torch.randn(3, 3, 32, 32)


def language(name: str, config: Any, kind: Any, given: str = "input_ids") -> nn.Module:
    config.use_cache = False
    return Head(kind(config), name, given)


SMALL: dict[str, Any] = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
MODELS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "convnet": lambda: (
        nn.Sequential(Residual(3, 8, 2), Residual(8, 8, 1), nn.Flatten(), nn.Linear(2048, 10)),
        image(),
    ),
    "mobile": lambda: (
        nn.Sequential(nn.Conv2d(3, 8, 1), nn.Hardswish(), nn.Conv2d(8, 8, 3, groups=8), nn.AdaptiveAvgPool2d(1)),
        image(),
    ),
    "unet": lambda: (Unet(), image()),
    "mixer": lambda: (Mixer(), image()),
    "lstm": lambda: (Recurrent(nn.LSTM(16, 24, batch_first=True)), tokens()),
    "gru": lambda: (Recurrent(nn.GRU(16, 24, batch_first=True)), tokens()),
    "encoder": lambda: (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(24, 4, 32, batch_first=True, norm_first=True), 2),
        torch.randn(3, 10, 24),
    ),
    "gpt": lambda: (
        language("gpt", hf.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4), hf.GPT2LMHeadModel),
        tokens(),
    ),
    "bert": lambda: (language("bert", hf.BertConfig(**SMALL, intermediate_size=48), hf.BertModel), tokens()),
    "llama": lambda: (language("llama", hf.LlamaConfig(**SMALL, intermediate_size=48), hf.LlamaForCausalLM), tokens()),
    "t5": lambda: (
        language("t5", hf.T5Config(vocab_size=50, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4), hf.T5Model),
        tokens(),
    ),
    "vit": lambda: (
        language(
            "vit",
            hf.ViTConfig(
                hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=32
            ),
            hf.ViTModel,
            "pixel_values",
        ),
        image(),
    ),
}


def main(name: str) -> None:
    torch.manual_seed(0)
    model, x = MODELS[name]()
    model.eval()
    with torch.no_grad():
        dynamic = ({0: torch.export.Dim("batch", min=2, max=16)},)
        exported = torch.export.export(model, (x,), dynamic_shapes=dynamic).run_decompositions()
        exported.module()(x)
        package = torch._inductor.aoti_compile_and_package(exported, package_path=f"{name}.pt2")
        print(torch._inductor.aoti_load_package(package)(x).shape)


if __name__ == "__main__":
    main(sys.argv[1])
