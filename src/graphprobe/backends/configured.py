"""`get_backend`: Inductor as a `CompilerConfig` says, collected."""

from __future__ import annotations

from typing import Any

from graphprobe.backends.wrap import Wrapped, wrap
from graphprobe.compiler_config import CompilerConfig
from graphprobe.errors import SettingError
from graphprobe.internals.backends import inductor_with_mode


def get_backend(*, compiler_config: CompilerConfig | None = None) -> Wrapped:
    """An Inductor backend with the config's mode, collected as by `graphprobe.wrap`.

    Raises:
        SettingError: `compiler_config` is no CompilerConfig.
    """
    config = CompilerConfig() if compiler_config is None else compiler_config
    if not isinstance(config, CompilerConfig):
        raise SettingError(f"compiler_config takes a CompilerConfig, not {type(config).__name__}: {config!r}")
    settings: dict[str, Any] = {}
    kind = config.debug.graph_dump.type.value
    if kind is not None:
        settings["graph_dump"] = kind
    return wrap(inductor_with_mode(config.mode.value), **settings)
