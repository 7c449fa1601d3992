"""Collectives in a forked child, where the threads that wait for other ranks are not: each is answered there."""

from __future__ import annotations

import gc
import sys
from typing import Any

from graphprobe.internals.names import require

C10D = "torch._C._distributed_c10d"
WHY = "diagnosing a program of several ranks"


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
    make = require(C10D, "FakeProcessGroup._create_internal", purpose=WHY)
    kind = require(C10D, "ProcessGroup.BackendType.CUSTOM", purpose=WHY)
    world = require("torch.distributed.distributed_c10d", "_world", purpose=WHY)
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
    hook = require("torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks", "noop_hook", purpose=WHY)
    for found in gc.get_objects():
        if issubclass(type(found), kind) and not found._comm_hooks:
            found.register_comm_hook(None, hook)
