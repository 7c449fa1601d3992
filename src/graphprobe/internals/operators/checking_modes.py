"""torch's dispatch modes: those that check operators while they run, and the one that runs them without data."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from graphprobe.internals.names import require

SCHEMA_MODULE = "torch._subclasses.schema_check_mode"
BUILT_IN = frozenset({"aten", "prims", "prim"})


def schema_check_mode() -> Any:
    """A mode that fails where an operator mutates or aliases what its schema does not say."""
    return require(SCHEMA_MODULE, "SchemaCheckMode", purpose="the backend 'eager_debug'")()


def raised_by_schema_check(error: BaseException) -> bool:
    """Whether `error` is the mode's verdict, and not an error of the operator it watched."""
    module = sys.modules.get(SCHEMA_MODULE)
    frames = traceback.extract_tb(error.__traceback__)
    return module is not None and bool(frames) and frames[-1].filename == module.__file__


def crossref_mode(*, everything: bool) -> AbstractContextManager[Any]:
    """A mode that runs each operator's fake kernel beside the real one and compares what they say of the result.

    Args:
        everything: torch's own operators too; else those of other namespaces only.
    """
    mode = require("torch._subclasses", "CrossRefFakeMode", purpose="crossref")
    made: AbstractContextManager[Any] = mode(None if everything else _is_built_in)
    return made


def _is_built_in(op: Any) -> bool:
    return op.namespace in BUILT_IN


@contextmanager
def fake_mode_of(values: Iterable[object]) -> Iterator[None]:
    """The fake mode that made one of `values`, letting in real tensors that a graph holds; nothing if none is fake."""
    mode = next(filter(None, (getattr(value, "fake_mode", None) for value in values)), None)
    if mode is None:
        yield
        return
    before = mode.allow_non_fake_inputs
    mode.allow_non_fake_inputs = True
    try:
        with mode:
            yield
    finally:
        mode.allow_non_fake_inputs = before
