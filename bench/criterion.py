"""False alarms on benign rewrites and misses of planted bugs: graphprobe's criterion against what people use instead.

    python bench/criterion.py [--quick] [--no-compile] [--json FILE] [--show N]

Each operation of `criterion_cases.py` runs in float32, bfloat16 and float16, on inputs of three scales and three
seeds. Every criterion sees the same candidate next to the same eager result; graphprobe's and `same()` see the float64
reference as well. A planted bug that leaves every bit as eager has it is no case. `below 2 ulp` counts misses of bugs
that move no element by more than two units in its last place (of eager's value, subnormals included).
`both runs`: besides eager, the `per-op` rewrite counts as a legitimate run, as eager on a decomposed graph would; those
rewrites are then judged against themselves. Thresholds were chosen on the tuning operations only. Takes about a minute.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.utils import same

from graphprobe.engine.reference import OpReference, array_from, dtype_of, references
from graphprobe.numerics.divergence import RunValues
from graphprobe.numerics.verdict import Verdict, judge

sys.path.insert(0, str(Path(__file__).parent))
from criterion_cases import OPS, Op, any_output, narrow, wide

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SCALES = (1e-5, 1.0, 1e4)
GRAPHPROBE = "graphprobe"
BOTH = "graphprobe, both runs"


@dataclass
class Case:
    """One candidate: what it is and what each criterion said."""

    op: str
    tuning: bool
    dtype: str
    scale: float
    seed: int
    name: str
    bug: bool
    visible: bool
    alarms: dict[str, bool] = field(default_factory=dict)
    verdict: Verdict | None = None


def candidates(op: Op, inputs: list[torch.Tensor], eager: torch.Tensor, compiled: Callable[..., Any] | None,
               scale: float, seed: int) -> Iterator[tuple[str, bool, torch.Tensor]]:  # fmt: skip
    dtype = eager.dtype
    benign = dict(op.benign)
    if dtype is not torch.float32:
        benign["fused"] = wide(op.fn)
    if compiled is not None:
        benign["inductor"] = compiled
    for name, fn in benign.items():
        if name.startswith("per-op") and dtype is torch.float16 and scale != 1.0:
            continue
        yield name, False, fn(*inputs)
    bugs = dict(op.bugs)
    if dtype is not torch.bfloat16:
        bugs["computed in bfloat16"] = narrow(op.fn)
    for name, fn in bugs.items():
        value = fn(*inputs)
        yield name, True, value.to(dtype) if value.shape == eager.shape else value.reshape(eager.shape).to(dtype)
    for name, value in any_output(eager, seed).items():
        yield name, True, value


def bits_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


def is_visible(eager: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether an element moved by more than two ulp of eager's value, or changed its class."""
    facts = torch.finfo(eager.dtype)
    a, b = eager.double(), value.double()
    both = a.isfinite() & b.isfinite()
    if bool((~both & ~((a == b) | (a.isnan() & b.isnan()))).any()):
        return True
    # The spacing at a is eps·2**floor(log2|a|), and eps·tiny below the smallest normal number.
    spacing = torch.exp2(torch.floor(torch.log2(a.abs().clamp_min(facts.tiny)))) * facts.eps
    return bool(((b - a).abs()[both] > 2 * spacing[both]).any())


def baselines(eager: torch.Tensor, value: torch.Tensor, r64: torch.Tensor) -> dict[str, Callable[[], bool]]:
    """What alarms, for each criterion; each gets its usual settings, NaN counted as equal to NaN."""

    def assert_close() -> bool:
        try:
            torch.testing.assert_close(value, eager, equal_nan=True)
        except AssertionError:
            return True
        return False

    def cosine() -> bool:
        a, b = eager.double().flatten(), value.double().flatten()
        if bits_equal(a, b):
            return False
        similarity = torch.nn.functional.cosine_similarity(a, b, dim=0, eps=1e-300)
        return not (bool(similarity >= 0.99) and bool((a - b).abs().nan_to_num(0.0).max() <= 1e-3))

    return {
        "assert_close": assert_close,
        "allclose": lambda: not torch.allclose(value, eager, equal_nan=True),
        "cosine<.99 | abs>1e-3": cosine,
        "same(tol=1e-3)": lambda: not same(eager, value, r64, tol=1e-3, equal_nan=True),
    }


def run_op(op: Op, dtype: torch.dtype, scale: float, seed: int, compiled: Callable[..., Any] | None,
           seconds: dict[str, float]) -> Iterator[Case]:  # fmt: skip
    generator = torch.Generator().manual_seed(1000 * seed + 17)
    made = op.make(generator, scale)
    inputs = [t.to(dtype) if t.is_floating_point() else t for t in made]
    eager = op.fn(*inputs)
    began = time.perf_counter()
    facts = dtype_of(eager)
    reference: OpReference = references(op.fn, inputs, roundoff=facts.unit_roundoff, terms=op.terms)[0]
    seconds["float64 reference"] += time.perf_counter() - began
    r64 = torch.from_numpy(reference.values)
    legitimate = [RunValues(array_from(eager), facts)]
    in_range = dtype is not torch.float16 or scale == 1.0
    steps = [
        RunValues(array_from(fn(*inputs)), facts)
        for name, fn in op.benign.items()
        if name.startswith("per-op") and in_range
    ]
    for name, bug, value in candidates(op, inputs, eager, compiled, scale, seed):
        if bug and bits_equal(eager, value):
            continue
        case = Case(op.name, op.tuning, str(dtype)[6:], scale, seed, name, bug, is_visible(eager, value))
        began = time.perf_counter()
        case.verdict = judge(RunValues(array_from(value), facts), reference.values, reference.noise, legitimate)
        case.alarms[GRAPHPROBE] = case.verdict.answer == "candidate_worse"
        seconds[GRAPHPROBE] += time.perf_counter() - began
        with_steps = judge(
            RunValues(array_from(value), facts), reference.values, reference.noise, [*legitimate, *steps]
        )
        case.alarms[BOTH] = with_steps.answer == "candidate_worse"
        for criterion, alarm in baselines(eager, value, r64).items():
            began = time.perf_counter()
            case.alarms[criterion] = alarm()
            seconds[criterion] += time.perf_counter() - began
        yield case


def table(cases: list[Case], seconds: dict[str, float]) -> None:
    criteria = list(cases[0].alarms)
    for title, tuning in (("tuning operations", True), ("held-out operations", False)):
        part = [case for case in cases if case.tuning is tuning]
        benign, bugs = [c for c in part if not c.bug], [c for c in part if c.bug]
        names = {case.op for case in part}
        print(f"\n{title}: {len(names)}; {len(benign)} benign rewrites, {len(bugs)} planted bugs "
              f"({sum(not c.visible for c in bugs)} below 2 ulp)")  # fmt: skip
        dtypes = [str(dtype)[6:] for dtype in DTYPES]
        print(f"{'':24}{'false alarms':>14}" + "".join(f"{d:>10}" for d in dtypes)
              + f"{'missed bugs':>14}" + "".join(f"{d:>10}" for d in dtypes) + f"{'above 2 ulp':>13}")  # fmt: skip
        for criterion in criteria:
            alarms = [c for c in benign if c.alarms[criterion]]
            missed = [c for c in bugs if not c.alarms[criterion]]
            row = f"{criterion:24}{len(alarms):>14}"
            row += "".join(f"{sum(c.dtype == d for c in alarms):>10}" for d in dtypes)
            row += f"{len(missed):>14}" + "".join(f"{sum(c.dtype == d for c in missed):>10}" for d in dtypes)
            print(row + f"{sum(c.visible for c in missed):>13}")
    verdicts = Counter((case.bug, case.verdict.answer) for case in cases if case.verdict)
    counts = (f"{'bugs' if bug else 'benign'} {answer} {count}" for (bug, answer), count in sorted(verdicts.items()))
    print("\nverdicts: " + "; ".join(counts))
    print("seconds: " + ", ".join(f"{name} {value:.1f}" for name, value in seconds.items()))


def show(cases: list[Case], limit: int) -> None:
    """What graphprobe got wrong, grouped."""
    for title, wrong in (
        ("false alarms", [c for c in cases if not c.bug and c.alarms[GRAPHPROBE]]),
        ("misses above 2 ulp", [c for c in cases if c.bug and c.visible and not c.alarms[GRAPHPROBE]]),
        ("misses below 2 ulp", [c for c in cases if c.bug and not c.visible and not c.alarms[GRAPHPROBE]]),
    ):
        groups: dict[tuple[str, str], list[Case]] = defaultdict(list)
        for case in wrong:
            groups[(case.name, case.dtype)].append(case)
        print(f"\n{title}: {len(wrong)}")
        for (name, dtype), group in sorted(groups.items(), key=lambda item: -len(item[1]))[:limit]:
            places = Counter(f"{c.op} {c.scale:g}" for c in group)
            print(f"  {len(group):4} {name}, {dtype}: " + ", ".join(f"{p} ×{n}" for p, n in places.most_common(6)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed, two scales, nothing compiled")
    parser.add_argument("--no-compile", action="store_true", help="leave Inductor's versions out")
    parser.add_argument("--json", metavar="FILE", help="every case with its figures, one a line")
    parser.add_argument("--show", type=int, default=0, metavar="N", help="the N largest groups of mistakes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    began = time.perf_counter()
    cases: list[Case] = []
    seconds: dict[str, float] = defaultdict(float)
    for op in OPS:
        for dtype in DTYPES:
            for scale in SCALES[:2] if options.quick else SCALES:
                compile_it = op.compiled and scale == 1.0 and dtype is not torch.float16
                compiled = torch.compile(op.fn) if compile_it and not (options.quick or options.no_compile) else None
                for seed in range(1 if options.quick else 3):
                    cases += run_op(op, dtype, scale, seed, compiled, seconds)
                torch._dynamo.reset()
    command = " ".join(["python", "bench/criterion.py", *sys.argv[1:]])
    print(f"{command}  (torch {torch.__version__}, {platform.machine()}, one thread)")
    table(cases, seconds)
    print(f"total: {time.perf_counter() - began:.0f} s")
    if options.show:
        show(cases, options.show)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            for case in cases:
                record = {k: v for k, v in asdict(case).items() if k != "verdict"}
                if case.verdict is not None:
                    v = case.verdict
                    record |= {
                        "answer": v.answer,
                        "statistic": v.statistic,
                        "excess": v.excess,
                        "limits": [[x.statistic, x.value, x.limit] for x in v.limits],
                        "z": z_of(v),
                    }
                file.write(json.dumps(record) + "\n")


def z_of(verdict: Verdict) -> dict[str, list[float]]:
    runs = {"candidate": verdict.candidate, "eager": verdict.legitimate[0]}
    return {name: [run.rms, run.q999, run.max, run.wrong_class, run.gain, run.gain_error] for name, run in runs.items()}


if __name__ == "__main__":
    main()
