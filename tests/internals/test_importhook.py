"""Calling back after an import, without standing between the program and its modules."""

import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from graphprobe.internals.importhook import ImportHook

FILES = {
    "__init__.py": "",
    "plain.py": "seen_loader = type(__loader__).__name__, type(__spec__.loader).__name__\nVALUE = 1\n",
    "other.py": "from hooked import plain\nVALUE = 2\n",
    "failing.py": "import hooked\nif not hasattr(hooked, 'ready'):\n    raise ValueError('not yet')\nVALUE = 6\n",
    "slow.py": "import time\ntime.sleep(0.2)\nVALUE = 3\n",
    "nested/__init__.py": "from hooked.nested import leaf\nVALUE = 7\n",
    "nested/leaf.py": "VALUE = 4\n",
    "late.py": "import hooked\nhooked.hook.install()\nassert hooked.calls == [], 'told too early'\nVALUE = 5\n",
}


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "hooked" / "nested").mkdir(parents=True)
    for name, text in FILES.items():
        (tmp_path / "hooked" / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    meta_path = list(sys.meta_path)
    yield
    assert sys.meta_path == meta_path, "the hook must take itself out"
    for name in [name for name in sys.modules if name.split(".")[0] == "hooked"]:
        del sys.modules[name]


def waiting(*names: str) -> tuple[ImportHook, list[int]]:
    """A hook for modules of the package, and the values of those that it was told of."""
    calls: list[int] = []
    hook = ImportHook({f"hooked.{name}": lambda module: calls.append(module.VALUE) for name in names})
    hook.install()
    return hook, calls


def test_calls_back_once_after_the_import() -> None:
    hook, calls = waiting("plain")
    assert "hooked" not in sys.modules, "waiting must import nothing, parents included"
    assert sys.meta_path[0] is hook
    hooked = importlib.import_module("hooked")
    assert calls == []
    importlib.import_module("hooked.other")
    assert calls == [1]
    assert hook not in sys.meta_path
    importlib.reload(hooked.plain)
    assert calls == [1]
    hook, calls = waiting("plain")
    assert calls == [1] and hook not in sys.meta_path, "a module that is there is told at once"


def test_the_module_looks_as_if_nobody_had_stood_in_between() -> None:
    waiting("plain")
    watched = importlib.import_module("hooked.plain")
    told = (type(watched.__loader__), type(watched.__spec__.loader), watched.__spec__.origin, watched.__file__)
    names = set(vars(watched))
    assert watched.seen_loader == ("SourceFileLoader", "SourceFileLoader")
    assert watched.__loader__ is watched.__spec__.loader
    del sys.modules["hooked.plain"]
    plain = importlib.import_module("hooked.plain")
    assert told == (type(plain.__loader__), type(plain.__spec__.loader), plain.__spec__.origin, plain.__file__)
    assert names == set(vars(plain))
    assert watched.__spec__.cached == plain.__spec__.cached
    assert importlib.util.find_spec("hooked.plain") is plain.__spec__


def test_a_spec_that_is_only_looked_at_answers_everything() -> None:
    hook, _ = waiting("plain")
    loader: Any = (importlib.util.find_spec("hooked.plain") or pytest.fail("no spec")).loader
    assert "VALUE = 1" in loader.get_source("hooked.plain")
    assert loader.get_code("hooked.plain") is not None
    hook.remove()


def test_a_failing_import_fails_as_before_and_the_next_one_counts() -> None:
    _, calls = waiting("failing")
    with pytest.raises(ValueError, match="not yet"):
        importlib.import_module("hooked.failing")
    assert calls == [] and "hooked.failing" not in sys.modules
    importlib.import_module("hooked").ready = True  # type: ignore[attr-defined]
    importlib.import_module("hooked.failing")
    assert calls == [6]


def test_a_module_that_does_not_exist() -> None:
    hook = ImportHook({"hooked.missing": lambda m: None, "not_there_at_all": lambda m: None})
    hook.install()
    for name in ("hooked.missing", "not_there_at_all"):
        with pytest.raises(ModuleNotFoundError, match=name):
            importlib.import_module(name)
    hook.remove()


def test_a_package_that_imports_what_is_waited_for() -> None:
    _, calls = waiting("nested", "nested.leaf")
    importlib.import_module("hooked.nested")
    assert calls == [4, 7]


def test_installed_from_inside_a_module_that_is_still_loading() -> None:
    calls: list[int] = []
    hook = ImportHook({"hooked.late": lambda m: calls.append(m.VALUE)})
    vars(importlib.import_module("hooked")).update(hook=hook, calls=calls)
    importlib.import_module("hooked.late")
    # Its loader had begun before the hook was there: nobody tells, and the next install does.
    hook.remove()
    _, calls = waiting("late")
    assert calls == [5]


def test_remove_ends_the_waiting() -> None:
    hook, calls = waiting("plain")
    hook.remove()
    hook.remove()
    importlib.import_module("hooked.plain")
    assert calls == []


def test_many_threads_import_at_once() -> None:
    _, calls = waiting("slow", "plain")
    barrier, values = threading.Barrier(8), list[int]()

    def load(name: str) -> None:
        barrier.wait()
        values.append(importlib.import_module(name).VALUE)

    threads = [threading.Thread(target=load, args=(n,)) for n in ["hooked.slow", "hooked.plain"] * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(values) == [1] * 4 + [3] * 4
    assert sorted(calls) == [1, 3]
