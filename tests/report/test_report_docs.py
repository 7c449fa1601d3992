"""docs/report.md: what it shows is what happens, and the files that it makes open."""

import re
import shlex
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import ROOT, Finished
from doc_session import matches, run_step, steps_of
from graphprobe.report.html import sections_run, sources
from report.browser import OpenReport, axe_faults, draw_everything
from report.looks import LOOKS, PICTURES, REPORTS
from warm.pool import Warm

Python = Callable[..., Finished]

PAGE = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
RUN, FAULT, *_ = re.split(r"^## ", PAGE, flags=re.MULTILINE)


def do(text: str, folder: Path, warm: Warm) -> None:
    for step in steps_of(text):
        said = run_step(step, folder, python=warm.executable)
        assert step.shown is None or matches(step.shown, said), said


@pytest.mark.heavy
def test_the_report_of_a_run(warm: Warm, tmp_path: Path, open_report: OpenReport) -> None:
    do(RUN, tmp_path, warm)
    opened = open_report(tmp_path / "run.html")
    assert "COMPILED" in opened.text("h1")
    draw_everything(opened.page)
    assert opened.page.locator("#passes .passes li").count() > 1
    assert opened.page.locator("#code .marked").count() > 1
    assert opened.page.locator(".flame button").count() > 4
    assert "train.py" in opened.text("#sources")
    assert axe_faults(opened.page) == []


@pytest.mark.slow
def test_the_report_of_a_fault(warm: Warm, run_warm: Python, tmp_path: Path, open_report: OpenReport) -> None:
    do(FAULT, tmp_path, warm)
    opened = open_report(tmp_path / "fault.html", dark=True)
    draw_everything(opened.page)
    assert opened.page.locator(".ladder .badge.bad").count() == 1
    kernel = opened.page.locator("#code .pane").last.inner_text()
    assert "decltype(tmp0)(1)" in kernel  # the 1 that is too much
    done = run_warm(*shlex.split(opened.text("#verdict .command code"))[1:], cwd=tmp_path)
    assert done.code == 1
    assert axe_faults(opened.page) == []


def test_the_limits_are_those_of_the_code() -> None:
    assert f"beyond the first {sources.MOST_LINES}" in PAGE
    assert f"beyond {sections_run.MOST_BYTES >> 20} MiB of graphs" in PAGE
    assert f"generated code beyond {sections_run.MOST_CODE_BYTES >> 20} MiB" in PAGE


def test_of_each_kind_and_look_there_is_a_picture() -> None:
    """`python scripts/report_pictures.py` draws them."""
    names = {f"{kind}_{look}.png" for kind in REPORTS for look in LOOKS}
    assert {path.name for path in PICTURES.iterdir()} == names
    assert set(re.findall(r"\(pictures/reports/([\w.]+)\)", PAGE)) == names
    for name in names:
        head = (PICTURES / name).read_bytes()[:24]
        look = LOOKS[name.removesuffix(".png").partition("_")[2]]
        assert head[:8] == b"\x89PNG\r\n\x1a\n"
        assert struct.unpack(">II", head[16:]) == (look.width, look.height)
