"""What several files of these tests share: proofs that start at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from warm.pool import Warm


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
