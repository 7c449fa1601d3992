"""`diagnose` on the planted faults; most of them are marked `heavy`."""

from judged_cases import judged

test_fault = judged("planted")
