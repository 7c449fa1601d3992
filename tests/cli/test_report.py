"""`graphprobe report`: what it takes, what it refuses before it writes anything, and that it needs no torch."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result

import graphprobe
from cli.calling import call
from graphprobe.analysis.timing import Profile, Span, write_profile
from graphprobe.report import kind_of
from report.samples import MadeRun, fault, healthy


def invoke(*args: object, **options: Any) -> Result:
    return call("report", *args, **options)


def made_profile(path: Path) -> Path:
    spans = [Span("dynamo", 0, 2_000_000_000, 1, compile_id="0/0")]
    write_profile(Profile("0.1", "2.13", "3.11", 0, 3, 3, spans, [], [], ["main"], program="x.py"), path)
    return path


def test_it_says_the_verdict_and_what_it_wrote(tmp_path: Path) -> None:
    out = tmp_path / "fault.html"
    result = invoke(fault(tmp_path), "-o", out, "--source-root", tmp_path, code=0)
    profile = invoke(made_profile(tmp_path / "profile.json"), "-o", tmp_path / "p.html", code=0)
    assert "COMPILE TIME: Compiling took 2.0 s" in profile.output
    wrote, verdict, follow = result.output.splitlines()
    assert wrote.startswith(f"Wrote {out} (")
    assert verdict == "FAULT: Compiled, relu gives wrong numbers."
    assert follow == f"  next: python -m webbrowser {out}"
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_without_arguments_it_takes_the_newest_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    MadeRun(tmp_path).close()
    (tmp_path / "runs").rename(tmp_path / "torch_compile_debug")
    monkeypatch.chdir(tmp_path)
    result = invoke(code=0)
    assert "Wrote report.html" in result.output, result.output


def test_kinds(tmp_path: Path) -> None:
    run = MadeRun(tmp_path)
    folder = run.close()
    assert kind_of(fault(tmp_path)) == kind_of(healthy(tmp_path)) == kind_of(tmp_path / "proofs") == "diagnosis"
    assert kind_of(folder) == kind_of(folder.parent) == kind_of(folder / "graphprobe") == "run"
    assert kind_of(made_profile(tmp_path / "profile.json")) == "profile"
    (tmp_path / "compared").mkdir()
    comparison = tmp_path / "compared" / "comparison.json"
    comparison.write_text(json.dumps({"outcome": "same", "candidate": {}, "reference": {}}))
    assert kind_of(comparison) == kind_of(comparison.parent) == "comparison"
    model = torch.nn.Linear(2, 2)
    with graphprobe.dump(str(tmp_path / "dump"), data="stats", model=model):
        model(torch.ones(1, 2))
    assert kind_of(tmp_path / "dump") == kind_of(tmp_path / "dump" / "rank0") == "dump"


def test_nothing_is_overwritten_unless_asked(tmp_path: Path) -> None:
    source, out = healthy(tmp_path), tmp_path / "out.html"
    out.write_text("mine")
    result = invoke(source, "-o", out, code=2)
    assert "exists already" in result.output
    assert out.read_text() == "mine"
    assert invoke(source, "-o", out, "--force").exit_code == 2 and out.read_text() == "mine"
    out.write_text("")
    for _ in range(2):
        assert invoke(source, "-o", out, "--force").exit_code == 0 and out.stat().st_size > 1000
    assert "it is a folder" in invoke(source, "-o", tmp_path).output
    assert "standard output" in invoke(source, "-o", "-").output
    assert "there is no folder" in invoke(source, "-o", tmp_path / "no" / "x.html").output


def claiming(tmp_path: Path, *sources: object) -> Path:
    """A dump of calls that says so of each call's line, and of the folder that the program ran in."""
    dump = tmp_path / "dump"
    with graphprobe.dump(dump, data="stats"):
        for _ in sources:
            torch.ones(2).sin()
    (calls,) = dump.rglob("calls.jsonl")
    lines = [json.loads(line) for line in calls.read_text().splitlines()]
    for source, line in zip(sources, lines[-len(sources) :], strict=True):
        line["source"] = str(source)
    calls.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (manifest,) = dump.rglob("manifest.json")
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"cwd": "/"}))
    return dump


def test_a_file_that_a_dump_names_is_shown_only_where_it_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, program, home = tmp_path / "secret.py", tmp_path / "program", tmp_path / "home"
    for folder in (program, home):
        folder.mkdir()
    secret.write_text("password = 'very secret'\n")
    (home / "id_rsa").write_text("very secret\n")
    (home / "link.py").symlink_to(secret)
    (home / "mine.py").write_text("y = x.sin()  # my line\n")
    named = ["/etc/passwd", "etc/passwd", secret, home / "id_rsa", home / "link.py", home / "mine.py"]
    named.append(torch.nn.functional.__file__)
    dump = claiming(tmp_path, *(f"{name}:1" for name in named))
    monkeypatch.chdir(home)
    done = invoke(dump, "-o", "r.html")
    page = (home / "r.html").read_text()
    assert done.exit_code == 0 and "root:x:" not in page and "very secret" not in page
    assert "# my line" in page and "Functional interface" in page  # what is mine, and what is installed
    assert f"Not shown: lines of {Path('/etc/passwd').resolve()} and 2 more; show them with" in done.output
    assert "--source-root FOLDER" in page and str(secret) in page

    done = invoke(dump, "-o", "allowed.html", "--source-root", tmp_path, "--source-root", program)
    assert "very secret" in (home / "allowed.html").read_text() and "root:x:" not in (home / "allowed.html").read_text()
    assert "/etc/passwd; show" in done.output
    invoke(dump, "-o", "no.html", "--source-root", "nowhere", code=2)


def test_a_link_out_of_a_dossier_is_not_followed(tmp_path: Path) -> None:
    result = fault(tmp_path)
    (tmp_path / "secret.md").write_text("# very secret\n")
    (report,) = tmp_path.glob("proofs/*/REPORT.md")
    report.unlink()
    report.symlink_to(tmp_path / "secret.md")
    invoke(result, "-o", tmp_path / "r.html", code=0)
    assert "very secret" not in (tmp_path / "r.html").read_text()
    done = call("issue", report.parent, code=2)
    assert "leads out of" in done.output and "very secret" not in done.output


FORCED = (
    "report {0}/profile.json -o",
    "export {0}/profile.json --to chrome-trace -o",
    "profile {0}/profile.json --trace",
    "compare --no-replay {0}/calls {0}/calls --json",
    "compare --no-replay {0}/calls {0}/calls --csv",
    "explain {0}/runs --json",
)
"""Commands that write the file behind them."""


def test_force_replaces_only_what_graphprobe_wrote(tmp_path: Path) -> None:
    made_profile(tmp_path / "profile.json")
    MadeRun(tmp_path).close()
    with graphprobe.dump(tmp_path / "calls", data="stats"):
        torch.ones(2).sin()
    out = tmp_path / "out.json"
    (manifest,) = tmp_path.glob("runs/*/graphprobe/manifest.json")
    for command in FORCED:
        out.unlink(missing_ok=True)
        for turn in ("new", "again"):
            done = call(*command.format(tmp_path).split(), out, "--force")
            assert done.exit_code in (0, 1) and out.stat().st_size > 0, (turn, command, done.output)
    fifo, note, device = tmp_path / "fifo.json", tmp_path / "note.json", tmp_path / "device.json"
    os.mkfifo(fifo)
    note.write_text('{"a note": "of mine"}')
    device.symlink_to("/dev/full")
    before = {path: path.read_bytes() for path in (note, manifest)}
    for path in (fifo, note, device, manifest):
        for command in FORCED:
            done = call(*command.format(tmp_path).split(), path, "--force", code=2)
            assert "it is not replaced" in done.output, (command, done.output)
    assert {path: path.read_bytes() for path in before} == before
    assert fifo.is_fifo() and device.is_symlink() and Path("/dev/full").is_char_device()
