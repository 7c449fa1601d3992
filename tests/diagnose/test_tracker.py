"""`diagnose` on the bugs of stock torch; most of them are marked `heavy`."""

from judged_cases import judged

test_fault = judged("tracker")
