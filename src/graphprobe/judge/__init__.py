"""What a call showed, whether two observations are the same, and which stage a difference comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphprobe.faces import loaded_on_use

if TYPE_CHECKING:
    from graphprobe.judge.judging import Difference
    from graphprobe.judge.observation import Observation, ObservationRecord, read
    from graphprobe.judge.uncompiled import Reference

__all__ = ["Difference", "Observation", "ObservationRecord", "Reference", "read"]

__getattr__ = loaded_on_use(__name__)
