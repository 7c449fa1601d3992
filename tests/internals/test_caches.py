"""Libraries in torch's cache that a killed linker left: told from whole ones, and no obstacle to a diagnosis."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch._C
import torch._inductor.runtime.cache_dir_utils

from graphprobe.internals.caches import BEING_WRITTEN_S, drop_cut_off_libraries, is_cut_off

LIBRARY = Path(torch._C.__file__)

PROGRAM = """
import json, sys
import torch
import graphprobe

torch._inductor.config.fx_graph_cache = False

def program(x):
    return (x * 2).relu().sum(1)

x = torch.linspace(-2, 2, 24).reshape(4, 6)
if sys.argv[1] == "run":
    print(torch.compile(program)(x).shape)
else:
    found = graphprobe.diagnose(program, x)
    print(json.dumps([found.verdict, found.notes]))
"""


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5])
def test_a_library_that_is_cut_off_is_told_from_a_whole_one(tmp_path: Path, share: float) -> None:
    whole = LIBRARY.read_bytes()
    (tmp_path / "cut.so").write_bytes(whole[: int(len(whole) * share)])
    assert is_cut_off(tmp_path / "cut.so")
    assert not is_cut_off(LIBRARY)


def test_only_old_files_that_are_cut_off_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert drop_cut_off_libraries() == []
    (tmp_path / "ab").mkdir()
    for name, content, age in (("old", b"", 2), ("new", b"", 0.5), ("whole", LIBRARY.read_bytes(), 2)):
        path = tmp_path / "ab" / f"{name}.so"
        path.write_bytes(content)
        then = time.time() - age * BEING_WRITTEN_S
        os.utime(path, (then, then))
    assert drop_cut_off_libraries() == [tmp_path / "ab" / "old.so"]
    assert sorted(path.name for path in (tmp_path / "ab").iterdir()) == ["new.so", "whole.so"]


@pytest.mark.heavy
def test_a_healthy_program_with_a_library_that_is_cut_off(run_warm: Callable[..., Any], tmp_path: Path) -> None:
    """As its user runs it, it ends with `file too short`: the cache is at fault, which is told and mended."""
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")

    def run(what: str) -> Any:
        return run_warm("program.py", what, cwd=tmp_path, env={"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")})

    assert run("run").code == 0
    libraries = [path for path in (tmp_path / "cache").glob("*/*.so") if "main" in path.name]
    assert libraries
    for path in libraries:
        path.write_bytes(b"")
        os.utime(path, (1.7e9, 1.7e9))
    broken = run("run")
    assert broken.code == 1 and "file too short" in broken.err
    verdict, notes = json.loads(run("diagnose").out.splitlines()[-1])
    assert verdict == "healthy", notes
    assert any("cut off" in note and libraries[0].name in note for note in notes), notes
    assert run("run").code == 0
