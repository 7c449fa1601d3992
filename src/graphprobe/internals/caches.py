"""Turns torch's graph caches off or makes them empty, tells what is read of them, and deletes cut-off libraries."""

from __future__ import annotations

import importlib
import os
import struct
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from graphprobe.internals.bus import Patch, Subscription

CACHES = (
    ("torch._inductor.config", "fx_graph_cache"),
    ("torch._inductor.config", "fx_graph_remote_cache"),
    ("torch._functorch.config", "enable_autograd_cache"),
    ("torch._functorch.config", "enable_remote_autograd_cache"),
    ("torch._functorch.config", "bundled_autograd_cache"),
)

KEPT = (
    ("torch._functorch._aot_autograd.autograd_cache", "AOTAutogradCache", "autograd_cache_key"),
    ("torch._inductor.codecache", "FxGraphCache", "compiled_fx_graph_hash"),
)
"""The caches that keep what was compiled on disk, with the function that makes the key of a graph."""

FOLDER_OF = "_get_tmp_dir_for_key"
"""The method of such a cache that says where the entries of a key are."""

ELF64 = struct.Struct("<40xQ10xHH")
"""Of an ELF file's header: where the table of sections begins, the size of a row, and how many there are."""

BEING_WRITTEN_S = 300.0
"""A library that was changed so recently may not be finished yet."""


class _Shared:
    """Settings of a torch whose threads share them: they are on again once nobody is inside of `bypassed` any more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self.before: list[tuple[ModuleType, str, Any]] = []

    @contextmanager
    def inside(self) -> Iterator[None]:
        with self._lock:
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                while not self._inside and self.before:
                    module, name, value = self.before.pop()
                    setattr(module, name, value)


_shared = _Shared()


@contextmanager
def bypassed() -> Iterator[list[str]]:
    """Yields the names of the caches that were on here; nested, the outermost one has them.

    torch keeps these settings per thread (context variables), so each thread switches off and restores its own. In
    torch 2.11 all threads share them.
    """
    per_thread = hasattr(sys.modules.get("torch.utils._config_module"), "ContextVar")
    with ExitStack() as restore:
        if not per_thread:
            restore.enter_context(_shared.inside())
        names = []
        for module_name, name in CACHES:
            module = sys.modules.get(module_name)
            # Not the same as off: None means "as the environment decides" for remote caches; that may be on.
            value = getattr(module, name, False) if module is not None else False
            if value is False:
                continue
            if per_thread:
                restore.callback(setattr, module, name, value)
            else:
                _shared.before.append((cast(ModuleType, module), name, value))
            setattr(module, name, False)
            if value:
                names.append(f"{module_name}.{name}")
        yield names


@contextmanager
def caches_renewed() -> Iterator[list[str]]:
    """The graph caches as they are set, and with none of what they held before: entries are found again in here only.

    An entry may have been made by the same program while somebody had changed the compiler, which no key tells.
    Yields a list, into which go the folders of entries that would have been found.
    """
    module: Any = sys.modules.get("torch.compiler.config")
    found: list[str] = []
    if module is None:
        with bypassed():
            yield found
        return
    before = module.cache_key_tag

    def looking_up(cache: str, holder: str) -> Callable[[Any], Any]:
        def make(key_of: Callable[..., Any]) -> Callable[..., Any]:
            def key(*args: Any, **kwargs: Any) -> Any:
                with suppress(Exception), module.patch({"cache_key_tag": before}):  # what it raises, it raises again
                    folder = getattr(getattr(sys.modules[holder], cache), FOLDER_OF)(key_of(*args, **kwargs)[0])
                    found.extend([folder] if os.path.isdir(folder) else [])
                return key_of(*args, **kwargs)

            return key

        return make

    keys = [Patch("graph_caches", holder, name, looking_up(cache, holder)) for holder, cache, name in KEPT]
    with module.patch({"cache_key_tag": uuid.uuid4().hex}), Subscription(keys).installed():
        yield found


@contextmanager
def entries_read() -> Iterator[list[str]]:
    """Yields a list, into which go the folders of the entries that the graph caches look into."""
    read: list[str] = []

    def noting(folder_of: Callable[..., str]) -> Callable[..., str]:
        def folder(*args: Any) -> str:
            found = folder_of(*args)
            read.extend([found] if os.path.isdir(found) else [])
            return found

        return folder

    folders = [Patch("graph_caches", holder, f"{cache}.{FOLDER_OF}", noting) for holder, cache, _ in KEPT]
    with Subscription(folders).installed():
        yield read


def cache_folder() -> Path:
    """Where torch keeps what it has compiled."""
    module = importlib.import_module("torch._inductor.runtime.cache_dir_utils")
    return Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or module.default_cache_dir())


def drop_cut_off_libraries() -> list[Path]:
    """Delete the shared libraries in Inductor's cache that are cut off; returns which.

    A linker that was killed leaves such a file, torch never replaces it, and every program with that kernel ends with
    `file too short`. Files that may still be written are left alone.
    """
    folder, dropped = cache_folder(), list[Path]()
    for path in folder.glob("*/*.so") if folder.is_dir() else ():
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > BEING_WRITTEN_S and is_cut_off(path):
                path.unlink()
                dropped.append(path)
    return dropped


def is_cut_off(path: Path) -> bool:
    """Whether a file is no whole ELF file: the table of sections, which is written last, is not inside.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        header = file.read(64)
    if len(header) < 64:
        return True
    begin, size, count = ELF64.unpack_from(header)
    return header.startswith(b"\x7fELF\x02\x01") and path.stat().st_size < begin + size * count
