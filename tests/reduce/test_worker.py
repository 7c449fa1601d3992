"""Whatever a job does, the worker says so and takes the next one."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import ROOT, own_bytes
from graphprobe.reduce.worker import TAIL, Worker, resident_bytes

held: list[object] = []


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


def do_eat(megabytes: bytes) -> None:
    for _ in range(int(megabytes)):
        held.append(b"x" * (1 << 20))
        time.sleep(0.002)


def do_child_eats(megabytes: bytes) -> None:
    code = f"import time\nx = b'x' * ({int(megabytes)} << 20)\ntime.sleep(30)"
    subprocess.run([sys.executable, "-c", code], check=False)


def do_orphan(argument: bytes) -> bytes:
    """Leaves a process behind that holds every pipe, and then dies or answers."""
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    if argument == b"die":
        os.kill(os.getpid(), signal.SIGKILL)
    return str(child).encode()


def do_chatter(lines: bytes) -> None:
    for number in range(int(lines)):
        os.write(2, b"line %d\n" % number)


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Worker(jobs, timeout_s=20) as made:
        yield made


def gone(pid: int) -> bool:
    """Whether a process has ended, given a moment."""
    for _ in range(200):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.01)
    return False


def test_it_is_warm(worker: Worker) -> None:
    assert worker.starts == 0
    first, second = worker.ask(b"pid"), worker.ask(b"pid")
    assert first.value == second.value != str(os.getpid()).encode()
    assert worker.starts == 1
    assert not first.died


def test_what_was_printed_belongs_to_its_job(worker: Worker) -> None:
    reply = worker.ask(b"upper abc")
    assert reply.value == b"ABC"
    assert reply.output == "working\n"
    assert worker.ask(b"pid").output == ""


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (b"segfault", {"signal": "SIGSEGV"}),
        (b"signal SIGABRT", {"signal": "SIGABRT"}),
        (b"signal SIGKILL", {"signal": "SIGKILL"}),
        (b"exit 3", {"exit_code": 3}),
        (b"exit 0", {"exit_code": 0}),
        (b"orphan die", {"signal": "SIGKILL"}),
    ],
)
def test_a_death_is_an_answer_and_the_next_job_gets_a_new_process(
    worker: Worker, job: bytes, expected: dict[str, object]
) -> None:
    before = worker.ask(b"pid").value
    reply = worker.ask(job)
    assert reply.died
    assert {
        name: getattr(reply, name) for name in ("signal", "exit_code") if getattr(reply, name) is not None
    } == expected
    assert reply.seconds < 10
    assert worker.ask(b"pid").value not in (None, before)
    assert worker.starts == 2


def test_a_crash_shows_where(worker: Worker) -> None:
    output = worker.ask(b"segfault").output
    assert "Segmentation fault" in output
    assert "do_segfault" in output


def test_a_hang_is_killed() -> None:
    with Worker(jobs, timeout_s=0.5) as worker:
        reply = worker.ask(b"hang")
        assert reply.timed_out
        assert reply.died
        assert 0.4 < reply.seconds < 5
        assert reply.output == "before\n"
        assert worker.ask(b"upper a").value == b"A"


@pytest.mark.parametrize("job", [b"eat 3000", b"child_eats 600"])
def test_too_much_memory_is_killed(job: bytes) -> None:
    # The worker begins with the memory of this process, which depends on the tests before.
    limit_bytes = own_bytes() + (400 << 20)
    with Worker(jobs, timeout_s=60, memory_bytes=limit_bytes) as worker:
        calm = worker.ask(b"pid")
        assert calm.value
        reply = worker.ask(job)
        assert reply.over_memory
        assert (reply.peak_bytes or 0) > limit_bytes
        assert reply.seconds < 30
        assert worker.ask(b"upper a").value == b"A"


def test_an_exception_is_data_and_no_death(worker: Worker) -> None:
    pid = worker.ask(b"pid").value
    reply = worker.ask(b"raise not here")
    assert reply.raised is not None
    assert (reply.raised.type, reply.raised.message) == ("LookupError", "not here")
    assert "do_raise" in reply.raised.trace
    left = worker.ask(b"leave 3")
    assert left.raised is not None
    assert left.raised.type == "SystemExit"
    assert worker.ask(b"pid").value == pid


def test_a_handler_that_returns_something_else(worker: Worker) -> None:
    with Worker(lambda job: 3, timeout_s=20) as other:  # type: ignore[arg-type, return-value]
        raised = other.ask(b"").raised
    assert raised is not None
    assert raised.type == "TypeError"


def test_large_jobs_and_replies(worker: Worker) -> None:
    text = os.urandom(24 << 20).lower()
    assert worker.ask(b"upper " + text).value == text.upper()
    assert worker.ask(b"upper ").value == b""


def test_a_large_job_to_a_process_that_dies_or_hangs_reading_nothing() -> None:
    def die() -> None:
        os._exit(7)

    with Worker(jobs, timeout_s=20, on_start=die) as worker:
        assert worker.ask(b"x" * (8 << 20)).exit_code == 7
    with Worker(jobs, timeout_s=0.5, on_start=lambda: time.sleep(60)) as worker:
        assert worker.ask(b"x" * (8 << 20)).timed_out


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
    assert worker.starts == 2


def test_only_the_end_of_much_output_is_kept(worker: Worker) -> None:
    output = worker.ask(b"chatter 20000").output
    assert len(output) == TAIL
    assert output.endswith("line 19999\n")


def test_what_a_job_left_behind_ends_with_the_worker() -> None:
    with Worker(jobs, timeout_s=20) as worker:
        orphan = int(worker.ask(b"orphan live").value or b"0")
        pid = int(worker.ask(b"pid").value or b"0")
        assert Path(f"/proc/{orphan}").exists()
    assert gone(orphan)
    assert gone(pid)


def test_a_process_that_dies_between_two_jobs_is_no_fault_of_the_next(worker: Worker) -> None:
    pid = int(worker.ask(b"pid").value or b"0")
    os.kill(pid, signal.SIGKILL)
    assert worker.ask(b"upper a").value == b"A"  # at once: it may not even be gone yet
    pid = int(worker.ask(b"pid").value or b"0")
    os.kill(pid, signal.SIGKILL)
    assert gone(pid)
    assert worker.ask(b"upper a").value == b"A"


def test_it_can_be_replaced_every_so_often() -> None:
    with Worker(jobs, timeout_s=20, max_asks=2) as worker:
        pids = [worker.ask(b"pid").value for _ in range(5)]
    assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4]


def test_hooks_run_in_the_thread_that_they_are_for() -> None:
    seen: list[str] = []

    def settings() -> list[Callable[[], None]]:
        seen.append(f"forked {threading.current_thread() is threading.main_thread()}")
        return [lambda: seen.append(f"carried {threading.current_thread() is threading.main_thread()}")]

    def start() -> None:
        seen.append("start")

    with Worker(lambda job: "; ".join(seen).encode(), timeout_s=20, on_start=start, settings=settings) as worker:
        assert worker.ask(b"").value == b"forked True; carried False; start"
        assert worker.ask(b"").value == b"forked True; carried False; start"
    assert seen == []


def test_a_start_that_fails_is_told_with_every_job() -> None:
    def start() -> None:
        raise OSError("no device")

    with Worker(jobs, timeout_s=20, on_start=start) as worker:
        for _ in range(2):
            raised = worker.ask(b"pid").raised
            assert raised is not None
            assert raised.message == "no device"


def test_ctrl_c_takes_the_process_along(worker: Worker) -> None:
    pid = int(worker.ask(b"pid").value or b"0")
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        worker.ask(b"hang")
    timer.join()
    assert worker.ask(b"upper a").value == b"A"  # at once: it may not even be gone yet
    pid = int(worker.ask(b"pid").value or b"0")
    os.kill(pid, signal.SIGKILL)
    assert gone(pid)
    assert worker.ask(b"upper a").value == b"A"


def test_closing_twice_and_asking_after(worker: Worker) -> None:
    worker.ask(b"pid")
    worker.close()
    worker.close()
    with pytest.raises(RuntimeError, match="closed"):
        worker.ask(b"pid")


def test_descriptors_are_given_back() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with Worker(jobs, timeout_s=20) as worker:
            worker.ask(b"exit 1")
            worker.ask(b"pid")
    assert len(os.listdir("/proc/self/fd")) == before


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="timeout_s"):
        Worker(jobs, timeout_s=0)
    with pytest.raises(ValueError, match="max_asks"):
        Worker(jobs, timeout_s=1, max_asks=0)


def test_resident_memory_of_a_group() -> None:
    assert resident_bytes(os.getpgrp()) > 1 << 20
    assert resident_bytes(1 << 30) == 0


PARENT = """
import os, sys, time
from graphprobe.reduce.worker import Worker
worker = Worker(lambda job: str(os.getpid()).encode(), timeout_s=20)
print(worker.ask(b"").value.decode(), flush=True)
time.sleep(60)
"""


def test_it_ends_with_a_parent_that_is_killed() -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen([sys.executable, "-c", PARENT], env=env, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    assert gone(pid)
