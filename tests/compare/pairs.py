"""Pairs of programs that are dumped and compared: each fault with the call that is wrong, and healthy pairs.

A pair is two programs; a program runs under `graphprobe.dump` from its first line, building of the model included,
unless it is made by `before`, which builds the model first.
"""

import dataclasses
import subprocess
import sys
import types
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import TorchDispatchMode

import graphprobe
from graphprobe.compare import compare_dumps, open_dump
from graphprobe.compare.options import Options
from graphprobe.compare.result import Summary
from graphprobe.diagnose.call_replay import TorchReplayer
from made_once import GRAPHS

Program = Callable[[], Any]
Inside = Callable[..., Any]
"""What runs under the dump; gets what `before` has made."""
Dumps = Callable[..., Path]
"""`dumps(run, side="candidate", **options)`, the fixture of `conftest.py`: the dump of a program, not to be changed."""


@dataclasses.dataclass(frozen=True)
class Run:
    """A program: `before` runs without a dump, `inside` under it with what `before` gave.

    What makes programs is cached, so that equal ones are dumped once.
    """

    inside: Inside
    before: Program | None = None


@dataclasses.dataclass(frozen=True)
class Fault:
    """`api` and `module` of the first finding, on whichever side the call is."""

    candidate: Run
    reference: Run
    api: str
    module: str = ""


class Block(nn.Module):
    def __init__(self, width: int, act: Callable[..., Any], eps: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=eps)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.act = act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.act(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(
        self, act: Callable[..., Any] = torch.relu, eps: float = 1e-5, depth: int = 3, width: int = 32
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, act, eps) for _ in range(depth))
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@cache
def trained(
    steps: int = 1,
    *,
    lr: float = 1e-2,
    order: Callable[[int], int] = int,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    **net: Any,
) -> Inside:
    """A training script: builds the model, then steps."""

    def script(model: Any = None) -> None:
        torch.manual_seed(0)
        model = model if model is not None else Net(**net)
        steps_with = optimizer(model.parameters(), lr=lr)
        for step in range(steps):
            torch.manual_seed(100 + order(step))
            x = torch.randn(16, 32)
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            steps_with.step()
            steps_with.zero_grad()

    return script


@cache
def adam(weight_decay: float = 0.01, betas: tuple[float, float] = (0.9, 0.999), **how: Any) -> Inside:
    """Three steps of AdamW, of which one group of parameters decays."""

    def groups(parameters: Any, lr: float) -> torch.optim.Optimizer:
        first, *others = parameters
        grouped = [{"params": others, "weight_decay": weight_decay}, {"params": [first], "weight_decay": 0.0}]
        return torch.optim.AdamW(grouped, lr=lr, betas=betas, **how)

    return trained(3, lr=1e-4, optimizer=groups)


@cache
def net(**options: Any) -> Program:
    def build() -> Net:
        torch.manual_seed(0)
        return Net(**options)

    return build


def gelu(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


def shifted(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) + 0.01


class Doubled(torch.autograd.Function):
    """The identity, with a gradient that is twice too large."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 2


class Square(torch.autograd.Function):
    """x² whose derivative lacks the 2."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grad * x


class Scale(torch.autograd.Function):
    """x·s with s of one dimension: its gradient is the mean over rows where it should be the sum."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, s)
        return x * s

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, s = ctx.saved_tensors
        rows = (grad * x).reshape(-1, s.numel())
        return grad * s, rows.mean(0)


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, num_hidden_layers=3, use_cache=False)).train()


@cache
def llama_with(
    mlp: Callable[[Any, torch.Tensor], torch.Tensor] | None = None, dtype: torch.dtype | None = None
) -> Program:
    """Llama, with another forward in the MLP of layer 1."""

    def build() -> nn.Module:
        model = llama()
        if mlp is not None:
            inner = model.model.layers[1].mlp
            inner.forward = types.MethodType(mlp, inner)
        return model if dtype is None else model.to(dtype)

    return build


def llama_step(model: nn.Module, *, autocast: bool = False) -> None:
    torch.manual_seed(1)
    ids = torch.randint(0, 64, (2, 12))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss = model(input_ids=ids, labels=ids).loss
    loss.backward()


def _hidden(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.act_fn(self.gate_proj(x)) * self.up_proj(x)


def hooked(self: Any, x: torch.Tensor) -> torch.Tensor:
    h = _hidden(self, x)
    h.register_hook(lambda g: g * 1.01)
    return self.down_proj(h)


def square(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.down_proj(Square.apply(_hidden(self, x)))


def square_right(self: Any, x: torch.Tensor) -> torch.Tensor:
    h = _hidden(self, x)
    return self.down_proj(h * h)


def through_numpy(self: Any, x: torch.Tensor) -> torch.Tensor:
    h = _hidden(self, x)
    h.detach().numpy()[0, 2, 3] += 0.5
    return self.down_proj(h)


def wrong_init() -> nn.Module:
    model = llama()
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight.mul_(1.5)
    return model


def _llama(mlp: Any = None, **more: Any) -> Run:
    return Run(llama_step, llama_with(mlp, **more))


def convnet(eps: float = 1e-5) -> nn.Module:
    torch.manual_seed(3)
    conv, norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8, eps=eps)
    return nn.Sequential(conv, norm, nn.ReLU(), nn.Dropout(0.1), nn.Flatten(), nn.Linear(2048, 10))


def conv_step(model: nn.Module, dtype: torch.dtype = torch.float32) -> None:
    torch.manual_seed(4)
    x, target = torch.randn(4, 3, 16, 16), torch.randint(0, 10, (4,))
    F.cross_entropy(model(x.to(dtype)).float(), target).backward()


def conv_narrow(model: nn.Module) -> None:
    conv_step(model.bfloat16(), torch.bfloat16)


class WrongKernel(TorchDispatchMode):
    """The `index`-th run of `op` gives what `change` makes of its result."""

    def __init__(self, op: Any, index: int, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.op, self.left, self.change = op, index, change

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():  # the program has not called these operators
            result = func(*args, **(kwargs or {}))
            self.left -= func is self.op
            if func is not self.op or self.left != -1:
                return result
            if isinstance(result, tuple):
                return tuple(None if r is None else self.change(r) for r in result)
            return self.change(result)


@cache
def wrong(run: Run, op: Any, index: int, change: Callable[[torch.Tensor], torch.Tensor]) -> Run:
    def inside(model: nn.Module) -> None:
        with WrongKernel(op, index, change):
            run.inside(model)

    return Run(inside, run.before)


CONV, CONV_NARROW = Run(conv_step, convnet), Run(conv_narrow, convnet)
LLAMA = _llama()
MLP = "model.layers.1.mlp"

FAULTS: dict[str, Fault] = {
    "built, relu is gelu": Fault(Run(trained(act=gelu)), Run(trained()), "gelu", "blocks.0"),
    "built, relu is exact gelu": Fault(Run(trained(act=F.gelu)), Run(trained()), "gelu", "blocks.0"),
    "built, 0.01 added": Fault(Run(trained(act=shifted)), Run(trained()), "add", "blocks.0"),
    "built, eps": Fault(Run(trained(eps=0.1)), Run(trained()), "layer_norm", "blocks.0.norm"),
    "built, three steps": Fault(Run(trained(3, act=gelu)), Run(trained(3)), "gelu", "blocks.0"),
    "built, relu for gelu": Fault(Run(trained()), Run(trained(act=gelu)), "relu", "blocks.0"),
    "learning rate": Fault(Run(trained(3, lr=0.02)), Run(trained(3)), "SGD"),
    "weight decay": Fault(Run(adam(0.011)), Run(adam()), "AdamW"),
    "betas": Fault(Run(adam(betas=(0.9, 0.998))), Run(adam()), "AdamW"),
    "data order": Fault(Run(trained(3, order=lambda i: (0, 2, 1)[i])), Run(trained(3)), "randn"),
    "hook": Fault(_llama(hooked), LLAMA, "mul"),
    "detach": Fault(
        _llama(lambda m, x: m.down_proj(m.act_fn(m.gate_proj(x)).detach() * m.up_proj(x))), LLAMA, "detach", MLP
    ),
    "scaled": Fault(_llama(lambda m, x: m.down_proj(_hidden(m, x)) * 1.01), LLAMA, "mul", MLP),
    "custom gradient doubled": Fault(
        _llama(lambda m, x: m.down_proj(Doubled.apply(_hidden(m, x)))), LLAMA, "Doubled", MLP
    ),
    "custom gradient of square": Fault(_llama(square), _llama(square_right), "Square", MLP),
    "custom gradient is a mean": Fault(
        _llama(lambda m, x: Scale.apply(m.down_proj(_hidden(m, x)), m.down_proj.weight[:, 0])),
        _llama(lambda m, x: m.down_proj(_hidden(m, x)) * m.down_proj.weight[:, 0]),
        "Scale",
        MLP,
    ),
    "numpy": Fault(_llama(through_numpy), LLAMA, "linear", MLP),
    "replaced": Fault(_llama(lambda m, x: m.down_proj(F.gelu(m.gate_proj(x)) * m.up_proj(x))), LLAMA, "gelu", MLP),
    "removed": Fault(_llama(lambda m, x: m.down_proj(m.gate_proj(x) * m.up_proj(x))), LLAMA, "silu", MLP),
    "scalar": Fault(
        _llama(lambda m, x: m.down_proj(torch.clamp(_hidden(m, x), max=0.001))),
        _llama(lambda m, x: m.down_proj(torch.clamp(_hidden(m, x), max=0.002))),
        "clamp",
        MLP,
    ),
    "wrong init": Fault(Run(llama_step, wrong_init), LLAMA, "linear", f"{MLP}.up_proj"),
    "batch norm": Fault(Run(conv_step, lambda: convnet(eps=1e-2)), CONV, "batch_norm", "1"),
}


def compiled_step(model: nn.Module) -> None:
    llama_step(torch.compile(model, backend="aot_eager"))  # type: ignore[arg-type]


def autocast_step(model: nn.Module) -> None:
    llama_step(model, autocast=True)


@cache
def on_one_thread(inside: Inside) -> Inside:
    def run(model: nn.Module) -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            inside(model)
        finally:
            torch.set_num_threads(threads)

    return run


def batch_split(model: nn.Module) -> None:
    """The same batch in two halves, whose gradients add up."""
    torch.manual_seed(1)
    ids = torch.randint(0, 64, (2, 12))
    for half in ids.chunk(2):
        (model(input_ids=half, labels=half).loss / 2).backward()


def tied() -> nn.Module:
    model = nn.Sequential(nn.Embedding(32, 16), nn.Linear(16, 16), nn.Linear(16, 32, bias=False))
    model[2].weight = model[0].weight
    parametrize.register_parametrization(model[1], "weight", nn.Tanh())
    return model


def tied_step() -> None:
    torch.manual_seed(5)
    model = tied()
    ids = torch.randint(0, 32, (4, 6))
    F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()


ADAM_LR = 1e-3


def adam_step(model: nn.Module) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=ADAM_LR)
    for _ in range(2):
        llama_step(model)
        optimizer.step()
        optimizer.zero_grad()


@cache
def in_parts(parts: int) -> Inside:
    """Two steps of AdamW, each of a batch of four that is taken in some parts."""

    def run(model: nn.Module) -> None:
        torch.manual_seed(1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=ADAM_LR)
        for _ in range(2):
            ids = torch.randint(0, 64, (4, 12))
            optimizer.zero_grad()
            for part in ids.chunk(parts):
                (model(input_ids=part, labels=part).loss / parts).backward()
            optimizer.step()

    return run


@cache
def t5(dtype: torch.dtype = torch.float32) -> Program:
    """Its masks hold the largest number of the dtype that it runs in."""

    def build() -> nn.Module:
        from transformers import T5Config, T5ForConditionalGeneration

        torch.manual_seed(0)
        config = T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0)
        config.decoder_start_token_id = 0
        return T5ForConditionalGeneration(config).to(dtype).train()

    return build


def t5_step(model: nn.Module, *, autocast: bool = False) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=ADAM_LR)
    torch.manual_seed(1)
    ids = torch.randint(0, 64, (4, 10))
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()


def t5_autocast(model: nn.Module) -> None:
    t5_step(model, autocast=True)


@cache
def sgd(inside: Inside) -> Inside:
    """The same, and a step of SGD after it."""

    def run(model: nn.Module) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        inside(model)
        optimizer.step()

    return run


HEALTHY: dict[str, tuple[Run, Run]] = {
    "built under the dump": (Run(trained(2)), Run(trained(2))),
    "built under, built before": (Run(trained(2)), Run(trained(2), net())),
    "built before, built under": (Run(trained(2), net()), Run(trained(2))),
    "tied and parametrized": (Run(tied_step), Run(tied_step)),
    "llama twice": (LLAMA, LLAMA),
    "llama built under the dump": (Run(lambda: llama_step(llama())), Run(lambda: llama_step(llama()))),
    "llama, bfloat16": (_llama(dtype=torch.bfloat16), LLAMA),
    "llama, both bfloat16": (_llama(dtype=torch.bfloat16), _llama(dtype=torch.bfloat16)),
    "llama, float64": (_llama(dtype=torch.float64), LLAMA),
    "llama, autocast": (Run(autocast_step, llama_with()), LLAMA),
    "llama against autocast": (LLAMA, Run(autocast_step, llama_with())),
    "llama, autocast twice": (Run(autocast_step, llama_with()), Run(autocast_step, llama_with())),
    "llama, one thread": (Run(on_one_thread(llama_step), llama_with()), LLAMA),
    "AdamW, one by one": (Run(adam(foreach=False)), Run(adam(foreach=True))),
    "llama, AdamW": (Run(adam_step, llama_with()), Run(adam_step, llama_with())),
    "convnet": (CONV, CONV),
    "convnet, bfloat16": (CONV_NARROW, CONV),
    "llama, compiled": (Run(compiled_step, llama_with()), LLAMA),
    "llama against compiled": (LLAMA, Run(compiled_step, llama_with())),
    "llama, compiled and stepped": (Run(sgd(compiled_step), llama_with()), Run(sgd(llama_step), llama_with())),
    "square": (_llama(square), _llama(square)),
    "t5, bfloat16": (Run(t5_step, t5(torch.bfloat16)), Run(t5_step, t5())),
    "t5, autocast": (Run(t5_autocast, t5()), Run(t5_step, t5())),
    "llama, AdamW, bfloat16": (Run(adam_step, llama_with(dtype=torch.bfloat16)), Run(adam_step, llama_with())),
    "llama, AdamW, one thread": (Run(on_one_thread(adam_step), llama_with()), Run(adam_step, llama_with())),
    "llama, batch in two": (Run(in_parts(2), llama_with()), Run(in_parts(1), llama_with())),
    "llama, batch against four": (Run(in_parts(1), llama_with()), Run(in_parts(4), llama_with())),
}


def compared(candidate: Path, reference: Path, *, replay: bool = True) -> Summary:
    """Two dumps on disk, with what torch computes again where that decides, unless `replay` is False."""
    options = Options(replayer=TorchReplayer() if replay else None)
    with compare_dumps(open_dump(candidate), open_dump(reference), options) as comparison:
        return comparison.summary


def dumped(run: Run, path: Any, **options: Any) -> None:
    made = run.before() if run.before is not None else None
    given: dict[str, Any] = {"model": made} if isinstance(made, nn.Module) else {}
    with graphprobe.dump(path, **given, **options):
        run.inside(made) if run.before is not None else run.inside()


def graphs_dumped(*folders: Path, python: str = sys.executable) -> None:
    """Dumps of one compiled graph, by a process of its own: what it opens stays open to the end of the process.

    A folder called `values` gets values, any other one statistics.
    """
    subprocess.run([python, "-c", GRAPHS, *map(str, folders)], check=True, capture_output=True, cwd=folders[0].parent)
