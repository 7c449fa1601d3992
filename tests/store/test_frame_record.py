"""Finding and reading records, and what is said of those that cannot be read."""

import json
from pathlib import Path
from typing import Any

import pytest

from graphprobe.errors import SchemaError, UsageError
from graphprobe.store.frame_record import FORMAT, find_records, read_record

RECORD: dict[str, Any] = {
    "format": FORMAT,
    "schema": 3,
    "function": "f",
    "file": "/a/train.py",
    "line": 3,
    "fullgraph": True,
    "failure": {"type": "E", "message": "m", "stack": [{"file": "/a/train.py", "line": 4, "function": "f"}]},
    "versions": {},
    "settings": {},
}


def put(folder: Path, document: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "record.json").write_text(document if isinstance(document, str) else json.dumps(document), "utf-8")
    return folder


def test_records_are_found_in_folders_of_records_runs_and_roots(tmp_path: Path) -> None:
    first = put(tmp_path / "run_a" / "graphprobe" / "frames" / "000_f", RECORD)
    second = put(tmp_path / "run_b" / "graphprobe" / "frames" / "000_g", RECORD)
    assert find_records(first) == [first]
    assert find_records(tmp_path / "run_a" / "graphprobe") == [first] == find_records(tmp_path / "run_a")
    assert find_records(tmp_path) == [first, second]
    with pytest.raises(UsageError, match="there is nothing at"):
        find_records(tmp_path / "no")
    with pytest.raises(UsageError, match="no record of a frame"):
        find_records(tmp_path / "run_a" / "graphprobe" / "frames" / "000_f" / "..")


def test_a_record_is_read(tmp_path: Path) -> None:
    record = read_record(put(tmp_path / "r", {**RECORD, "later": 1}))
    assert record.user_line is not None and record.user_line.line == 4 and record.placeholders == []


@pytest.mark.parametrize(
    ("document", "error", "text"),
    [
        ("{", UsageError, "is no record"),
        ("[]", UsageError, "is no record of a frame"),
        ({"format": "other"}, UsageError, "is no record of a frame"),
        ({**RECORD, "schema": 4}, SchemaError, "reads schema 3"),
        ({**RECORD, "line": "x"}, UsageError, "is damaged"),
    ],
)
def test_what_cannot_be_read(tmp_path: Path, document: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        read_record(put(tmp_path / "r", document))
    with pytest.raises(UsageError, match="cannot be read"):
        read_record(tmp_path)
