"""What is shown while a diagnosis runs: on a terminal, through a pipe, in a notebook. The clock is the test's."""

import io
import os
import pty
import sys
import types

import pytest

from graphprobe.engine.forked_child import SIZE, Board, doing, isolated, told_on
from graphprobe.findings import NamedStep
from graphprobe.report import terminal
from graphprobe.report.terminal import ProgressLine, shown_in_notebook


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_terminal_is_drawn_anew_each_time_and_left_empty() -> None:
    ours, theirs = pty.openpty()
    clock = Clock()
    with open(theirs, "w", buffering=1) as file, ProgressLine(file, clock=clock) as shown:
        for second in range(3):
            clock.now = 100.0 + second
            shown.tell_step("model.py:make", NamedStep("kernels", second, f"op {34 + second} of 512"))
        shown.stop()
        text = ""
        while not text.endswith("\x1b[1A\x1b[2K"):  # a terminal hands it over in pieces
            text += os.read(ours, 1 << 16).decode()
    os.close(ours)
    for second in range(3):
        assert f"looking into the generated code … {second} s, op {34 + second} of 512" in text
    first, last = text.index("op 35 of 512"), text.index("op 36 of 512")
    assert "\r\x1b[2K" in text[first:last] and "\n" not in text[:last], (
        "each is drawn over the one before, and the last is taken away"
    )


def test_a_pipe_gets_a_line_each_half_a_minute() -> None:
    clock, pipe = Clock(), io.StringIO()
    shown = ProgressLine(pipe, clock=clock)
    for second in range(95):
        clock.now = 100.0 + second
        shown.tell_step("train.py", NamedStep("plain", second - 20.0, "call 2 of 3"))
    assert pipe.getvalue().splitlines() == [
        f"graphprobe: train.py: running it compiled, not looked into … {second - 20} s, call 2 of 3; {second} s in all"
        for second in (30, 60, 90)
    ]


def test_a_fact_is_written_at_once_and_stays() -> None:
    file = io.StringIO()
    with ProgressLine(file, clock=Clock()) as shown:
        shown.tell_step("train.py", NamedStep("plain", 1.0, fact="compiled, it raises AssertionError"))
    assert file.getvalue() == "graphprobe: train.py: compiled, it raises AssertionError\n"


def test_what_a_program_calls_itself_steers_nothing() -> None:
    clock, pipe = Clock(), io.StringIO()
    shown = ProgressLine(pipe, clock=clock)
    clock.now = 200.0
    shown.tell_step("a\nHEALTHY\x1b[2J", NamedStep("plain", 100.0))
    assert pipe.getvalue().count("\n") == 1 and "\x1b" not in pipe.getvalue()


def test_a_notebook_has_one_line_of_text(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    with shown_in_notebook(clock=Clock()) as shown:
        assert shown is not None
        shown(NamedStep("uncompiled", 0.0))
        shown(NamedStep("plain", 1.0, "call 1 of 2"))
    text = capsys.readouterr().err
    assert "\n" not in text and "\x1b" not in text
    first, second, empty = text.split("\r")[1:4]
    assert first == "graphprobe: diagnosing: running it uncompiled … 0 s"
    assert second == "graphprobe: diagnosing: running it compiled, not looked into … 1 s, call 1 of 2"
    assert len(empty) >= len(second) and not empty.strip()


def test_elsewhere_nothing_is_shown_and_the_callers_own_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def own(step: NamedStep) -> None:
        raise AssertionError("nothing runs here")

    with shown_in_notebook() as shown:
        assert shown is None
    monkeypatch.setattr(terminal, "_in_notebook", lambda: True)
    with shown_in_notebook(own) as shown:
        assert shown is own


def test_a_child_says_what_it_does_and_its_parent_reads_it() -> None:
    board, read = Board(), []

    def step() -> None:
        doing("op 34 of 512")
        isolated(lambda: doing("op 1 of 2, in a child of the child" + " and more" * SIZE))

    doing("nobody listens")
    with told_on(board):
        isolated(step, wait=lambda: read.append(board.read()))
    assert board.read().startswith("op 1 of 2, in a child of the child")
    assert len(board.read().encode()) <= SIZE
    assert set(read) <= {"", "op 34 of 512", board.read()}


def test_a_step_is_told_when_it_begins_and_each_second() -> None:
    assert NamedStep("plain") == "plain" and NamedStep("plain").seconds == 0.0
    told = NamedStep("plain", 3.5, "op 1 of 2")
    assert (told, told.seconds, told.doing) == ("plain", 3.5, "op 1 of 2")
