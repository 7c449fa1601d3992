"""The reducer in the place of torch's minifier, in a program that compiles."""

from contextlib import nullcontext, suppress

import cases
import pytest
import torch
from reduction import reduction_cases
from reduction.reduction_cases import calls_of
from torch._dynamo.exc import BackendCompilerFailed
from torch._dynamo.repro import after_dynamo
from torch._inductor import compile_fx

from graphprobe.diagnose.reduction import script_cases, watch_script
from graphprobe.diagnose.reduction.watch_script import ScriptWatch
from graphprobe.diagnose.reduction.watched import Asked, ReducedExit, asked_by
from graphprobe.errors import UsageError

HEAVY = pytest.mark.heavy


class Relu(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)


def mlp():
    torch.manual_seed(0)
    layers = []
    for i in range(3):
        layers += [torch.nn.Linear(4, 4), Relu() if i == 1 else torch.nn.Tanh()]
    return torch.nn.Sequential(*layers), torch.randn(3, 4)


def run_with(backend):
    """The network, compiled with a backend; `runtime` and such are torch's own, which cannot do a relu."""
    net, x = mlp()
    name = f"relu_{backend}_error_TESTING_ONLY" if backend in ("compile", "runtime", "accuracy") else backend
    return torch.compile(net, backend=name)(x)


@pytest.fixture
def watching(tmp_path, monkeypatch):
    """Makes a watch that is on, with a list of what it said. The repros are not run: each takes processes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("graphprobe.diagnose.reduction.reduce_case._Saver.shorten", lambda *_: True)
    made = []

    def make(after=None, level=2, exit=False):
        said = []
        asked = None if after is None else Asked(after, level)
        watch = ScriptWatch(asked, on_note=said.append, on_reduction=lambda _: None, exit=exit)
        watch.install()
        made.append(watch)
        return watch, said

    yield make
    for watch in made:
        watch.remove()


def check_reduced(watch, signature, name="relu"):
    assert watch.ended.reduction.signature.startswith(signature)
    calls = calls_of(watch.ended.reduction.case.graph)
    assert [str(getattr(n.target, "__name__", n.target)) for n in calls] == [name]


@pytest.mark.slow
@pytest.mark.parametrize("leave", [False, True])
@pytest.mark.parametrize(
    ("kind", "level", "error", "signature"),
    [
        ("compile", 2, BackendCompilerFailed, "crash_compile"),
        pytest.param("compile", 4, BackendCompilerFailed, "crash_compile", marks=HEAVY),
        ("runtime", None, AssertionError, "crash_runtime AssertionError: ReluRuntimeError"),
        ("accuracy", 4, None, "wrong_value"),
    ],
)
def test_the_first_failing_graph_is_reduced(kind, level, error, signature, leave, watching, tmp_path):
    """Without a level, as the settings of torch ask."""
    asked = torch._dynamo.config.patch(repro_after="dynamo", repro_level=2) if level is None else nullcontext()
    ended = pytest.raises(ReducedExit if leave else error) if leave or error else nullcontext()
    watch, said = watching(level and "dynamo", level, exit=leave)
    with asked, ended as raised:
        run_with(kind)
    if leave:
        assert raised.value.code is None  # as of sys.exit(): no failure
    elif error:
        assert "Relu" in str(raised.value)
    check_reduced(watch, signature)
    name = f"relu_{kind}_error_TESTING_ONLY"
    assert watch.ended.reduction.case.backend == name
    assert name in (watch.ended.folder / "repro" / "repro.py").read_text()
    assert watch.ended.folder.parent == tmp_path / "graphprobe-reduced"
    assert [path.name for path in tmp_path.iterdir()] == ["graphprobe-reduced"]  # torch's minifier wrote nothing
    assert ("ReluCompileError" in said[0]) == (kind == "compile")
    with suppress(Exception):
        torch.compile(lambda x: torch.relu(x) * 2, backend=name)(torch.ones(3))
    assert (watch.ended.graphs, len(said)) == (1, 1)


@pytest.mark.slow
def test_a_later_call_that_fails(watching):
    watch, _ = watching("dynamo", 2)

    def backend(gm, _):
        def run(*args):
            if args[-1].sum() > 100:
                raise RuntimeError("too much")
            return gm.forward(*args)

        return run

    net, x = mlp()
    compiled = torch.compile(net, backend=backend)
    compiled(x)
    with torch.no_grad():
        net[0].weight.add_(0)
    compiled(x)
    assert watch.ended.reduction is None
    with pytest.raises(RuntimeError, match="too much"):
        torch.compile(lambda x: x * 2, backend=backend)(torch.full((3,), 99.0))
    check_reduced(watch, "crash_runtime", "mul")


def test_a_crash_stays_in_the_child(watching):
    watch, said = watching("dynamo", 3)
    with pytest.raises(BackendCompilerFailed, match="killed by SIGSEGV"):
        run_with(reduction_cases.segfaulting)
    check_reduced(watch, "segfault SIGSEGV")
    assert watch.ended.reduction.case.own_backend.name == "segfaulting"
    assert not any("no proof" in text for text in said)


def test_a_backend_whose_text_does_not_say_all_is_told(watching):
    watch, said = watching("dynamo", 3)
    with pytest.raises(BackendCompilerFailed, match="relu of graph"):
        run_with(eval("lambda gm, inputs: raising(gm, inputs)", vars(reduction_cases)))
    assert watch.ended.reduction.case.own_backend is None
    assert "no proof: the backend <lambda> cannot be saved: <lambda> has no text of its own in a file" in said[-1]


@pytest.mark.parametrize(("backend", "level"), [("aot_eager", 4), ("accuracy", 3)])
def test_what_is_healthy_or_not_asked_for_is_left_alone(backend, level, watching, tmp_path):
    watch, said = watching("dynamo", level)
    net, x = mlp()
    expected, drawn = net(x), torch.rand(2)
    out = run_with(backend)
    assert torch.equal(torch.rand(2), drawn)
    assert torch.equal(out, expected) == (backend == "aot_eager")
    out.sum().backward()
    assert (watch.ended.reduction, watch.ended.graphs, watch.ended.notes, said) == (None, 1, [], [])
    assert list(tmp_path.iterdir()) == []


def test_what_fails_here_does_not_end_the_program(watching, monkeypatch):
    def broken(*_, **__):
        raise KeyError("planted")

    watch, said = watching("dynamo", 4)
    net, x = mlp()
    for name in ("case_of", "copy_of"):
        torch.compiler.reset()
        with monkeypatch.context() as patch:
            patch.setattr(script_cases, name, broken)
            assert torch.equal(run_with("eager"), net(x))
    assert watch.ended.notes == said
    assert ["planted" in note for note in said] == [True, True]


def test_nothing_is_patched_when_it_is_off(watching):
    def patched():
        return after_dynamo.WrapBackendDebug.__call__, compile_fx.wrap_compiler_debug

    before = patched()
    watch, _ = watching("dynamo", 2)
    assert not any(now is then for now, then in zip(patched(), before, strict=True))
    assert watch._hooks.missing == []
    watch.remove()
    assert patched() == before


@pytest.mark.heavy
def test_aten_graphs_of_inductor(watching):
    watch, _ = watching("aot", 4)
    with torch._inductor.config.patch({"cpp.inject_relu_bug_TESTING_ONLY": "accuracy"}):
        x = torch.randn(8, requires_grad=True)
        torch.compile(lambda x: (torch.relu(x.sin() + 1) * 2).sum())(x).backward()
    check_reduced(watch, "wrong_value", "relu.default")
    assert watch.ended.reduction.case.configs["inductor"]["cpp.inject_relu_bug_TESTING_ONLY"] == "accuracy"


@pytest.mark.heavy
@pytest.mark.parametrize("after", ["dynamo", "aot"])
def test_a_convnet_in_training_is_left_alone(after, watching):
    """Its batch norms add 1024 values one after the other once it is compiled."""
    watch, said = watching(after, 4)
    net, (x,), _ = cases.load(cases.path("controls", "convnet_training")).make()
    torch.compile(net)(x).backward()
    assert (watch.ended.reduction, watch.ended.notes, said) == (None, [], [])
    assert watch.ended.graphs == (1 if after == "dynamo" else 2)


@pytest.mark.heavy
def test_an_aten_graph_that_does_not_compile(watching):
    watch, _ = watching("aot", 2)
    fault = {"cpp.inject_relu_bug_TESTING_ONLY": "compile_error"}
    with pytest.raises(Exception, match="compile error"):
        torch.compile(lambda x: torch.relu(x.sin() + 1) * 2, options=fault)(torch.randn(8))
    check_reduced(watch, "crash_compile", "relu.default")


@pytest.mark.heavy
def test_another_process_reduces_where_none_can_be_forked(watching, monkeypatch):
    watch, said = watching("dynamo", 4)
    monkeypatch.setattr(script_cases, "can_fork", lambda: False)
    with pytest.raises(BackendCompilerFailed, match="ReluCompileError"):
        run_with("compile")
    assert watch.ended.reduction is None
    assert (watch.ended.folder / "repro" / "repro.py").is_file()
    assert "not tried in a child process" in said[0]


def test_variables() -> None:
    for after, level, result in (
        (None, None, None),
        ("dynamo", None, Asked("dynamo", 2)),
        ("aot", "4", Asked("aot", 4)),
        ("foo", None, "TORCHDYNAMO_REPRO_AFTER='foo': it takes dynamo or aot"),
        ("", None, "it takes dynamo or aot"),
        ("aot", "7", "'7': it takes 2, 3 or 4"),
        ("aot", "two", "'two': it takes 2, 3 or 4"),
        (None, "3", "without TORCHDYNAMO_REPRO_AFTER"),
    ):
        given = {"TORCHDYNAMO_REPRO_AFTER": after, "TORCHDYNAMO_REPRO_LEVEL": level}
        environ = {name: value for name, value in given.items() if value is not None}
        if isinstance(result, str):
            with pytest.raises(UsageError, match=result):
                asked_by(environ)
        else:
            assert asked_by(environ) == result
            assert bool(watch_script.watch_environment(environ)) is bool(result)
