"""Finds which stage, pass and op make a compiled program differ from the same program uncompiled, and proves it."""

from __future__ import annotations

from graphprobe.faces import make_callable

make_callable(__name__, "graphprobe.diagnose.api")
