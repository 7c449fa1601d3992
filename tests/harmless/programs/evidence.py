"""Everything about a process that watching must not change, as lines of text that two processes can be compared by."""

import hashlib
import importlib
import json
import logging
import random
import sys
import warnings
from typing import Any

import numpy as np
import torch

CONFIGS = ("torch._dynamo.config", "torch._functorch.config", "torch._inductor.config")

OF_A_SCRIPT = (
    "__annotations__ __builtins__ __cached__ __doc__ __file__ __loader__ __name__ __package__ __spec__".split()
)


def say(name: str, value: Any) -> None:
    print(f"{name}: {value}", flush=True)


def bits(value: Any) -> str:
    """A digest of the very bytes, together with dtype, shape and strides."""
    if isinstance(value, torch.Tensor):
        plain = value.detach().contiguous().view(-1)
        data = plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b""
        head = f"{value.dtype} {tuple(value.shape)} {value.stride()} {value.requires_grad}"
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


def surroundings() -> None:
    """What else lies about in a process: modes, hooks, handlers, filters, threads."""
    say("grad", (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")))
    say("modes", (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()))
    say("deterministic", torch.are_deterministic_algorithms_enabled())
    say("default dtype", torch.get_default_dtype())
    say("threads", torch.get_num_threads())
    say("hooks", (sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__, sys.gettrace()))
    say("warning filters", hashlib.sha256(repr(warnings.filters).encode()).hexdigest()[:16])
    say("root logger", (logging.root.level, len(logging.root.handlers)))
    # Inductor's code generation raises the limit to 2000; it takes place only where no graph cache is hit.
    say("recursion", max(sys.getrecursionlimit(), 2000))
    main = {k: type(v).__name__ for k, v in vars(sys.modules["__main__"]).items() if k in OF_A_SCRIPT}
    say("main", json.dumps(main, sort_keys=True))
    say("argv", sys.argv[1:])


def everything() -> None:
    generators()
    settings()
    surroundings()


def step(name: str, module: torch.nn.Module, loss: torch.Tensor, outputs: Any) -> None:
    """Backward, an optimizer step, and the state of all there is afterwards."""
    say(f"{name} outputs", bits(outputs))
    loss.backward()
    for key, parameter in module.named_parameters():
        say(f"{name} grad {key}", bits(parameter.grad))
    torch.optim.AdamW(module.parameters(), lr=1e-2).step()
    say(f"{name} state", hashlib.sha256(bits(dict(module.state_dict())).encode()).hexdigest()[:24])
    generators()
