"""Programs that go elsewhere, fork, or are started twice: what is collected lies where it was asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Finished
from graphprobe.store.reader import Run

Warm = Callable[..., Finished]

GOES_ELSEWHERE = """
import os, torch
os.makedirs("elsewhere")
f = torch.compile(lambda x: (x + 1).sin(), backend="aot_eager")
os.chdir("elsewhere")
if os.environ.get("FORK") and os.fork() == 0:
    f(torch.ones(3))
    os._exit(0)
print(f(torch.ones(2)).shape)
"""


def run_in(folder: Path, run_warm: Warm, *options: str, env: dict[str, str] | None = None) -> Finished:
    (folder / "program.py").write_text(GOES_ELSEWHERE)
    return run_warm("-m", "graphprobe", "run", *options, "program.py", cwd=folder, env=env or {})


def only_run(folder: Path) -> Run:
    (path,) = (folder / "torch_compile_debug").iterdir()
    return Run.open(path)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), None),
        (("--dump", "stats", "--dump-to", "calls"), "calls dumped to calls\n"),
        (("--dump-graph", "stats"), "/graph_dump\n"),
        (("--dump-graph", "stats", "--dump-path", "not/there"), " in not/there/worldsize1_global_rank0/"),
    ],
)
def test_a_program_that_goes_elsewhere_loses_nothing(
    run_warm: Warm, tmp_path: Path, options: tuple[str, ...], told: str | None
) -> None:
    done = run_in(tmp_path, run_warm, *options)
    assert (done.code, done.out) == (0, "torch.Size([2])\n"), done.err
    run = only_run(tmp_path)
    assert (run.state, run.manifest.missing, run.manifest.models) == ("finished", [], 1)
    assert run.find("model__0/forward/graph").path
    # Paths are told from where the user is, not from where the program ended.
    assert f"graphprobe ls torch_compile_debug/{run.run_dir.name}\n" in done.err
    assert told is None or told in done.err
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_child_that_leaves_at_once_has_its_own_run_beside_that_of_its_parent(run_warm: Warm, tmp_path: Path) -> None:
    done = run_in(tmp_path, run_warm, "--out", "runs", env={"FORK": "1"})
    assert (done.code, done.out) == (0, "torch.Size([2])\n"), done.err
    runs = [Run.open(path) for path in (tmp_path / "runs").iterdir()]
    assert len(runs) == 2, "the child's is not looked for from where the program went"
    (parent,) = [run for run in runs if not run.manifest.notes]
    assert (parent.state, parent.manifest.missing, parent.manifest.models) == ("finished", [], 1)


def test_a_second_process_gets_a_folder_of_its_own(run_warm: Warm, tmp_path: Path) -> None:
    from graphprobe.store.api_reader import manifest_in

    for number, folder in enumerate(("calls", "calls-2", "calls-3")):
        where = tmp_path / str(number)
        where.mkdir()
        done = run_in(where, run_warm, "--dump", "stats", "--dump-to", str(tmp_path / "calls"))
        assert (done.code, done.out) == (0, "torch.Size([2])\n"), done.err
        assert f"dumped to ../{folder}\n" in done.err
        manifest = manifest_in(tmp_path / folder / "rank0")
        assert manifest is not None and manifest.state == "finished" and manifest.calls > 0
    (tmp_path / "file").write_text("mine")
    (tmp_path / "last").mkdir()
    refused = run_in(tmp_path / "last", run_warm, "--dump", "stats", "--dump-to", str(tmp_path / "file"))
    assert refused.code == 2 and refused.out == "" and (tmp_path / "file").read_text() == "mine"


def test_a_folder_made_for_a_dump_goes_with_a_mistake(run_warm: Warm, tmp_path: Path) -> None:
    done = run_in(tmp_path, run_warm, "--dump-graph", "stats", "--dump-path", "a/b", "--dump-step", "nonsense")
    assert done.code == 2 and "--steps" in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["program.py"]


def test_a_path_that_is_no_utf8(run_warm: Warm, tmp_path: Path) -> None:
    # torch itself cannot compile a function of a file with such a name; but the folder of a run may have one.
    folder = "caf\udce9"
    (tmp_path / folder).mkdir()
    done = run_in(tmp_path, run_warm, "--out", folder)
    assert (done.code, done.out) == (0, "torch.Size([2])\n"), done.err
    (path,) = (tmp_path / folder).iterdir()
    run = Run.open(path)
    assert (run.state, run.manifest.missing, run.manifest.models) == ("finished", [], 1)
    assert f"--out {folder.encode('utf-8', 'backslashreplace').decode()}" in " ".join(run.manifest.argv)


def test_records_hold_text_that_is_no_utf8() -> None:
    from graphprobe.analysis.breaks_facts import UncompiledFact, line_from_fact
    from graphprobe.store.step_file import StepLine, encode_step

    line = encode_step(StepLine(0, 0, component="dynamo", name="trace", detail="f (caf\udce9.py:1)"))
    assert "caf\\\\udce9.py" in line
    assert "caf\\\\udce9" in line_from_fact(UncompiledFact(file="caf\udce9", reason="x"))


LOSES_ITS_FOLDER = """
import os, torch
os.rmdir("dump")
open("dump", "w").close()
for _ in range(2):
    print(torch.compile(lambda x: (x + 1).sin(), backend="aot_eager")(torch.ones(2)).shape)
"""


def test_a_dump_that_cannot_be_opened_is_told_in_one_line(run_warm: Warm, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(LOSES_ITS_FOLDER)
    words = ("--out", "runs", "--dump-graph", "stats", "--dump-path", "dump")
    done = run_warm("-m", "graphprobe", "run", *words, "program.py", cwd=tmp_path)
    assert (done.code, done.out) == (0, 2 * "torch.Size([2])\n"), done.err
    assert "Traceback" not in done.err and "nothing was dumped" not in done.err
    said = [line for line in done.err.splitlines() if "opening the dump failed" in line]
    assert len(said) == 2, done.err  # when it happens, and at the end
    assert said[1].startswith("graphprobe: dump: missing: opening the dump failed: no dump can be written under ")


def test_a_folder_that_cannot_be_made_is_refused_with_the_reason(run_warm: Warm, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    done = run_in(tmp_path, run_warm, "--dump-graph", "stats", "--dump-path", "new/../file/dump")
    assert done.code == 2 and "--dump-to = 'new/../file/dump': it cannot be made: Not a directory" in done.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "program.py"]
