"""Has a graph changed since it was last looked at? A look by identity, many times cheaper than a fingerprint."""

from __future__ import annotations

from typing import Any

META_KEYS = ("val", "example_value", "tensor_meta")


class GraphWatch:
    """Remembers the objects that a graph is made of.

    FX gives a node new argument tuples whenever its arguments change, so where every object is the very one that was
    there before, nothing has changed. Where one is not, something may have: then a fingerprint has to tell. The objects
    are kept alive, so that an identity cannot come back in another object.
    """

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: list[tuple[Any, ...]] | None = None

    def look(self, gm: Any) -> bool:
        """False if nothing can have changed since the last look; True also for the first."""
        now: list[tuple[Any, ...]] = []
        _collect(gm, now, set())
        before, self._seen = self._seen, now
        if before is None or len(before) != len(now):
            return True
        for old, new in zip(before, now, strict=True):
            # Compared one by one with `is`: `==` on nodes, tensors or arrays would compute something.
            for left, right in zip(old, new, strict=True):
                if left is not right:
                    return True
        return False


def _collect(gm: Any, into: list[tuple[Any, ...]], seen: set[int]) -> None:
    seen.add(id(gm))
    modules = gm._modules
    for node in gm.graph.nodes:
        meta = node.meta
        held = _attribute(gm, node.target) if node.op == "get_attr" else None
        seen_now = [meta.get(key) for key in META_KEYS]
        into.append((node, node.name, node.op, node.target, node._args, node._kwargs, held, *seen_now))
    for nested in modules.values():
        if hasattr(nested, "graph") and id(nested) not in seen:
            _collect(nested, into, seen)


def _attribute(gm: Any, target: str) -> Any:
    found = gm
    for part in target.split("."):
        found = getattr(found, part, None)
    return found
