"""The cases of `bench/criterion.py`: operations, benign rewrites and planted bugs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F  # noqa: N812

Tensor = torch.Tensor
Fn = Callable[..., Tensor]
Make = Callable[[torch.Generator, float], list[Tensor]]


@dataclass(frozen=True)
class Op:
    """One operation: how to make its inputs (float32, before they are rounded), and what replaces it.

    Attributes:
        benign: legitimate rewrites. Those whose name begins with `per-op` round every step to the working dtype; they
            are left out for float16 off scale 1, where the steps leave the format's range.
        bugs: wrong replacements; they get the same inputs.
        terms: K of a sum, else None.
        compiled: also try Inductor's version as a benign rewrite.
    """

    name: str
    tuning: bool
    fn: Fn
    make: Make
    benign: dict[str, Fn] = field(default_factory=dict)
    bugs: dict[str, Fn] = field(default_factory=dict)
    terms: int | None = None
    compiled: bool = False


def randn(g: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=g)


def x_of(*shape: int) -> Make:
    return lambda g, s: [randn(g, *shape) * s]


def wide(fn: Fn) -> Fn:
    """`fn` in float32 throughout, rounded once at the end."""

    def run(*args: Tensor) -> Tensor:
        dtype = next(a.dtype for a in args if a.is_floating_point())
        return fn(*(a.float() if a.is_floating_point() else a for a in args)).to(dtype)

    return run


def narrow(fn: Fn, dtype: torch.dtype = torch.bfloat16) -> Fn:
    """`fn` in a narrower dtype than was asked for."""

    def run(*args: Tensor) -> Tensor:
        out = next(a.dtype for a in args if a.is_floating_point())
        return fn(*(a.to(dtype) if a.is_floating_point() else a for a in args)).to(out)

    return run


def permuted_k(fn: Fn, *dims: int | None) -> Fn:
    """`fn` with the reduction dimension of its inputs permuted (None: that input has none)."""

    def run(*args: Tensor) -> Tensor:
        size = next(a.shape[d] for a, d in zip(args, dims, strict=False) if d is not None)
        order = torch.randperm(size, generator=torch.Generator().manual_seed(7))
        moved = [a if d is None else a.index_select(d, order) for a, d in zip(args, dims, strict=False)]
        return fn(*moved, *args[len(dims) :])

    return run


def split_sum(fn: Fn, parts: int, *dims: int | None) -> Fn:
    """`fn`, linear in its reduction, in `parts` that are added up in float32."""

    def run(*args: Tensor) -> Tensor:
        pieces = [[a] * parts if d is None else a.float().chunk(parts, d) for a, d in zip(args, dims, strict=False)]
        total = sum(fn(*(p[i] for p in pieces)) for i in range(parts))
        assert isinstance(total, Tensor)
        return total.to(args[0].dtype)

    return run


def gradient(fn: Fn, wrt: int) -> Fn:
    """The gradient of `fn` to its input `wrt`; the last argument is the cotangent."""

    def run(*args: Tensor) -> Tensor:
        *inputs, cotangent = args
        inputs = [a.detach() for a in inputs]
        inputs[wrt] = inputs[wrt].requires_grad_()
        return torch.autograd.grad(fn(*inputs), inputs[wrt], cotangent)[0]

    return run


# --- formulas ---------------------------------------------------------------------------------------------------------


def rms_norm(x: Tensor, w: Tensor, eps: float = 1e-6) -> Tensor:
    wide_x = x.float()
    return (wide_x * torch.rsqrt(wide_x.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype) * w


def rms_norm_div(x: Tensor, w: Tensor) -> Tensor:
    return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def layer_norm(x: Tensor, w: Tensor, b: Tensor, eps: float = 1e-5) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, b, eps)


def layer_norm_steps(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5) * w + b


def layer_norm_moments(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    wide_x = x.float()
    mean = wide_x.mean(-1, keepdim=True)
    var = wide_x.pow(2).mean(-1, keepdim=True) - mean.pow(2)
    return ((wide_x - mean) / torch.sqrt(var + 1e-5) * w.float() + b.float()).to(x.dtype)


def softmax_steps(x: Tensor) -> Tensor:
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def log_softmax_steps(x: Tensor) -> Tensor:
    shifted = x - x.amax(-1, keepdim=True)
    return shifted - torch.log(torch.exp(shifted).sum(-1, keepdim=True))


def logsumexp_steps(x: Tensor) -> Tensor:
    top = x.amax(-1, keepdim=True)
    return (top + torch.log(torch.exp(x - top).sum(-1, keepdim=True))).squeeze(-1)


def attention_scaled(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, factor: float) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) * factor + mask, -1) @ v


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return attention_scaled(q, k, v, mask, q.shape[-1] ** -0.5)


def attention_scale_first(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(q * q.shape[-1] ** -0.5 @ k.transpose(-1, -2) + mask, -1) @ v


def attention_online(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Blocks of keys, in float32, as flash attention has it."""
    q, k, v, mask = (t.float() for t in (q, k, v, mask))
    size = k.shape[-2] // 4
    top = torch.full((*q.shape[:-1], 1), -math.inf)
    total = torch.zeros_like(top)
    out = torch.zeros_like(q)
    for i in range(4):
        part = slice(i * size, (i + 1) * size)
        scores = q @ k[..., part, :].transpose(-1, -2) * q.shape[-1] ** -0.5 + mask[..., part]
        new = torch.maximum(top, scores.amax(-1, keepdim=True))
        safe = torch.where(torch.isinf(new), torch.zeros_like(new), new)
        weights = torch.exp(scores - safe)
        shrink = torch.exp(top - safe)
        total = total * shrink + weights.sum(-1, keepdim=True)
        out = out * shrink + weights @ v[..., part, :]
        top = new
    return out / total


def attention_inputs(g: torch.Generator, s: float) -> list[Tensor]:
    mask = torch.full((32, 32), -math.inf).triu(1)
    return [randn(g, 4, 32, 16) * min(s, 1.0), randn(g, 4, 32, 16), randn(g, 4, 32, 16) * s, mask]


def gelu_steps(x: Tensor) -> Tensor:
    return x * (0.5 * (1 + torch.erf(x * 0.7071067811865476)))


def tanh_gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def silu_div(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def fp16_matmul(a: Tensor, b: Tensor) -> Tensor:
    """Blocks of 8 terms, added up in float16."""
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float16)
    for i in range(0, a.shape[1], 8):
        total = total + (a[:, i : i + 8].float() @ b[i : i + 8].float()).half()
    return total.to(a.dtype)


def short_k(fn: Fn, *dims: int | None) -> Fn:
    """`fn` without the last 16 terms of its reduction."""

    def run(*args: Tensor) -> Tensor:
        cut = [a if d is None else a.narrow(d, 0, a.shape[d] - 16) for a, d in zip(args, dims, strict=False)]
        return fn(*cut, *args[len(dims) :])

    return run


def noisy_weight(fn: Fn, i: int) -> Fn:
    def run(*args: Tensor) -> Tensor:
        g = torch.Generator().manual_seed(11)
        changed = list(args)
        changed[i] = (args[i].float() * (1 + 1e-3 * torch.randn(args[i].shape, generator=g))).to(args[i].dtype)
        return fn(*changed)

    return run


def var_two_pass(x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)).pow(2).sum(-1) / (x.shape[-1] - 1)


def cross_entropy(x: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy(x, t, reduction="none")


def cross_entropy_steps(x: Tensor, t: Tensor) -> Tensor:
    return logsumexp_steps(x) - x.gather(1, t[:, None])[:, 0]


def batch_norm(x: Tensor, w: Tensor, b: Tensor, eps: float = 1e-5) -> Tensor:
    return F.batch_norm(x, None, None, w, b, training=True, eps=eps)


def batch_norm_steps(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    mean = x.mean((0, 2), keepdim=True)
    var = (x - mean).pow(2).mean((0, 2), keepdim=True)
    return (x - mean) * torch.rsqrt(var + 1e-5) * w[:, None] + b[:, None]


def batch_norm_folded(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """x·a + c with a and c computed in float32."""
    y = x.float()
    var, mean = torch.var_mean(y, (0, 2), correction=0, keepdim=True)
    a = w.float()[:, None] * torch.rsqrt(var + 1e-5)
    return (y * a + (b.float()[:, None] - mean * a)).to(x.dtype)


def group_norm(x: Tensor, w: Tensor, b: Tensor, eps: float = 1e-5) -> Tensor:
    return F.group_norm(x, 4, w, b, eps)


def group_norm_steps(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = x.reshape(x.shape[0], 4, -1)
    y = (y - y.mean(-1, keepdim=True)) / torch.sqrt(y.var(-1, correction=0, keepdim=True) + 1e-5)
    return y.reshape(x.shape) * w[:, None] + b[:, None]


def cosine_steps(a: Tensor, b: Tensor) -> Tensor:
    norm = a.pow(2).sum(-1).clamp_min(1e-16).sqrt() * b.pow(2).sum(-1).clamp_min(1e-16).sqrt()
    return (a * b).sum(-1) / norm


def index_add(x: Tensor, i: Tensor) -> Tensor:
    """In float32 with one rounding at the end, as eager's order of additions is an accident."""
    return torch.zeros(16, x.shape[1]).to(x.dtype).index_add(0, i, x)


def index_add_one_hot(x: Tensor, i: Tensor) -> Tensor:
    return F.one_hot(i, 16).to(x.dtype).t() @ x


def softmax_grad_steps(x: Tensor, g: Tensor) -> Tensor:
    p = torch.softmax(x, -1)
    return p * (g - (p * g).sum(-1, keepdim=True))


def gelu_grad_steps(x: Tensor, g: Tensor) -> Tensor:
    cdf = 0.5 * (1 + torch.erf(x * 0.7071067811865476))
    return g * (cdf + x * torch.exp(-0.5 * x * x) * 0.3989422804014327)


def linear_gelu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b))


def norm_inputs(*shape: int, channels: int) -> Make:
    return lambda g, s: [randn(g, *shape) * s, 1 + 0.1 * randn(g, channels), 0.1 * randn(g, channels)]


def linear_inputs(g: torch.Generator, s: float) -> list[Tensor]:
    return [randn(g, 32, 64) * s, randn(g, 48, 64) / 8, randn(g, 48) * min(s, 1.0)]


def with_cotangent(make: Make, *shape: int) -> Make:
    """Inputs of scale 1 and a cotangent of the scale asked for."""
    return lambda g, s: [*make(g, 1.0), randn(g, *shape) * s]


def mm(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


def sum_last(x: Tensor) -> Tensor:
    return x.sum(-1)


def cumsum_blocks(x: Tensor) -> Tensor:
    """Scans of blocks, then the blocks' sums, as a parallel scan has it."""
    y = x.float().reshape(x.shape[0], 16, -1)
    inner = y.cumsum(-1)
    before = inner[..., -1].cumsum(-1) - inner[..., -1]
    return (inner + before[..., None]).reshape(x.shape).to(x.dtype)


def cumprod_blocks(x: Tensor) -> Tensor:
    y = x.float().reshape(x.shape[0], 4, -1)
    inner = y.cumprod(-1)
    last = inner[..., -1].cumprod(-1)
    before = torch.cat([torch.ones_like(last[:, :1]), last[:, :-1]], 1)
    return (inner * before[..., None]).reshape(x.shape).to(x.dtype)


def conv(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.conv2d(x, w, b, padding=1)


def conv_unfold(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    columns = F.unfold(x, 3, padding=1)
    return (w.flatten(1) @ columns + b[:, None]).reshape(x.shape[0], w.shape[0], *x.shape[2:])


def conv_inputs(g: torch.Generator, s: float) -> list[Tensor]:
    return [randn(g, 2, 8, 12, 12) * s, randn(g, 8, 8, 3, 3) / 8, randn(g, 8) * min(s, 1.0)]


def conv_weight_grad_steps(x: Tensor, w: Tensor, b: Tensor, g: Tensor) -> Tensor:
    columns = F.unfold(x, 3, padding=1)
    return torch.einsum("nol,nkl->ok", g.flatten(2), columns).reshape(w.shape)


def chain(x: Tensor) -> Tensor:
    return torch.tanh(x * 1.7 + 0.3) * torch.sigmoid(x) - 0.1 * x


def sum_positive(g: torch.Generator, s: float) -> list[Tensor]:
    return [torch.rand(16, 4096, generator=g) * s]


def labels(make: Make, high: int, size: int) -> Make:
    return lambda g, s: [*make(g, s), torch.randint(0, high, (size,), generator=g)]


LN = norm_inputs(32, 128, channels=128)

OPS: list[Op] = [
    # --- tuning ---
    Op(
        "matmul k4096",
        True,
        mm,
        lambda g, s: [randn(g, 16, 4096) * s, randn(g, 4096, 24) / 64],
        {"permuted": permuted_k(mm, 1, 0), "split": split_sum(mm, 16, 1, 0)},
        {
            "fp16 accumulate": fp16_matmul,
            "last tile of k missing": short_k(mm, 1, 0),
            "noisy weight": noisy_weight(mm, 1),
        },
        terms=4096,
    ),
    Op(
        "linear+gelu",
        True,
        linear_gelu,
        linear_inputs,
        {
            "addmm": lambda x, w, b: F.gelu(torch.addmm(b, x, w.t())),
            "per-op": lambda x, w, b: gelu_steps(x @ w.t() + b),
        },
        {
            "tanh gelu": lambda x, w, b: tanh_gelu(F.linear(x, w, b)),
            "bias twice": lambda x, w, b: F.gelu(F.linear(x, w, b) + b),
            "bias forgotten": lambda x, w, b: F.gelu(F.linear(x, w)),
            "noisy weight": noisy_weight(linear_gelu, 1),
        },
        compiled=True,
    ),
    Op(
        "softmax",
        True,
        lambda x: torch.softmax(x, -1),
        x_of(64, 64),
        {"per-op": softmax_steps, "exp of log": lambda x: torch.exp(torch.log_softmax(x.float(), -1)).to(x.dtype)},
        {"wrong axis": lambda x: torch.softmax(x, 0)},
        compiled=True,
    ),
    Op(
        "log_softmax",
        True,
        lambda x: torch.log_softmax(x, -1),
        x_of(64, 64),
        {"per-op": log_softmax_steps},
        {"wrong axis": lambda x: torch.log_softmax(x, 0)},
    ),
    Op(
        "layer_norm",
        True,
        layer_norm,
        LN,
        {"per-op": layer_norm_steps, "moments": layer_norm_moments},
        {
            "eps 1e-3": lambda x, w, b: layer_norm(x, w, b, 1e-3),
            "unbiased": lambda x, w, b: (
                (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True) + 1e-5) * w + b
            ),
            "bias twice": lambda x, w, b: layer_norm(x, w, b) + b,
            "noisy weight": noisy_weight(layer_norm, 1),
        },
        compiled=True,
    ),
    Op(
        "rms_norm",
        True,
        rms_norm,
        lambda g, s: norm_inputs(32, 128, channels=128)(g, s)[:2],
        {"per-op": rms_norm_div},
        {"eps 1e-3": lambda x, w: rms_norm(x, w, 1e-3), "no weight": lambda x, w: rms_norm(x, torch.ones_like(w))},
    ),
    Op(
        "sum",
        True,
        sum_last,
        sum_positive,
        {"permuted": permuted_k(sum_last, -1), "split": split_sum(sum_last, 64, -1)},
        {"mean": lambda x: x.mean(-1), "last tile missing": short_k(sum_last, -1)},
        terms=4096,
    ),
    Op(
        "mean",
        True,
        lambda x: x.mean(-1),
        x_of(64, 1024),
        {
            "permuted": permuted_k(lambda x: x.mean(-1), -1),
            "sum then scale": lambda x: (x.float().sum(-1) * (1 / 1024)).to(x.dtype),
        },
        {"sum": lambda x: x.sum(-1), "one too few": lambda x: x.sum(-1) / 1023},
        terms=1024,
    ),
    Op(
        "cumsum",
        True,
        lambda x: x.cumsum(-1),
        x_of(8, 512),
        {"blocks": cumsum_blocks},
        {"exclusive": lambda x: x.cumsum(-1) - x, "wrong axis": lambda x: x.cumsum(0)},
        terms=512,
    ),
    Op(
        "logsumexp",
        True,
        lambda x: torch.logsumexp(x, -1),
        x_of(128, 64),
        {"per-op": logsumexp_steps},
        {"wrong axis": lambda x: torch.logsumexp(x.reshape(64, 128), 0)},
    ),
    Op(
        "conv2d",
        True,
        conv,
        conv_inputs,
        {"unfold": conv_unfold},
        {"transposed kernel": lambda x, w, b: conv(x, w.transpose(-1, -2), b), "noisy weight": noisy_weight(conv, 1)},
        terms=73,
    ),
    Op(
        "attention",
        True,
        attention,
        attention_inputs,
        {"scale first": attention_scale_first, "online": lambda q, k, v, m: attention_online(q, k, v, m).to(q.dtype)},
        {
            "no scale": lambda q, k, v, m: attention_scaled(q, k, v, m, 1.0),
            "no mask": lambda q, k, v, m: attention(q, k, v, torch.zeros_like(m)),
            "mask off by one": lambda q, k, v, m: attention(
                q, k, v, torch.full((32, 32), -math.inf).triu(2).to(m.dtype)
            ),
        },
        compiled=True,
    ),
    Op("gelu", True, F.gelu, x_of(64, 64), {"per-op": gelu_steps}, {"tanh gelu": tanh_gelu}),
    Op(
        "silu",
        True,
        F.silu,
        x_of(64, 64),
        {"per-op": lambda x: x * torch.sigmoid(x), "division": wide(silu_div)},
        {"relu": F.relu},
    ),
    Op(
        "exp",
        True,
        torch.exp,
        x_of(64, 64),
        {"exp2": wide(lambda x: torch.exp2(x * 1.4426950408889634) if x.abs().max() < 9 else torch.exp(x))},
        {"expm1": torch.expm1},
    ),
    Op(
        "chain",
        True,
        chain,
        x_of(64, 64),
        {"per-op": lambda x: torch.tanh(torch.add(x * 1.7, 0.3)) * (1 / (1 + torch.exp(-x))) - x * 0.1},
        {"0.11": lambda x: torch.tanh(x * 1.7 + 0.3) * torch.sigmoid(x) - 0.11 * x},
        compiled=True,
    ),
    Op(
        "var",
        True,
        lambda x: x.var(-1),
        x_of(64, 256),
        {"per-op": var_two_pass},
        {"biased": lambda x: x.var(-1, correction=0)},
    ),
    Op(
        "cross_entropy",
        True,
        cross_entropy,
        labels(x_of(128, 64), 64, 128),
        {"per-op": cross_entropy_steps},
        {"label off by one": lambda x, t: cross_entropy(x, (t + 1) % 64)},
    ),
    Op(
        "layer_norm backward",
        True,
        gradient(layer_norm, 0),
        with_cotangent(LN, 32, 128),
        {"wide": wide(gradient(layer_norm_steps, 0))},
        {"centre forgotten": lambda x, w, b, g: gradient(layer_norm, 0)(x, w, b, g) + (g * w).mean(-1, keepdim=True)},
    ),
    Op(
        "linear+gelu backward",
        True,
        gradient(linear_gelu, 1),
        with_cotangent(linear_inputs, 32, 48),
        {"per-op": lambda x, w, b, g: gelu_grad_steps(F.linear(x, w, b), g).t() @ x},
        {
            "tanh gelu": gradient(lambda x, w, b: tanh_gelu(F.linear(x, w, b)), 1),
            "first batch row lost": lambda x, w, b, g: gradient(linear_gelu, 1)(x[1:], w, b, g[1:]),
        },
    ),
    # --- held out ---
    Op(
        "batch_norm",
        False,
        batch_norm,
        norm_inputs(16, 16, 24, channels=16),
        {"per-op": batch_norm_steps, "folded": batch_norm_folded},
        {
            "eps 1e-3": lambda x, w, b: batch_norm(x, w, b, 1e-3),
            "bias twice": lambda x, w, b: batch_norm(x, w, b) + b[:, None],
            "unbiased": lambda x, w, b: (
                (x - x.mean((0, 2), keepdim=True)) / torch.sqrt(x.var((0, 2), keepdim=True) + 1e-5) * w[:, None]
                + b[:, None]
            ),
        },
    ),
    Op(
        "group_norm",
        False,
        group_norm,
        norm_inputs(16, 16, 24, channels=16),
        {"per-op": group_norm_steps},
        {"eps 1e-3": lambda x, w, b: group_norm(x, w, b, 1e-3), "two groups": lambda x, w, b: F.group_norm(x, 2, w, b)},
        compiled=True,
    ),
    Op(
        "norm",
        False,
        lambda x: torch.linalg.vector_norm(x, dim=-1),
        x_of(64, 256),
        {
            "per-op": lambda x: x.pow(2).sum(-1).sqrt(),
            "permuted": permuted_k(lambda x: torch.linalg.vector_norm(x, dim=-1), -1),
        },
        {"last tile missing": lambda x: torch.linalg.vector_norm(x[:, :-16], dim=-1)},
    ),
    Op(
        "cosine_similarity",
        False,
        lambda a, b: F.cosine_similarity(a, b, dim=-1),
        lambda g, s: [randn(g, 64, 64) * s, randn(g, 64, 64)],
        {"per-op": cosine_steps},
        {"dot": lambda a, b: (a * b).sum(-1), "wrong axis": lambda a, b: F.cosine_similarity(a, b, dim=0)},
    ),
    Op(
        "index_add",
        False,
        index_add,
        labels(x_of(128, 48), 16, 128),
        {"one hot": index_add_one_hot, "permuted": permuted_k(index_add, 0, 0)},
        {
            "index off by one": lambda x, i: index_add(x, (i + 1) % 16),
            "last row lost": lambda x, i: index_add(x[:-1], i[:-1]),
        },
        terms=16,
    ),
    Op(
        "avg_pool2d",
        False,
        lambda x: F.avg_pool2d(x, 4, 2, 1),
        x_of(2, 8, 18, 18),
        {
            "mean of unfold": lambda x: (
                F.unfold(x.flatten(0, 1)[:, None], 4, padding=1, stride=2)
                .float()
                .mean(1)
                .reshape(2, 8, 9, 9)
                .to(x.dtype)
            )
        },
        {"count_include_pad": lambda x: F.avg_pool2d(x, 4, 2, 1, count_include_pad=False)},
        terms=16,
    ),
    Op(
        "erf",
        False,
        torch.erf,
        x_of(64, 64),
        {"1-erfc": wide(lambda x: torch.where(x.abs() < 0.5, torch.erf(x), 1 - torch.erfc(x)))},
        {"tanh": lambda x: torch.tanh(1.1283791670955126 * x)},
    ),
    Op(
        "rsqrt",
        False,
        torch.rsqrt,
        lambda g, s: [(torch.rand(64, 64, generator=g) + 0.01) * s],
        {"per-op": lambda x: 1 / torch.sqrt(x), "pow": wide(lambda x: x**-0.5)},
        {"sqrt": torch.sqrt},
    ),
    Op(
        "cumprod",
        False,
        lambda x: x.cumprod(-1),
        lambda g, s: [torch.rand(16, 64, generator=g) * 0.4 + 0.8],
        {"blocks": cumprod_blocks},
        {"cumsum": lambda x: x.cumsum(-1)},
    ),
    Op(
        "std",
        False,
        lambda x: x.std(-1),
        x_of(64, 256),
        {"per-op": lambda x: var_two_pass(x).sqrt()},
        {"biased": lambda x: x.std(-1, correction=0)},
    ),
    Op(
        "sigmoid",
        False,
        torch.sigmoid,
        x_of(64, 64),
        {"tanh": wide(lambda x: 0.5 * (1 + torch.tanh(x / 2)) if x.abs().max() < 9 else torch.sigmoid(x))},
        {"hard": F.hardsigmoid},
    ),
    Op(
        "bmm scaled",
        False,
        lambda a, b: torch.bmm(a, b) * 0.125,
        lambda g, s: [randn(g, 4, 24, 64) * s, randn(g, 4, 64, 24)],
        {
            "per-op, scale first": lambda a, b: torch.bmm(a * 0.125, b),
            "split": lambda a, b: split_sum(lambda p, q: torch.bmm(p, q) * 0.125, 8, 2, 1)(a, b),
        },
        {
            "no scale": lambda a, b: torch.bmm(a, b),
            "noisy weight": noisy_weight(lambda a, b: torch.bmm(a, b) * 0.125, 1),
            "last tile of k missing": short_k(lambda a, b: torch.bmm(a, b) * 0.125, 2, 1),
        },
        terms=64,
    ),
    Op(
        "softmax backward",
        False,
        gradient(lambda x: torch.softmax(x, -1), 0),
        with_cotangent(x_of(64, 64), 64, 64),
        {"per-op": softmax_grad_steps},
        {"sum forgotten": lambda x, g: torch.softmax(x, -1) * g},
        compiled=True,
    ),
    Op(
        "gelu backward",
        False,
        gradient(F.gelu, 0),
        with_cotangent(x_of(64, 64), 64, 64),
        {"per-op": gelu_grad_steps},
        {"tanh gelu": gradient(tanh_gelu, 0), "no derivative": lambda x, g: g * F.gelu(x)},
        compiled=True,
    ),
    Op(
        "conv2d weight backward",
        False,
        gradient(conv, 1),
        with_cotangent(conv_inputs, 2, 8, 12, 12),
        {"einsum": wide(conv_weight_grad_steps)},
        {"second sample lost": lambda x, w, b, g: gradient(conv, 1)(x[:1], w, b, g[:1])},
    ),
]
"""Every operation; `tuning` says whether thresholds may be chosen by looking at it."""


def any_output(y: Tensor, seed: int) -> dict[str, Tensor]:
    """Planted bugs that any result can have, applied to eager's result `y`."""
    g = torch.Generator().manual_seed(seed)
    flat_y = y.flatten()
    size = flat_y.abs().float()
    finite = torch.isfinite(size)
    middle = size[finite].median() if finite.any() else torch.tensor(0.0)
    large = torch.nonzero(finite & (size >= middle))[:, 0]
    one, other = (int(i) for i in torch.randint(0, flat_y.numel(), (2,), generator=g))
    if large.numel():
        one = int(large[int(torch.randint(0, large.numel(), (1,), generator=g))])

    def put(i: int | slice, value: object) -> Tensor:
        changed = flat_y.clone()
        changed[i] = value  # type: ignore[assignment]
        return changed.reshape(y.shape)

    return {
        "one element 1 % off": put(one, flat_y[one] * 1.01),
        "one stale value": put(one, flat_y[other]),
        "one NaN": put(one, math.nan),
        "one Inf": put(one, -math.inf if flat_y[one] == math.inf else math.inf),
        "last 16 zero": put(slice(-16, None), 0.0),
        "sign": -y,
        "half": y * 0.5,
        "shifted by one": flat_y.roll(1).reshape(y.shape),
    }
