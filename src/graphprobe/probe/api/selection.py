"""Which calls are kept: by API, by label, from one call to another, by step."""

from __future__ import annotations

from graphprobe.probe.api.names import matches
from graphprobe.probe.api.plan import ApiPlan


class CallSelection:
    """Decides for each call, in the order in which they begin.

    Labels are written with or without their direction; a backward belongs to its forward.
    """

    def __init__(self, plan: ApiPlan) -> None:
        self._apis = plan.apis
        self._list = plan.scope if plan.mode == "list" else ()
        self._range = plan.scope if plan.mode in ("range", "stack") and plan.scope else ()
        self._by_api: dict[str, bool] = {}
        self._open = not self._range
        self._met: set[str] = set()
        self.everything = not (self._apis or self._list or self._range)

    def wants(self, label: str, api: str, names: tuple[str, ...]) -> bool:
        """Whether a call is kept.

        Args:
            label: without its direction.
            api: of the call.
            names: what else the API may be called.
        """
        if self.everything:
            return True
        wanted = self._by_api.get(api)
        if wanted is None:
            wanted = self._by_api[api] = not self._apis or matches(self._apis, names)
        if self._range and not self._in_range(label):
            return False
        if self._list:
            found = [name for name in self._list if matches((bare(name),), (label,)) or matches((name,), names)]
            self._met.update(found)
            return wanted and bool(found)
        return wanted

    def unmet(self) -> list[str]:
        """Entries of the scope that no call had, in words."""
        if self._list:
            return [f"no call was {name}" for name in self._list if name not in self._met]
        told = ("the first call of the range", "the last call of the range")
        return [
            f"{what}, {name}, never came"
            for what, name in zip(told, self._range, strict=False)
            if name not in self._met
        ]

    def _in_range(self, label: str) -> bool:
        first, last = self._range
        if not self._open and first not in self._met and matches((bare(first),), (label,)):
            self._met.add(first)
            self._open = True
        inside = self._open
        if inside and matches((bare(last),), (label,)):
            self._met.add(last)
            self._open = False
        return inside


def bare(label: str) -> str:
    """A label without its direction."""
    return label.removesuffix(".forward").removesuffix(".backward")
