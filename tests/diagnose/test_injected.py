"""`diagnose` on the faults that Inductor and torch's backends inject; most of them are marked `heavy`."""

from __future__ import annotations

from judged_cases import judged

test_fault = judged("injected")
