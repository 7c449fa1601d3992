"""Views of what a run holds: computed from the store, never from torch."""

from __future__ import annotations

from graphprobe.callable_package import make_callable

make_callable(__name__, "graphprobe.api")
