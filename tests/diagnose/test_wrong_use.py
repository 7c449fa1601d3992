"""Wrong arguments of `diagnose`: said at once, before anything runs and with nothing on disk."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from graphprobe.diagnose import api
from graphprobe.diagnose.api import diagnose
from graphprobe.errors import UsageError
from graphprobe.findings import Diagnosis

X = torch.ones(2)


def fn(x: torch.Tensor) -> torch.Tensor:
    raise AssertionError("the program must not run")


def full(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "kept.txt").write_text("kept", encoding="utf-8")
    return tmp_path / "out"


def a_file(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("kept", encoding="utf-8")
    return tmp_path / "file"


CASES: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    "no function": (lambda _: diagnose(3, X), ["fn=3", "function or module"]),  # type: ignore[arg-type]
    "a name": (lambda _: diagnose("model.py:fn"), ["'model.py:fn'"]),  # type: ignore[arg-type]
    "other arguments than the first call's": (
        lambda _: diagnose(fn, X, calls=[((X.clone(),), {})]),
        ["first of calls", "leave them out"],
    ),
    "more arguments than the first call's": (lambda _: diagnose(fn, X, X, calls=[((X,), {})]), ["first of calls"]),
    "other keywords than the first call's": (lambda _: diagnose(fn, x=X, calls=[((X,), {})]), ["first of calls"]),
    "arguments and no call": (lambda _: diagnose(fn, X, calls=[]), ["first of calls"]),
    "no call": (lambda _: diagnose(fn, calls=[]), ["calls=[]", "at least one"]),
    "a call that is no pair": (lambda _: diagnose(fn, calls=[((X,), {}), (X,)]), ["call 1", "(args, kwargs)"]),  # type: ignore[list-item]
    "a tensor for a call": (lambda _: diagnose(fn, calls=[X]), ["call 0", "(args, kwargs)"]),  # type: ignore[list-item]
    "a call whose arguments are no list": (lambda _: diagnose(fn, calls=[(X, {})]), ["call 0"]),  # type: ignore[list-item]
    "a call whose keywords are no dict": (lambda _: diagnose(fn, calls=[((X,), [])]), ["call 0"]),  # type: ignore[list-item]
    "grad": (lambda _: diagnose(fn, X, grad="yes"), ["grad='yes'", "True, False or 'auto'"]),  # type: ignore[arg-type]
    "grad none": (lambda _: diagnose(fn, X, grad=None), ["grad=None"]),  # type: ignore[arg-type]
    "dynamic": (lambda _: diagnose(fn, X, dynamic="auto"), ["dynamic='auto'", "True, False or None"]),  # type: ignore[arg-type]
    "fullgraph": (lambda _: diagnose(fn, X, fullgraph="yes"), ["fullgraph='yes'", "True, False or None"]),  # type: ignore[arg-type]
    "no mode of that name": (
        lambda _: diagnose(fn, X, mode="fast"),
        ["mode='fast'", "'default'", "'reduce-overhead'", "'max-autotune'"],
    ),
    "a mode that is no name": (lambda _: diagnose(fn, X, mode=3), ["mode=3"]),  # type: ignore[arg-type]
    "options that are no dict": (lambda _: diagnose(fn, X, options=["max_autotune"]), ["options=", "a dict"]),  # type: ignore[arg-type]
    "no option of that name": (
        lambda _: diagnose(fn, X, options={"max_autotone": True}),
        ["options=", "max_autotone", "torch refuses it"],
    ),
    "an option of another type": (
        lambda _: diagnose(fn, X, options={"max_autotune": "yes"}),
        ["options=", "max_autotune", "torch refuses it"],
    ),
    "mode and options": (
        lambda _: diagnose(fn, X, mode="default", options={"max_autotune": True}),
        ["one of them, not both"],
    ),
    "no backend of that name": (
        lambda _: diagnose(fn, X, backend="induktor"),
        ["'induktor'", "torch knows", "inductor"],
    ),
    "a backend of no kind": (lambda _: diagnose(fn, X, backend=3), ["backend=3", "a name or a function"]),  # type: ignore[arg-type]
    "a folder that is not empty": (lambda path: diagnose(fn, X, out=full(path)), ["out=", "not an empty folder"]),
    "a file for a folder": (lambda path: diagnose(fn, X, out=str(a_file(path))), ["file", "not an empty folder"]),
}


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def climb(*_: Any) -> Diagnosis:
        raise AssertionError("nothing may run")

    monkeypatch.setattr(api.Ladder, "climb", climb)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


@pytest.mark.parametrize("case", CASES)
def test_usage(case: str, tmp_path: Path) -> None:
    call, words = CASES[case]
    with pytest.raises(UsageError) as raised:
        call(tmp_path)
    assert type(raised.value) is UsageError
    text = raised.value.render()
    for word in words:
        assert word in text, text
    assert raised.value.exit_code == 2
    assert list(Path.cwd().iterdir()) == []
    left = [path.read_text(encoding="utf-8") for path in tmp_path.rglob("*") if path.is_file()]
    assert left in ([], ["kept"])


def test_the_message_of_a_large_value_is_short() -> None:
    with pytest.raises(UsageError) as raised:
        diagnose(fn, calls=[torch.ones(1000)])  # type: ignore[list-item]
    assert len(str(raised.value)) < 300


def prepared(*args: Any, **kwargs: Any) -> Any:
    """The program and compilation that `diagnose` would look into."""
    found: list[Any] = []

    def climb(ladder: api.Ladder, *_: Any) -> Diagnosis:
        found.append((ladder.program, ladder.compilation))
        return Diagnosis(verdict="healthy")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api.Ladder, "climb", climb)
        assert diagnose(*args, **kwargs).verdict == "healthy"
    return found[0]


def test_right_use_is_let_through(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    program, compilation = prepared(fn, X, out=tmp_path / "empty", grad=False, dynamic=True, backend="eager")
    assert program.fn is fn
    assert program.calls == [((X,), {})]
    assert program.grad is False
    assert (compilation.backend, compilation.dynamic, compilation.folder) == ("eager", True, tmp_path / "empty")
    program, compilation = prepared(fn, X, x=X, calls=[([X], {"x": X}), ((), {})], backend=lambda gm, _: gm)
    assert len(program.calls) == 2, "the very arguments of the first call may be repeated"
    assert compilation.backend_name == "eager"


def test_gradients_are_run_where_anything_requires_one() -> None:
    grown = torch.ones(2, requires_grad=True)
    assert prepared(fn, X)[0].grad is None
    assert prepared(fn, X, grad=True)[0].grad is None, "nothing requires one"
    assert prepared(fn, grown)[0].grad is True
    assert prepared(fn, grown, grad=False)[0].grad is False
    assert prepared(torch.nn.Linear(2, 2), X)[0].grad is True


def test_what_was_compiled_is_taken_apart() -> None:
    model = torch.nn.Linear(2, 2)
    assert prepared(torch.compile(model), X)[0].fn is model
    assert prepared(torch.compile(fn), X)[0].fn is fn


def test_how_it_was_compiled_is_kept() -> None:
    options = {"max_autotune": True}
    for target in (fn, torch.nn.Linear(2, 2)):
        kept = prepared(torch.compile(target, options=options, dynamic=True, fullgraph=True), X)[1]
        assert (kept.backend, kept.dynamic, kept.fullgraph) == ("inductor", True, True)
        assert kept.inductor_settings == options
        with kept.configured():
            assert torch._inductor.config.max_autotune
        plain = prepared(torch.compile(target), X)[1]
        assert (plain.backend, plain.dynamic, plain.fullgraph) == ("inductor", None, False)
        assert plain.inductor_settings == {}
    mode = prepared(torch.compile(fn, mode="max-autotune-no-cudagraphs"), X)[1]
    assert mode.inductor_settings["max_autotune"] is True
    own = prepared(torch.compile(fn, backend=own_backend, dynamic=False), X)[1]
    assert (own.backend, own.dynamic, own.inductor_settings) == (own_backend, False, {})


def own_backend(gm: Any, inputs: Any) -> Any:
    return gm.forward


def test_what_is_asked_for_comes_before_how_it_was_compiled() -> None:
    compiled = torch.compile(fn, options={"max_autotune": True}, dynamic=True, fullgraph=True)
    other = prepared(compiled, X, dynamic=False, fullgraph=False, options={"epilogue_fusion": False})[1]
    assert (other.dynamic, other.fullgraph, other.inductor_settings) == (False, False, {"epilogue_fusion": False})
    mode = prepared(compiled, X, mode="default")[1]
    assert (mode.dynamic, mode.fullgraph, mode.inductor_settings) == (True, True, {})
    lone = prepared(compiled, X, backend="aot_eager")[1]
    assert lone.is_inductor is False and lone.fullgraph
    asked = prepared(fn, X, mode="max-autotune-no-cudagraphs", fullgraph=True)[1]
    assert (asked.fullgraph, asked.inductor_settings["max_autotune"]) == (True, True)


def test_dossiers_go_into_a_new_folder(tmp_path: Path) -> None:
    first, second = (prepared(fn, X)[1].folder for _ in range(2))
    assert first != second
    assert first.parent == tmp_path / "here" / "graphprobe-diagnosis"
    assert not first.exists(), "it is made when there is something to put into it"


@pytest.mark.heavy
def test_the_function_can_be_called_whatever_was_imported_before() -> None:
    code = "import graphprobe, graphprobe.findings\ngraphprobe.diagnose(lambda x: x, backend=3)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert "UsageError: diagnose(backend=3): it takes a name or a function" in done.stderr
