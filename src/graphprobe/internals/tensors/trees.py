"""torch's way through nested lists, tuples and dicts, as `torch.compile` sees arguments and results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils import _pytree


def tree_leaves(tree: Any) -> list[Any]:
    """The leaves of nested containers, registered ones included, in order."""
    found: list[Any] = _pytree.tree_leaves(tree)
    return found


def tree_map(change: Callable[[Any], Any], tree: Any) -> Any:
    """`tree` with `change` applied to each leaf."""
    return _pytree.tree_map(change, tree)


def structure_of(tree: Any) -> str:
    """The containers of a nested value as text: their types, lengths and keys, with a star for each leaf."""
    return str(_pytree.tree_structure(tree))
