"""A known fault of Inductor, made by torch for its own tests: something to find."""

from __future__ import annotations

from graphprobe.internals.names import require

MODULE = "torch._inductor.config"
NAME = "inject_relu_bug_TESTING_ONLY"


def plant_relu_fault() -> None:
    """From here on the C++ that Inductor generates for ReLU adds 1 to what it should compute, in this whole process.

    Raises:
        UnsupportedTorchError: this torch has no such fault.
    """
    require(MODULE, f"cpp.{NAME}", purpose="the planted fault")
    setattr(require(MODULE, "cpp", purpose="the planted fault"), NAME, "accuracy")
