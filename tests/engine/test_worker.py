"""Whatever a job does, the worker says so and takes the next one."""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.processes import gone, written
from graphprobe.engine.worker import Reply, Worker


def upper(text: bytes) -> bytes:
    print("working")
    return text.upper()


def end_by(name: bytes) -> None:
    os.kill(os.getpid(), signal.Signals[name.decode()])
    time.sleep(30)


def hang(_: bytes) -> None:
    os.write(1, b"before\n")
    while True:
        time.sleep(1)


def complain(text: bytes) -> None:
    raise LookupError(text.decode())


def orphan(argument: bytes) -> bytes:
    """Leaves a process behind that holds every pipe, and then dies or answers."""
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    if argument == b"die":
        os.kill(os.getpid(), signal.SIGKILL)
    return str(child).encode()


JOBS: dict[bytes, Callable[[bytes], Any]] = {
    b"pid": lambda _: str(os.getpid()).encode(),
    b"segfault": lambda _: ctypes.string_at(0),
    b"exit": lambda code: os._exit(int(code)),
    b"leave": lambda code: sys.exit(int(code)),
    **{b"upper": upper, b"signal": end_by, b"hang": hang, b"raise": complain, b"orphan": orphan},
}


def jobs(job: bytes) -> bytes:
    """Does what the job says: a name and an argument."""
    name, _, argument = job.partition(b" ")
    return bytes(JOBS[name](argument) or b"")


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Worker(jobs, timeout_s=20) as made:
        yield made


def test_it_is_warm_and_takes_large_jobs(worker: Worker) -> None:
    first, second = worker.ask(b"pid"), worker.ask(b"pid")
    assert first.value == second.value != str(os.getpid()).encode()
    assert first == Reply(first.value)
    text = os.urandom(24 << 20).lower()
    assert worker.ask(b"upper " + text).value == text.upper()
    assert worker.ask(b"upper ").value == b""


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


def test_hangs() -> None:
    with Worker(jobs, timeout_s=0.5) as worker:
        begun = time.monotonic()
        assert worker.ask(b"hang") == Reply(end="it did not end within 0.5 s")
        assert 0.4 < time.monotonic() - begun < 5
        assert worker.ask(b"upper a").value == b"A"
    for limit_s, start, end in (
        (20, lambda: os._exit(7), "exit code 7"),
        (0.5, lambda: time.sleep(60), "it did not end within 0.5 s"),
    ):
        with Worker(jobs, timeout_s=limit_s, on_start=start) as worker:
            assert worker.ask(b"x" * (8 << 20)).end == end


def test_an_exception_is_data_and_no_death(worker: Worker) -> None:
    pid = worker.ask(b"pid").value
    reply, left = worker.ask(b"raise not here"), worker.ask(b"leave 3")
    assert reply.raised is not None and left.raised is not None
    assert (reply.raised.type, reply.raised.message) == ("LookupError", "not here")
    assert "in complain" in reply.raised.trace and left.raised.type == "SystemExit"
    assert worker.ask(b"pid").value == pid


def test_a_process_that_stops_before_it_takes_a_job_is_asked_once(worker: Worker) -> None:
    pid = pid_of(worker)
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


def pid_of(worker: Worker) -> int:
    return int(worker.ask(b"pid").value or b"0")


def test_what_a_job_left_behind_ends_with_the_worker_which_may_be_closed_twice() -> None:
    with Worker(jobs, timeout_s=20) as worker:
        orphan, pid = int(worker.ask(b"orphan live").value or b"0"), pid_of(worker)
        assert Path(f"/proc/{orphan}").exists()
    assert gone(orphan) and gone(pid)
    worker.close()
    with pytest.raises(RuntimeError, match="closed"):
        worker.ask(b"pid")


def dies_between_two_jobs(worker: Worker) -> None:
    pid = pid_of(worker)
    os.kill(pid, signal.SIGKILL)
    assert worker.ask(b"upper a").value == b"A"  # at once: it may not even be gone yet
    pid = pid_of(worker)
    os.kill(pid, signal.SIGKILL)
    assert gone(pid) and worker.ask(b"upper a").value == b"A"


def test_a_process_that_dies_between_two_jobs_is_no_fault_of_the_next(worker: Worker) -> None:
    dies_between_two_jobs(worker)


def test_it_starts_once_in_the_thread_of_its_jobs_with_the_settings_of_this_one() -> None:
    seen: list[str] = []

    def start() -> None:
        seen.append(f"{threading.current_thread() is threading.main_thread()} {torch.is_grad_enabled()}")

    with torch.no_grad(), Worker(lambda job: "; ".join(seen).encode(), timeout_s=20, on_start=start) as worker:
        assert [worker.ask(b"").value for _ in range(2)] == [b"False False"] * 2
    assert seen == []
    with Worker(jobs, timeout_s=20, on_start=lambda: complain(b"no device")) as worker:
        told = [reply.raised and reply.raised.message for reply in (worker.ask(b"pid"), worker.ask(b"pid"))]
    assert told == ["no device"] * 2, "with every job"


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
