"""Comparisons that are made up row by row, as large as wanted: a training run of a transformer with one wrong call."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import msgspec

from graphprobe.compare.result import CallName, CallResult, Counts, Side, SlotResult, SlotSide, Summary, WrongCall
from graphprobe.report.comparison import document_from

BLOCKS = 24
PARTS = (
    ("ln_1", "torch.nn.functional.layer_norm", 31),
    ("attn.q", "torch.nn.functional.linear", 42),
    ("attn.k", "torch.nn.functional.linear", 43),
    ("attn.v", "torch.nn.functional.linear", 44),
    ("attn", "torch.nn.functional.scaled_dot_product_attention", 47),
    ("attn.out", "torch.nn.functional.linear", 51),
    ("ln_2", "torch.nn.functional.layer_norm", 33),
    ("mlp.up", "torch.nn.functional.linear", 60),
    ("mlp", "torch.nn.functional.gelu", 61),
    ("mlp.down", "torch.nn.functional.linear", 62),
)
WRONG_STEP, WRONG_BLOCK, WRONG_PART = 1, 13, "mlp"
"""Where gelu goes wrong; what comes after inherits it."""


def rows(count: int, *, steps: int = 8) -> Iterator[CallResult]:
    """`count` pairs of calls in `steps` training steps."""
    each = -(-count // steps)
    for number in range(count):
        step, place = divmod(number, each)
        block, part = divmod(place % (BLOCKS * len(PARTS)), len(PARTS))
        again = place // (BLOCKS * len(PARTS))
        yield _row(number, step, block, part, again, backward=place >= each // 2)


def _row(number: int, step: int, block: int, part: int, again: int, *, backward: bool) -> CallResult:
    name, api, line = PARTS[part]
    way = "backward" if backward else "forward"
    noise = 0.4 + (number * 2654435761 % 2**32) / 2**32  # no two alike, so that a file shrinks no more than a real one
    wrong = (step, block, name, again, backward) == (WRONG_STEP, WRONG_BLOCK, WRONG_PART, 0, False)
    after = step == WRONG_STEP and (backward or again > 0 or (block, part) >= (WRONG_BLOCK, 8))
    level = 412.7 if wrong else 38.0 * noise if after else noise
    got = 38.0 * noise if after and not wrong else noise / 2
    index = again * BLOCKS + block
    call = CallName(
        position=number,
        label=f"{api.removeprefix('torch.')}.{index * 4 + part}.{way}",
        kind="api",
        api=api,
        module=f"model.blocks.{block}.{name}",
        source=f"model.py:{line}",
    )
    size = 1.5 + noise
    shape = (8, 128, 768)
    mine = SlotSide(dtype="bfloat16", shape=shape, min=-size, max=size * 1.1, mean=0.01, l2=size * 800, nan=0, inf=0)
    theirs = msgspec.structs.replace(mine, dtype="float32", max=size * (1.1 + level * 1e-4))
    slots = tuple(
        SlotResult(
            name=slot,
            role=role,
            candidate=mine,
            reference=theirs,
            basis="statistics",
            level=value,
            z=value * 1.3,
            max_abs=value * 0.003,
            verdict="candidate_worse" if wrong and role == "output" else "ok",
        )
        for slot, role, value in (("input.0", "input", got), ("input.1", "input", 0.5), ("output.0", "output", level))
    )
    return CallResult(
        number=number,
        step=step,
        direction=way,
        rule="exact",
        candidate=call,
        reference=msgspec.structs.replace(call),
        slots=slots,
        inherited=got,
        level=level,
        verdict="candidate_worse" if wrong else "ok",
        blame="local" if wrong else "inherited" if after else "",
        reason="its error is 217 times what its inputs explain, and calls like it have 4 at most" if wrong else "",
    )


def summary(count: int) -> Summary:
    """The summary of `rows(count)`."""
    growth = [0.0] * 64
    first = None
    for row in rows(count):
        part = row.number * 64 // count
        growth[part] = max(growth[part], row.level)
        if row.blame == "local":
            first = row
    findings = []
    if first is not None:
        findings = [
            WrongCall(
                kind="wrong_value",
                verdict="candidate_worse",
                row=first.number,
                step=first.step,
                candidate=first.candidate,
                reference=first.reference,
                slot="output.0",
                worst=(3, 17, 250),
                level=first.level,
                inherited=first.inherited,
                evidence=(
                    first.reason,
                    "run again in float64 on its own inputs, the candidate is the side that is off",
                ),
            )
        ]
    return Summary(
        outcome="different" if findings else "same",
        candidate=Side("dump_bf16", "graphprobe-api", {"torch": "2.13.0", "device": "cuda:0"}),
        reference=Side("dump_fp32", "graphprobe-api", {"torch": "2.13.0", "device": "cuda:0"}),
        basis="statistics",
        first=findings[0] if findings else None,
        findings=findings,
        counts=Counts(pairs=count, slots=3 * count, by_rule={"exact": count}, by_basis={"statistics": 3 * count}),
        precision={"float32 -> bfloat16": 3 * count},
        growth=[float(f"{level:.4g}") for level in growth],
        seconds=math.nan if not count else count / 4000,
    )


def write_comparison(folder: Path, count: int) -> None:
    """`comparison.json` and `rows.jsonl` as `graphprobe compare --out` writes them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "comparison.json").write_text(json.dumps(document_from(summary(count)), indent=2) + "\n")
    with open(folder / "rows.jsonl", "wb") as file:
        for row in rows(count):
            file.write(msgspec.json.encode(row) + b"\n")
