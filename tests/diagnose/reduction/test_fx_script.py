"""The reducer in the place of torch's minifier, in a program that compiles."""

from __future__ import annotations

import cases
import pytest
import torch
from reduction import reduction_cases
from reduction.reduction_cases import calls_of
from torch._dynamo.exc import BackendCompilerFailed

from graphprobe.diagnose.reduction import script_cases, watch_script
from graphprobe.diagnose.reduction.watch_script import Asked, ScriptWatch, asked_by
from graphprobe.errors import UsageError
from graphprobe.internals.dynamo import repro_hooks


class Relu(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)


def mlp():
    torch.manual_seed(0)
    layers = []
    for i in range(3):
        layers += [torch.nn.Linear(4, 4), Relu() if i == 1 else torch.nn.Tanh()]
    return torch.nn.Sequential(*layers), torch.randn(3, 4)


@pytest.fixture
def watching(tmp_path, monkeypatch):
    """Makes a watch that is on, with a list of what it said."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("graphprobe.diagnose.reduction.reduce_case.run_repro", lambda *_, **__: 1)  # takes a process
    made = []

    def make(after=None, level=2, exit=False, **options):
        said = []
        asked = None if after is None else Asked(after, level)
        watch = ScriptWatch(asked, on_note=said.append, on_reduction=lambda _: None, options=options or None, exit=exit)
        watch.install()
        made.append(watch)
        return watch, said

    yield make
    for watch in made:
        watch.remove()


def left(watch):
    return [str(getattr(n.target, "__name__", n.target)) for n in calls_of(watch.ended.reduction.case.graph)]


HEAVY = pytest.mark.heavy


@pytest.mark.parametrize(
    ("backend", "level"),
    [pytest.param("compile", 2, marks=HEAVY), pytest.param("compile", 4, marks=HEAVY), ("runtime", 2), ("accuracy", 4)],
)
def test_a_program_is_left_when_that_is_all_that_is_wanted(backend, level, watching):
    watch, _ = watching("dynamo", level, exit=True)
    net, x = mlp()
    compiled = torch.compile(net, backend=f"relu_{backend}_error_TESTING_ONLY")
    with pytest.raises(watch_script.ReducedExit) as left_by:
        compiled(x)
    assert left_by.value.code is None  # as of sys.exit(): no failure
    assert left(watch) == ["relu"]


@pytest.mark.parametrize("level", [2, pytest.param(4, marks=HEAVY)])
def test_a_graph_that_does_not_compile(level, watching, tmp_path):
    watch, said = watching("dynamo", level)
    net, x = mlp()
    with pytest.raises(BackendCompilerFailed, match="ReluCompileError"):
        torch.compile(net, backend="relu_compile_error_TESTING_ONLY")(x)
    assert left(watch) == ["relu"]
    assert watch.ended.reduction.signature.startswith("crash_compile")
    assert watch.ended.folder.parent == tmp_path / "graphprobe-reduced"
    assert (watch.ended.folder / "repro" / "repro.py").is_file()
    assert "relu_compile_error_TESTING_ONLY" in (watch.ended.folder / "repro" / "repro.py").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["graphprobe-reduced"]  # torch's minifier wrote nothing
    assert "ReluCompileError" in said[0]


def test_a_graph_that_does_not_run_as_the_settings_of_torch_ask(watching):
    watch, _ = watching()
    net, x = mlp()
    compiled = torch.compile(net, backend="relu_runtime_error_TESTING_ONLY")
    with (
        torch._dynamo.config.patch(repro_after="dynamo", repro_level=2),
        pytest.raises(AssertionError, match="ReluRuntimeError"),
    ):
        compiled(x)
    assert left(watch) == ["relu"]
    assert watch.ended.reduction.signature == "crash_runtime AssertionError: ReluRuntimeError"


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
    assert len(left(watch)) == 1


def test_wrong_values_are_reduced_and_the_program_goes_on(watching):
    watch, _ = watching("dynamo", 4)
    net, x = mlp()
    out = torch.compile(net, backend="relu_accuracy_error_TESTING_ONLY")(x)
    assert out.shape == x.shape
    assert left(watch) == ["relu"]
    assert watch.ended.reduction.signature == "wrong_value"
    assert watch.ended.reduction.case.backend == "relu_accuracy_error_TESTING_ONLY"


def test_wrong_values_are_not_looked_for_below_level_4(watching, tmp_path):
    watch, _ = watching("dynamo", 3)
    net, x = mlp()
    torch.compile(net, backend="relu_accuracy_error_TESTING_ONLY")(x)
    assert (watch.ended.reduction, watch.ended.graphs, watch.ended.notes) == (None, 1, [])
    assert list(tmp_path.iterdir()) == []


def test_a_crash_stays_in_the_child(watching):
    watch, said = watching("dynamo", 3)
    net, x = mlp()
    with pytest.raises(BackendCompilerFailed, match="killed by SIGSEGV"):
        torch.compile(net, backend=reduction_cases.segfaulting)(x)
    assert left(watch) == ["relu"]
    assert watch.ended.reduction.signature == "segfault SIGSEGV"
    assert watch.ended.reduction.case.own_backend.name == "segfaulting"
    assert not any("no proof" in text for text in said)


def test_a_backend_whose_text_does_not_say_all_is_told(watching):
    watch, said = watching("dynamo", 3)
    net, x = mlp()
    with pytest.raises(BackendCompilerFailed, match="relu of graph"):
        torch.compile(net, backend=eval("lambda gm, inputs: raising(gm, inputs)", vars(reduction_cases)))(x)
    assert watch.ended.reduction.case.own_backend is None
    assert "no proof: the backend <lambda> cannot be saved: <lambda> has no text of its own in a file" in said[-1]


def test_a_healthy_program_is_left_alone(watching, tmp_path):
    watch, said = watching("dynamo", 4)
    net, x = mlp()
    torch.manual_seed(1)
    expected = (net(x), torch.rand(2))
    torch.manual_seed(1)
    out = torch.compile(net, backend="aot_eager")(x)
    assert torch.equal(out, expected[0])
    assert torch.equal(torch.rand(2), expected[1])
    out.sum().backward()
    assert net[0].weight.grad is not None
    assert (watch.ended.graphs, watch.ended.notes, said) == (1, [], [])
    assert list(tmp_path.iterdir()) == []


def test_only_the_first_failing_graph_is_reduced(watching):
    watch, said = watching("dynamo", 4)
    net, x = mlp()
    torch.compile(net, backend="relu_accuracy_error_TESTING_ONLY")(x)
    told = len(said)
    torch.compile(lambda x: torch.relu(x) * 2, backend="relu_accuracy_error_TESTING_ONLY")(x)
    assert (watch.ended.graphs, len(said)) == (1, told)


def test_what_fails_here_does_not_end_the_program(watching, monkeypatch):
    def broken(*_, **__):
        raise KeyError("planted")

    watch, said = watching("dynamo", 4)
    monkeypatch.setattr(script_cases, "case_of", broken)
    net, x = mlp()
    assert torch.equal(torch.compile(net, backend="eager")(x), net(x))
    monkeypatch.undo()
    monkeypatch.setattr(script_cases, "copy_of", broken)
    assert torch.compile(lambda x: x * 2, backend="eager")(x).shape == x.shape
    assert watch.ended.notes == said
    assert ["planted" in note for note in said] == [True, True]


def test_nothing_is_patched_when_it_is_off(watching):
    import torch._dynamo.repro.after_dynamo as after
    import torch._inductor.compile_fx as compile_fx

    before = (after.WrapBackendDebug.__call__, compile_fx.wrap_compiler_debug)
    watch, _ = watching("dynamo", 2)
    assert after.WrapBackendDebug.__call__ is not before[0]
    assert compile_fx.wrap_compiler_debug is not before[1]
    assert watch._hooks.missing == []
    watch.remove()
    assert (after.WrapBackendDebug.__call__, compile_fx.wrap_compiler_debug) == before


def test_a_lock_held_by_the_compiling_thread_is_free_in_children():
    import os

    from torch._dynamo import convert_frame

    before = convert_frame.compile_lock
    with repro_hooks.Children():
        child = os.fork()
        if child == 0:
            os._exit(convert_frame.compile_lock is before)
    assert os.waitpid(child, 0)[1] == 0
    assert convert_frame.compile_lock is before


@pytest.mark.heavy
def test_aten_graphs_of_inductor(watching):
    watch, _ = watching("aot", 4)
    with torch._inductor.config.patch({"cpp.inject_relu_bug_TESTING_ONLY": "accuracy"}):
        x = torch.randn(8, requires_grad=True)
        torch.compile(lambda x: (torch.relu(x.sin() + 1) * 2).sum())(x).backward()
    assert left(watch) == ["relu.default"]
    assert watch.ended.reduction.case.inductor_config["cpp.inject_relu_bug_TESTING_ONLY"] == "accuracy"


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
    assert left(watch) == ["relu.default"]


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"TORCHDYNAMO_REPRO_AFTER": "foo"}, "TORCHDYNAMO_REPRO_AFTER='foo': it takes dynamo or aot"),
        ({"TORCHDYNAMO_REPRO_AFTER": ""}, "it takes dynamo or aot"),
        ({"TORCHDYNAMO_REPRO_AFTER": "aot", "TORCHDYNAMO_REPRO_LEVEL": "7"}, "'7': it takes 2, 3 or 4"),
        ({"TORCHDYNAMO_REPRO_AFTER": "aot", "TORCHDYNAMO_REPRO_LEVEL": "two"}, "'two': it takes 2, 3 or 4"),
        ({"TORCHDYNAMO_REPRO_LEVEL": "3"}, "without TORCHDYNAMO_REPRO_AFTER"),
    ],
)
def test_wrong_variables(environ, words):
    with pytest.raises(UsageError, match=words):
        asked_by(environ)


def test_variables():
    assert asked_by({}) is None
    assert asked_by({"TORCHDYNAMO_REPRO_AFTER": "dynamo"}) == Asked("dynamo", 2)
    assert asked_by({"TORCHDYNAMO_REPRO_AFTER": "aot", "TORCHDYNAMO_REPRO_LEVEL": "4"}) == Asked("aot", 4)
    assert watch_script.watch_environment({}) is None


@pytest.mark.heavy
def test_another_process_reduces_where_none_can_be_forked(watching, monkeypatch):
    watch, said = watching("dynamo", 4)
    monkeypatch.setattr(script_cases, "can_fork", lambda: False)
    net, x = mlp()
    with pytest.raises(BackendCompilerFailed, match="ReluCompileError"):
        torch.compile(net, backend="relu_compile_error_TESTING_ONLY")(x)
    assert watch.ended.reduction is None
    assert (watch.ended.folder / "repro" / "repro.py").is_file()
    assert "not tried in a child process" in said[0]
