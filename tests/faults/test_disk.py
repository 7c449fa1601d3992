"""Full disk, read-only target, a folder that goes away, a budget: the program does not notice, the run says it."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import Finished
from faults.programs import size_on_disk, sound, write_step
from graphprobe.store.reader import Run

FILL = """
hog = open({path!r}, "wb", 0)
try:
    while hog.write(bytes(4096)): pass
except OSError: pass
"""


def mount(*args: str) -> None:
    """Fails the test, rather than skipping it, where mounting is not permitted."""
    done = subprocess.run(["mount", *args], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"these tests mount a tmpfs, so they run as root: {done.stderr}"


def unmount(path: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    while path.is_mount():
        assert libc.umount2(os.fsencode(path), 2) == 0, os.strerror(ctypes.get_errno())


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A folder to mount on; unmounted afterwards."""
    folder = tmp_path / "disk"
    folder.mkdir()
    yield folder
    unmount(folder)


@pytest.fixture(scope="module")
def plain(run_warm: Callable[..., Finished], tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("plain")
    done = run_warm(str(write_step(folder / "step.py")), cwd=folder)
    assert done.code == 0, done.err
    assert done.out.count("\n") == 3
    return done


def same(done: Finished, plain: Finished) -> None:
    assert done.code == 0, done.err
    assert done.out == plain.out
    assert "Traceback" not in done.err
    assert "Warning" not in done.err


@pytest.mark.parametrize("size", ["100k", "128k", "160k"])
def test_full_disk(size: str, run_warm: Callable[..., Finished], disk: Path, tmp_path: Path, plain: Finished) -> None:
    mount("-t", "tmpfs", "-o", f"size={size}", "graphprobe-test", str(disk))
    script = write_step(tmp_path / "step.py")
    done = run_warm("-m", "graphprobe", "run", "--out", str(disk), "--log-level", "debug", str(script), cwd=tmp_path)
    same(done, plain)
    run = Run.open(disk)
    assert run.state == "finished"
    sound(run)
    assert any("No space left on device" in entry for entry in run.manifest.missing), run.manifest.missing
    assert "graphprobe: missing: " in done.err
    assert "No space left on device" in done.err
    assert not list(disk.rglob(".tmp-*"))


def test_full_disk_that_gets_room_again(
    run_warm: Callable[..., Finished], disk: Path, tmp_path: Path, plain: Finished
) -> None:
    mount("-t", "tmpfs", "-o", "size=1m", "graphprobe-test", str(disk))
    setup = FILL.format(path=str(disk / "hog"))
    between = f"os.unlink({str(disk / 'hog')!r})\nhog.close()\ntime.sleep(2.2)"
    script = write_step(tmp_path / "step.py", setup=setup, between=between)
    done = run_warm("-m", "graphprobe", "run", "--out", str(disk), str(script), cwd=tmp_path)
    same(done, plain)
    run = Run.open(disk)
    sound(run)
    assert any("No space left on device" in entry for entry in run.manifest.missing), run.manifest.missing
    assert {"model__1/forward/graph", "model__1/forward/code"} <= set(run.artifacts())
    assert "model__0/forward/code" not in run.artifacts()


def test_disk_that_somebody_else_fills(
    run_warm: Callable[..., Finished], disk: Path, tmp_path: Path, plain: Finished
) -> None:
    mount("-t", "tmpfs", "-o", "size=1m", "graphprobe-test", str(disk))
    setup = FILL.format(path=str(disk / "hog"))
    script = write_step(tmp_path / "step.py", setup=setup)
    done = run_warm("-m", "graphprobe", "run", "--out", str(disk), "--log-level", "debug", str(script), cwd=tmp_path)
    same(done, plain)
    run = Run.open(disk)
    sound(run)
    assert run.state == "finished"
    assert any("No space left on device" in entry for entry in run.manifest.missing), run.manifest.missing


@pytest.mark.parametrize("kind", ["a file", "below a file"])
def test_target_that_cannot_be_a_folder_is_refused_first(
    kind: str, run_warm: Callable[..., Finished], disk: Path, tmp_path: Path
) -> None:
    target = disk / "taken"
    target.write_text("")
    target = target / "deeper" if kind == "below a file" else target
    before = sorted(disk.rglob("*"))
    script = write_step(tmp_path / "step.py", setup="open('ran', 'w')")
    done = run_warm("-m", "graphprobe", "run", "--out", str(target), str(script), cwd=tmp_path)
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith(f"error[usage]: no run can be written under {target}: ")
    assert "hint: name a folder that can be written to" in done.err
    assert not (tmp_path / "ran").exists(), "the program must not start"
    assert sorted(disk.rglob("*")) == before


NO_ROOM = {"ro": "Read-only file system", "size=16k": "No space left on device"}
INTO_THE_DISK = {
    "run": ("--out", "DISK/run"),
    "run in the folder itself": ("--out", "DISK"),
    "calls in the run": ("--out", "DISK/run", "--dump", "tensor"),
    "calls": ("--out", "out", "--dump", "stats", "--dump-to", "DISK/calls"),
    "graphs in the run": ("--out", "DISK/run", "--dump-graph", "stats"),
    "graphs": ("--out", "out", "--dump-graph", "stats", "--dump-path", "DISK/graphs"),
    "graphs in the folder itself": ("--out", "out", "--dump-graph", "stats", "--dump-path", "DISK"),
}


@pytest.mark.parametrize("kind", INTO_THE_DISK)
@pytest.mark.parametrize("options", NO_ROOM)
def test_disk_without_room_from_the_start_leaves_the_program_alone(
    options: str, kind: str, run_warm: Callable[..., Finished], disk: Path, tmp_path: Path, plain: Finished
) -> None:
    mount("-t", "tmpfs", "-o", options, "graphprobe-test", str(disk))
    if options != "ro":
        subprocess.run(["sh", "-c", f"cat /dev/zero > {disk}/full"], capture_output=True, check=False)
    script = write_step(tmp_path / "step.py")
    words = [word.replace("DISK", str(disk)) for word in INTO_THE_DISK[kind]]
    done = run_warm("-m", "graphprobe", "run", *words, str(script), cwd=tmp_path)
    same(done, plain)
    said = [line for line in done.err.splitlines() if NO_ROOM[options] in line]
    assert len(said) == 2, f"before and after, once each: {done.err}"
    assert ": missing: " in said[1], said
    assert (tmp_path / "out").exists() == ("out" in words), "what does not lie there is collected as ever"
    assert {path.name for path in disk.rglob("*") if not path.is_dir()} <= {"full"}


def test_read_only_target_of_the_switch_is_a_warning(
    run_warm: Callable[..., Finished], disk: Path, tmp_path: Path, plain: Finished
) -> None:
    mount("-t", "tmpfs", "-o", "ro", "graphprobe-test", str(disk))
    script = write_step(tmp_path / "step.py", setup="import graphprobe")
    env = {"TORCH_COMPILE_DEBUG": "1", "GRAPHPROBE_OUT": str(disk)}
    done = run_warm(str(script), cwd=tmp_path, env=env)
    assert done.code == 0, done.err
    assert done.out == plain.out
    assert "GraphprobeWarning: nothing is collected" in done.err
    assert "Read-only file system" in done.err


def test_target_turns_read_only(run_warm: Callable[..., Finished], disk: Path, tmp_path: Path, plain: Finished) -> None:
    """A second, read-only mount of the same folder: `remount,ro` itself is refused while a file is open for writing."""
    mount("-t", "tmpfs", "-o", "size=10m", "graphprobe-test", str(disk))
    between = (
        f"subprocess.run(['mount', '--bind', {str(disk)!r}, {str(disk)!r}], check=True)\n"
        f"subprocess.run(['mount', '-o', 'remount,bind,ro', {str(disk)!r}], check=True)"
    )
    script = write_step(tmp_path / "step.py", between=between)
    done = run_warm("-m", "graphprobe", "run", "--out", str(disk), str(script), cwd=tmp_path)
    same(done, plain)
    run = Run.open(disk)
    sound(run)
    assert "model__0/forward/code" in run.artifacts()
    assert "model__1/forward/graph" not in run.artifacts()
    assert "graphprobe: missing: " in done.err
    assert "Read-only file system" in done.err


def test_folder_deleted_in_the_middle(run_warm: Callable[..., Finished], tmp_path: Path, plain: Finished) -> None:
    script = write_step(tmp_path / "step.py", between="shutil.rmtree('out')")
    done = run_warm("-m", "graphprobe", "run", "--out", "out", str(script), cwd=tmp_path)
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
def test_budget_is_never_exceeded(
    budget: int, run_warm: Callable[..., Finished], tmp_path: Path, plain: Finished
) -> None:
    script = write_step(tmp_path / "step.py", setup=WATCH)
    size = f"{budget // 1000}KB" if budget else "0"
    done = run_warm(
        "-m",
        "graphprobe",
        "run",
        "--out",
        "out",
        "--max-bytes",
        size,
        "--log-level",
        "debug",
        str(script),
        cwd=tmp_path,
    )
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


def test_saved_inputs_larger_than_the_budget(run_warm: Callable[..., Finished], tmp_path: Path) -> None:
    large = "print('LARGE', float(torch.compile(g)(torch.ones(1 << 18))))"
    script = write_step(tmp_path / "step.py", between=large)
    plain = run_warm(str(script), cwd=tmp_path)
    done = run_warm("-m", "graphprobe", "run", "--save-inputs", "--max-bytes", "900KB", str(script), cwd=tmp_path)
    same(done, plain)
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
    assert shown is not None, done.err
    assert float(shown[2]) * 1024 == pytest.approx(run.manifest.collected_bytes, abs=52)
    assert float(shown[3]) * 1024**2 == pytest.approx(run.manifest.predicted_bytes, rel=0.05)
