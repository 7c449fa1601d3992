"""The HTML report: one file that needs nothing else, made of sections; see `page.py`."""
