"""What several files of these tests share: `graphprobe diagnose` run, and proofs that start at once."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from warm.pool import Warm


@pytest.fixture
def diagnosed(run_warm: Callable[..., Any], tmp_path: Path) -> Callable[..., tuple[Any, dict[str, Any]]]:
    """Runs `graphprobe diagnose WORDS` in the folder of the test: how it ended, and its document; empty if none is.

    `text` is what the script among the words holds, `code` the exit code.
    """

    def run(*words: str, text: str = "", code: int | None = None, **how: Any) -> tuple[Any, dict[str, Any]]:
        if text:
            (tmp_path / next(word for word in words if word.endswith(".py"))).write_text(text, "utf-8")
        done = run_warm("-m", "graphprobe", "diagnose", "--json", "result.json", *words, cwd=tmp_path, **how)
        assert code in (None, done.code), done.out[-4000:] + done.err[-4000:]
        file = tmp_path / "result.json"
        document = json.loads(file.read_text("utf-8")) if file.exists() else {}
        file.unlink(missing_ok=True)
        return done, document

    return run


@pytest.fixture(scope="session")
def warm_python(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A python for proofs: it leaves out `-I` and the variables of torch's caches, which a warm process cannot have."""
    path: Path = tmp_path_factory.mktemp("proofs") / "python"
    unset = "unset TORCHINDUCTOR_FX_GRAPH_CACHE TORCHINDUCTOR_AUTOGRAD_CACHE"
    path.write_text(f'#!/bin/sh\n{unset}\n[ "$1" = -I ] && shift\nexec {warm.executable} "$@"\n', "utf-8")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def warm_proofs(warm_python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proofs that a diagnosis tries out start at once."""
    from graphprobe.diagnose.dossier.proof_run import run_script

    assert run_script.__kwdefaults__ is not None
    monkeypatch.setitem(run_script.__kwdefaults__, "python", warm_python)
