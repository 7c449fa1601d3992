"""`get_backend`: Inductor, or another backend, as a `CompilerConfig` says: collected, and dumped if it says so."""

from __future__ import annotations

import os
from typing import Any

from graphprobe.backends.wrap import Wrapped, wrap
from graphprobe.compiler_config import CompilerConfig
from graphprobe.dump_plan import DumpPlan
from graphprobe.errors import SettingError
from graphprobe.internals.dynamo.torch_backends import inductor_with_mode


def get_backend(*, compiler_config: CompilerConfig | None = None, backend: str = "inductor") -> Wrapped:
    """A backend with the config's mode, collected as by `graphprobe.wrap`.

    With `compiler_config.dump_config.enable_dump`, what the compiled ops read and write is dumped, see docs/dump.md.

    Args:
        compiler_config: None is a config without any option set.
        backend: a name that torch knows. `mode` means something to `inductor` alone; of the others, the dump has the
            engine `interpreter`.

    Raises:
        SettingError: `compiler_config` is no CompilerConfig, or has a mode that the backend does not have, or the dump
            cannot be as it is asked for; DumpConfigError, which is one, for the dump's JSON file and for conflicts.
        UsageError: torch knows no such backend.
    """
    config = CompilerConfig() if compiler_config is None else compiler_config
    if not isinstance(config, CompilerConfig):
        raise SettingError(f"compiler_config takes a CompilerConfig, not {type(config).__name__}: {config!r}")
    settings: dict[str, Any] = {}
    kind = config.debug.graph_dump.type.value
    if kind is not None:
        settings["graph_dump"] = kind
    plan = config.dump_config.plan(environ=os.environ)
    if not plan.enabled:
        return wrap(inductor_with_mode(config.mode.value) if backend == "inductor" else backend, **settings)
    return dumping_backend(plan, backend=backend, mode=config.mode.value, **settings)


def dumping_backend(plan: DumpPlan, *, backend: str = "inductor", mode: str | None = None, **settings: Any) -> Wrapped:
    """A backend that compiles as `backend` does and dumps, collected with `settings` as by `graphprobe.wrap`.

    Args:
        plan: enabled.
        mode: Inductor's, where `torch.compile` says nothing.

    Raises:
        SettingError: the dump cannot be as the plan asks for it with this backend.
    """
    # Only now: what no dump is asked for does not load.
    from graphprobe.probe.dump.backend import DumpBackend

    dumped = DumpBackend(plan, name=backend, mode=mode)
    return wrap(dumped, **settings)
