"""Graph caches off while a graph is compiled: on a hit no pass runs, and there is nothing to collect."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

CACHES = (
    ("torch._inductor.config", "fx_graph_cache"),
    ("torch._inductor.config", "fx_graph_remote_cache"),
    ("torch._functorch.config", "enable_autograd_cache"),
    ("torch._functorch.config", "enable_remote_autograd_cache"),
    ("torch._functorch.config", "bundled_autograd_cache"),
)


@contextmanager
def bypassed() -> Iterator[list[str]]:
    """Yields the names of the caches that were on here; nested, the outermost one has them.

    torch keeps these settings per thread (context variables), so each thread switches off and restores its own. Where
    a torch shares them between threads, the thread that switched one off is the one that restores it.
    """
    with ExitStack() as restore:
        names = []
        for module_name, name in CACHES:
            module = sys.modules.get(module_name)
            # Not the same as off: None means "as the environment decides" for remote caches; that may be on.
            value = getattr(module, name, False) if module is not None else False
            if value is False:
                continue
            restore.callback(setattr, module, name, value)
            setattr(module, name, False)
            if value:
                names.append(f"{module_name}.{name}")
        yield names


@contextmanager
def caches_renewed() -> Iterator[None]:
    """The graph caches as they are set, and with none of what they held before: entries are found again in here only.

    An entry may have been made by the same program while somebody had changed the compiler, which no key tells.
    """
    module = sys.modules.get("torch.compiler.config")
    if module is None or not hasattr(module, "cache_key_tag"):
        with bypassed():
            yield
        return
    with module.patch({"cache_key_tag": uuid.uuid4().hex}):
        yield
