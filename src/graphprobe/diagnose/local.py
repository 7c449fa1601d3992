"""Finds suspects: ops of a graph whose result is too far from the same op in float64 on the inputs it received."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import torch
from torch.fx import GraphModule, Node

from graphprobe.diagnose.exceptions import NOBODY, Culprit
from graphprobe.engine.interpret import copied, flat_outputs
from graphprobe.engine.naming import module_of, op_of, source_of
from graphprobe.engine.reference import AT_ONCE, BALANCED, array_from, dtype_of, is_noisy, references, terms_of
from graphprobe.engine.undefined import ALLOCATIONS, CONVERSIONS, unrepresentable
from graphprobe.engine.value_file import ValueFile
from graphprobe.engine.values import equal_bits
from graphprobe.findings import Kind, LargestZ, Latent, Stage
from graphprobe.internals.tensors import tree_leaves
from graphprobe.numerics.divergence import RunValues
from graphprobe.numerics.dtypes import WorkingDtype
from graphprobe.numerics.noise import Noise
from graphprobe.numerics.verdict import judge, judge_exact, tolerated

RUNS = 3
"""Perturbed float64 runs behind each sigma."""

RANDOM = frozenset(
    "rand randn randint randperm rand_like randn_like randint_like bernoulli bernoulli_ multinomial normal normal_ "
    "uniform_ dropout native_dropout inductor_random inductor_randint inductor_seed inductor_seeds "
    "inductor_lookup_seed rrelu rrelu_with_noise exponential exponential_ random_ poisson "
    "philox_rand _scaled_dot_product_flash_attention philox_seed".split()
)
"""Ops that draw numbers: not comparable."""

UNDEFINED = ALLOCATIONS | {"resize_"}
"""Ops whose results hold nothing."""

NEAR_ONE = frozenset(
    "erf erfc expm1 elu celu selu elu_backward atanh asinh sinh log1p tanh sigmoid gelu gelu_backward silu mish "
    "softplus sin cos logit special_erf log_sigmoid_forward".split()
)
"""Functions that libraries compute by way of a number of about one: near zero they are right to a few roundings of
one, not of the result."""

INDICES = frozenset("argmax argmin topk sort max min kthvalue median nanmedian mode cummax cummin max_pool2d".split())

NEAR = 2.0
"""Units of roundoff within which a result is as good as the uncompiled one, without a float64 reference."""


@dataclass(frozen=True)
class Suspect:
    """One accused node.

    Attributes:
        stage, direction, pass_: as in a Finding.
        graph: graph in which the node can be cut out; right when run op by op.
        node: in `graph`.
        values: of every node of `graph` by name.
        error: what is wrong with it.
        also: names of further ops, the likeliest first.
        others: further nodes of `graph` that belong to a repro.
        kernel: name of the kernel that computes it.
        kernel_source: suffix of its language (`.cpp`, `.py`) and its text.
        named: the op, where it is another than the node's.
        whole: it fails with the rest of its graph only, so that small pieces need not be tried.
        wrong_alone: it is wrong when compiled by itself, for the sizes at hand.
        certain: what is known better from elsewhere, from an exception's frames say.
    """

    stage: Stage
    direction: str
    graph: GraphModule
    node: Node
    values: dict[str, Any]
    error: LocalError
    pass_: str | None = None
    also: list[str] = field(default_factory=list)
    others: list[Node] = field(default_factory=list)
    kernel: str | None = None
    kernel_source: tuple[str, str] | None = None
    named: str | None = None
    certain: Culprit = NOBODY
    whole: bool = False
    wrong_alone: bool = False

    @property
    def kind(self) -> Kind:
        """What is wrong with it."""
        return self.error.kind

    @property
    def op(self) -> str:
        """Name of what the node calls, or of the op it stands for."""
        return self.named or op_of(self.node)

    @property
    def place(self) -> Culprit:
        """The node as the culprit."""
        return Culprit(op=self.op, node=self.node.name, source=self.source, module=self.module, also=self.also)

    @property
    def source(self) -> str | None:
        """The user's line."""
        return next((s for s in map(source_of, [self.node, *self.others]) if s), None)

    @property
    def module(self) -> str | None:
        """The user's module."""
        return next((m for m in map(module_of, [self.node, *self.others]) if m), None)


class LocalError(msgspec.Struct, frozen=True):
    """What is wrong with one result.

    Attributes:
        answer: `ok`, `worse`, `better` (eager is the inaccurate one), `unsure`, or `skipped`.
        kind: of the finding, when it is worse.
        z: largest error in units of noise; inf for what is no number.
        excess: how much too large, in units of what is tolerated.
        reason: one sentence.
    """

    answer: str
    kind: Kind = "wrong_value"
    z: float = 0.0
    excess: float = 0.0
    reason: str = ""

    def latent(self, node: Node, stage: Stage, direction: str, kind: Kind | None = None) -> Latent:
        """It as something that shows in nothing that the user can observe; `kind`: another than its own."""
        return Latent(
            kind=kind or self.kind,
            stage=stage,
            direction="backward" if direction == "backward" else "forward",
            op=op_of(node),
            node=node.name,
            source=source_of(node),
            reason=self.reason,
        )


OK = LocalError("ok")


@dataclass
class Checked:
    """What the check of a graph's values found.

    Attributes:
        wider: more precise than the op by itself.
        rounded: right, and not bit for bit as the op by itself.
        checked: values that could be judged.
        largest: error within the noise, in units of it, with its node.
    """

    suspects: list[Suspect] = field(default_factory=list)
    wider: list[Latent] = field(default_factory=list)
    rounded: list[Latent] = field(default_factory=list)
    checked: int = 0
    largest: LargestZ = field(default_factory=LargestZ)

    def note(self, error: LocalError, node: Node, stage: Stage, direction: str) -> None:
        """Take in what is known of one value, but for suspects."""
        self.checked += error.answer in ("ok", "worse", "better")
        if error.answer == "ok" and error.z > self.largest.z:
            self.largest = LargestZ(f"{direction}:{node.name}", error.z)
        if error.answer == "better":
            self.wider.append(error.latent(node, stage, direction))
        if error.answer in ("ok", "better") and error != OK:
            self.rounded.append(error.latent(node, stage, direction, "not_bitwise"))


def certainly_wrong(kind: Kind, reason: str) -> LocalError:
    """What no rounding explains."""
    return LocalError("worse", kind, math.inf, math.inf, reason)


def base_name(op: str) -> str:
    """`add` of `aten.add.Tensor`."""
    parts = op.split(".")
    return parts[1] if len(parts) > 1 and parts[0] in ("aten", "prims", "Tensor") else parts[-1]


def comparable(op: str) -> bool:
    """Whether two runs of the op on the same inputs must agree."""
    name = base_name(op)
    return name not in RANDOM and name not in UNDEFINED


def coarsest(values: Sequence[Any]) -> WorkingDtype | None:
    """The facts of the floating-point dtype with the largest roundoff among the tensors; None if there is none."""
    facts = [dtype_of(v) for v in values if is_noisy(v)]
    return max(facts, key=lambda f: f.unit_roundoff) if facts else None


def local_error(
    op: str,
    call: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    got: Any,
    *,
    rounded: Sequence[Any] | None = None,
) -> LocalError:
    """Judge `got`, what a compiler made of `call(*args, **kwargs)`.

    Args:
        op: name of the op.
        call: computes it uncompiled.
        args, kwargs: the inputs that the compiled op got.
        rounded: those inputs that a compiler may have held more precisely than it has shown them, because they were
            rounded for being shown; None: all of them.
    """
    return Expectation(op, call, args, kwargs, rounded=rounded).judge(got)


class Expectation:
    """What a call should give; as many results as wanted can be judged against it. See `local_error`."""

    def __init__(
        self,
        op: str,
        call: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        rounded: Sequence[Any] | None = None,
        wanted: Sequence[Any] | None = None,
        file: ValueFile | None = None,
    ) -> None:
        """`wanted`: what the call gives, flat, if that is known. `file`: as for `references`."""
        self._op, self._call, self._args, self._kwargs = op, call, args, kwargs
        self._rounded, self._file = rounded, file
        self._inputs = tree_leaves((args, dict(kwargs)))
        self._wanted: list[Any] = []
        self._wide_values: list[Any] | None = None
        self._problem: LocalError | None = None
        self._typicals: dict[int, float] = {}
        if not comparable(op):
            self._problem = LocalError("skipped", reason="random or undefined by design")
            return
        if wanted is not None:
            self._wanted = list(wanted)
            return
        try:
            with torch.no_grad():
                self._wanted = flat_outputs(call(*map(copied, args), **{k: copied(v) for k, v in kwargs.items()}))
        except Exception as error:
            self._problem = LocalError("skipped", reason=f"it does not run by itself: {type(error).__name__}: {error}")

    @property
    def wanted(self) -> Sequence[Any]:
        """What the call gives, flat; empty where it is not known."""
        return self._wanted

    def judge(self, got: Any, *, first: bool = False) -> LocalError:
        """Judge one result; with `first`, up to the first value that is worse, else for the worst one."""
        if self._problem is not None:
            return self._problem
        wanted, found = self._wanted, flat_outputs(got)
        if len(wanted) != len(found):
            return certainly_wrong("wrong_shape", f"{len(found)} results, not {len(wanted)}")
        worst = OK
        for i, (want, have) in enumerate(zip(wanted, found, strict=True)):
            form = _form(want, have)
            if form is not None:
                return form
            if not isinstance(want, torch.Tensor) or not isinstance(have, torch.Tensor) or equal_bits(want, have):
                continue
            near = _nearness(want, have, partial(self._typical, i))
            if near is not None and near <= NEAR:
                reason = "as the op uncompiled, to a few roundings"
                worst = max(worst, LocalError("ok", z=near, reason=reason), key=_rank)
                continue
            try:
                wide = self._wide()
            except Exception as error:
                return LocalError("skipped", reason=f"no float64 reference: {type(error).__name__}: {error}")
            judged = self._numbers(want, have, wide[i])
            if self._file is not None and wide[i] is not None:
                self._file.release(have, wide[i].values, wide[i].noise.sigma)
            if _rank(judged) > _rank(worst):
                worst = judged
            if first and worst.answer == "worse":
                break
        return worst

    def _typical(self, i: int) -> float:
        if i not in self._typicals:
            self._typicals[i] = _typical(self._wanted[i])
        return self._typicals[i]

    def _wide(self) -> list[Any]:
        """A Reference for every noisy result, None for the others."""
        if self._wide_values is None:
            facts = self._facts(self._wanted)
            terms = terms_of(self._op, self._inputs, self._wanted)
            pointwise = torch.Tag.pointwise in getattr(self._call, "tags", ())
            found = iter(
                references(
                    self._call,
                    self._args,
                    self._kwargs,
                    roundoff=facts.unit_roundoff if facts is not None else 2.0**-53,
                    runs=len(BALANCED) if pointwise else RUNS,
                    terms=terms,
                    rough=terms is None,
                    pointwise=pointwise,
                    file=self._file,
                )
            )
            self._wide_values = [next(found, None) if is_noisy(value) else None for value in self._wanted]
        return self._wide_values

    def _facts(self, results: Sequence[Any]) -> WorkingDtype | None:
        return coarsest([*(self._inputs if self._rounded is None else self._rounded), *results])

    def _numbers(self, want: torch.Tensor, have: torch.Tensor, reference: Any) -> LocalError:
        if not is_noisy(want):
            return _exact(self._op, want, have, self._inputs)
        if reference is None or reference.values.shape != tuple(want.shape):
            return LocalError("skipped", reason="no float64 reference of this shape")
        facts = dtype_of(want)
        coarse = self._facts([want]) or facts
        mine = coarse if coarse.unit_roundoff > facts.unit_roundoff and coarse.kind == facts.kind else facts
        mine = msgspec.structs.replace(
            mine, smallest_normal=facts.smallest_normal, largest=facts.largest, has_inf=facts.has_inf
        )
        candidate = RunValues(array_from(have.to(want.dtype) if have.dtype != want.dtype else have), mine)
        noise = reference.noise
        if base_name(self._op) in NEAR_ONE:
            noise = Noise(noise.sigma + facts.unit_roundoff / mine.unit_roundoff, noise.accumulation)
        eager, held = [RunValues(array_from(want), mine)], tolerated(mine)
        verdict = judge(candidate, reference.values, noise, eager, thresholds=held, flush=True, brief=True)
        z = verdict.candidate.max
        if verdict.answer == "candidate_worse":
            infinite = verdict.statistic == "class"
            kind: Kind = "nonfinite" if infinite else "wrong_value"
            return LocalError("worse", kind, math.inf if infinite else z, verdict.excess, verdict.reason)
        if verdict.answer == "candidate_better":
            return LocalError("better", z=z, reason=verdict.reason)
        if verdict.answer == "inconclusive":
            return LocalError("unsure", z=0.0, reason=verdict.reason)
        return LocalError("ok", z=z, reason=verdict.reason)


def _nearness(want: torch.Tensor, have: torch.Tensor, rms: Callable[[], float]) -> float | None:
    """The largest distance of two results in units of u·(|want| + rms/16); None where they differ in class.

    `rms` gives that of the first.
    """
    if not is_noisy(want) or want.dtype != have.dtype or want.is_complex() or want.numel() == 0:
        return None
    facts, typical, largest = dtype_of(want), rms(), 0.0
    for part in zip(_parts(want), _parts(have), strict=True):
        a, b = (value.to(torch.float64) for value in part)
        finite = torch.isfinite(a)
        if not torch.equal(finite, torch.isfinite(b)):
            return None
        if not bool(finite.all()):
            if not torch.equal(torch.nan_to_num(a[~finite], nan=0.5), torch.nan_to_num(b[~finite], nan=0.5)):
                return None
            a, b = a[finite], b[finite]
        if a.numel():
            unit = a.abs().add_(typical / 16).mul_(facts.unit_roundoff).add_(facts.smallest_normal)
            largest = max(largest, float((a - b).abs_().div_(unit).max()))
    return largest


def _parts(value: torch.Tensor) -> Sequence[torch.Tensor]:
    return torch.split(value.detach().reshape(-1), AT_ONCE)


def _typical(value: torch.Tensor) -> float:
    """The rms of the finite elements; 0 where there is none."""
    squares, count = 0.0, 0
    for part in _parts(value):
        finite = part.to(torch.complex128 if part.is_complex() else torch.float64)
        total = float(torch.vdot(finite, finite).real)
        if not math.isfinite(total):
            finite = finite[torch.isfinite(finite)]
            total = float(torch.vdot(finite, finite).real)
        squares, count = squares + total, count + finite.numel()
    return math.sqrt(squares / max(1, count))


def _rank(error: LocalError) -> tuple[int, float]:
    return (("skipped", "ok", "better", "unsure", "worse").index(error.answer), error.z)


def _form(want: Any, have: Any) -> LocalError | None:
    if not isinstance(want, torch.Tensor) or not isinstance(have, torch.Tensor):
        if type(want) is type(have) and isinstance(want, (bool, int, float)) and want != have and want == want:
            return certainly_wrong("wrong_value", f"{have!r}, not {want!r}")
        return None
    if want.dtype != have.dtype:
        return certainly_wrong("wrong_dtype", f"dtype {have.dtype}, not {want.dtype}")
    if want.shape != have.shape:
        return certainly_wrong("wrong_shape", f"shape {tuple(have.shape)}, not {tuple(want.shape)}")
    return None


def _exact(op: str, want: torch.Tensor, have: torch.Tensor, inputs: Sequence[Any]) -> LocalError:
    floats = [v for v in inputs if is_noisy(v)]
    if base_name(op) in CONVERSIONS and floats:
        outside = unrepresentable(floats[0], want.dtype)
        if outside is not None and outside.shape == want.shape == have.shape:
            have = torch.where(outside, want, have)
    if have.dtype != want.dtype:
        have = have.to(want.dtype)
    if floats and (base_name(op) in INDICES or want.dtype is torch.bool):
        return LocalError("unsure", reason="indices and comparisons of floating-point values hang on their last bit")
    if floats and _at_the_edge(want, have):
        return LocalError("unsure", reason="a conversion whose result hangs on the last bit of its input")
    verdict = judge_exact(array_from(have), array_from(want))
    if verdict.answer == "ok":
        return OK
    return certainly_wrong("wrong_value", verdict.reason)


def _at_the_edge(want: torch.Tensor, have: torch.Tensor) -> bool:
    """Whether integers differ by one at most, in fewer than half of the places."""
    gap = (want.to(torch.float64) - have.to(torch.float64)).abs()
    return bool((gap <= 1).all()) and float((gap > 0).to(torch.float64).mean()) < 0.5
