"""The generic reducer: the smallest case that still fails in the same way. It knows neither torch nor graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphprobe.faces import loaded_on_use, make_callable

if TYPE_CHECKING:
    from graphprobe.reduce.outcome import Answer, OracleVerdict
    from graphprobe.reduce.reducer import reduce

__all__ = ["Answer", "OracleVerdict", "reduce"]

__getattr__ = loaded_on_use(__name__)
make_callable(__name__, "graphprobe.api")
