"""What is compiled goes by its class, whatever decorators stand around its method, in all that says it."""

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

import graphprobe
from graphprobe.analysis.breaks_text import plain_name
from graphprobe.analysis.recompiles import function_name
from graphprobe.backends.explain import ExplainWithBackend
from graphprobe.internals.dynamo.compile_facts import compiled_now
from graphprobe.store import Run


def decorated(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(self: Any, *args: Any) -> Any:
        return function(self, *args)

    return wrapper


def hidden(function: Any) -> Any:
    """A decorator that does not say what it wraps."""

    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


class First(torch.nn.Module):
    @decorated
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin()


class Second(torch.nn.Module):
    @decorated
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.cos()

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return x.exp()


class Third(torch.nn.Module):
    @hidden
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.neg()
        torch._dynamo.graph_break()
        return y.abs()


class Patched(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.forward = functools.partial(patched, self)  # type: ignore[method-assign]


def patched(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return x.tanh()


@decorated
def behind(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def handed(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return module(x) + 1


def names_of(target: Any, *args: Any) -> list[str]:
    found: list[str] = []

    def backend(gm: Any, example_inputs: Any) -> Any:
        named = compiled_now()
        assert named is not None
        found.append(function_name(named.name))
        return gm.forward

    torch.compile(target, backend=backend)(*args)
    assert compiled_now() is None
    return found


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (First(), "First"),
        (Second(), "Second"),
        (Second().encode, "Second.encode"),
        (Patched(), "Patched"),
        (torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Tanh()), "Sequential"),
        (torch.nn.functional.relu, "relu"),
        (torch.tanh, "tanh"),
        (behind, "behind"),
    ],
)
def test_what_is_compiled_has_the_name_that_the_program_gave_it(target: Any, expected: str) -> None:
    assert names_of(target, torch.ones(3)) == [expected]


def test_a_function_that_is_handed_a_module_is_none_of_its_methods() -> None:
    assert names_of(handed, First(), torch.ones(3)) == ["handed"]


def test_a_continuation_has_the_name_of_what_it_continues() -> None:
    before, after = names_of(Third(), torch.ones(3))
    assert before == "Third" and after.startswith("Third (behind the graph break at line ")
    assert plain_name("torch_dynamo_resume_in_torch_dynamo_resume_in_f_at_3_at_9") == "f"


def test_models_behind_one_decorator_are_told_apart_in_a_run(tmp_path: Path) -> None:
    line = First.forward.__wrapped__.__code__.co_firstlineno
    with graphprobe.trace(tmp_path) as folder:
        for model in (First(), Second(), torch.nn.Sequential(torch.nn.ReLU())):
            torch.compile(model, backend="aot_eager")(torch.ones(3))
    compiled = [model.compile for model in Run.open(folder).models()]
    assert [facts["function"] for facts in compiled] == ["First", "Second", "Sequential"]
    assert compiled[0]["file"] == __file__ and compiled[0]["line"] == line
    assert compiled[2]["begins"].startswith(f"{__file__}:") and "test_models_behind_one" in compiled[2]["begins"]


def test_recompilations_and_breaks_say_the_class() -> None:
    with graphprobe.recompiles() as found:
        for model in (First(), Second()):
            compiled = torch.compile(model, backend="eager", dynamic=False)
            for size in (3, 4):
                compiled(torch.ones(size))
    assert {function.function for function in found.result().functions} == {"First", "Second"}
    torch.compiler.reset()
    with ExplainWithBackend("eager") as backend:
        torch.compile(Third(), backend=backend)(torch.ones(3))
    explained = backend.output()
    assert [plain_name(graph.function or "") for graph in explained.graphs] == ["Third", "Third"]
    assert explained.report.breaks[0].functions == ["Third"]


@pytest.mark.parametrize("mode", [None, "max-autotune-no-cudagraphs"])
def test_the_mode_is_a_fact_of_the_compile_and_no_kernel_of_the_cpu_is_tritons(tmp_path: Path, mode: Any) -> None:
    with graphprobe.trace(tmp_path) as folder:
        torch.compile(lambda x: x.sin(), mode=mode)(torch.ones(3))
    (model,) = Run.open(folder).models()
    assert model.compile["mode"] == mode
    assert "triton" not in model.compile["timings_ms"] and "cpp" in model.compile["timings_ms"]
