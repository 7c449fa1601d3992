"""False alarms and misses of whole programs in mixed precision: noise from roundings made anew, or of float64 runs.

    python bench/autocast.py [--compile] [--programs NAME ...] [--modes NAME ...] [--show]

Small models run forward and backward in three ways: `autocast` (float32 parameters, bfloat16 inside), `bfloat16` and
`float16` throughout. Each benign rewrite and each planted bug is judged by all its observables (outputs, gradients,
buffers); one that is accused accuses the program. A candidate that leaves every bit as eager has it is no case.
`--compile` adds what torch.compile makes of the program, as a benign one.
"""

from __future__ import annotations

import argparse
import copy
import logging
import platform
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F  # noqa: N812

import graphprobe.diagnose.program as running
from graphprobe.diagnose.program import Program
from graphprobe.engine.reference import array_from, dtype_of, is_noisy
from graphprobe.engine.rounding import MORE_RUNS, RUNS, RoundedAnew, judge_narrow, untouched
from graphprobe.judge.observation import Observation, read
from graphprobe.numerics.divergence import RunValues
from graphprobe.numerics.noise import Noise, sigma_from_runs
from graphprobe.numerics.verdict import NARROW, judge, tolerated

Tensor = torch.Tensor
Change = Callable[[nn.Module], Any]
MODES = ("autocast", "bfloat16", "float16")
DTYPE = {"autocast": torch.bfloat16, "bfloat16": torch.bfloat16, "float16": torch.float16}
SIZE = 64


# --- programs ---------------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self, size: int, heads: int = 4) -> None:
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(size, 3 * size), nn.Linear(size, size), heads
        self.scaling, self.shift = (size // heads) ** -0.5, 0

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.heads, d // self.heads).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
        if self.shift:
            mask = torch.ones(t, t, dtype=torch.bool).tril(self.shift)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=self.scaling)
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scaling)
        return self.out(y.transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, size: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(size), Attention(size), nn.LayerNorm(size)
        self.up, self.act, self.down = nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.drop(self.down(self.act(self.up(self.norm2(x)))))


class GPT(nn.Module):
    def __init__(self, layers: int = 3, size: int = SIZE, words: int = 200, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, size)
        self.blocks = nn.ModuleList(Block(size, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(size), nn.Linear(size, words)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return logits, F.cross_entropy(logits.flatten(0, 1), ids.roll(-1, 1).flatten())


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.conv2, self.norm2, self.act = nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.GroupNorm(8, 64), nn.GELU()
        self.up, self.head = nn.Conv2d(64, 64, 1), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.conv1(x)))
        x = self.act(self.norm2(self.conv2(x)))
        return self.head((x + self.up(x)).mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.up, self.head = nn.LSTM(32, 48, batch_first=True), nn.Linear(48, 64), nn.Linear(64, 16)
        self.act = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.lstm(x)
        return self.head(self.act(self.up(y)))


class Experts(nn.Module):
    def __init__(self, size: int = SIZE, experts: int = 4) -> None:
        super().__init__()
        self.norm, self.gate = nn.LayerNorm(size), nn.Linear(size, experts)
        self.ups = nn.ModuleList(nn.Linear(size, 2 * size) for _ in range(experts))
        self.downs = nn.ModuleList(nn.Linear(2 * size, size) for _ in range(experts))
        self.act = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        weights, chosen = self.gate(y).softmax(-1).topk(2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        total = torch.zeros_like(x)
        for i, (up, down) in enumerate(zip(self.ups, self.downs, strict=True)):
            share = torch.where(chosen == i, weights, 0.0).sum(-1, keepdim=True)
            total = total + share * down(self.act(up(y)))
        return x + total


class First(nn.Module):
    """A model of transformers: its first output."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Tensor) -> Tensor:
        return self.model(*args)[0]


def bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=200, hidden_size=SIZE, num_hidden_layers=2, num_attention_heads=4,
                        intermediate_size=4 * SIZE, hidden_dropout_prob=0.0,
                        attention_probs_dropout_prob=0.0)  # fmt: skip
    return First(BertModel(config))


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=200, hidden_size=SIZE, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, intermediate_size=4 * SIZE, use_cache=False)  # fmt: skip
    return First(LlamaForCausalLM(config))


def vit() -> nn.Module:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(hidden_size=SIZE, num_hidden_layers=2, num_attention_heads=4, intermediate_size=4 * SIZE,
                       image_size=32, patch_size=8, hidden_dropout_prob=0.0)  # fmt: skip
    return First(ViTModel(config))


def ids() -> tuple[Tensor, ...]:
    return (torch.randint(0, 200, (4, 48)),)


PROGRAMS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]]]] = {
    "gpt": (GPT, ids),
    "dropout": (lambda: GPT(layers=2, dropout=0.1), ids),
    "bert": (bert, ids),
    "llama": (llama, ids),
    "vit": (vit, lambda: (torch.randn(4, 3, 32, 32),)),
    "convnet": (ConvNet, lambda: (torch.randn(8, 3, 16, 16),)),
    "lstm": (Recurrent, lambda: (torch.randn(4, 24, 32),)),
    "experts": (Experts, lambda: (torch.randn(4, 32, SIZE),)),
}


class Mixed(nn.Module):
    """A model under autocast."""

    def __init__(self, model: nn.Module, dtype: torch.dtype, enabled: bool = True) -> None:
        super().__init__()
        self.model, self.dtype, self.enabled = model, dtype, enabled

    def forward(self, *args: Tensor) -> Any:
        with torch.autocast("cpu", self.dtype, enabled=self.enabled):
            return self.model(*args)


# --- candidates -------------------------------------------------------------------------------------------------------


def linears(model: nn.Module) -> list[nn.Module]:
    """Layers with a matrix or a kernel, but for the last."""
    return [m for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv2d))][:-1]


def widest(model: nn.Module) -> nn.Module:
    """The second of the layers with the most outputs."""
    found = linears(model)
    most = max(m.weight.shape[0] for m in found)
    return [m for m in found if m.weight.shape[0] == most][:2][-1]


def last(model: nn.Module) -> nn.Module:
    return linears(model)[-1]


def on_output(pick: Callable[[nn.Module], nn.Module], change: Callable[[nn.Module, Tensor], Tensor]) -> Change:
    return lambda model: pick(model).register_forward_hook(lambda module, _, y: change(module, y))


def channels(y: Tensor) -> int:
    return 1 if y.dim() == 4 else y.dim() - 1


def halved(_: nn.Module, y: Tensor) -> Tensor:
    dim = channels(y)
    ramp = torch.ones(y.shape[dim], dtype=y.dtype)
    ramp[-max(1, y.shape[dim] // 32) :] = 0.5
    return y * ramp.reshape([-1 if d == dim else 1 for d in range(y.dim())])


def without_row(_: nn.Module, y: Tensor) -> Tensor:
    keep = torch.ones_like(y)
    keep[0, ..., 5, :] = 0
    return y * keep


def bias_again(module: Any, y: Tensor) -> Tensor:
    if module.bias is None:
        return y
    return y + module.bias.to(y.dtype).reshape([-1 if d == channels(y) else 1 for d in range(y.dim())])


def modules(model: nn.Module, *kinds: str) -> list[Any]:
    return [m for m in model.modules() if any(kind in type(m).__name__ for kind in kinds)]


def relu_for(model: nn.Module) -> None:
    act = modules(model, "GELU", "SiLU")
    act[len(act) // 2].forward = F.relu


def looser(model: nn.Module) -> None:
    norm = modules(model, "Norm")
    norm = norm[len(norm) // 2]
    name = "eps" if hasattr(norm, "eps") else "variance_epsilon"
    setattr(norm, name, getattr(norm, name) * 100)


def scaled(model: nn.Module) -> None:
    found = [m for m in model.modules() if hasattr(m, "scaling")]
    found[len(found) // 2].scaling *= 1.02


def shifted(by: int) -> Change:
    def change(model: nn.Module) -> None:
        modules(model, "Attention")[1].shift = by

    return change


def undropped(model: nn.Module) -> None:
    drop = modules(model, "Dropout")[1]
    drop.register_forward_hook(lambda module, _, y: y * (1 - module.p))


BUGS: dict[str, Change] = {
    "hidden x1.01": on_output(widest, lambda _, y: y * 1.01),
    "hidden x1.05": on_output(widest, lambda _, y: y * 1.05),
    "attention scale +2 %": scaled,
    "1/32 of the columns halved": on_output(widest, halved),
    "relu for another": relu_for,
    "steps of 1/8": on_output(widest, lambda _, y: ((y * 8).round() / 8).to(y.dtype)),
    "bias twice": on_output(last, bias_again),
    "one row not added": on_output(last, without_row),
    "eps x100": looser,
    "dropout scale": undropped,
    "mask one too far": shifted(1),
}


def wide_linear(model: nn.Module, how: Callable[[Tensor, Tensor], Tensor]) -> None:
    for module in modules(model, "Linear"):

        def forward(x: Tensor, module: Any = module) -> Tensor:
            dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
            with torch.autocast("cpu", enabled=False):
                y = how(x.to(dtype).float(), module.weight.to(dtype).float())
                return (y if module.bias is None else y + module.bias.to(dtype).float()).to(dtype)

        module.forward = forward


def reversed_sum(x: Tensor, w: Tensor) -> Tensor:
    return x.flip(-1) @ w.flip(-1).t()


def split_sum(x: Tensor, w: Tensor) -> Tensor:
    return sum((a @ b.t() for a, b in zip(x.chunk(4, -1), w.chunk(4, -1), strict=True)), torch.zeros(()))


def wide_act(model: nn.Module) -> None:
    """The function of the hidden layer in float32, its result not rounded where autocast rounds it later."""
    for act in modules(model, "GELU", "SiLU"):
        run = act.forward
        act.forward = lambda x, run=run: (
            run(x.float()) if torch.is_autocast_enabled("cpu") else run(x.float()).to(x.dtype)
        )


def recomputed(model: nn.Module) -> None:
    from torch.utils.checkpoint import checkpoint

    for act in modules(model, "GELU", "SiLU", "LayerNorm"):
        run = act.forward
        act.forward = lambda x, run=run: checkpoint(run, x, use_reentrant=False)


BENIGN: dict[str, Change] = {
    "sums reversed": lambda m: wide_linear(m, reversed_sum),
    "sums in four parts": lambda m: wide_linear(m, split_sum),
    "activation in float32": wide_act,
    "recomputed": recomputed,
}


# --- running ----------------------------------------------------------------------------------------------------------


def cotangents(tensors: Any) -> None:
    """As `program.weighted_sum`, but what is done to start the backward is not rounded anew."""
    with untouched():
        found = [t for t in tensors if t.requires_grad]
        ramps = [torch.linspace(0.5, 1.5, t.numel(), dtype=torch.float64).reshape(t.shape).to(t.dtype) for t in found]
    torch.autograd.backward(found, ramps)


def rms(values: Tensor) -> float:
    return float(values.square().mean().sqrt())


@dataclass
class Observed:
    """What there is to see of a program, by name: eager runs, float64 runs, rounded runs, and the candidates.

    Attributes:
        perturbed: float64 runs on inputs moved by the roundoff of float32.
        coarse: the same by `roundoff`, that of the coarsest dtype among inputs and outputs: what was done before.
    """

    program: str
    mode: str
    eager: list[dict[str, Tensor]]
    wide: dict[str, Tensor]
    perturbed: list[dict[str, Tensor]]
    roundoff: float
    coarse: list[dict[str, Tensor]]
    rounded: list[dict[str, Tensor]]
    narrowest: float
    candidates: list[tuple[str, bool, dict[str, Tensor]]] = field(default_factory=list)


def named(results: list[Observation]) -> dict[str, Tensor]:
    (result,) = results
    if result.raised is not None:
        raise RuntimeError(f"{result.raised.type}: {result.raised.message}")
    parts = {"outputs": result.outputs, "inputs": result.inputs, "gradients": result.gradients}
    found = {f"{k}[{i}]": t for k, v in parts.items() for i, t in enumerate(v) if isinstance(t, Tensor)}
    return {n: t for n, t in found.items() if t.dim() or not n.startswith("inputs")}  # those are settings of modules


class Bench:
    def __init__(self, program: str, mode: str) -> None:
        make, inputs = PROGRAMS[program]
        torch.manual_seed(0)
        self.model, self.inputs, self.mode, self.name = make(), inputs(), mode, program
        with torch.no_grad():
            for p in self.model.parameters():  # so that biases and norms are not their starting values
                p.add_(0.05 * torch.randn(p.shape))
        self.dtype = DTYPE[mode]
        if mode != "autocast":
            self.model = self.model.to(self.dtype)
            self.inputs = tuple(t.to(self.dtype) if t.is_floating_point() else t for t in self.inputs)

    def program(self, change: Change | None = None, *, wide: bool = False) -> Program:
        """Fresh. `wide`: the same in float32 throughout, from the same numbers."""
        model = copy.deepcopy(self.model)
        if change is not None:
            change(model)
        inputs = tuple(t.clone() for t in self.inputs)
        if wide:
            model, inputs = model.float(), tuple(t.float() if t.is_floating_point() else t for t in inputs)
        fn = Mixed(model, self.dtype, not wide) if self.mode == "autocast" else model
        return Program(fn, [(inputs, {})], grad=True, seed=7)

    def run(self, program: Program, make: Any = lambda fn: fn) -> dict[str, Tensor]:
        return named([read(r) for r in program.run(make)])

    def observe(self, runs: int = MORE_RUNS, compiled: bool = False) -> Observed:
        eager = [self.run(self.program()) for _ in range(2)]
        rounded, narrowest = [], 0.0
        for seed in range(runs):
            with RoundedAnew(torch.Generator().manual_seed(seed)) as mode:
                rounded.append(self.run(self.program()))
            narrowest = mode.narrowest

        def widened(seed: int | None, u: float) -> dict[str, Tensor]:
            return named([read(r) for r in self.program().run_wide(seed, u)])

        wide = widened(None, 2.0**-24)
        perturbed = [widened(seed, 2.0**-24) for seed in range(3)]
        u = max(dtype_of(t).unit_roundoff for t in eager[0].values() if is_noisy(t))
        coarse = perturbed if u < NARROW else [widened(seed, u) for seed in range(3)]
        seen = Observed(self.name, self.mode, eager, wide, perturbed, u, coarse, rounded, narrowest)
        seen.candidates += self.candidates(eager[0], wide, compiled)
        return seen

    def candidates(
        self, eager: dict[str, Tensor], wide: dict[str, Tensor], compiled: bool
    ) -> Iterator[tuple[str, bool, dict[str, Tensor]]]:
        single = self.run(self.program(wide=True))
        yield "all in float32", False, {n: t.to(eager[n].dtype) for n, t in single.items() if n in eager}
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            yield "attention step by step", False, self.run(self.program())
        for seed in range(3):
            with RoundedAnew(torch.Generator().manual_seed(1000 + seed)):
                yield f"rounded anew {seed}", False, self.run(self.program())
        if compiled:
            torch._dynamo.reset()
            with torch._inductor.config.patch(fallback_random=True):
                yield "compiled", False, self.run(self.program(), torch.compile)
        for bug, changes in ((False, BENIGN), (True, BUGS)):
            for name, change in changes.items():
                try:
                    program = self.program(change)
                except (IndexError, ValueError, AttributeError):
                    continue  # nothing there that it could change
                try:
                    yield name, bug, self.run(program)
                except RuntimeError as error:
                    print(f"  {self.name} {self.mode} {name}: {str(error)[:100]}", file=sys.stderr)
        gradients = {n: t for n, t in eager.items() if n.startswith("gradients")}
        spread = {n: rms(wide[n].double() - t.double()) for n, t in gradients.items()}
        sizes = sorted((rms(t.double()), n) for n, t in gradients.items() if rms(t.double()) > 16 * spread[n] > 0)
        yield "smallest gradient negated", True, {**eager, sizes[0][1]: -eager[sizes[0][1]]}
        middle = sizes[len(sizes) // 2][1]
        yield "a gradient zeroed", True, {**eager, middle: torch.zeros_like(eager[middle])}
        yield "a gradient x1.03", True, {**eager, middle: eager[middle] * 1.03}


# --- judging ----------------------------------------------------------------------------------------------------------

Rule = Callable[[Observed, str, Tensor], tuple[str, str]]


def by_float64(seen: Observed, name: str, value: Tensor) -> tuple[str, str]:
    """Noise from float64 runs on inputs moved by the coarsest roundoff that inputs and outputs show."""
    facts, wide = dtype_of(value), array_from(seen.wide[name])
    u = max(facts.unit_roundoff, seen.roundoff)
    runs = [array_from(run[name]) for run in seen.coarse]
    noise = Noise(sigma_from_runs(wide, runs, seen.roundoff) * (u / facts.unit_roundoff))
    eager = [RunValues(array_from(run[name]), facts) for run in seen.eager]
    held = tolerated(facts)
    verdict = judge(RunValues(array_from(value), facts), wide, noise, eager, thresholds=held, flush=True)
    return ("worse" if verdict.answer == "candidate_worse" else "ok"), verdict.reason


def narrow(runs: int, wide: bool = True) -> Rule:
    def rule(seen: Observed, name: str, value: Tensor) -> tuple[str, str]:
        eager = [run[name] for run in seen.eager]
        perturbed = [array_from(run[name]) for run in seen.perturbed] if wide else []
        centre = array_from(seen.wide[name]) if wide else None
        for count in sorted({RUNS, runs}):
            rounded = [array_from(run[name]) for run in seen.rounded[:count]]
            answer, reason, _ = judge_narrow(value, eager, centre, perturbed, rounded, seen.narrowest)
            if answer in ("ok", "better"):  # as `judge.judging`: that eager is the one further off accuses nobody
                return "ok", reason
        return answer, reason

    return rule


RULES: dict[str, Rule] = {
    "noise of float64 runs": by_float64,
    f"{RUNS} rounded runs": narrow(RUNS),
    f"{RUNS}, then {MORE_RUNS} rounded runs": narrow(MORE_RUNS),
    "the same without float64": narrow(MORE_RUNS, wide=False),
}


def accused(rule: Rule, seen: Observed, values: dict[str, Tensor]) -> str | None:
    """The answer and the first observable that is not ok."""
    for name, eager in seen.eager[0].items():
        value = values[name]
        if not is_noisy(eager) or value.shape != eager.shape or torch.equal(value, eager):
            continue
        answer, reason = rule(seen, name, value)
        if answer != "ok":
            return f"{name}: {reason}"
    return None


@dataclass
class Case:
    program: str
    mode: str
    name: str
    bug: bool
    alarms: dict[str, str | None]


def table(cases: list[Case], show: bool) -> None:
    modes = [mode for mode in MODES if any(case.mode == mode for case in cases)]
    benign, bugs = [c for c in cases if not c.bug], [c for c in cases if c.bug]
    print(f"{len({c.program for c in cases})} programs; {len(benign)} benign rewrites, {len(bugs)} planted bugs")
    heads = "".join(f"{mode:>10}" for mode in modes)
    print(f"{'':28}{'false alarms':>14}{heads}{'missed bugs':>14}{heads}")
    for rule in RULES:
        wrong = [c for c in benign if c.alarms[rule]], [c for c in bugs if not c.alarms[rule]]
        row = "".join(f"{len(w):>14}" + "".join(f"{sum(c.mode == m for c in w):>10}" for m in modes) for w in wrong)
        print(f"{rule:28}{row}")
        for case in wrong[0] if show else ():
            print(f"    false alarm: {case.program} {case.mode} {case.name}: {case.alarms[rule]}")
        for (name, mode), count in Counter((c.name, c.mode) for c in wrong[1] if show).items():
            where = [c.program for c in wrong[1] if (c.name, c.mode) == (name, mode)]
            print(f"    missed: {name}, {mode}, {count}: {' '.join(where)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile", action="store_true", help="compiled programs, too: about a minute each")
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS), metavar="NAME")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES), metavar="NAME")
    parser.add_argument("--show", action="store_true", help="what each rule got wrong")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    running.weighted_sum = cotangents
    began = time.perf_counter()
    cases: list[Case] = []
    for program in options.programs:
        for mode in options.modes:
            seen = Bench(program, mode).observe(compiled=options.compile)
            for name, bug, values in seen.candidates:
                if any(not torch.equal(t, values[n]) for n, t in seen.eager[0].items()):
                    alarms = {title: accused(rule, seen, values) for title, rule in RULES.items()}
                    cases.append(Case(program, mode, name, bug, alarms))
    command = " ".join(["python", "bench/autocast.py", *sys.argv[1:]])
    print(f"{command}  (torch {torch.__version__}, {platform.machine()}, one thread)")
    table(cases, options.show)
    print(f"total: {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
