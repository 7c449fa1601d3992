"""The fault that each of these programs can have: `planted` among its arguments, and the kernels of relu are wrong."""

from collections.abc import Sequence


def arguments(given: Sequence[str]) -> list[str]:
    """The other arguments."""
    if "planted" in given:
        import torch._inductor.config

        torch._inductor.config.cpp.inject_relu_bug_TESTING_ONLY = "accuracy"
    return [word for word in given if word != "planted"]
