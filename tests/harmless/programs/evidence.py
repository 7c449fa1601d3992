"""Everything about a process that watching must not change, as lines of text that two processes can be compared by."""

import atexit
import contextlib
import hashlib
import importlib
import json
import logging
import os
import random
import re
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

CONFIGS = ("torch._dynamo.config", "torch._functorch.config", "torch._inductor.config")

PER_PROCESS = re.compile(
    r"PWD$|OLDPWD$|_$|TORCHELASTIC_|MASTER_PORT$|TORCH_NCCL_|_TORCHINDUCTOR_|TORCHINDUCTOR_CACHE_DIR$"
)
"""Variables that a shell or a launcher sets anew each time, or torch once it has compiled."""

OF_A_SCRIPT = (
    "__annotations__ __builtins__ __cached__ __doc__ __file__ __loader__ __name__ __package__ __spec__".split()
)


COPY = os.environ.pop("EVIDENCE", "")
"""A file that has it too: the standard output may be closed, or shared with other ranks."""


def say(name: str, value: Any) -> None:
    line = f"{name}: {value}"
    print(line, flush=True)
    if COPY:
        with open(f"{COPY}.{os.environ.get('RANK', 0)}", "a", encoding="utf-8") as file:
            file.write(f"{line}\n")


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """The program, watched in the way that the variable WATCHED names, as its author would write it.

    When the process ends, what lies about in it is said once more.
    """
    way = os.environ.pop("WATCHED", "")
    atexit.register(everything, ended=True)
    if not way:
        yield
        return
    import graphprobe

    name, _, folder = way.partition(":")
    if name == "trace":
        with graphprobe.trace(folder):
            yield
    elif name == "dump":
        with graphprobe.dump(folder, data="tensor", level="mix"):
            yield
    else:
        if name == "enable":
            graphprobe.enable(folder)
        yield  # for TORCH_COMPILE_DEBUG=1 the import is all


def bits(value: Any) -> str:
    """A digest of the very bytes, together with dtype, shape, strides and how often it was written to."""
    if isinstance(value, torch.Tensor):
        if hasattr(value, "to_local"):  # a DTensor: this rank's part
            return f"{value.placements} {tuple(value.shape)} {bits(value.to_local())}"
        plain = value.detach().contiguous().view(-1)
        data = plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b""
        version = None if value.is_inference() else value._version
        head = f"{value.dtype} {tuple(value.shape)} {value.stride()} {value.requires_grad} {version}"
        return f"{head} {hashlib.sha256(data).hexdigest()[:24]}"
    if isinstance(value, dict):
        return json.dumps({str(k): bits(v) for k, v in value.items()})
    if isinstance(value, (list, tuple)):
        return json.dumps([bits(v) for v in value])
    return repr(value)


def generators() -> None:
    say("torch rng", bits(torch.get_rng_state()))
    say("numpy rng", hashlib.sha256(repr(np.random.get_state()).encode()).hexdigest()[:24])
    say("python rng", hashlib.sha256(repr(random.getstate()).encode()).hexdigest()[:24])


def settings() -> None:
    """Every setting of the compiler that is not at its default, and whether it was set by somebody."""
    for name in CONFIGS:
        module: Any = importlib.import_module(name)
        now = module.get_config_copy()
        entries = module._config
        changed = {k: repr(v)[:80] for k, v in sorted(now.items()) if k in entries and v != entries[k].default}
        say(name, json.dumps(changed))


def surroundings(*, ended: bool = False) -> None:
    """What else lies about in a process: modes, hooks, handlers, filters, threads."""
    say("grad", (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")))
    say("modes", (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()))
    say("deterministic", torch.are_deterministic_algorithms_enabled())
    say("default dtype", torch.get_default_dtype())
    say("threads", torch.get_num_threads())
    say("hooks", (sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__, sys.gettrace()))
    say("thread hook", threading.excepthook is threading.__excepthook__)
    handlers = {number.name: signal.getsignal(number) for number in sorted(signal.Signals, key=int)}
    set_up = {name: handler for name, handler in handlers.items() if handler is not signal.SIG_DFL}
    say("signal handlers", {name: getattr(handler, "__qualname__", str(handler)) for name, handler in set_up.items()})
    environment = {name: value for name, value in sorted(os.environ.items()) if not PER_PROCESS.match(name)}
    say("environ", hashlib.sha256(repr(environment).encode()).hexdigest()[:16] + f" {len(environment)}")
    say("warning filters", hashlib.sha256(repr(warnings.filters).encode()).hexdigest()[:16])
    say("root logger", (logging.root.level, len(logging.root.handlers)))
    # Inductor's code generation raises the limit to 2000; it takes place only where no graph cache is hit.
    say("recursion", max(sys.getrecursionlimit(), 2000))
    main = {k: type(v).__name__ for k, v in vars(sys.modules["__main__"]).items() if k in OF_A_SCRIPT}
    if not ended:  # Python takes some of these names away before functions are called at its exit
        say("main", json.dumps(main, sort_keys=True))
    say("name", sys.modules["__main__"].__name__)
    say("argv", sys.argv[1:])


def everything(*, ended: bool = False) -> None:
    generators()
    settings()
    surroundings(ended=ended)


def step(name: str, module: torch.nn.Module, loss: torch.Tensor, outputs: Any) -> None:
    say(f"{name} outputs", bits(outputs))
    loss.backward()
    for key, parameter in module.named_parameters():
        say(f"{name} grad {key}", bits(parameter.grad))
    torch.optim.AdamW(module.parameters(), lr=1e-2).step()
    hooks = {key: len(value) for key, value in vars(module).items() if key.endswith("_hooks") and value}
    say(f"{name} keys", json.dumps([list(module.state_dict()), hooks]))
    say(f"{name} state", hashlib.sha256(bits(dict(module.state_dict())).encode()).hexdigest()[:24])
    generators()
