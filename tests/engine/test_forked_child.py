"""A step in a child process: what it gives back, how it may end, and that nothing of it reaches this process."""

import ctypes
import faulthandler
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import torch._inductor.async_compile  # once here, not in each child
import torch._inductor.config

from engine.processes import gone, written
from graphprobe.engine import forked_child
from graphprobe.engine.forked_child import TAIL, compiled_to, isolated
from graphprobe.errors import Raised, raised_from
from graphprobe.internals import after_fork

SOME = "graphprobe.tests.set_in_a_child"


class Point(msgspec.Struct):
    x: int
    data: bytes = b""


class OwnError(ValueError):
    pass


def quietly(crash: Callable[[], Any]) -> None:
    """Crash without the traceback that pytest's fault handler would print."""
    faulthandler.disable()
    crash()


def sleeping(note: Path) -> None:
    """A process started by the caller that writes its id and sleeps."""
    code = f"import os, time, pathlib; pathlib.Path({str(note)!r}).write_text(str(os.getpid())); time.sleep(60)"
    subprocess.Popen([sys.executable, "-S", "-c", code])
    written(note)


def raising(error: BaseException) -> None:
    raise error


def test_a_value_comes_back() -> None:
    """Also one that is larger than any pipe; structs and tuples come back as plain values."""
    block = bytes(range(256)) * (1 << 16)
    values = [None, True, -3, 2.5, "text", b"\x00\xff", [1, [2.0, None]], {"a": {"b": []}}, {"a": block, "b": [block]}]
    for value in values:
        outcome = isolated(lambda value=value: value)
        assert outcome.value == value and type(outcome.value) is type(value)
        assert (outcome.raised, outcome.signal, outcome.timed_out, outcome.died) == (None, None, False, False)
        assert outcome.seconds > 0
    outcome = isolated(lambda: [Point(1, b"ab"), (2, 3)])
    assert outcome.value == [{"x": 1, "data": b"ab"}, [2, 3]]
    assert msgspec.convert(outcome.value[0], Point) == Point(1, b"ab")


def test_what_cannot_be_sent_or_ends_a_process_raises() -> None:
    for step, name, message in (
        (lambda: object(), "TypeError", "object"),
        (lambda: raising(SystemExit(3)), "SystemExit", "3"),
        (lambda: raising(KeyboardInterrupt()), "KeyboardInterrupt", ""),
        (lambda: os._exit(7), "SystemExit", "the process ended with exit code 7"),
    ):
        outcome = isolated(step)
        assert outcome.raised is not None and outcome.raised.type == name and message in outcome.raised.message
        assert outcome.value is None and not outcome.died


def test_an_exception_comes_with_its_traceback() -> None:
    def inner() -> None:
        raise OwnError("two\nlines")

    def outer() -> None:
        try:
            inner()
        except OwnError as error:
            raise KeyError("outer") from error

    outcome = isolated(outer)
    assert outcome.raised is not None and not outcome.died
    assert (outcome.raised.type, outcome.raised.message) == ("KeyError", "'outer'")
    assert "in inner" in outcome.raised.trace and "OwnError: two\nlines" in outcome.raised.trace
    assert "direct cause" in outcome.raised.trace
    assert raised_from(OwnError("x")) == Raised(f"{__name__}.OwnError", "x", f"{__name__}.OwnError: x\n")


def test_a_signal_ends_the_child_alone() -> None:
    for name, step in (
        ("SIGSEGV", lambda: quietly(lambda: ctypes.string_at(0))),
        ("SIGABRT", lambda: quietly(os.abort)),
        ("SIGTERM", lambda: os.kill(os.getpid(), signal.SIGTERM)),
        ("SIGKILL", lambda: os.kill(os.getpid(), signal.SIGKILL)),
    ):
        outcome = isolated(step)
        assert (outcome.signal, outcome.died, outcome.timed_out) == (name, True, False)
        assert outcome.value is None and outcome.raised is None


def test_the_end_of_what_a_crash_says() -> None:
    def step() -> None:
        os.write(2, b"terminate called after throwing an instance of 'E'\n  what():  TypeError: unhashable\n\nAt:\n")
        quietly(os.abort)

    assert isolated(step).end == "the process was ended by SIGABRT: TypeError: unhashable"
    assert isolated(lambda: quietly(os.abort)).end == "the process was ended by SIGABRT"
    outcome = isolated(lambda: os.write(2, b"x" * (2 * TAIL) + b"the end") and quietly(os.abort))
    assert outcome.signal == "SIGABRT"
    assert len(outcome.output) <= TAIL and "the end" in outcome.output


def test_the_time_limit_ends_all_that_the_step_has_started(tmp_path: Path) -> None:
    process, child = tmp_path / "process", tmp_path / "child"

    def innermost() -> None:
        child.write_text(str(os.getpid()), encoding="ascii")
        time.sleep(60)

    def step() -> None:
        print("before the wait", flush=True)
        sleeping(process)
        isolated(innermost)

    started = time.monotonic()
    outcome = isolated(step, timeout_s=2)
    assert time.monotonic() - started < 20
    assert outcome.timed_out and outcome.died
    assert (outcome.value, outcome.raised, outcome.signal) == (None, None, None)
    assert "before the wait" in outcome.output
    assert gone(written(process)) and gone(written(child))


def never_ending() -> None:
    while True:
        time.sleep(0.01)


STOOD = rf"it did not end within \d+ s\. It stood in never_ending \({__file__}:\d+\)\."


def test_a_late_step_says_where_it_stood() -> None:
    outcome = isolated(never_ending, timeout_s=0.5, look=lambda frame: frame.f_code.co_name)
    assert (outcome.timed_out, outcome.value, outcome.raised) == (True, "never_ending", None)
    first, place, *_ = outcome.stack.splitlines()
    assert first == "Stack (most recent call last):" and place.endswith(", in never_ending")
    assert re.fullmatch(STOOD, outcome.end)
    outcome = isolated(never_ending, timeout_s=0.5, look=lambda frame: 1 / 0)  # and if looking fails
    assert outcome.timed_out and outcome.value is None and "never_ending" in outcome.stack


@pytest.mark.timeout(60, method="thread")  # the signal of the other method is the one that ends the step
def test_a_late_step_that_runs_in_this_process_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(after_fork.ISOLATION, "process")
    outcome = isolated(never_ending, timeout_s=0.5)
    assert outcome.timed_out and outcome.value is None and outcome.raised is None
    assert re.fullmatch(STOOD, outcome.end)


@pytest.mark.slow
def test_a_step_that_holds_the_interpreter_is_killed_all_the_same() -> None:
    hold = ctypes.PyDLL(None).sleep  # a PyDLL keeps the lock
    started = time.monotonic()
    outcome = isolated(lambda: hold(60), timeout_s=0.5)
    assert outcome.timed_out and outcome.stack == "" and time.monotonic() - started < 30
    assert "It stood" not in outcome.end and outcome.end.startswith("it did not end within")


def test_an_exception_in_short_has_the_words_of_the_compiler() -> None:
    for message, expected in (
        ("no\nand so\non", "ValueError: no and so"),
        ("", "ValueError: "),
        (
            "CppCompileError: C++ compile error\n\nCommand:\ng++ x.cpp\n\nOutput:\n/tmp/x.cpp: In function ‘f’:\n"
            "/tmp/x.cpp:15:33: error: ‘a’ was not declared\n   15 |     auto tmp1 = a b!;\n      |     ^\n",
            "ValueError: CppCompileError: C++ compile error: ‘a’ was not declared, in `auto tmp1 = a b!;`",
        ),
        (
            "when making fake tensor call\n  Explanation: call_function mul(*(Tensor(lvl=3, value=\n  size=())),"
            " **{}): got RuntimeError('INTERNAL ASSERT FAILED')\n  Hint: none",
            "ValueError: when making fake tensor call: got RuntimeError('INTERNAL ASSERT FAILED')",
        ),
        ("x.cu(3): what\ny:1: fatal error: no such file", "ValueError: x.cu(3): what y:1: fatal error: no such file"),
    ):
        assert Raised("ValueError", message, "").short == expected


def test_a_process_left_behind_does_not_hold_up(tmp_path: Path) -> None:
    note = tmp_path / "pid"

    def step() -> str:
        child = os.fork()
        if child == 0:
            note.write_text(str(os.getpid()), encoding="ascii")
            time.sleep(60)
            os._exit(0)
        written(note)
        return "done"

    outcome = isolated(step, timeout_s=30)
    assert outcome.value == "done"
    assert outcome.seconds < 20
    assert gone(written(note)), "what the step has started must end with it"


WRITES = "import pathlib, sys, time; pathlib.Path(sys.argv[2]).write_text('half'); time.sleep(60)"


@pytest.mark.slow
def test_what_a_killed_compiler_was_writing_is_deleted(tmp_path: Path) -> None:
    """A linker's file that is cut off would be loaded for a whole one ever after."""
    stays = {"ld": False, "x86_64-linux-gnu-g++-12": False, "tar": True}
    for name in stays:
        (tmp_path / name).symlink_to(sys.executable)

    def step() -> None:
        for name in stays:
            subprocess.Popen([tmp_path / name, "-S", "-c", WRITES, "-o", f"{name}.so"], cwd=tmp_path)
        time.sleep(60)

    assert isolated(step, timeout_s=4).timed_out
    assert {name: (tmp_path / f"{name}.so").exists() for name in stays} == stays


def test_a_device_that_a_compiler_writes_is_no_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "ld").symlink_to(sys.executable)
    for out, expected in (("/dev/null", None), (str(tmp_path / "a.so"), str(tmp_path / "a.so"))):
        with subprocess.Popen([tmp_path / "ld", "-c", WRITES, "-o", out]) as process:
            while expected is not None and not Path(out).exists():
                time.sleep(0.05)
            time.sleep(0.5)
            assert compiled_to(process.pid) == expected
            process.kill()
    assert Path("/dev/null").is_char_device()


def test_one_inside_another() -> None:
    def step() -> Any:
        crashed, late = isolated(lambda: quietly(os.abort)), isolated(lambda: time.sleep(60), timeout_s=0.5)
        return [crashed.signal, late.timed_out, isolated(os.getpid).value, os.getpid()]

    name, timed_out, inner, outer = isolated(step).value
    assert name == "SIGABRT" and timed_out
    assert len({inner, outer, os.getpid()}) == 3


def test_output_is_captured_from_every_level(capfd: pytest.CaptureFixture[str]) -> None:
    def step() -> None:
        print("by print")
        print("by print to stderr", file=sys.stderr)
        os.write(1, b"by write\n")
        subprocess.run(["echo", "by another process"], check=True)

    outcome = isolated(step)
    assert outcome.raised is None
    lines = ["by print", "by print to stderr", "by write", "by another process"]
    assert sorted(outcome.output.splitlines()) == sorted(lines)
    assert capfd.readouterr() == ("", "")


def test_changes_and_settings_of_compilation_stay_in_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    module, config = torch.nn.Linear(3, 3), torch._inductor.config
    before = [p.detach().clone() for p in module.parameters()]
    generator, original = torch.get_rng_state(), torch.nn.functional.relu
    settings = (config.max_autotune, config.compile_threads, config.worker_start_method)
    monkeypatch.delenv(SOME, raising=False)

    def step() -> list[Any]:
        with torch.no_grad():
            for p in module.parameters():
                p.zero_()
        module(torch.ones(1, 3)).sum().backward()
        torch.manual_seed(0)
        torch.randn(100)
        config.max_autotune = not config.max_autotune
        torch.nn.functional.relu = None  # type: ignore[assignment]
        os.environ[SOME] = "1"
        sys.modules[SOME] = sys
        compiling = [config.compile_threads >= 1, config.worker_start_method]
        return [module.weight.grad is not None, bool(module.weight.any()), *compiling]

    assert isolated(step).value == [True, False, True, "fork"]
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    assert module.weight.grad is None
    assert torch.equal(torch.get_rng_state(), generator)
    assert (config.max_autotune, config.compile_threads, config.worker_start_method) == settings
    assert torch.nn.functional.relu is original
    assert SOME not in os.environ and SOME not in sys.modules


def children() -> set[int]:
    status = [path.read_text("utf-8") for path in Path("/proc").glob("[0-9]*/stat")]
    fields = [(text.partition(" ")[0], text.rpartition(")")[2].split()[1]) for text in status]
    return {int(pid) for pid, parent in fields if int(parent) == os.getpid()}


def test_no_descriptor_and_no_process_is_left() -> None:
    isolated(lambda: None)
    before = sorted(os.listdir("/proc/self/fd"))
    others = children()
    for step in (lambda: 1, lambda: quietly(os.abort), lambda: 1 / 0):
        isolated(step)
    isolated(lambda: time.sleep(60), timeout_s=0.3)
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert children() == others


def test_the_child_has_this_threads_settings() -> None:
    def seen() -> list[Any]:
        return [
            torch._inductor.config.epilogue_fusion,
            torch.is_grad_enabled(),
            torch.is_autocast_enabled("cpu"),
            str(torch.get_autocast_dtype("cpu")),
            torch.is_autocast_cache_enabled(),
            torch.get_num_threads(),
        ]

    plain = seen()
    assert isolated(seen).value == plain
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        with (
            torch._inductor.config.patch(epilogue_fusion=not torch._inductor.config.epilogue_fusion),
            torch.no_grad(),
            torch.autocast("cpu", dtype=torch.float16, cache_enabled=False),
        ):
            inside = seen()
            assert isolated(seen).value == inside
            assert isolated(lambda: isolated(seen).value).value == inside
    finally:
        torch.set_num_threads(threads)
    assert all(a != b for a, b in zip(inside, plain, strict=True) if b != 3), "every one of them was changed"
    assert isolated(seen).value == plain


def test_parallel_operations_work_after_this_process_has_used_them() -> None:
    threads = torch.get_num_threads()
    x = torch.randn(1 << 17)

    def step() -> list[float]:
        grown = x.clone().requires_grad_()
        torch.exp(grown).sum().backward()
        assert grown.grad is not None
        product = (x.view(512, 256) @ x.view(256, 512)).sum()
        return [float(torch.exp(x).sum()), float(product), float(grown.grad.sum()), torch.get_num_threads()]

    try:
        torch.set_num_threads(2)
        here = step()
        assert here[3] == 2 and here[2] == pytest.approx(here[0], rel=1e-4)
        assert isolated(step, timeout_s=60).value == pytest.approx(here, rel=1e-4)
        again = isolated(lambda: isolated(step, timeout_s=60).value, timeout_s=60)
        assert again.value == pytest.approx(here, rel=1e-4)
    finally:
        torch.set_num_threads(threads)


def test_where_a_fork_is_impossible_the_step_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(after_fork, "can_fork", lambda: False)
    assert isolated(lambda: [os.getpid(), (1, 2)]).value == [os.getpid(), [1, 2]]
    failed = isolated(lambda: 1 / 0)
    assert failed.raised is not None and failed.raised.type == "ZeroDivisionError" and not failed.died


AFTER_A_BACKWARD = """
import os, sys
import torch
from graphprobe.engine.forked_child import isolated
from graphprobe.internals import after_fork

def backward():
    x = torch.ones(4, requires_grad=True)
    (x * x).sum().backward()
    return [os.getpid(), x.grad.sum().item()]

if sys.argv[1] == "before":
    after_fork.can_fork()
torch.compile(backward, backend="eager", fullgraph=False)()
x = torch.ones(4, requires_grad=True)
torch.compile(lambda x: (x * x).sum(), backend="eager")(x).backward()
found = isolated(backward)
print(found.raised, found.value[1], found.value[0] == os.getpid(), torch.version.cuda is None)
"""


@pytest.mark.parametrize("asked", ["before", "after"])
def test_a_backward_after_one_here(asked: str, run_python: Callable[..., Any], run_warm: Callable[..., Any]) -> None:
    """A build for CUDA has autograd's threads once something was compiled: either none begin, or the step runs here."""
    run = run_warm if torch.version.cuda is None else run_python  # a warm process has had its first backward
    done = run("-c", AFTER_A_BACKWARD, asked)
    raised, value, here, cpu = done.out.split()
    assert (raised, value) == ("None", "8.0"), done.err
    assert here == "False" if asked == "before" or cpu == "True" else here == "True"


def test_with_threads_of_autograd_there_is_no_fork() -> None:
    ready, end = threading.Event(), threading.Event()
    assert after_fork.can_fork()

    def pretend() -> None:
        Path("/proc/self/task", str(threading.get_native_id()), "comm").write_text("pt_autograd_0")
        ready.set()
        end.wait(20)

    thread = threading.Thread(target=pretend)
    thread.start()
    ready.wait(20)
    assert not after_fork.can_fork()
    end.set()
    thread.join()
    deadline = time.monotonic() + 20  # `join` returns before the kernel's thread has ended
    while Path("/proc/self/task", str(thread.native_id)).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert after_fork.can_fork()


@pytest.mark.parametrize(("held_s", "stuck"), [(3.0, False), (60.0, True)])
def test_a_step_that_waits_for_a_lock_begins_again(held_s: float, stuck: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says nothing of the step, and is no hang, if the lock is not released meanwhile."""
    monkeypatch.setattr(forked_child, "STUCK_S", 1.0)
    lock, held, over = threading.Lock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            over.wait(held_s)

    def step() -> bool:
        with lock:
            return True

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    monkeypatch.setattr(forked_child, "TRIES", 2 if stuck else 100)
    outcome = isolated(step, timeout_s=300)
    over.set()
    thread.join()
    assert (outcome.value, outcome.stuck, outcome.died) == (None if stuck else True, stuck, False)
    assert not stuck or (outcome.raised is not None and "in step" in outcome.raised.message)


def test_a_step_that_works_or_sleeps_beside_other_threads_is_not_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked_child, "STUCK_S", 0.6)
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()

    def in_a_thread() -> bool:
        busy = threading.Thread(target=lambda: [sum(range(100_000)) for _ in range(400)])
        busy.start()
        busy.join()
        return True

    def in_a_process() -> bool:
        waits = threading.Thread(target=subprocess.run, args=([sys.executable, "-c", "import time; time.sleep(1)"],))
        waits.start()
        waits.join()
        return True

    steps: list[Callable[[], Any]] = [lambda: time.sleep(1), in_a_thread, in_a_process]
    outcomes = [isolated(step, timeout_s=120) for step in steps]
    late = isolated(lambda: time.sleep(60), timeout_s=1.0)
    over.set()
    thread.join()
    assert [(outcome.value, outcome.raised) for outcome in outcomes] == [(None, None), (True, None), (True, None)]
    assert late.timed_out and not late.stuck
