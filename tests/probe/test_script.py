"""What `graphprobe run` refuses, and how it finds what it runs; the rest is in `tests/cli/test_run.py`."""

import sys
from pathlib import Path

import pytest

from graphprobe.errors import UsageError
from graphprobe.probe import script
from graphprobe.probe.script import ScriptTarget


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    (tmp_path / "good.py").write_text("x = 1\n")
    (tmp_path / "bad.py").write_text("x = = 1\n")
    (tmp_path / "latin.py").write_bytes("# -*- coding: latin-1 -*-\nx = 'é'\n".encode("latin-1"))
    (tmp_path / "utf8.py").write_bytes(b"x = '\xe9'\n")
    for package in ("loud", "loud/inner", "quiet"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise RuntimeError('imported too early')\n")
    (tmp_path / "loud/__main__.py").write_text("")
    (tmp_path / "loud/inner/leaf.py").write_text("")
    (tmp_path / "loud/inner/broken.py").write_text("x = = 1")
    return tmp_path


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        ("script", "good.py"),
        ("script", "latin.py"),
        ("script", "loud"),
        ("module", "good"),
        ("module", "loud"),
        ("module", "loud.inner.leaf"),
        ("module", "json.tool"),
        ("module", "timeit"),
        ("code", "x = 1"),
    ],
)
def test_accepted_without_importing_anything(kind: str, target: str, folder: Path) -> None:
    before, path = set(sys.modules), list(sys.path)
    script.check(ScriptTarget(kind, target))
    assert not {name for name in set(sys.modules) - before if name.partition(".")[0] in ("loud", "good", "timeit")}
    assert sys.path == path


@pytest.mark.parametrize(
    ("kind", "target", "words"),
    [
        ("script", "none.py", "no script at 'none.py'"),
        ("script", "quiet", "without a __main__.py"),
        ("script", "bad.py", "bad.py, line 1: SyntaxError: invalid syntax"),
        ("script", "utf8.py", "utf8.py"),
        ("module", "bad", "bad.py, line 1: SyntaxError"),
        ("module", "loud.inner.broken", "broken.py, line 1: SyntaxError"),
        ("module", "none", "no module 'none'"),
        ("module", "", "no module"),
        ("module", ".good", "no module"),
        ("module", "good.", "no module"),
        ("module", "sys", "sys"),
        ("code", "x = = 1", "<string>, line 1: SyntaxError"),
        ("script", "/usr/bin/torchrun", "processes of its own"),
        ("module", "torch.distributed.run", "processes of its own"),
    ],
)
def test_refused(kind: str, target: str, words: str, folder: Path) -> None:
    before = list(sys.path)
    with pytest.raises(UsageError) as raised:
        script.check(ScriptTarget(kind, target))
    assert words in str(raised.value)
    assert raised.value.exit_code == 2
    assert sys.path == before


def test_an_exception_that_cannot_be_shown_ends_the_program_all_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("argv", "path"):
        monkeypatch.setattr(sys, name, list(getattr(sys, name)))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    source = "class E(Exception):\n    def __str__(self): raise ValueError('no text')\nraise E\n"
    ended = script.run(ScriptTarget("code", source))
    assert ended == script.Ended(1, "E: <exception str() failed>")
    assert "E: <exception str() failed>" in capsys.readouterr().err
