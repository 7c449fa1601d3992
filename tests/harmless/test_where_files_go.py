"""Programs that go elsewhere, fork, or are started twice: what is collected lies where it was asked for."""

from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Finished
from graphprobe.analysis.breaks_facts import UncompiledFact
from graphprobe.store import Run, StepLine, json_line, open_api_dump

Watch = Callable[..., Finished]

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
LOSES_ITS_FOLDER = """
import os, torch
os.rmdir("dump")
open("dump", "w").close()
for _ in range(2):
    print(torch.compile(lambda x: (x + 1).sin(), backend="aot_eager")(torch.ones(2)).shape)
"""


@pytest.fixture
def watch(run_warm: Callable[..., Finished], tmp_path: Path) -> Watch:
    """Runs a program in a folder under `graphprobe run`; it says the shapes that it would say without."""

    def run(*options: str, where: Path = tmp_path, code: int = 0, shapes: int = 1, **env: str) -> Finished:
        where.mkdir(exist_ok=True)
        (where / "program.py").write_text(GOES_ELSEWHERE if shapes == 1 else LOSES_ITS_FOLDER)
        done = run_warm("-m", "graphprobe", "run", *options, "program.py", cwd=where, env=env)
        assert (done.code, done.out) == (code, "" if code else "torch.Size([2])\n" * shapes), done.err
        return done

    return run


def check_run(path: Path) -> Run:
    run = Run.open(path)
    assert (run.state, run.manifest.missing, run.manifest.models) == ("finished", [], 1)
    return run


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), ""),
        (("--dump", "stats", "--dump-to", "calls"), "calls dumped to calls\n"),
        (("--dump-graph", "stats"), "/graph_dump\n"),
        (("--dump-graph", "stats", "--dump-to", "not/there"), " in not/there/worldsize1_global_rank0/"),
    ],
)
def test_a_program_elsewhere_loses_nothing(watch: Watch, tmp_path: Path, options: tuple[str, ...], told: str) -> None:
    done = watch(*options)
    (path,) = (tmp_path / "torch_compile_debug").iterdir()
    assert check_run(path).find("model__0/forward/graph").path
    # Paths are told from where the user is, not from where the program ended.
    assert f"graphprobe ls torch_compile_debug/{path.name}\n" in done.err
    assert told in done.err
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_child_that_leaves_at_once_has_its_own_run_beside_that_of_its_parent(watch: Watch, tmp_path: Path) -> None:
    watch("--out", "runs", FORK="1")
    paths = list((tmp_path / "runs").iterdir())
    assert len(paths) == 2, "the child's is not looked for from where the program went"
    (parent,) = [path for path in paths if not Run.open(path).manifest.notes]
    check_run(parent)


@pytest.mark.slow
def test_a_second_process_gets_a_folder_of_its_own(watch: Watch, tmp_path: Path) -> None:
    for number, folder in enumerate(("calls", "calls-2", "calls-3")):
        done = watch("--dump", "stats", "--dump-to", str(tmp_path / "calls"), where=tmp_path / str(number))
        assert f"dumped to ../{folder}\n" in done.err
        dump = open_api_dump(tmp_path / folder)
        assert dump.problems() == () and any(list(dump.calls(0, step)) for step in dump.steps(0))
    (tmp_path / "file").write_text("mine")
    watch("--dump", "stats", "--dump-to", str(tmp_path / "file"), where=tmp_path / "last", code=2)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("a/b", "--steps", "nonsense"), "--steps"),
        (("new/../file/dump",), "--dump-to = 'new/../file/dump': it cannot be made: Not a directory"),
    ],
)
def test_no_folder_is_left_of_a_refused_dump(watch: Watch, tmp_path: Path, options: tuple[str, ...], why: str) -> None:
    (tmp_path / "file").write_text("mine")
    assert why in watch("--dump-graph", "stats", "--dump-to", *options, code=2).err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "program.py"]


def test_a_path_that_is_no_utf8(watch: Watch, tmp_path: Path) -> None:
    # torch itself cannot compile a function of a file with such a name; but the folder of a run may have one.
    folder = "caf\udce9"
    (tmp_path / folder).mkdir()
    watch("--out", folder)
    (path,) = (tmp_path / folder).iterdir()
    argv = check_run(path).manifest.argv
    assert f"--out {folder.encode('utf-8', 'backslashreplace').decode()}" in " ".join(argv)
    line = json_line(StepLine(0, 0, component="dynamo", name="trace", detail="f (caf\udce9.py:1)"))
    assert "caf\\\\udce9.py" in line
    assert "caf\\\\udce9" in json_line(UncompiledFact(file="caf\udce9", reason="x"))


def test_a_dump_that_cannot_be_opened_is_told_in_one_line(watch: Watch) -> None:
    done = watch("--out", "runs", "--dump-graph", "stats", "--dump-to", "dump", shapes=2)
    assert "Traceback" not in done.err and "nothing was dumped" not in done.err
    said = [line for line in done.err.splitlines() if "opening the dump failed" in line]
    assert len(said) == 2, done.err  # when it happens, and at the end
    assert said[1].startswith("graphprobe: dump: missing: opening the dump failed: no dump can be written under ")
