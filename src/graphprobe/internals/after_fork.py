"""What a forked child must settle before it compiles: torch's threads and compile workers stayed with the parent."""

from __future__ import annotations

import os
import sys

import torch

from graphprobe.internals.require import require


def can_fork() -> bool:
    """Whether a child made by `fork` can go on using torch: not after CUDA has been initialised."""
    return hasattr(sys, "platform") and sys.platform == "linux" and not torch.cuda.is_initialized()


def prepare() -> None:
    """Compile in this process: a pool of compile workers that the parent had started would never answer."""
    config = require("torch._inductor", "config", purpose="compiling in a child process")
    config.compile_threads = max(1, min(config.compile_threads or 1, os.cpu_count() or 1))
    config.worker_start_method = "fork"
    asynchronous = require("torch._inductor.async_compile", "AsyncCompile", purpose="compiling in a child process")
    for name in ("pool", "process_pool"):
        clear = getattr(getattr(asynchronous, name, None), "cache_clear", None)
        if clear is not None:
            clear()


def preload() -> None:
    """Import the compiler here, so that children made by `fork` need not."""
    for module, name in (
        ("torch._inductor.compile_fx", "compile_fx"),
        ("torch._dynamo.backends.common", "aot_autograd"),
    ):
        require(module, name, purpose="compiling in a child process")
