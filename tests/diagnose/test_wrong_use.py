"""Wrong arguments of `diagnose`: said at once, before anything runs and with nothing on disk."""

from pathlib import Path
from typing import Any

import pytest
import torch

import graphprobe
from graphprobe.diagnose import api
from graphprobe.diagnose.api import diagnose
from graphprobe.errors import UsageError
from graphprobe.findings import Diagnosis

X = torch.ones(2)


def fn(x: torch.Tensor) -> torch.Tensor:
    raise AssertionError("the program must not run")


FIRST = ["first of calls"]
REFUSED = ["options=", "torch refuses it"]
CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "no function": ({"fn": 3}, ["fn=3", "function or module"]),
    "a name": ({"fn": "model.py:fn"}, ["'model.py:fn'"]),
    "other arguments than the first call's": ({"calls": [((X.clone(),), {})]}, [*FIRST, "leave them out"]),
    "more arguments than the first call's": ({"args": (X, X), "calls": [((X,), {})]}, FIRST),
    "other keywords than the first call's": ({"args": (), "x": X, "calls": [((X,), {})]}, FIRST),
    "arguments and no call": ({"calls": []}, FIRST),
    "no call": ({"args": (), "calls": []}, ["calls=[]", "at least one"]),
    "a call that is no pair": ({"args": (), "calls": [((X,), {}), (X,)]}, ["call 1", "(args, kwargs)"]),
    "a tensor for a call": ({"args": (), "calls": [torch.ones(1000)]}, ["call 0", "(args, kwargs)"]),
    "a call whose arguments are no list": ({"args": (), "calls": [(X, {})]}, ["call 0"]),
    "a call whose keywords are no dict": ({"args": (), "calls": [((X,), [])]}, ["call 0"]),
    "grad": ({"grad": "yes"}, ["grad='yes'", "True, False, 'auto' or 'apart'"]),
    "grad none": ({"grad": None}, ["grad=None"]),
    "dynamic": ({"dynamic": "auto"}, ["dynamic='auto'", "True, False or None"]),
    "fullgraph": ({"fullgraph": "yes"}, ["fullgraph='yes'", "True, False or None"]),
    "no mode of that name": ({"mode": "fast"}, ["mode='fast'", "'default'", "'reduce-overhead'", "'max-autotune'"]),
    "a mode that is no name": ({"mode": 3}, ["mode=3"]),
    "options that are no dict": ({"options": ["max_autotune"]}, ["options=", "a dict"]),
    "no option of that name": ({"options": {"max_autotone": True}}, [*REFUSED, "max_autotone"]),
    "an option of another type": ({"options": {"max_autotune": "yes"}}, [*REFUSED, "max_autotune"]),
    "mode and options": ({"mode": "default", "options": {"max_autotune": True}}, ["one of them, not both"]),
    "no backend of that name": ({"backend": "induktor"}, ["'induktor'", "torch knows", "inductor"]),
    "a backend of no kind": ({"backend": 3}, ["diagnose(backend=3): it takes a name or a function"]),
    "a folder that is not empty": ({"out": Path("../out")}, ["out=", "not an empty folder"]),
    "a file for a folder": ({"out": "../out/file"}, ["file", "not an empty folder"]),
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
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").write_text("kept", encoding="utf-8")
    given, words = CASES[case]
    given = {"fn": fn, "args": (X,), **given}
    with pytest.raises(UsageError) as raised:
        graphprobe.diagnose(given.pop("fn"), *given.pop("args"), **given)
    assert type(raised.value) is UsageError
    text = raised.value.render()
    assert [word for word in words if word not in text] == [], text
    assert len(str(raised.value)) < 300, "the message of a large value, too"
    assert raised.value.exit_code == 2
    assert list(Path.cwd().iterdir()) == []
    left = [path.read_text(encoding="utf-8") for path in tmp_path.rglob("*") if path.is_file()]
    assert left == ["kept"]


def prepared(*args: Any, **kwargs: Any) -> Any:
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


def test_gradients_and_folders(tmp_path: Path) -> None:
    grown = torch.ones(2, requires_grad=True)
    assert prepared(fn, X)[0].grad is None
    assert prepared(fn, X, grad=True)[0].grad is None, "nothing requires one"
    assert prepared(fn, grown)[0].grad is True
    assert prepared(fn, grown, grad=False)[0].grad is False
    assert prepared(torch.nn.Linear(2, 2), X)[0].grad is True
    first, second = (prepared(fn, X)[1].folder for _ in range(2))
    assert first != second
    assert first.parent == tmp_path / "here" / "graphprobe-diagnosis"
    assert not first.exists(), "it is made when there is something to put into it"


def own_backend(gm: Any, inputs: Any) -> Any:
    return gm.forward


def test_how_it_was_compiled_and_what_is_asked_for() -> None:
    options = {"max_autotune": True}
    for target in (fn, torch.nn.Linear(2, 2)):
        kept = prepared(torch.compile(target, options=options, dynamic=True, fullgraph=True), X)[1]
        assert (kept.backend, kept.dynamic, kept.fullgraph) == ("inductor", True, True)
        assert kept.inductor_settings == options
        with kept.configured():
            assert torch._inductor.config.max_autotune
        program, plain = prepared(torch.compile(target), X)
        assert program.fn is target, "it is taken apart"
        assert (plain.backend, plain.dynamic, plain.fullgraph) == ("inductor", None, False)
        assert plain.inductor_settings == {}
    mode = prepared(torch.compile(fn, mode="max-autotune-no-cudagraphs"), X)[1]
    assert mode.inductor_settings["max_autotune"] is True
    own = prepared(torch.compile(fn, backend=own_backend, dynamic=False), X)[1]
    assert (own.backend, own.dynamic, own.inductor_settings) == (own_backend, False, {})
    compiled = torch.compile(fn, options={"max_autotune": True}, dynamic=True, fullgraph=True)
    other = prepared(compiled, X, dynamic=False, fullgraph=False, options={"epilogue_fusion": False})[1]
    assert (other.dynamic, other.fullgraph, other.inductor_settings) == (False, False, {"epilogue_fusion": False})
    mode = prepared(compiled, X, mode="default")[1]
    assert (mode.dynamic, mode.fullgraph, mode.inductor_settings) == (True, True, {})
    lone = prepared(compiled, X, backend="aot_eager")[1]
    assert lone.is_inductor is False and lone.fullgraph
    asked = prepared(fn, X, mode="max-autotune-no-cudagraphs", fullgraph=True)[1]
    assert (asked.fullgraph, asked.inductor_settings["max_autotune"]) == (True, True)
