"""`graphprobe.ops`: save or print a tensor from inside a model, in eager and in compiled code.

>>> hidden = graphprobe.ops.save(hidden, "hidden")   # its gradient as well, as `hidden.grad`
>>> graphprobe.ops.print(hidden, "hidden")

Neither breaks a graph. Where the values go is in `destination`; docs/save_and_print.md tells it all.
"""

from __future__ import annotations

from graphprobe.ops.destination import flush, save_to
from graphprobe.ops.inline import print, save

__all__ = ["flush", "print", "save", "save_to"]
