"""`graphprobe diagnose` on models of many architectures, in three precisions: stock torch compiles them rightly."""

from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).with_name("healthy")
FAMILIES = ("unet", "diffusion", "lstm", "gpt2", "llama", "t5", "bert", "vit", "whisper", "clip", "mamba", "moe")
PRECISIONS = ("fp32", "bf16", "autocast")
MODES = ("inference", "training", "script")
"""`script` is a training script with AdamW; the other two are made by a function."""

QUICK = {("diffusion", "autocast", "inference")}
"""Run by `make test-slow`; the rest is marked `heavy`."""


def chosen() -> list[Any]:
    """Each family in each precision and in each mode, once: a third of what could be asked for."""
    triples = [
        (family, precision, MODES[(i + j) % len(MODES)])
        for i, family in enumerate(FAMILIES)
        for j, precision in enumerate(PRECISIONS)
    ]
    return [
        pytest.param(*x, marks=pytest.mark.slow if x in QUICK else pytest.mark.heavy, id="-".join(x)) for x in triples
    ]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("family", "precision", "mode"), chosen())
def test_healthy(family: str, precision: str, mode: str, diagnosed: Any, tmp_path: Path) -> None:
    made_by = f"{PROGRAMS / 'programs.py'}:{family}_{precision}_{mode}"
    target = [str(PROGRAMS / "train.py"), family, precision] if mode == "script" else [made_by]
    env = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    _, found = diagnosed(*target, code=0, timeout_s=1700, env=env)
    verdicts = [each["verdict"] for each in found["diagnoses"]] if mode == "script" else [found["verdict"]]
    assert set(verdicts) == {"healthy"}
