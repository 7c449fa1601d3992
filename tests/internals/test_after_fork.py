"""Locks of other threads at a fork, and what another process is told of the test programs for vector instructions."""

import contextlib
import functools
import importlib
import math
import os
import platform
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch._inductor.cpu_vec_isa as vec_isa
from torch._dynamo import convert_frame
from torch._inductor import config

from conftest import Finished
from graphprobe.diagnose.dossier.proof_run import run_script
from graphprobe.internals import after_fork
from graphprobe.internals.after_fork import INSTRUCTIONS_OK, instructions_known

x86_64 = pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors have one instruction set")


def child_of(fork: Callable[[], int], work: Callable[[], bool], *, limit_s: float = 20.0) -> bool:
    """Whether `work` comes to an end in a child in time, and returns True.

    It runs in the thread that forks: a new one may have the number of one that holds a lock in the parent.
    """
    if (child := fork()) == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(math.ceil(limit_s))
        os._exit(work() is not True)
    return os.waitpid(child, 0)[1] == 0


@contextlib.contextmanager
def elsewhere(work: Callable[[Callable[[], None]], None]) -> Iterator[None]:
    """`work` in another thread, which calls what it is given once it may go on here."""
    begun = threading.Event()
    thread = threading.Thread(target=work, args=(begun.set,))
    thread.start()
    assert begun.wait(60)
    yield
    thread.join()


@pytest.mark.parametrize("fork", [os.fork, after_fork.fork])
@pytest.mark.parametrize("ends", [True, False])
def test_dynamos_lock_is_free_in_a_child(fork: Callable[[], int], ends: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another thread: one that ends its compile in time, or not; of this thread, which may be compiling."""
    before, over = convert_frame.compile_lock, threading.Event()
    monkeypatch.setattr(after_fork, "WAIT_S", 60.0 if ends else 0.1)
    good, compiled = fork is after_fork.fork, torch.compile(torch.sin, backend="eager")

    def compile_slowly(begun: Callable[[], None]) -> None:
        with before:
            begun()
            over.wait(1.0 if ends else 60.0)
            ended.append(True)

    def work() -> bool:
        torch.compiler.reset()
        return bool(compiled(torch.zeros(2)).sum() == 0) and bool(ended) == ends

    ended: list[bool] = []
    with elsewhere(compile_slowly):
        assert child_of(fork, work, limit_s=20.0 if good else 1.0) == good
        over.set()
    assert convert_frame.compile_lock is before
    with before:
        assert child_of(fork, lambda: before is not convert_frame.compile_lock) == good


def test_a_module_that_another_thread_imports_can_be_had_in_a_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_slowly.py").write_text("import time; here = 1; time.sleep(1.5); late = 1")
    monkeypatch.syspath_prepend(tmp_path)
    for wait_s, late in ((0.1, False), (60.0, True)):
        monkeypatch.setattr(after_fork, "WAIT_S", wait_s)

        def import_slowly(begun: Callable[[], None]) -> None:
            threading.Timer(0.5, begun).start()
            importlib.import_module("imported_slowly")

        def work(late: bool = late) -> bool:
            module = importlib.import_module("imported_slowly")
            return module.here == 1 and hasattr(module, "late") == late

        monkeypatch.delitem(sys.modules, "imported_slowly", raising=False)
        with elsewhere(import_slowly):
            assert child_of(after_fork.fork, work)


class Probed:
    """A processor with two instruction sets, of which a list can be compiled for; `tried()` runs the test programs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, usable: list[str]) -> None:
        self.tried = functools.cache(lambda: usable)
        monkeypatch.setattr(vec_isa, "valid_vec_isa_list", self.tried)
        monkeypatch.setattr(vec_isa, "supported_vec_isa_list", ["wide tiles", "wide", "narrow"])
        monkeypatch.setattr(vec_isa, "x86_isa_checker", lambda: ["narrow", "wide"])


@x86_64
def test_the_environment_says_that_all_can_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    probed = Probed(monkeypatch, ["wide", "narrow"])
    with config.patch({"cpp.vec_isa_ok": None}):
        assert instructions_known() == {}, "nobody has tried here"
        probed.tried()
        assert instructions_known() == {INSTRUCTIONS_OK: "1"}


@x86_64
@pytest.mark.parametrize(
    ("usable", "asked"), [(["narrow"], None), (["wide", "narrow"], True), (["wide", "narrow"], False)]
)
def test_nothing_is_said_where_one_cannot_be_used_or_the_user_has_set_it(
    monkeypatch: pytest.MonkeyPatch, usable: list[str], asked: bool | None
) -> None:
    Probed(monkeypatch, usable).tried()
    with config.patch({"cpp.vec_isa_ok": asked}):
        assert instructions_known() == {}


@x86_64
def test_a_proof_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Probed(monkeypatch, ["wide", "narrow"]).tried()
    monkeypatch.delenv(INSTRUCTIONS_OK, raising=False)
    script = tmp_path / "repro.py"
    script.write_text(f"import os; print(os.environ.get({INSTRUCTIONS_OK!r}))", "utf-8")
    with config.patch({"cpp.vec_isa_ok": None}):
        assert run_script([str(script)], 60, "codegen") == (0, "1\n")


FLAGS = """
import json, sys
import torch._inductor.config as config
import torch._inductor.cpu_vec_isa as v
config.cpp.vec_isa_ok = json.loads(sys.argv[1])
v.valid_vec_isa_list.cache_clear()
isa = v.pick_vec_isa()
print(isa, isa.build_arch_flags())
"""


def test_the_same_instructions_are_generated(run_warm: Callable[..., Finished]) -> None:
    tried, told = run_warm("-c", FLAGS, "null"), run_warm("-c", FLAGS, "true")
    assert tried.code == told.code == 0, tried.err + told.err
    assert tried.out == told.out
