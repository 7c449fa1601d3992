"""Dumps of other tools, read as the common model and written from it: ptdbg_ascend's and msprobe's."""
