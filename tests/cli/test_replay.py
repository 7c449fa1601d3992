"""`graphprobe replay`: what it prints and exits with. A script stands in for a record's own `replay.py`."""

import json
from pathlib import Path

import pytest

from cli.calling import call
from store.test_frame_record import RECORD, put

SCRIPT = """
import json, os, sys
from pathlib import Path
out = Path(sys.argv[sys.argv.index("--json") + 1])
verdict = Path(__file__).with_name("verdict").read_text()
if verdict == "dies":
    sys.exit("out of luck")
if verdict == "hangs":
    import time
    time.sleep(60)
line = {"file": "x.py", "line": 4, "function": "f"}
error = None if verdict == "gone" else {"type": "E", "message": "m\\nmore", "line": line}
caveats = ["TORCH_COMPILE_DEBUG" in os.environ, *sys.argv[3:]]
answer = {"verdict": verdict, "text": "so it is", "error": error, "differences": [], "caveats": caveats}
out.write_text(json.dumps({**answer, "seconds": 1.25}))
"""


def record(folder: Path, verdict: str) -> Path:
    put(folder, RECORD)
    (folder / "replay.py").write_text(SCRIPT)
    (folder / "verdict").write_text(verdict)
    return folder


@pytest.mark.parametrize(
    ("verdict", "code", "last"),
    [
        ("reproduced", 1, "REPRODUCED: so it is (1.2 s)"),
        ("gone", 0, "GONE: so it is (1.2 s)"),
        ("undecided", 125, "CANNOT DECIDE: so it is (1.2 s)"),
        ("dies", 125, "CANNOT DECIDE: the replay ended with exit code 1: out of luck"),
    ],
)
def test_exit_codes(tmp_path: Path, verdict: str, code: int, last: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_COMPILE_DEBUG", "1")
    done = call("replay", record(tmp_path / "r", verdict), "--backend", "eager", code=code)
    lines = done.output.splitlines()
    assert lines[-2] == last
    assert lines[1] == "frame     f (/a/train.py:3)" and lines[2] == "recorded  E: m"
    assert lines[3] == "          /a/train.py:4 in f"
    if verdict == "reproduced":
        assert lines[4:6] == ["now       E: m", "          x.py:4 in f"]
        assert lines[6:-2] == ["not recorded: False", "not recorded: --backend", "not recorded: eager"]


def test_several_records_and_json(tmp_path: Path) -> None:
    for i, verdict in enumerate(("gone", "reproduced", "undecided")):
        record(tmp_path / "frames" / f"00{i}_f", verdict)
    done = call("replay", tmp_path, "--json", code=1)
    answers = json.loads(done.output)["replays"]
    assert [answer["verdict"] for answer in answers] == ["gone", "reproduced", "undecided"]
    assert answers[0]["record"].endswith("frames/000_f") and answers[0]["function"] == "f"


def test_no_end_and_no_script(tmp_path: Path) -> None:
    done = call("replay", record(tmp_path / "r", "hangs"), "--timeout", "1", code=125)
    assert "did not end within 1 s" in done.output
    done = call("replay", put(tmp_path / "s", RECORD), code=125)
    assert "replay.py is missing" in done.output
