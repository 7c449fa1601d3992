"""What `import graphprobe` does where TORCH_COMPILE_DEBUG is set."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from graphprobe.errors import GraphprobeWarning
from graphprobe.settings import torch_compile_debug_state


def obey_environment(environ: Mapping[str, str]) -> None:
    """Collect if torch would; say so if torch would ignore the value."""
    state = torch_compile_debug_state(environ)
    if state == "ignored":
        value = environ["TORCH_COMPILE_DEBUG"]
        warnings.warn(
            f"TORCH_COMPILE_DEBUG={value!r} switches nothing on: torch takes only '1' (what is no number "
            "keeps some versions from being imported), and so does graphprobe. "
            "Set TORCH_COMPILE_DEBUG=1 to collect, or unset it.",
            GraphprobeWarning,
            stacklevel=3,
        )
    elif state == "on":
        from graphprobe.probe.active import enable_on_first_use

        enable_on_first_use()
