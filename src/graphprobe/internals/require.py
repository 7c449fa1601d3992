"""Private names of torch, looked up with an error that says which one is missing and in which torch."""

from __future__ import annotations

import importlib
from typing import Any

from graphprobe.errors import UnsupportedTorchError
from graphprobe.internals.names import SUPPORTED_HINT

_MISSING = object()


def require(module: str, attribute: str, *, purpose: str) -> Any:
    """`module.attribute` of the installed torch.

    Args:
        module: dotted module name, e.g. `torch._dynamo.backends.common`.
        attribute: a name inside it, dotted if it is deeper; a module of a package is imported if need be.
        purpose: what stands on it, for the message, e.g. `the backend 'eager_debug'`.

    Raises:
        UnsupportedTorchError: the module or the name is not there.
    """
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise _unsupported(f"{module} cannot be imported ({error})", purpose) from error
    for part in attribute.split("."):
        found = getattr(found, part, _MISSING)
        if found is _MISSING:
            break
    else:
        return found
    try:
        return importlib.import_module(f"{module}.{attribute}")
    except ImportError as error:
        raise _unsupported(f"there is no {module}.{attribute}", purpose) from error


def _unsupported(what: str, purpose: str) -> UnsupportedTorchError:
    import torch

    return UnsupportedTorchError(f"torch {torch.__version__} lacks what {purpose} needs: {what}", hint=SUPPORTED_HINT)
