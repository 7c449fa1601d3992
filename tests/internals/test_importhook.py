"""Calling back after an import, without standing between the program and its modules."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from graphprobe.internals.importhook import ImportHook


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    package = tmp_path / "hooked"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "plain.py").write_text(
        "seen_loader = type(__loader__).__name__, type(__spec__.loader).__name__\nVALUE = 1\n"
    )
    (package / "other.py").write_text("from hooked import plain\nVALUE = 2\n")
    (package / "failing.py").write_text(
        "import hooked\nif not hasattr(hooked, 'ready'):\n    raise ValueError('not yet')\n"
    )
    (package / "slow.py").write_text("import time\ntime.sleep(0.2)\nVALUE = 3\n")
    (package / "nested").mkdir()
    (package / "nested" / "__init__.py").write_text("from hooked.nested import leaf\n")
    (package / "nested" / "leaf.py").write_text("VALUE = 4\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    meta_path = list(sys.meta_path)
    yield package
    assert sys.meta_path == meta_path, "the hook must take itself out"
    for name in [name for name in sys.modules if name.split(".")[0] == "hooked"]:
        del sys.modules[name]


def test_calls_back_once_after_the_import(modules: Path) -> None:
    calls: list[int] = []
    hook = ImportHook({"hooked.plain": lambda m: calls.append(m.VALUE)})
    hook.install()
    assert "hooked" not in sys.modules, "waiting must import nothing, parents included"
    assert sys.meta_path[0] is hook
    import hooked  # type: ignore[import-not-found]

    assert calls == []
    from hooked import other  # noqa: F401

    assert calls == [1]
    assert hook not in sys.meta_path
    importlib.reload(hooked.plain)
    assert calls == [1]


def test_the_module_looks_as_if_nobody_had_stood_in_between(modules: Path) -> None:
    hook = ImportHook({"hooked.plain": lambda m: None})
    hook.install()
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


def test_a_spec_that_is_only_looked_at_answers_everything(modules: Path) -> None:
    hook = ImportHook({"hooked.plain": lambda m: None})
    hook.install()
    spec = importlib.util.find_spec("hooked.plain")
    assert spec is not None and spec.loader is not None
    assert "VALUE = 1" in spec.loader.get_source("hooked.plain")  # type: ignore[attr-defined]
    assert spec.loader.get_code("hooked.plain") is not None  # type: ignore[attr-defined]
    hook.remove()


def test_a_module_that_is_there_is_told_at_once(modules: Path) -> None:
    importlib.import_module("hooked.plain")
    calls: list[int] = []
    hook = ImportHook({"hooked.plain": lambda m: calls.append(m.VALUE)})
    hook.install()
    assert calls == [1]
    assert hook not in sys.meta_path


def test_a_failing_import_fails_as_before_and_the_next_one_counts(modules: Path) -> None:
    calls: list[ModuleType] = []
    hook = ImportHook({"hooked.failing": calls.append})
    hook.install()
    with pytest.raises(ValueError, match="not yet"):
        importlib.import_module("hooked.failing")
    assert calls == []
    assert "hooked.failing" not in sys.modules
    importlib.import_module("hooked").ready = True  # type: ignore[attr-defined]
    importlib.import_module("hooked.failing")
    assert [module.__name__ for module in calls] == ["hooked.failing"]


def test_a_module_that_does_not_exist(modules: Path) -> None:
    hook = ImportHook({"hooked.missing": lambda m: None, "not_there_at_all": lambda m: None})
    hook.install()
    for name in ("hooked.missing", "not_there_at_all"):
        with pytest.raises(ModuleNotFoundError, match=name):
            importlib.import_module(name)
    hook.remove()


def test_a_package_that_imports_what_is_waited_for(modules: Path) -> None:
    order: list[str] = []
    hook = ImportHook(
        {"hooked.nested": lambda m: order.append("nested"), "hooked.nested.leaf": lambda m: order.append("leaf")}
    )
    hook.install()
    importlib.import_module("hooked.nested")
    assert order == ["leaf", "nested"]


def test_installed_from_inside_a_module_that_is_still_loading(modules: Path) -> None:
    calls: list[int] = []
    (modules / "late.py").write_text(
        "import hooked\nhooked.hook.install()\nassert hooked.calls == [], 'told before it was loaded'\nVALUE = 5\n"
    )
    package = importlib.import_module("hooked")
    hook = ImportHook({"hooked.late": lambda m: calls.append(m.VALUE)})
    vars(package).update(hook=hook, calls=calls)
    importlib.import_module("hooked.late")
    # Its loader had begun before the hook was there: nobody tells, and the next install does.
    hook.remove()
    again = ImportHook({"hooked.late": lambda m: calls.append(m.VALUE)})
    again.install()
    assert calls == [5]


def test_remove_ends_the_waiting(modules: Path) -> None:
    calls: list[ModuleType] = []
    hook = ImportHook({"hooked.plain": calls.append})
    hook.install()
    hook.remove()
    hook.remove()
    importlib.import_module("hooked.plain")
    assert calls == []


def test_many_threads_import_at_once(modules: Path) -> None:
    calls: list[int] = []
    hook = ImportHook({"hooked.slow": lambda m: calls.append(m.VALUE), "hooked.plain": lambda m: calls.append(m.VALUE)})
    hook.install()
    barrier = threading.Barrier(8)
    values: list[int] = []

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
