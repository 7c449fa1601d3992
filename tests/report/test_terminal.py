import io
import json
import shlex
import sys
from pathlib import Path

import msgspec
import pytest

from graphprobe.analysis.timing import Profile, Span
from graphprobe.records import Where
from graphprobe.report import profile_document as profile_view
from graphprobe.report.graph_diff import print_diff
from graphprobe.report.run_document import json_from_run, print_run
from graphprobe.report.terminal import command_line, print_closing, print_lines
from graphprobe.report.visible import echo, visible
from graphprobe.store import Run, RunWriter, layout
from report.samples import diff_texts
from store.dump_helpers import new_run

FORWARD = Where(model=0, compile_id="0/1", direction="forward")


@pytest.fixture
def writer(tmp_path: Path) -> RunWriter:
    writer = new_run(tmp_path, argv=["train.py", "--name", "a b"])
    facts = {"function": "forward", "file": "x.py", "line": 12, "reason": "first call", "graph_break": None}
    facts |= {"recompile_reason": "shape [3] of x"}
    file = writer.write_text(layout.compile_file(0), json.dumps(facts))
    writer.event(where=Where(model=0), kind="compile", name="compile", file=file)
    file = writer.write_text(layout.graph_file(Where(model=0, direction="forward"), number=0), "x" * 2048)
    writer.event(where=FORWARD, kind="graph", name="aot_forward_graph", file=file)
    where = Where(model=0, direction="forward", pass_name="fuse")
    file = writer.write_text(layout.pass_file(Where(model=0, direction="forward"), "fuse", number=1), "y")
    writer.event(
        where=where,
        kind="pass",
        name="fuse",
        file=file,
        changed=True,
        added=("a", "b", "c"),
        removed=("d",),
        elapsed_ns=2_500_000,
    )
    writer.event(where=Where(model=0, direction="forward", pass_name="idle"), kind="pass", name="idle", changed=False)
    writer.missing("no room [for] more")
    return writer


def printed(writer: RunWriter, *, show_all: bool = False) -> str:
    file = io.StringIO()
    print_run(Run.open(writer.run_dir), show_all=show_all, file=file)
    return file.getvalue()


def test_the_tree_says_what_ran_why_and_what_came_of_it(writer: RunWriter) -> None:
    writer.close("finished")
    text = printed(writer)
    for part in (
        writer.run_dir.name,
        "torch 2.13.0",
        "finished after",
        "train.py --name 'a b'",
        "3 files, 2.",
        "missing: no room [for] more",
        "model__0  forward  x.py:12  compile 0/1",
        "recompiled: shape [3] of x",
        "model__0/forward/graph  2 KiB  000_aot_forward_graph.txt",
        "model__0/forward/after:fuse  1 B  +3 −1 nodes  2.5 ms  001_aot_forward_graph_after_fuse.txt",
        "1 pass changed nothing",
    ):
        assert part in text, text
    assert not any(part in text for part in ("graph break", "first call", "idle", "\x1b"))


def test_a_recompilation_is_told_by_the_guards_that_failed(writer: RunWriter) -> None:
    guards = [
        "s.training == True                  # if self.training:  # x.py:3 in forward",
        "tensor 'x' size mismatch at index 0. expected 4, actual 5",
    ]
    lines = ["triggered by the following guard failure(s):"]
    lines += [f"    - {number}/0: {guard}" for number, guard in enumerate(guards)]
    lines += ["User stack trace:", '  File "/home/me/x.py", line 3, in forward', "    if self.training:"]
    facts = {"compile_id": "0/1", "recompile_reason": "\n".join(lines)}
    file = writer.write_text(layout.compile_file(1), json.dumps(facts))
    writer.event(where=Where(model=1), kind="compile", name="compile", file=file)
    (told,) = [line for line in printed(writer).splitlines() if "recompiled: - " in line]
    assert "0/0: s.training == True # if self.training" in told and "; - 1/0: tensor 'x' size mismatch" in told
    assert "User stack trace" not in printed(writer)


def test_unchanged_passes_and_states_of_runs_that_did_not_finish(writer: RunWriter) -> None:
    text = printed(writer, show_all=True)
    assert "pass idle  unchanged" in text and "changed nothing" not in text
    assert ", running\n" in printed(writer)
    writer.update(pid=2**22 + 1)
    assert "killed (process 4194305 is gone" in printed(writer)
    writer.close("failed", "ValueError: boom")
    assert "failed after" in printed(writer)
    assert "ended by: ValueError: boom" in printed(writer)


def test_json_holds_the_same(writer: RunWriter) -> None:
    document = json.loads(json.dumps(json_from_run(Run.open(writer.run_dir), show_all=False)))
    assert document["state"] == "running"
    assert [event["address"] for event in document["models"][0]["events"]] == [
        "model__0/compile",
        "model__0/forward/graph",
        "model__0/forward/after:fuse",
    ]
    assert len(json_from_run(Run.open(writer.run_dir), show_all=True)["models"][0]["events"]) == 4


def test_a_diff_names_nodes_with_their_source_lines() -> None:
    before = "def forward(self, a):\n    # File: x.py:3 in f, code: y = a + 1\n    add = f(a)\n    return add\n"
    after = before.replace("add = f(a)", 'mul: "f32[2]" = g(a)').replace("return add", "return mul")
    file = io.StringIO()
    print_diff(diff_texts(before, after), before_name="one", after_name="two", file=file)
    assert file.getvalue().splitlines() == [
        "--- one",
        "+++ two",
        "@@ forward: 1 removed, 1 added, 1 changed, 0 renamed, 0 moved, 1 unchanged",
        "  # File: x.py:3 in f, code: y = a + 1",
        "-  add = f(a)",
        '+  mul: "f32[2]" = g(a)',
        "-~ return add",
        "+~ return mul",
    ]
    file = io.StringIO()
    print_diff(diff_texts(before, before), before_name="one", after_name="two", file=file)
    assert file.getvalue() == "no difference between one and two\n"


class Screen(io.StringIO):
    """A terminal, of 40 columns with the settings of `on_screen`."""

    def isatty(self) -> bool:
        return True


def test_colours_only_for_a_terminal_without_no_color(writer: RunWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for no_color, coloured in (("", True), ("1", False)):
        monkeypatch.setenv("NO_COLOR", no_color)
        file = Screen()
        print_run(Run.open(writer.run_dir), file=file)
        assert ("\x1b[3" in file.getvalue()) is coloured


def on_screen(monkeypatch: pytest.MonkeyPatch, *lines: str) -> list[str]:
    for name, setting in (("COLUMNS", "40"), ("TERM", "xterm"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, setting)
    file = Screen()
    print_lines(lines, file=file)
    return file.getvalue().splitlines()


def test_on_a_terminal_lines_are_broken_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "  candidate linear.0: in its place the reference has another operation that gives the same shapes"
    shown = on_screen(monkeypatch, line, "short")
    assert " ".join(part.strip() for part in shown[:-1]) == line.strip() and shown[-1] == "short"
    assert max(map(len, shown)) <= 40 and shown[0].startswith("  c") and all(p.startswith("    ") for p in shown[1:-1])


def test_paths_and_piped_lines_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    path = "/a/long/folder/with/a/program/that/is/there/model.py:12"
    assert any(path in part for part in on_screen(monkeypatch, f"  at {path} in forward"))
    file = io.StringIO()
    print_lines(["word " * 200], file=file)
    assert len(file.getvalue().splitlines()) == 1


@pytest.mark.parametrize("ranks", ["2", "1"])
def test_lines_of_several_ranks(
    ranks: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each line says its rank, and the next command starts all of them; of one process neither is so."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, ranks)
    echo("a\nb")
    print_closing("FAULT: f", [("why", "w")], follow=["graphprobe", "diagnose", "t.py"])
    echo("now", err=True)
    told = capsys.readouterr()
    lead = "[rank 1] " if ranks == "2" else ""
    launched = f"torchrun --nproc-per-node {ranks} -m graphprobe"
    assert told.out.splitlines() == [
        f"{lead}{line}" for line in ("a", "b", "FAULT: f", "  why:  w", f"  next: {launched} diagnose t.py")
    ]
    assert told.err == f"{lead}now\n"
    monkeypatch.setattr("shutil.which", lambda name: None)
    unfound = command_line(["graphprobe", "diagnose", "t.py"])
    assert unfound.startswith(f"{shlex.quote(sys.executable)} -m torch.distributed.run --nproc-per-node {ranks} -m ")


@pytest.mark.parametrize("own", [{"slow": "canonicalise, /p/slow.py:7"}, {}])
def test_the_last_lines_name_a_slow_pass_of_the_program(own: dict[str, str]) -> None:
    spans = [Span("dynamo", 0, 10**9, 0, compile_id="0/0")]
    spans.append(Span("pass.post_grad_passes.slow", 10, 4 * 10**8 + 10, 0, parent=0, compile_id="0/0", kind="pass"))
    profile = Profile("0", "2.13", "3.11", 0, 10**9, 0, spans, [], [], ["main"], own_passes=own)
    file = io.StringIO()
    profile_view.print_end(profile, "p.json", file=file)
    assert ("slow = canonicalise, /p/slow.py:7, 0.400 s" in file.getvalue()) == bool(own)


EVIL = "\x1b]0;T\x07\x1b[2J\x9b31m\x7f\r\x08\u202e\u2066"
SHOWN = r"\x1b]0;T\x07\x1b[2J\u009b31m\u007f\x0d\x08\u202e\u2066"


def test_each_character_is_spelled_so_that_json_stays_json() -> None:
    assert visible(EVIL) == SHOWN
    assert visible("tab\there\nline\r\nend é 漢 — ok") == "tab\there\nline\r\nend é 漢 — ok"
    assert visible("\ud800") == r"\ud800"
    document = {"text": EVIL}
    assert json.loads(visible(msgspec.json.encode(document).decode())) == document
    assert json.loads(visible(json.dumps(document, ensure_ascii=False))) == document
