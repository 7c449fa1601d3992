"""`diagnose` on healthy programs; most of them are marked `heavy`."""

from __future__ import annotations

from judged_cases import judged

test_control = judged("controls")
