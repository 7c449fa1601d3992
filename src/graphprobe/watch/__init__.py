"""Watches the steps of a long run, and when one goes wrong finds the operation that made it, within that step."""

from __future__ import annotations

from graphprobe.faces import make_callable

make_callable(__name__, "graphprobe.watch.watcher")
