"""`diagnose` of scripts whose threads and processes compile: it comes to an end, with the right answer."""

from typing import Any

import pytest

from conftest import ROOT

PROGRAM = ROOT / "tests" / "harmless" / "programs" / "threads.py"
ENV = {"OMP_NUM_THREADS": "1"}

LOCK = """
import os, threading, time, torch
PARENT, compiling = os.getpid(), threading.Event()

def slow(gm, inputs):
    if os.getpid() == PARENT:
        compiling.set()
        time.sleep(3)
    return gm

def wrong(gm, inputs):
    return lambda *args: [-value for value in gm(*args)]

a, b = torch.compile(torch.sin, backend=slow), torch.compile(torch.cos, backend=BACKEND)

def second():
    compiling.wait()
    print("b", b(torch.zeros(2)).tolist(), flush=True)

thread = threading.Thread(target=second)
thread.start()
a(torch.zeros(2))
thread.join()
"""
"""A thread compiles while another makes its first compiled call, before which `diagnose` forks."""

OWN_LOCK = """
import sys, threading, torch
lock, held, over = threading.Lock(), threading.Event(), threading.Event()

@torch.compiler.disable
def log(x):
    with lock:
        return x

@torch.compile(backend="eager")
def step(x):
    return log(x.sin()) + 1

def holder():
    with lock:
        held.set()
        over.wait(HELD_S)

threading.Thread(target=holder, daemon=True).start()
held.wait()
print(step(torch.zeros(2)).tolist())
"""
"""A thread holds a lock of the program that the compiled function takes, too."""


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "code", "value"), [('"eager"', 0, 1.0), ("wrong", 1, -1.0)])
def test_a_call_while_another_thread_compiles(backend: str, code: int, value: float, diagnosed: Any) -> None:
    done, _ = diagnosed("lock.py", text=LOCK.replace("BACKEND", backend), code=code, env=ENV)
    assert f"b [{value}, {value}]" in done.out and "come to an end" not in done.out


@pytest.mark.slow
@pytest.mark.parametrize("held_s", [12, 45])
def test_a_lock_of_the_program_is_no_hang(held_s: int, diagnosed: Any) -> None:
    """Once it is released, the function is looked at; till then its step is begun again."""
    text, code = OWN_LOCK.replace("HELD_S", str(held_s)), 0 if held_s == 12 else 125
    done, _ = diagnosed("own_lock.py", text=text, code=code, env=ENV)
    assert ("waits for a lock" in " ".join(done.out.split())) == (held_s == 45)
    assert "[1.0, 1.0]" in done.out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("which", "backend"),
    [
        *[("server", "right"), ("server", "wrong"), ("pool", "wrong"), ("to_thread", "right"), ("daemon", "right")],
        *[("fastapi", "right"), ("fastapi", "wrong")],
    ],
)
def test_threads_that_compile(which: str, backend: str, diagnosed: Any) -> None:
    if which == "fastapi":
        pytest.importorskip("uvicorn")
        pytest.importorskip("fastapi")
    done, _ = diagnosed(str(PROGRAM), which, backend, code=int(backend == "wrong"), env=ENV)
    assert f"{which} [" in done.out
    assert ("torch.sin gives wrong numbers" in " ".join(done.out.split())) == (backend == "wrong")


@pytest.mark.slow
@pytest.mark.parametrize("which", ["loader", "processes"])
def test_processes_of_the_program_are_not_looked_into(which: str, diagnosed: Any) -> None:
    done, _ = diagnosed(str(PROGRAM), which, code=125, env=ENV)
    assert f"{which} [0.6654, 0.9982" in done.out, done.out + done.err
    assert "processes that the program forked called compiled functions" in " ".join(done.out.split())
