"""REPORT.md of three planted faults, made anew by `graphprobe diagnose` and held against the files of `golden`.

They were read beside accepted issues of pytorch/pytorch: a wrong value beside 94778, an error of a C++ compiler beside
94055, a hang beside 96662 and what maintainers asked for in 181655: whether `backend="eager"` hangs, and where.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parent / "golden"
NAMES = ("wrong_value", "cpp_compile_error", "hang")
OPTIONS = {"hang": ["--step-limit", "20"]}
TAKE_S = 900

PATTERNS = (
    (r"\bc[a-z2-7]{51}\b", "HASH"),
    (r"(?<=line )\d+(?= in | of the generated)|(?<=\.cpp:)\d+:\d+|(?m:^ +\d+(?= \|)|(?<=\|) +(?=\^))", "N"),
    (r"\b\d+(?:\.\d+)?e[+-]\d+\b", "E"),
    (r"-?\b\d+\.\d{5,}\b", "F"),
    (r"0x[0-9a-f]{8,}(?: \[\w+\])?", "THREAD"),
    (r"(?m)(?:^  File \"torch/.*\n)+", '  File "torch/…"\n'),
    (r"(?m)^… \d+ more lines$", "… more lines"),
    (r"(?<=dump_traceback_later\()\d+|(?<=Timeout \()[\d:]+", "TIME"),
)
"""What differs from one machine, torch or run to another."""


def normalised(report: str) -> str:
    """A report without what differs from one machine, torch or run to another; of the versions only the names stay."""
    head, _, versions = report.partition("### Versions")
    for pattern, name in PATTERNS:
        head = re.sub(pattern, name, head)
    names = re.findall(r"^([A-Z][\w ]+):|^\[pip3\] (?:torch|numpy)(?===)", versions, re.MULTILINE)
    return f"{head}### Versions\n\n" + "".join(f"{name or '[pip3]'}: …\n" for name in names)


def diagnosed(program: Path, folder: Path, python: str = sys.executable) -> tuple[Path, dict[str, Any], str]:
    """The dossier's folder, the finding as JSON, and what was printed."""
    command = [python, "-m", "graphprobe", "diagnose", "--out", "out", "--json", "result.json"]
    command += [*OPTIONS.get(program.stem, []), program.name]
    (folder / program.name).write_text(program.read_text("utf-8"), "utf-8")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TAKE_S, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    document = json.loads((folder / "result.json").read_text("utf-8"))
    ((finding,),) = (diagnosis["findings"] for diagnosis in document["diagnoses"])
    return Path(finding["dossier"]), finding, done.stdout


@pytest.mark.heavy
@pytest.mark.timeout(TAKE_S + 60)
@pytest.mark.parametrize("name", NAMES)
def test_reports_are_as_they_were(name: str, warm: Any, tmp_path: Path) -> None:
    """To take a change over: run the module, and read what git says of the golden files."""
    dossier, finding, printed = diagnosed(GOLDEN / f"{name}.py", tmp_path, warm.executable)
    report = (dossier / "REPORT.md").read_text("utf-8")
    assert normalised(report) == (GOLDEN / f"{name}.md").read_text("utf-8")
    assert str(tmp_path) not in report and "/home" not in report
    if name != "cpp_compile_error":
        return
    # It names relu everywhere, with the compiler's own words: not the op that came last, nor units of noise.
    command = [warm.executable, "-m", "graphprobe", "report", "result.json", "-o", "fault.html"]
    subprocess.run(command, cwd=tmp_path, check=True)
    html = (tmp_path / "fault.html").read_text("utf-8")
    assert (finding["op"], finding["node"], finding["also"]) == ("aten.relu.default", "relu", ["torch.relu"])
    assert dossier.name == "codegen-aten.relu.default"
    for text in (printed, html, report, finding["reason"]):
        assert "compile error!" in re.sub(r"\s+", " ", text) and "sum cannot" not in text
        assert "legitimate noise" not in text and "what rounding explains" not in text
    assert "aten.sum" not in printed + report
    assert "relu cannot be compiled" in printed and "relu cannot be compiled" in html


if __name__ == "__main__":
    import tempfile

    for case in sys.argv[1:] or NAMES:
        with tempfile.TemporaryDirectory() as scratch:
            made, *_ = diagnosed(GOLDEN / f"{case}.py", Path(scratch))
            text = normalised((made / "REPORT.md").read_text("utf-8"))
            (GOLDEN / f"{case}.md").write_text(text, "utf-8")
