"""Options of every kind as rows of tables, and the session's settings: the table, and what is in force."""

from __future__ import annotations

from graphprobe.settings.option import Option, size_from_text, text_from_size
from graphprobe.settings.option_table import (
    BY_NAME,
    TABLE,
    BackendSettings,
    RunSettings,
    Settings,
    resolve,
    torch_compile_debug_state,
)

__all__ = [
    "BY_NAME",
    "TABLE",
    "BackendSettings",
    "Option",
    "RunSettings",
    "Settings",
    "resolve",
    "size_from_text",
    "text_from_size",
    "torch_compile_debug_state",
]
