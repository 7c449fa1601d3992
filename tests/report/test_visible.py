"""What would steer a terminal is spelled out, and JSON stays JSON."""

import json

import msgspec

from graphprobe.report.visible import visible

EVIL = "\x1b]0;T\x07\x1b[2J\x9b31m\x7f\r\x08\u202e\u2066"
SHOWN = r"\x1b]0;T\x07\x1b[2J\u009b31m\u007f\x0d\x08\u202e\u2066"


def test_each_character_is_spelled_so_that_json_stays_json() -> None:
    assert visible(EVIL) == SHOWN
    assert visible("tab\there\nline\r\nend é 漢 — ok") == "tab\there\nline\r\nend é 漢 — ok"
    assert visible("\ud800") == r"\ud800"
    document = {"text": EVIL}
    assert json.loads(visible(msgspec.json.encode(document).decode())) == document
    assert json.loads(visible(json.dumps(document, ensure_ascii=False))) == document
