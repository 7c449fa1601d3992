"""Off means off: nothing imported, nothing patched, nothing left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

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
STDLIB = sys.stdlib_module_names
grown = sorted(n for n in after[0] - before[0] if n.split(".")[0] not in STDLIB)
print(grown)
"""


def test_import_brings_in_nothing_but_the_package(run_python: Callable[..., Any]) -> None:
    done = run_python("-c", IMPORT_ALONE)
    assert done.code == 0, done.err
    assert done.out.strip() == "['graphprobe']"


def test_importing_any_part_leaves_the_generators_alone(run_python: Callable[..., Any]) -> None:
    """The parts that print are loaded when a program has run for long, as with `graphprobe.profile()` inside it."""
    code = """
import importlib, pkgutil, random, numpy, torch, torch._inductor.compile_fx, graphprobe
random.seed(0)
before = random.getstate(), numpy.random.get_state()[1].tobytes(), torch.get_rng_state()
for module in pkgutil.walk_packages(graphprobe.__path__, "graphprobe."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
        assert random.getstate() == before[0], module.name
        assert numpy.random.get_state()[1].tobytes() == before[1], module.name
        assert torch.equal(torch.get_rng_state(), before[2]), module.name
import sys; assert "rich.style" in sys.modules
"""
    done = run_python("-c", code)
    assert done.code == 0, done.err


def test_import_after_torch_patches_nothing(run_python: Callable[..., Any]) -> None:
    code = f"""
import torch, torch._dynamo, torch._inductor.compile_fx, sys
sys.argv = ["", ""]; sys.path.insert(0, {str(PROGRAMS)!r})
everything = {{(m, n): id(v) for m in list(sys.modules) if m.startswith("torch")
               for n, v in list(vars(sys.modules[m]).items()) if not n.startswith("__")}}
classes = {{(c, n): id(v) for m in list(sys.modules) if m.startswith("torch._dynamo") or m.startswith("torch._inductor")
            for c in list(vars(sys.modules[m]).values()) if isinstance(c, type) for n, v in list(vars(c).items())}}
import graphprobe
assert everything == {{(m, n): id(v) for (m, n) in everything for v in [vars(sys.modules[m])[n]]}}
assert all(id(vars(c)[n]) == v for (c, n), v in classes.items())
assert len(everything) > 10000 and len(classes) > 5000
"""
    done = run_python("-c", code)
    assert done.code == 0, done.err


def test_everything_is_put_back(run_python: Callable[..., Any], tmp_path: Path) -> None:
    done = run_python(str(PROGRAMS / "on_and_off.py"), str(tmp_path))
    assert done.code == 0, done.err[-4000:]
    assert done.out.strip() == "OFF IS OFF"


def test_torch_compile_debug_does_not_import_torch(run_python: Callable[..., Any], tmp_path: Path) -> None:
    code = "import sys, graphprobe; assert not [m for m in sys.modules if m.split('.')[0] == 'torch']"
    done = run_python("-c", code, cwd=tmp_path, env={"TORCH_COMPILE_DEBUG": "1", "PYTHONDONTWRITEBYTECODE": "1"})
    # graphprobe itself may load torch here; what counts is that a program without a compile leaves no folder behind.
    assert list(tmp_path.iterdir()) == [], done.err
