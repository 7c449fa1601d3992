"""`diagnose` on the faults that Inductor and torch's backends inject; most of them are marked `heavy`."""

from __future__ import annotations

import pytest
from judged_cases import Record, fault_is_found, listed

from warm.pool import Warm


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", listed("injected"))
def test_fault(name: str, warm: Warm, record_property: Record) -> None:
    fault_is_found(name, warm, record_property)
