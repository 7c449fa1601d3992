"""A dump changes nothing: outputs, gradients, random numbers, exceptions, warnings and hooks are bit for bit.

Of calls, in eager programs of many kinds; of graphs, in compiled programs on tensors that are no plain memory.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Finished
from graphprobe.compare import open_dump
from graphprobe.store import open_api_dump

Said = Callable[..., Finished]

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture(scope="module")
def said(run_warm: Said) -> Said:
    """What a program says; as the plain one where it is watched."""
    plain: dict[str, Finished] = {}

    def run(program: str, *args: str, before: tuple[str, ...] = ()) -> Finished:
        env = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        done = run_warm(*before, str(PROGRAMS / program), *args, env=env)
        assert done.code == 0, done.err[-3000:]
        if args or before:
            without = plain.get(program) or plain.setdefault(program, run(program))
            assert done.out.splitlines() == without.out.splitlines()
            if not before:
                assert without_addresses(done.err) == without_addresses(without.err)
        return done

    return run


def without_addresses(text: str) -> list[str]:
    """Warnings name the line that warned; a mode stands between the program and it."""
    return [line for line in text.splitlines() if line and not line.startswith("  ")]


@pytest.mark.slow
@pytest.mark.parametrize(("level", "data"), [("mix", "tensor"), ("api", "stats"), ("module", "stats")])
def test_eager_programs(said: Said, tmp_path: Path, level: str, data: str) -> None:
    done = said("eager.py", "dump", str(tmp_path / "d"), level, data)
    assert done.out.count("\n") > 30 and "raised: [\"'RuntimeError'" in done.out
    dump = open_api_dump(tmp_path / "d")
    assert not [text for text in dump.problems() if "observer" in text]
    assert sum(1 for step in dump.steps(0) for _ in dump.calls(0, step)) > 50


@pytest.mark.heavy
@pytest.mark.parametrize("engine", ["kernel", "interpreter"])
@pytest.mark.parametrize("data", ["stats", "tensor"])
def test_graphs_on_odd_tensors(said: Said, tmp_path: Path, engine: str, data: str) -> None:
    options = ("--dump-graph", data, "--dump-engine", engine, "--dump-to", str(tmp_path / "dump"))
    done = said("odd_tensors.py", before=("-m", "graphprobe", "run", "-q", "--out", str(tmp_path / "runs"), *options))
    assert "class: Told" in done.out and "distributed: " in done.out
    dump = open_dump(tmp_path / "dump")
    calls = [call for step in dump.steps(0) for call in dump.calls(0, step)]
    assert len(calls) > 10
    empty = [slot for call in calls for slot in call.slots if slot.scalar is None and slot.stats is None]
    assert all(slot.missing or slot.value for slot in empty), [slot for slot in empty if not slot.missing][:3]
    manifests = [json.loads(path.read_text()) for path in (tmp_path / "dump").rglob("manifest.json")]
    assert manifests and all(not document.get("stopped") for document in manifests)
