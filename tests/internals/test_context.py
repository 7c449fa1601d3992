"""The stack of what is being compiled, caches, and tracebacks without graphprobe's frames."""

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
import torch
import torch._C
import torch._functorch.config
import torch._inductor.config
import torch._inductor.runtime.cache_dir_utils

from graphprobe.internals.caches import BEING_WRITTEN_S, CACHES, bypassed, drop_cut_off_libraries, is_cut_off
from graphprobe.internals.context import UNOBSERVED, Frame, current, entered, unobserved
from graphprobe.internals.quiet import quiet
from graphprobe.internals.unseen import unseen


def test_frames_nest_and_end() -> None:
    outer, inner = Frame("model", phase="dynamo"), Frame("model", "forward", "aot")
    assert current() is None and not unobserved()
    with entered(outer):
        assert current() is outer
        with entered(None):
            assert current() is outer
        with pytest.raises(ValueError, match="inside"), entered(inner):
            raise ValueError("inside" if current() is inner else "outside")
        assert current() is outer
        with entered(UNOBSERVED):
            assert current() is None and unobserved()
            with entered(inner):
                assert current() is inner and not unobserved()
        assert current() is outer
    assert current() is None


def test_each_thread_has_its_own() -> None:
    seen: list[object] = []
    with entered(Frame("mine")):
        thread = threading.Thread(target=lambda: seen.append(current()))
        thread.start()
        thread.join()
    assert seen == [None]


def values() -> dict[str, Any]:
    return {f"{module}.{name}": getattr(sys.modules[module], name, None) for module, name in CACHES}


def test_caches_are_off_inside_and_back_outside() -> None:
    graphs, autograd = "torch._inductor.config.fx_graph_cache", "torch._functorch.config.enable_autograd_cache"
    with torch._inductor.config.patch(fx_graph_cache=True), torch._functorch.config.patch(enable_autograd_cache=True):
        before = values()
        assert before[graphs] is True
        with bypassed() as names:
            assert not any(values().values()) and {graphs, autograd} <= set(names)
            with bypassed() as again:
                assert again == [] and not any(values().values())
            assert not any(values().values())
        assert values() == before
        with pytest.raises(KeyError), bypassed():
            raise KeyError
        assert values() == before
    with torch._inductor.config.patch(fx_graph_cache=False):
        with bypassed() as names:
            assert graphs not in names
        assert torch._inductor.config.fx_graph_cache is False


def test_threads_that_overlap() -> None:
    """A in, B in, A out, B out: both work without caches, and all is as before in the end.

    Where settings belong to a thread, each finds its own again as it comes out. Where threads share them (torch 2.11),
    B found them off, and leaves them on.
    """
    per_thread = hasattr(torch.utils._config_module, "ContextVar")
    begin, a_in, b_in, a_out, b_out = (threading.Event() for _ in range(5))
    found: list[list[Any]] = [[], []]
    before = values()

    def work(mine: list[Any], after: threading.Event, tell: Any, until: threading.Event, end: Any) -> None:
        after.wait(10)
        mine.append(values())
        with bypassed():
            tell.set()
            until.wait(10)
            mine.append(values())
        mine.append(values())
        end.set()

    given = [(found[0], begin, a_in, b_in, a_out), (found[1], a_in, b_in, a_out, b_out)]
    threads = [threading.Thread(target=work, args=args) for args in given]
    begin.set()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    for first, inside, last in found:
        assert not any(inside.values()) and (not per_thread or first == last)
    assert per_thread or found[1][2] == before
    assert values() == before


own: dict[str, Any] = {"__name__": "graphprobe.fake", "unseen": unseen}
exec(
    """
def passes(call):
    with unseen:
        return call()

def passes_after_work(call):
    try:
        with unseen:
            return call()
    except BaseException:
        raise
    finally:
        pass

def careless(call):
    return call()

def faulty(call):
    with unseen:
        return broken()

def broken():
    raise RuntimeError("graphprobe's own")
""",
    own,
)


def frames(trace: TracebackType | None) -> list[str]:
    return [frame.f_code.co_name for frame, _ in traceback.walk_tb(trace)]


def program() -> None:
    raise LookupError("the program's")


def raised_by(call: Callable[[], object], kind: type[BaseException]) -> BaseException:
    with pytest.raises(kind) as caught:
        call()
    return caught.value


@pytest.mark.parametrize("way", ["passes", "passes_after_work"])
def test_no_frame_of_ours_is_left(way: str) -> None:
    call: Any = own[way]
    error = raised_by(lambda: call(lambda: own["careless"](lambda: call(program))), LookupError)
    assert frames(error.__traceback__) == ["raised_by", "<lambda>", "<lambda>", "<lambda>", "program"]


def test_errors_raised_in_c_code_pass_too() -> None:
    call: Any = own["passes"]
    error = raised_by(lambda: call(lambda: call(lambda: divmod(1, 0))), ZeroDivisionError)
    assert frames(error.__traceback__)[-1] == "<lambda>"
    error = raised_by(lambda: call(int("3").__divmod__), TypeError)
    assert frames(error.__traceback__) == ["raised_by", "<lambda>"]


def test_causes_are_cleaned_as_well_and_a_fault_of_ours_keeps_its_frames() -> None:
    def wraps() -> None:
        try:
            own["careless"](program)
        except LookupError as error:
            raise OSError("outer") from error

    cause = raised_by(lambda: own["passes"](wraps), OSError).__cause__
    assert cause is not None and frames(cause.__traceback__) == ["wraps", "program"]
    fault = raised_by(lambda: own["faulty"](None), RuntimeError)
    assert frames(fault.__traceback__)[-2:] == ["faulty", "broken"]


def test_quiet_leaves_every_mode_and_comes_back() -> None:
    with torch.inference_mode(), quiet():
        value = torch.ones(2) * 2
        assert not value.is_inference()
    x = torch.ones(2, requires_grad=True)
    with quiet():
        assert not (x * 2).requires_grad
    assert (x * 2).requires_grad
    with torch._subclasses.FakeTensorMode():
        with quiet():
            assert float(torch.ones(()) + 1) == 2.0
        assert type(torch.ones(1)).__name__ == "FakeTensor"


LIBRARY = Path(torch._C.__file__)

PROGRAM = """
import json, sys
import torch
import graphprobe

torch._inductor.config.fx_graph_cache = False

def program(x):
    return (x * 2).relu().sum(1)

x = torch.linspace(-2, 2, 24).reshape(4, 6)
if sys.argv[1] == "run":
    print(torch.compile(program)(x).shape)
else:
    found = graphprobe.diagnose(program, x)
    print(json.dumps([found.verdict, found.notes]))
"""


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5])
def test_a_library_that_is_cut_off_is_told_from_a_whole_one(tmp_path: Path, share: float) -> None:
    whole = LIBRARY.read_bytes()
    (tmp_path / "cut.so").write_bytes(whole[: int(len(whole) * share)])
    assert is_cut_off(tmp_path / "cut.so")
    assert not is_cut_off(LIBRARY)


def test_only_old_files_that_are_cut_off_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert drop_cut_off_libraries() == []
    (tmp_path / "ab").mkdir()
    for name, content, age in (("old", b"", 2), ("new", b"", 0.5), ("whole", LIBRARY.read_bytes(), 2)):
        path = tmp_path / "ab" / f"{name}.so"
        path.write_bytes(content)
        then = time.time() - age * BEING_WRITTEN_S
        os.utime(path, (then, then))
    assert drop_cut_off_libraries() == [tmp_path / "ab" / "old.so"]
    assert sorted(path.name for path in (tmp_path / "ab").iterdir()) == ["new.so", "whole.so"]


@pytest.mark.heavy
def test_a_healthy_program_with_a_library_that_is_cut_off(run_warm: Callable[..., Any], tmp_path: Path) -> None:
    """As its user runs it, it ends with `file too short`: the cache is at fault, which is told and mended."""
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")

    def run(what: str) -> Any:
        return run_warm("program.py", what, cwd=tmp_path, env={"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")})

    assert run("run").code == 0
    libraries = [path for path in (tmp_path / "cache").glob("*/*.so") if "main" in path.name]
    assert libraries
    for path in libraries:
        path.write_bytes(b"")
        os.utime(path, (1.7e9, 1.7e9))
    broken = run("run")
    assert broken.code == 1 and "file too short" in broken.err
    verdict, notes = json.loads(run("diagnose").out.splitlines()[-1])
    assert verdict == "healthy", notes
    assert any("cut off" in note and libraries[0].name in note for note in notes), notes
    assert run("run").code == 0
