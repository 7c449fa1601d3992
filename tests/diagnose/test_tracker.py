"""`diagnose` on the bugs of stock torch; most of them are marked `heavy`."""

from __future__ import annotations

from judged_cases import judged

test_fault = judged("tracker")
