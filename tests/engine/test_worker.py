"""Whatever a job does, the worker says so and takes the next one."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.processes import gone, written
from graphprobe.engine.worker import Reply, Worker


def jobs(job: bytes) -> bytes:
    """Does what the job says: a name of one of the functions below, and an argument."""
    name, _, argument = job.partition(b" ")
    return bytes(globals()[f"do_{name.decode()}"](argument) or b"")


def do_pid(_: bytes) -> bytes:
    return str(os.getpid()).encode()


def do_upper(text: bytes) -> bytes:
    print("working")
    return text.upper()


def do_segfault(_: bytes) -> None:
    ctypes.string_at(0)


def do_signal(name: bytes) -> None:
    os.kill(os.getpid(), signal.Signals[name.decode()])
    time.sleep(30)


def do_hang(_: bytes) -> None:
    os.write(1, b"before\n")
    while True:
        time.sleep(1)


def do_exit(code: bytes) -> None:
    os._exit(int(code))


def do_leave(code: bytes) -> None:
    sys.exit(int(code))


def do_raise(text: bytes) -> None:
    raise LookupError(text.decode())


def do_orphan(argument: bytes) -> bytes:
    """Leaves a process behind that holds every pipe, and then dies or answers."""
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    if argument == b"die":
        os.kill(os.getpid(), signal.SIGKILL)
    return str(child).encode()


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Worker(jobs, timeout_s=20) as made:
        yield made


def test_it_is_warm(worker: Worker) -> None:
    first, second = worker.ask(b"pid"), worker.ask(b"pid")
    assert first.value == second.value != str(os.getpid()).encode()
    assert first == Reply(first.value)


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (b"segfault", "SIGSEGV"),
        (b"signal SIGABRT", "SIGABRT"),
        (b"signal SIGKILL", "SIGKILL"),
        (b"exit 3", "exit code 3"),
        (b"exit 0", "exit code 0"),
        (b"orphan die", "SIGKILL"),
    ],
)
def test_a_death_is_an_answer_and_the_next_job_gets_a_new_process(worker: Worker, job: bytes, expected: str) -> None:
    before = worker.ask(b"pid").value
    begun = time.monotonic()
    assert worker.ask(job) == Reply(end=expected)
    assert time.monotonic() - begun < 10
    assert worker.ask(b"pid").value not in (None, before)


def test_a_hang_is_killed() -> None:
    with Worker(jobs, timeout_s=0.5) as worker:
        begun = time.monotonic()
        assert worker.ask(b"hang") == Reply(end="it did not end within 0.5 s")
        assert 0.4 < time.monotonic() - begun < 5
        assert worker.ask(b"upper a").value == b"A"


def test_an_exception_is_data_and_no_death(worker: Worker) -> None:
    pid = worker.ask(b"pid").value
    reply, left = worker.ask(b"raise not here"), worker.ask(b"leave 3")
    assert reply.raised is not None and left.raised is not None
    assert (reply.raised.type, reply.raised.message) == ("LookupError", "not here")
    assert "do_raise" in reply.raised.trace and left.raised.type == "SystemExit"
    assert worker.ask(b"pid").value == pid


def test_large_jobs_and_replies(worker: Worker) -> None:
    text = os.urandom(24 << 20).lower()
    assert worker.ask(b"upper " + text).value == text.upper()
    assert worker.ask(b"upper ").value == b""


def test_a_large_job_to_a_process_that_dies_or_hangs_reading_nothing() -> None:
    def die() -> None:
        os._exit(7)

    with Worker(jobs, timeout_s=20, on_start=die) as worker:
        assert worker.ask(b"x" * (8 << 20)).end == "exit code 7"
    with Worker(jobs, timeout_s=0.5, on_start=lambda: time.sleep(60)) as worker:
        assert worker.ask(b"x" * (8 << 20)).end == "it did not end within 0.5 s"


def test_a_process_that_stops_before_it_takes_a_job_is_asked_once(worker: Worker) -> None:
    pid = int(worker.ask(b"pid").value or b"0")
    os.kill(pid, signal.SIGSTOP)  # so that it dies when the next job was written, and not read
    while any(
        stat.read_text().rpartition(")")[2].split()[0] != "T" for stat in Path(f"/proc/{pid}/task").glob("*/stat")
    ):
        time.sleep(0.01)  # one of its threads may be quicker than the signal
    killer = threading.Timer(0.3, os.kill, (pid, signal.SIGKILL))
    killer.start()
    assert worker.ask(b"upper a").value == b"A"
    killer.join()
    assert worker.ask(b"pid").value != str(pid).encode()


def test_what_a_job_left_behind_ends_with_the_worker_which_may_be_closed_twice() -> None:
    with Worker(jobs, timeout_s=20) as worker:
        orphan = int(worker.ask(b"orphan live").value or b"0")
        pid = int(worker.ask(b"pid").value or b"0")
        assert Path(f"/proc/{orphan}").exists()
    assert gone(orphan) and gone(pid)
    worker.close()
    with pytest.raises(RuntimeError, match="closed"):
        worker.ask(b"pid")


def dies_between_two_jobs(worker: Worker) -> None:
    pid = int(worker.ask(b"pid").value or b"0")
    os.kill(pid, signal.SIGKILL)
    assert gone(pid)
    assert worker.ask(b"upper a").value == b"A"


def test_a_process_that_dies_between_two_jobs_is_no_fault_of_the_next(worker: Worker) -> None:
    os.kill(int(worker.ask(b"pid").value or b"0"), signal.SIGKILL)
    assert worker.ask(b"upper a").value == b"A"  # at once: it may not even be gone yet
    dies_between_two_jobs(worker)


def test_it_starts_once_in_the_thread_of_its_jobs_with_the_settings_of_this_one() -> None:
    seen: list[str] = []

    def start() -> None:
        seen.append(f"{threading.current_thread() is threading.main_thread()} {torch.is_grad_enabled()}")

    with torch.no_grad(), Worker(lambda job: "; ".join(seen).encode(), timeout_s=20, on_start=start) as worker:
        assert worker.ask(b"").value == b"False False"
        assert worker.ask(b"").value == b"False False"
    assert seen == []


def test_a_start_that_fails_is_told_with_every_job() -> None:
    def start() -> None:
        raise OSError("no device")

    with Worker(jobs, timeout_s=20, on_start=start) as worker:
        told = [reply.raised and reply.raised.message for reply in (worker.ask(b"pid"), worker.ask(b"pid"))]
    assert told == ["no device"] * 2


def test_ctrl_c_takes_the_process_along(worker: Worker) -> None:
    worker.ask(b"pid")
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        worker.ask(b"hang")
    timer.join()
    assert worker.ask(b"upper a").value == b"A"  # at once: it may not even be gone yet
    dies_between_two_jobs(worker)


def test_descriptors_are_given_back() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with Worker(jobs, timeout_s=20) as worker:
            worker.ask(b"exit 1")
            worker.ask(b"pid")
    assert len(os.listdir("/proc/self/fd")) == before


def test_it_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    parent = os.fork()
    if parent == 0:
        try:
            note.write_bytes(Worker(jobs, timeout_s=20).ask(b"pid").value or b"")
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(parent, 0)
    assert gone(written(note))
