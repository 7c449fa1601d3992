"""Full disk, read-only target, a folder that goes away, a budget: the program does not notice, the run says it."""

import ctypes
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import Finished
from faults.programs import size_on_disk, sound
from graphprobe.store import Run

Step = Callable[..., Finished]

NO_SPACE, READ_ONLY = "No space left on device", "Read-only file system"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    yield folder
    libc = ctypes.CDLL(None, use_errno=True)
    while folder.is_mount():
        assert libc.umount2(os.fsencode(folder), 2) == 0, os.strerror(ctypes.get_errno())


def mount(disk: Path, options: str) -> None:
    """Mounts a tmpfs; fails the test, rather than skipping it, where mounting is not permitted."""
    words = ["mount", "-t", "tmpfs", "-o", options, "graphprobe-test", str(disk)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"these tests mount a tmpfs, so they run as root: {done.stderr}"


def same(done: Finished, plain: Finished) -> None:
    assert done.code == 0, done.err
    assert done.out == plain.out
    assert "Traceback" not in done.err
    assert "Warning" not in done.err


def sound_run(folder: Path, missing: str) -> Run:
    """The run in a folder: finished, whole, and says what it could not write."""
    run = Run.open(folder)
    assert run.state == "finished"
    sound(run)
    assert any(missing in entry for entry in run.manifest.missing), run.manifest.missing
    return run


def filled(disk: Path) -> str:
    """Python that fills the disk with a file."""
    return f"""
hog = open({str(disk / "hog")!r}, "wb", 0)
try:
    while hog.write(bytes(4096)): pass
except OSError: pass
"""


@pytest.mark.parametrize("size", ["100k", "128k", "160k", "filled by somebody else"])
def test_full_disk(size: str, step: Step, disk: Path, plain: Finished) -> None:
    other = not size.endswith("k")
    mount(disk, f"size={'1m' if other else size}")
    done = step(("--out", str(disk), "--log-level", "debug"), setup=filled(disk) if other else "")
    same(done, plain)
    sound_run(disk, NO_SPACE)
    assert "graphprobe: missing: " in done.err
    assert NO_SPACE in done.err
    assert not list(disk.rglob(".tmp-*"))


@pytest.mark.slow
def test_full_disk_that_gets_room_again(step: Step, disk: Path, plain: Finished) -> None:
    mount(disk, "size=1m")
    between = f"os.unlink({str(disk / 'hog')!r})\nhog.close()\ntime.sleep(2.2)"
    same(step(("--out", str(disk)), setup=filled(disk), between=between), plain)
    run = sound_run(disk, NO_SPACE)
    assert {"model__1/forward/graph", "model__1/forward/code"} <= set(run.artifacts())
    assert "model__0/forward/code" not in run.artifacts()


@pytest.mark.parametrize("name", ["taken", "taken/deeper"])
def test_target_that_cannot_be_a_folder_is_refused_first(name: str, step: Step, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    target = tmp_path / name
    done = step(("--out", str(target)), setup="open('ran', 'w')")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error[usage]: no run can be written under {target}: ")
    assert "hint: name a folder that can be written to" in done.err
    # The program did not start, and nothing was made.
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["step.py", "taken"]


INTO_THE_DISK = {
    "run": ("--out", "DISK/run"),
    "run in the folder itself": ("--out", "DISK"),
    "calls in the run": ("--out", "DISK/run", "--dump", "tensor"),
    "calls": ("--out", "out", "--dump", "stats", "--dump-to", "DISK/calls"),
    "graphs in the run": ("--out", "DISK/run", "--dump-graph", "stats"),
    "graphs": ("--out", "out", "--dump-graph", "stats", "--dump-to", "DISK/graphs"),
    "graphs in the folder itself": ("--out", "out", "--dump-graph", "stats", "--dump-to", "DISK"),
}


@pytest.mark.parametrize("kind", INTO_THE_DISK)
@pytest.mark.parametrize(("options", "why"), [("ro", READ_ONLY), ("size=16k", NO_SPACE)])
def test_disk_without_room_from_the_start_leaves_the_program_alone(
    options: str, why: str, kind: str, step: Step, disk: Path, tmp_path: Path, plain: Finished
) -> None:
    mount(disk, options)
    if options != "ro":
        subprocess.run(["sh", "-c", f"cat /dev/zero > {disk}/full"], capture_output=True, check=False)
    words = tuple(word.replace("DISK", str(disk)) for word in INTO_THE_DISK[kind])
    done = step(words)
    same(done, plain)
    said = [line for line in done.err.splitlines() if why in line]
    assert len(said) == 2, f"before and after, once each: {done.err}"
    assert ": missing: " in said[1], said
    assert (tmp_path / "out").exists() == ("out" in words), "what does not lie there is collected as ever"
    assert {path.name for path in disk.rglob("*") if not path.is_dir()} <= {"full"}


def test_read_only_target_of_the_switch_is_a_warning(step: Step, disk: Path, plain: Finished) -> None:
    mount(disk, "ro")
    switch = {"TORCH_COMPILE_DEBUG": "1", "GRAPHPROBE_OUT": str(disk)}
    done = step(None, setup=f"os.environ |= {switch}\nimport graphprobe")
    assert (done.code, done.out) == (0, plain.out), done.err
    assert "GraphprobeWarning: nothing is collected" in done.err
    assert READ_ONLY in done.err


def test_target_turns_read_only(step: Step, disk: Path, plain: Finished) -> None:
    """A second, read-only mount of the same folder: `remount,ro` itself is refused while a file is open for writing."""
    mount(disk, "size=10m")
    mounts = [["--bind", str(disk), str(disk)], ["-o", "remount,bind,ro", str(disk)]]
    done = step(("--out", str(disk)), between=f"for words in {mounts}: subprocess.run(['mount', *words], check=True)")
    same(done, plain)
    run = Run.open(disk)
    sound(run)
    assert "model__0/forward/code" in run.artifacts()
    assert "model__1/forward/graph" not in run.artifacts()
    assert "graphprobe: missing: " in done.err
    assert READ_ONLY in done.err


def test_folder_deleted_in_the_middle(step: Step, tmp_path: Path, plain: Finished) -> None:
    done = step(("--out", "out"), between="shutil.rmtree('out')")
    same(done, plain)
    assert "graphprobe: the run in " in done.err
    assert "cannot be read" in done.err
    assert not (tmp_path / "out").exists(), "what somebody has deleted must not come back"


WATCH = """
biggest = 0
def watch():
    global biggest
    while True:
        total = 0
        for folder, _, files in os.walk('out'):
            if 'graphprobe' in folder:
                for name in files:
                    try: total += os.stat(os.path.join(folder, name)).st_size
                    except OSError: pass
        biggest = max(biggest, total)
        time.sleep(0.001)
threading.Thread(target=watch, daemon=True).start()
import atexit
atexit.register(lambda: print("BIGGEST", biggest, file=sys.stderr))
"""


@pytest.mark.parametrize("budget", [0, 20_000, 30_000, 100_000])
def test_budget_is_never_exceeded(budget: int, step: Step, tmp_path: Path, plain: Finished) -> None:
    size = f"{budget // 1000}KB" if budget else "0"
    done = step(("--out", "out", "--max-bytes", size, "--log-level", "debug"), setup=WATCH)
    same(done, plain)
    run = Run.open(tmp_path / "out")
    assert run.manifest.settings["max_bytes"].value == budget
    assert any("max_bytes" in entry and "would be exceeded" in entry for entry in run.manifest.missing)
    assert "would be exceeded" in done.err
    sound(run)
    if budget == 0:
        assert {path.name for path in run.tool_dir.iterdir()} <= {"manifest.json", "events.jsonl"}
        assert run.events() == ()
        return
    assert 0 < size_on_disk(run.tool_dir) <= budget
    seen = int(done.err.split("BIGGEST ")[1].split()[0])
    assert 0 < seen <= budget, "never, not only at the end"


@pytest.mark.slow
def test_saved_inputs_larger_than_the_budget(step: Step, tmp_path: Path) -> None:
    large = "print('LARGE', float(torch.compile(g)(torch.ones(1 << 18))))"
    done = step(("--save-inputs", "--max-bytes", "900KB"), between=large)
    same(done, step(None, between=large))
    run = Run.open(tmp_path)
    sound(run)
    artifacts = run.artifacts()
    # The small graph's inputs are kept, those of the large one are not; nothing else of it is lost.
    assert "model__0/forward/inputs.safetensors/step:0" in artifacts, sorted(artifacts)
    assert not [a for a in artifacts if a.startswith("model__1/forward/inputs")]
    assert "model__1/forward/code" in artifacts
    assert any(f"inputs of {2 * 4 * (1 << 18)} bytes" in entry for entry in run.manifest.missing), run.manifest.missing
    assert run.manifest.predicted_bytes is not None
    assert run.manifest.predicted_bytes > 2 * 4 * (1 << 18)
    assert size_on_disk(run.tool_dir) <= 900_000
    shown = re.search(r"graphprobe: 3 compiled graphs, (\d+) files, ([\d.]+) KiB, ([\d.]+) MiB predicted", done.err)
    assert float(shown[2]) * 1024 == pytest.approx(run.manifest.collected_bytes, abs=52)
    assert float(shown[3]) * 1024**2 == pytest.approx(run.manifest.predicted_bytes, rel=0.05)


@pytest.mark.parametrize("full", [True, False])
def test_a_diagnosis_without_room(full: bool, disk: Path, run_warm: Callable[..., Finished], tmp_path: Path) -> None:
    mount(disk, "size=1m")
    program = 'import torch\ntorch.compile(lambda x: x + 1, backend="aot_eager")(torch.ones(2))\n'
    (tmp_path / "right.py").write_text((filled(disk) if full else "") + program)
    done = run_warm("-m", "graphprobe", "diagnose", "--json", str(disk / "result.json"), "right.py", cwd=tmp_path)
    assert (disk / "result.json").is_file() is not full
    assert "HEALTHY: right.py: 1 healthy" in done.out and "Traceback" not in done.err
    assert done.code == (125 if full else 0)
    assert ("error[no-output]" in done.err and NO_SPACE in done.err) is full
