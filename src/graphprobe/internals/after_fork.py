"""Forks, and settles what the child lacks: other threads, compile workers, and the answers of other ranks."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from graphprobe.errors import SettingError
from graphprobe.internals.names import require

C10D = "torch._C._distributed_c10d"
RANKS = "diagnosing a program of several ranks"

ISOLATION = "GRAPHPROBE_ISOLATION"
"""The environment variable that says what kind of child process runs a step: `fork` where that is possible, the
default, or always a fresh `process`."""

INSTRUCTIONS_OK = "TORCHINDUCTOR_VEC_ISA_OK"
"""torch's environment variable: the C++ compiler can be used with each of the processor's instruction sets."""

WAIT_S = 20.0
"""How long a fork waits for other threads to finish what they compile or import."""

LATE = (
    "torch._dynamo.backends.inductor",
    "torch._dynamo.repro.after_dynamo",
    "torch._inductor.choices",
    "torch._inductor.codegen.cpp",
    "torch._inductor.codegen.cpp_wrapper_gpu",
    "torch._inductor.codegen.cuda_combined_scheduling",
    "torch._inductor.codegen.wrapper_fxir",
    "torch._inductor.fx_passes.efficient_conv_bn_eval",
    "torch._inductor.fx_passes.fuse_attention",
    "torch._inductor.fx_passes.mkldnn_fusion",
    "torch._inductor.fx_passes.pad_mm",
    "torch._inductor.fx_passes.quantization",
    "sympy.physics.units",
    "sympy.tensor.tensor",
)
"""Modules that a first compilation imports. One that a version of torch does not have is imported by nobody."""


def can_fork() -> bool:
    """Whether a child made by `fork` can go on using torch: not after CUDA has been initialised, nor with autograd's
    threads, without which any backward raises there. `ISOLATION` can forbid it, too.

    Raises:
        SettingError: `ISOLATION` is neither of its values.
    """
    kind = os.environ.get(ISOLATION) or "fork"
    if kind not in ("fork", "process"):
        raise SettingError(
            f"environment variable {ISOLATION} is {kind[:80]!r}; it takes 'fork' or 'process'",
            hint="without it, steps are forked where that is possible",
        )
    if kind == "process" or sys.platform != "linux" or torch.cuda.is_initialized():
        return False
    _start_autograd()
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # of a thread that has just ended
            if path.read_text("utf-8").startswith("pt_autograd_"):
                return False
    return True


@functools.cache
def _start_autograd() -> None:
    """Where there is no GPU, have autograd count the devices now: none, for which it never has a thread.

    A build for CUDA otherwise counts those that the first trace makes up (pytorch's `ensureCUDADeviceGuardSet`).
    """
    if torch.cuda.device_count() == 0:
        with torch.inference_mode(False), require("torch._C", "DisableTorchFunction", purpose="a backward")():
            torch.ones((), device="cpu", requires_grad=True).backward()


def fork() -> int:
    """As `os.fork`, while no other thread compiles or imports, unless that takes longer than `WAIT_S`.

    Locks that other threads hold then are free in the child, where their holders are not.
    """
    deadline = time.monotonic() + WAIT_S
    with _held(getattr(sys.modules.get("torch._dynamo.convert_frame"), "compile_lock", None)):
        while _others_import() and time.monotonic() < deadline:
            time.sleep(0.01)
        child = os.fork()
    if child == 0:
        _free_locks()
    return child


@contextlib.contextmanager
def _held(lock: Any) -> Iterator[None]:
    held = lock is not None and lock.acquire(timeout=WAIT_S)
    try:
        yield
    finally:
        if held:
            lock.release()


def _others_import() -> bool:
    bootstrap: Any = sys.modules["_frozen_importlib"]
    owners = [getattr(lock(), "owner", None) for lock in list(bootstrap._module_locks.values())]
    return any(owner not in (None, threading.get_ident()) for owner in owners)


def _free_locks() -> None:
    """Dynamo's and the import system's. A module that was half imported is taken as it is, as in circular imports."""
    bootstrap: Any = sys.modules["_frozen_importlib"]
    bootstrap._module_locks.clear()
    bootstrap._blocking_on.clear()
    module: Any = sys.modules.get("torch._dynamo.convert_frame")
    if hasattr(module, "compile_lock"):
        module.compile_lock = threading.RLock()
    handler = getattr(sys.modules.get("torch._dynamo.callback"), "callback_handler", None)
    for name in list(vars(handler)) if handler is not None else ():
        if name.endswith("__pending_callbacks_counter"):
            setattr(handler, name, 0)
        elif name.endswith("__pending_callbacks_counter_lock"):
            setattr(handler, name, threading.Lock())


def prepare() -> None:
    """Compile in this process: a pool of compile workers that the parent had started would never answer.

    Nor would the other ranks of a distributed program: collectives are answered here, too.
    """
    config = require("torch._inductor", "config", purpose="compiling in a child process")
    config.compile_threads = max(1, min(config.compile_threads or 1, os.cpu_count() or 1))
    config.worker_start_method = "fork"
    asynchronous = require("torch._inductor.async_compile", "AsyncCompile", purpose="compiling in a child process")
    for name in ("pool", "process_pool"):
        clear = getattr(getattr(asynchronous, name, None), "cache_clear", None)
        if clear is not None:
            clear()
    answer_here()
    gc.freeze()  # after what looks through all objects; no collection copies the memory of the parent any more


def imported() -> Iterator[None]:
    """Import what each child made by `fork` would otherwise import before its first kernel, a module at a time."""
    for module, name in (
        ("torch._inductor.compile_fx", "compile_fx"),
        ("torch._dynamo.backends.common", "aot_autograd"),
    ):
        yield
        require(module, name, purpose="compiling in a child process")
    for module in LATE:
        yield
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    yield


def preload(check: Callable[[], None] = lambda: None) -> None:
    """Do here, once, what each child made by `fork` would otherwise do before its first kernel: imports, and finding
    out by test programs which vector instructions the C++ compiler and the machine have.

    `check` is called in between: what it raises ends this, with nothing half imported.
    """
    for _ in imported():
        check()
    with contextlib.suppress(Exception):  # no compiler, or a torch that asks otherwise: children see for themselves
        require("torch._inductor.cpu_vec_isa", "valid_vec_isa_list", purpose="generating C++")()


def instructions_known() -> dict[str, str]:
    """Environment of another process of this python: what spares it the test programs that `preload` has run here.

    Empty where `preload` has run none, where the user has set what they are to say, and where the compiler cannot be
    used with one of the processor's instruction sets. With it, the process generates the code that it would without.
    """
    tried, inductor = sys.modules.get("torch._inductor.cpu_vec_isa"), sys.modules.get("torch._inductor.config")
    if tried is None or inductor is None or platform.machine() != "x86_64":
        return {}
    with contextlib.suppress(AttributeError):
        if inductor.cpp.vec_isa_ok is None and tried.valid_vec_isa_list.cache_info().currsize:
            here = set(tried.x86_isa_checker())
            expected = [one for one in map(str, tried.supported_vec_isa_list) if here.issuperset(one.split())]
            return {INSTRUCTIONS_OK: "1"} if expected == [*map(str, tried.valid_vec_isa_list())] else {}
    return {}


def ranks() -> int:
    """How many ranks this program has; 1 where it has not joined any."""
    distributed = sys.modules.get("torch.distributed")
    ready = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return int(distributed.get_world_size()) if ready and distributed is not None else 1


def answer_here() -> None:
    """Make every collective of this process give back what this rank has put in, at once. Not to be undone.

    Raises:
        UnsupportedTorchError: this torch has no such process group.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    make = require(C10D, "FakeProcessGroup._create_internal", purpose=RANKS)
    kind = require(C10D, "ProcessGroup.BackendType.CUSTOM", purpose=RANKS)
    world = require("torch.distributed.distributed_c10d", "_world", purpose=RANKS)
    for group in list(world.pg_map):
        if not hasattr(group, "_register_backend"):  # of a group that this rank is not in
            continue
        made, name, words = make(group.rank(), group.size()), group.group_name, group.group_desc
        for device in group._device_types:
            group._register_backend(device, kind, made)
        group._set_group_name(name)  # compiled code finds a group by the name that its backend has
        group._set_group_desc(words)
    _reduce_here()


def _reduce_here() -> None:
    """The same for what `DistributedDataParallel` makes of gradients, which takes no answer that has no values."""
    parallel = sys.modules.get("torch.nn.parallel.distributed")
    kind: Any = getattr(parallel, "DistributedDataParallel", None)
    if kind is None:
        return
    hook = require("torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks", "noop_hook", purpose=RANKS)
    for found in gc.get_objects():
        if issubclass(type(found), kind) and not found._comm_hooks:
            found.register_comm_hook(None, hook)
