"""`diagnose` on healthy programs; most of them are marked `heavy`."""

from judged_cases import judged

test_control = judged("controls")
