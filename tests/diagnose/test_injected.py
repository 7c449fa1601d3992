"""`diagnose` on the faults that Inductor and torch's backends inject; most of them are marked `heavy`."""

from judged_cases import judged

test_fault = judged("injected")
