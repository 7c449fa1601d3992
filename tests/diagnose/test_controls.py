"""`diagnose` on healthy programs; most of them are marked `heavy`."""

from __future__ import annotations

import pytest
from judged_cases import Record, control_is_silent, listed

from warm.pool import Warm


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", listed("controls"))
def test_control(name: str, warm: Warm, record_property: Record) -> None:
    control_is_silent(name, warm, record_property)
