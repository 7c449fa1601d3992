"""For test suites: an assertion that compiled is like eager, and failing tests that `pytest --graphprobe` diagnoses."""
