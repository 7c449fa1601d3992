"""Off means off: nothing imported, nothing patched, nothing left behind."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch._dynamo.convert_frame as inside

import graphprobe
from conftest import Finished
from graphprobe.internals.names import NAMES

PROGRAMS = Path(__file__).parent / "programs"

IMPORT_ALONE = """
import sys, os, atexit, signal, threading, logging
before = set(sys.modules), list(sys.meta_path), list(sys.path_hooks), dict(os.environ), atexit._ncallbacks()
state = sys.excepthook, sys.displayhook, threading.active_count(), sys.gettrace(), sys.getprofile()
loggers = dict(logging.root.manager.loggerDict)
import graphprobe
dir(graphprobe), graphprobe.__version__
after = set(sys.modules), list(sys.meta_path), list(sys.path_hooks), dict(os.environ), atexit._ncallbacks()
assert before[1:] == after[1:], (before[1:], after[1:])
assert state == (sys.excepthook, sys.displayhook, threading.active_count(), sys.gettrace(), sys.getprofile())
assert loggers == dict(logging.root.manager.loggerDict)
grown = sorted(n for n in after[0] - before[0] if n.split(".")[0] not in sys.stdlib_module_names)
assert grown == ["graphprobe", "graphprobe.faces"], grown
"""

ALL_PARTS = """
import importlib, pkgutil, random, sys, numpy, torch, torch._inductor.compile_fx, graphprobe
random.seed(0)
before = random.getstate(), numpy.random.get_state()[1].tobytes(), torch.get_rng_state()
for module in pkgutil.walk_packages(graphprobe.__path__, "graphprobe."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
        assert random.getstate() == before[0], module.name
        assert numpy.random.get_state()[1].tobytes() == before[1], module.name
        assert torch.equal(torch.get_rng_state(), before[2]), module.name
assert "rich.style" in sys.modules
"""
"""The parts that print are loaded when a program has run for long, as with `graphprobe.profile()` inside it."""

AFTER_TORCH = """
import torch, torch._dynamo, torch._inductor.compile_fx, sys
everything = {(m, n): id(v) for m in list(sys.modules) if m.startswith("torch")
              for n, v in list(vars(sys.modules[m]).items()) if not n.startswith("__")}
classes = {(c, n): id(v) for m in list(sys.modules) if m.startswith("torch._dynamo") or m.startswith("torch._inductor")
           for c in list(vars(sys.modules[m]).values()) if isinstance(c, type) for n, v in list(vars(c).items())}
import graphprobe
assert everything == {(m, n): id(v) for (m, n) in everything for v in [vars(sys.modules[m])[n]]}
assert all(id(vars(c)[n]) == v for (c, n), v in classes.items())
assert len(everything) > 10000 and len(classes) > 5000
"""


def test_import_brings_in_nothing(run_python: Callable[..., Finished], tmp_path: Path) -> None:
    done = run_python("-c", IMPORT_ALONE)
    assert done.code == 0, done.err
    done = run_python("-c", "import graphprobe", cwd=tmp_path, env={"TORCH_COMPILE_DEBUG": "1"})
    assert (done.code, list(tmp_path.iterdir())) == (0, []), done.err


@pytest.mark.parametrize("code", [ALL_PARTS, AFTER_TORCH], ids=["leaves the generators alone", "patches nothing"])
def test_import_after_torch(code: str, run_warm: Callable[..., Finished]) -> None:
    done = run_warm("-c", code)
    assert done.code == 0, done.err


@pytest.mark.slow
def test_everything_is_put_back(run_warm: Callable[..., Finished], tmp_path: Path) -> None:
    done = run_warm(str(PROGRAMS / "on_and_off.py"), str(tmp_path))
    assert done.code == 0, done.err[-4000:]
    assert done.out.strip() == "OFF IS OFF"


def test_watches_of_recompilations_put_everything_back() -> None:
    names = [name.attribute for name in NAMES if name.module == inside.__name__ and "recompiles" in name.needed_for]
    assert len(names) == 3
    before = {name: getattr(inside, name) for name in names}
    first, second = graphprobe.recompiles(), graphprobe.recompiles()
    f = torch.compile(lambda x: x + 1, backend="eager")
    with first, second:
        f(torch.ones(3)), f(torch.ones(4))
        assert all(getattr(inside, name) is not before[name] for name in names)
    assert {name: getattr(inside, name) for name in names} == before
    f(torch.ones(3, 3))
    assert len(first.facts) == len(second.facts) == 1
