"""TorchAir's names: `from graphprobe.compat import torchair` and `from graphprobe.compat.torchair import logger`.

`get_npu_backend` compiles with Inductor for whatever device the model is on; device names in the script stay as they
are, so a script that says `npu:0` must name a device that the installed torch has.
"""

from __future__ import annotations

import logging
from typing import Any

from graphprobe import scope
from graphprobe.compiler_config import CompilerConfig as _CompilerConfig
from graphprobe.errors import UsageError

__all__ = ["CompilerConfig", "get_npu_backend", "logger", "scope"]

logger = logging.getLogger("graphprobe")
"""graphprobe's logger, in the place of TorchAir's; a run's `debug.log` holds what it says."""


class _TorchAirConfig(_CompilerConfig):
    """As `graphprobe.CompilerConfig`, with TorchAir's default mode, `max-autotune`."""

    def __init__(self) -> None:
        super().__init__()
        self.mode = "max-autotune"  # type: ignore[assignment]  # assigning sets the option's value


CompilerConfig = _TorchAirConfig


def get_npu_backend(
    *, compiler_config: _CompilerConfig | None = None, aot_config: Any = None, custom_decompositions: Any = None
) -> Any:
    """TorchAir's entry point: a backend for `torch.compile(model, backend=…)`.

    Raises:
        UsageError: `aot_config` or `custom_decompositions` is given: there is nothing here that they could configure.
    """
    from graphprobe.backends.wrap import get_backend

    for name, value in (("aot_config", aot_config), ("custom_decompositions", custom_decompositions)):
        if value:
            raise UsageError(
                f"get_npu_backend({name}=...) has no meaning outside TorchAir",
                hint="leave it out, or wrap a backend of your own that takes it: graphprobe.wrap(my_backend)",
            )
    return get_backend(compiler_config=CompilerConfig() if compiler_config is None else compiler_config)
