"""Facts about the process: rank, versions, devices, the part of the environment that bears on a compile."""

from __future__ import annotations

import os
import platform
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import graphprobe
from graphprobe.records import Manifest
from graphprobe.settings import Settings, resolve
from graphprobe.store import layout

ENV_PREFIXES = (
    "TORCH",
    "PYTORCH",
    "INDUCTOR",
    "TRITON",
    "GRAPHPROBE_",
    "OMP_",
    "MKL_",
    "KMP_",
    "CUDA_VISIBLE",
    "NCCL_",
)
ENV_NAMES = frozenset(
    {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CXX", "CC", "LD_PRELOAD", "PYTHONHASHSEED"}
)
SECRETS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")


def rank() -> int | None:
    """The distributed rank that the launcher set, None in a plain process."""
    value = os.environ.get("RANK", "")
    return int(value) if value.isdecimal() else None


def world_size() -> int:
    """Number of ranks that the launcher set, 1 in a plain process."""
    value = os.environ.get("WORLD_SIZE", "")
    return int(value) if value.isdecimal() else 1


def default_root(environ: Mapping[str, str]) -> Path:
    """Where runs go when nobody says: torch's own choice, `$TORCH_COMPILE_DEBUG_DIR/torch_compile_debug` or `./…`."""
    return Path(environ.get("TORCH_COMPILE_DEBUG_DIR") or ".") / layout.ROOT


def torch_facts() -> dict[str, Any]:
    """torch's version and devices, as far as the program has imported torch; never imports it."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "__version__"):
        return {}
    devices = ["cpu"]
    # Only if the program has set CUDA up: asking would set it up, and break a later fork.
    if hasattr(torch, "cuda") and torch.cuda.is_initialized():
        devices += [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
    return {"torch": str(torch.__version__), "devices": devices}


def manifest(settings: Settings) -> Manifest:
    """The manifest of a run that starts now, in this process."""
    return Manifest(
        graphprobe=graphprobe.__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        argv=list(sys.argv),
        cwd=os.getcwd(),
        pid=os.getpid(),
        parent_pid=os.getppid(),
        rank=rank() or 0,
        world_size=world_size(),
        host=socket.gethostname(),
        env={
            name: value
            for name, value in sorted(os.environ.items())
            if (name in ENV_NAMES or name.startswith(ENV_PREFIXES)) and not any(s in name.upper() for s in SECRETS)
        },
        settings=settings.as_manifest(),
        started_ns=time.time_ns(),
        **torch_facts(),
    )


def manifest_of_rank(environ: Mapping[str, str]) -> Manifest:
    """The same with the settings of `environ`, and the rank of the process group where there is one."""
    found = manifest(resolve(arguments={}, environ=environ))
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        found.rank, found.world_size = distributed.get_rank(), distributed.get_world_size()
    return found
