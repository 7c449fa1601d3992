"""Comparison of two dumps: pair their calls, judge each pair in units of noise, name the first that goes wrong."""

from __future__ import annotations

from graphprobe.callable_package import make_callable

make_callable(__name__, "graphprobe.api")
