"""The generic reducer: the smallest case that still fails in the same way. It knows neither torch nor graphs."""

from __future__ import annotations

from graphprobe.callable_package import make_callable

make_callable(__name__, "graphprobe.api")
