"""How much memory there is, and how much a step of a diagnosis will need, from sizes that are known before it."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import resource
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from graphprobe.settings import text_from_size

log = logging.getLogger(__name__)

MEMINFO, GROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")

SHARE = 0.75
"""Of the memory that is available, what a step may take."""

STEPS: Mapping[str, tuple[float, float]] = {
    "aot": (1, 1),
    "passes": (1, 2),
    "kernels": (4, 2),
    "kernels as they are": (4, 1),
}
"""How many copies of the program's state, and of the values of all ops in its graphs, a rung has at the same time."""

COMPILER = 64 << 20
"""What a second compilation takes in the same process."""

JUDGED = 12
"""Arrays of float64 of the size of a value that are made to judge it."""


LARGE = 64 << 20
"""Bytes of state from which on a program is large."""


@dataclass
class Sizes:
    """What is known of a program, in bytes.

    Attributes:
        state: its parameters, buffers and arguments; `wide`: the same in float64.
        largest: in float64, of its results, gradients and state.
        run: by how much a process grows that runs it, as its user does or uncompiled.
        ops: values of all ops in its graphs; 0 before a graph was seen.
    """

    state: int = 0
    wide: int = 0
    largest: int = 0
    run: int = 0
    ops: int = 0

    @property
    def large(self) -> bool:
        """Whether each look at all values of the program takes long."""
        return self.state >= LARGE

    def know(self, tensors: Iterable[torch.Tensor]) -> None:
        """Take in the program's state."""
        for tensor in tensors:
            self.state += size_of(tensor)
            self.wide += in_float64(tensor)


def predicted(step: str, sizes: Sizes) -> int:
    """By how many bytes a process will grow that makes a step: a rung by its name, `float64` or `judging`."""
    if step == "judging":
        return JUDGED * sizes.largest
    if step == "float64":
        return int(sizes.wide + sizes.run * sizes.wide / max(1, sizes.state))
    (state, ops), again = STEPS[step], COMPILER if step.startswith("kernels") else 0
    return int(sizes.run + state * sizes.state + ops * sizes.ops + again)


class Room:
    """Knows the sizes of a program, and which steps there is memory for.

    Attributes:
        tell: shows what is predicted; `note`: takes what is done instead where that is too much.
    """

    def __init__(self, tell: Callable[[str], None], note: Callable[[str], None]) -> None:
        self.sizes, self.tell, self.note = Sizes(), tell, note

    def fits(self, step: str, instead: str) -> bool:
        """Whether there is the memory that a step will need; `instead` says what is done where there is not."""
        need, left = predicted(step, self.sizes), free_memory()
        if left is None:
            return True
        text = f"predicted: {text_from_size(need)} of memory, of {text_from_size(left)}"
        log.info("%s: %s", step, text)
        self.tell(text)
        if need > left:
            self.note(f"{step}: {text}: {instead}")
        return need <= left


def size_of(tensor: torch.Tensor) -> int:
    """Of what a tensor holds; 0 of one that does not say."""
    with contextlib.suppress(RuntimeError, TypeError, NotImplementedError):
        count: object = tensor.numel()
        return count * tensor.dtype.itemsize if isinstance(count, int) else 0
    return 0


def in_float64(tensor: torch.Tensor) -> int:
    """The same once floating-point numbers are float64."""
    size = size_of(tensor)
    return size * 8 // tensor.dtype.itemsize if tensor.is_floating_point() else size


def free_memory() -> int | None:
    """What may be taken of the memory that is left in the machine and in the container; None where that is unknown."""
    left: list[int] = []
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = MEMINFO.read_text("ascii").splitlines()
        left.append(int(next(line.split()[1] for line in lines if line.startswith("MemAvailable"))) << 10)
    with contextlib.suppress(OSError, ValueError, StopIteration):  # control groups, version 2
        limit, used = (int((GROUP / name).read_text("ascii")) for name in ("memory.max", "memory.current"))
        rows = (GROUP / "memory.stat").read_text("ascii").splitlines()
        left.append(limit - used + int(next(row.split()[1] for row in rows if row.startswith("inactive_file "))))
    return int(SHARE * max(0, min(left))) if left else None


def peak() -> int:
    """The most bytes that this process has had in memory so far, since it was forked."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def trim() -> None:
    """Give memory that is free back to the machine, where the C library can: a process that waits keeps less."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
