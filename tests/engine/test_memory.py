"""How much memory there is, and what a step is predicted to need; nothing here needs much."""

from pathlib import Path

import pytest
import torch

from graphprobe.engine import memory
from graphprobe.engine.forked_child import isolated
from graphprobe.engine.memory import STEPS, Sizes, free_memory, predicted

MIB = 1 << 20


def test_what_a_step_needs() -> None:
    sizes = Sizes(state=100, wide=400, largest=50, run=300, ops=1000)
    assert predicted("float64", sizes) == 400 + 4 * 300, "bfloat16 takes four times the room"
    assert predicted("judging", sizes) == memory.JUDGED * 50
    needs = [predicted(step, sizes) for step in ("aot", "passes", "kernels")]
    assert needs == [300 + 100 + 1000, 300 + 100 + 2000, 300 + 400 + 2000 + memory.COMPILER]
    assert predicted("kernels as they are", sizes) < predicted("kernels", sizes)
    assert all(predicted(step, Sizes()) <= memory.COMPILER for step in (*STEPS, "float64", "judging"))
    sizes = Sizes()
    sizes.know([torch.ones(8, dtype=torch.bfloat16), torch.ones(8), torch.ones(8, dtype=torch.int32)])
    assert (sizes.state, sizes.wide) == (16 + 32 + 32, 64 + 64 + 32)


def test_a_container_may_have_less_than_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable: {1000 << 10} kB\n")
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "GROUP", tmp_path)
    assert free_memory() == 750 * MIB
    for name, text in {"max": 500 * MIB, "current": 200 * MIB, "stat": f"anon 1\ninactive_file {100 * MIB}\n"}.items():
        (tmp_path / f"memory.{name}").write_text(f"{text}")
    assert free_memory() == 300 * MIB, "what the system can drop at any time is free"
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory() == 750 * MIB
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "gone")
    assert free_memory() is None


def test_a_step_tells_by_how_much_its_process_grew() -> None:
    grown = isolated(lambda: len(b"x" * (200 * MIB))).grown
    assert 190 * MIB < grown < 300 * MIB
    assert isolated(lambda: 1).grown < 50 * MIB
