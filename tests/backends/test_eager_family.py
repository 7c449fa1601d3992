"""Backends that run Dynamo's graph, and TorchScript."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from backends.programs_debug import PROGRAMS, Transformer, run, same
from graphprobe import backends
from graphprobe.backends.eager import (
    GraphRaisedError,
    OperatorSchemaError,
    make_eager_backend_with_torch_function_mode,
    make_eager_backend_with_torch_function_modes,
)
from graphprobe.backends.torchscript import ScriptingError
from graphprobe.errors import UsageError

SIMPLE = ("eager", "eager_noexcept", "eager_debug", "pre_dispatch_eager", "ts", "aot_ts")


def backend_for(name: str) -> Any:
    return backends.get(name, show=lambda text: None) if name == "pre_dispatch_eager" else backends.get(name)


class Counting(TorchFunctionMode):
    def __init__(self, name: str = "", log: list[str] | None = None) -> None:
        super().__init__()
        self.name = name
        self.log: list[str] = [] if log is None else log

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.log.append(self.name + getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", SIMPLE)
@pytest.mark.parametrize("program", PROGRAMS)
def test_bit_equal(name: str, program: str) -> None:
    if name.endswith("ts") and program == "branching":
        pytest.skip("TorchScript has no cond: see test_ts_says_what_it_cannot_do")
    fn, args, other_args, dynamic = PROGRAMS[program]()
    compiled = torch.compile(fn, backend=backend_for(name), dynamic=dynamic)
    for arguments in filter(None, (args, other_args)):
        assert same(run(fn, arguments), run(compiled, arguments))


@pytest.mark.parametrize("name", SIMPLE)
@pytest.mark.parametrize("model", ["bert", "gpt2"])
def test_transformers_bit_equal(name: str, model: str) -> None:
    module = Transformer(model)
    tokens = (torch.arange(12).view(2, 6),)
    assert same(run(module, tokens), run(torch.compile(module, backend=backend_for(name)), tokens))


def test_modes_see_each_op_in_order() -> None:
    log: list[str] = []
    modes = iter([Counting("outer ", log), Counting("inner ", log)])
    compiled = torch.compile(lambda x: torch.relu(x), backend=make_eager_backend_with_torch_function_modes(modes))
    for x in (torch.ones(2), torch.ones(2, dtype=torch.float64)):  # two graphs: an iterator would be empty by now
        log.clear()
        compiled(x)
        assert [entry for entry in log if entry.endswith("relu")] == ["inner relu", "outer relu"]


def test_one_mode_and_a_wrong_one() -> None:
    mode = Counting()
    compiled = torch.compile(lambda x: torch.sin(x), backend=make_eager_backend_with_torch_function_mode(mode))
    compiled(torch.ones(2))
    assert mode.log == ["sin"]
    with pytest.raises(Exception, match="modes takes a list") as caught:
        backends.get("eager_with_torch_function_modes", modes=iter([mode]))(None, [])
    assert isinstance(caught.value, UsageError)


@pytest.mark.parametrize("name", ["eager", "eager_noexcept", "aot_eager"])
def test_modes_active_outside_act_once(name: str) -> None:
    compiled = torch.compile(lambda x: torch.relu(x).sin(), backend=backends.get(name))
    x = torch.ones(2)
    with Counting() as mode:
        compiled(x)
        mode.log.clear()
        compiled(x)
    assert mode.log == ["relu", "sin"]


def test_noexcept_names_node_and_line_and_chains() -> None:
    @torch.library.custom_op("graphprobe_tests::picky", mutates_args=())
    def picky(x: torch.Tensor) -> torch.Tensor:
        if x.sum() < 0:
            raise ValueError("negative")
        return x.clone()

    picky.register_fake(lambda x: torch.empty_like(x))
    compiled = torch.compile(lambda x: picky(x) + 1, backend=backends.get("eager_noexcept"))
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
    with pytest.raises(GraphRaisedError, match=r"ValueError at node .*picky.*test_eager_family.*negative") as caught:
        compiled(-torch.ones(2))
    assert isinstance(caught.value.__cause__, ValueError)


def test_eager_debug_catches_an_undeclared_mutation() -> None:
    @torch.library.custom_op("graphprobe_tests::sneaky", mutates_args=())
    def sneaky(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    @torch.library.custom_op("graphprobe_tests::honest", mutates_args=("x",))
    def honest(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    for op in (sneaky, honest):
        op.register_fake(lambda x: torch.empty_like(x))
    debug = backends.get("eager_debug")
    assert torch.compile(lambda x: honest(x), backend=debug)(torch.ones(2)).tolist() == [4.0, 4.0]
    with pytest.raises(OperatorSchemaError, match=r"_tests::sneaky is wrong at node .* not defined as mutable"):
        torch.compile(lambda x: sneaky(x), backend=debug)(torch.ones(2))
    torch.compile(lambda x: sneaky(x), backend=backends.get("eager"))(torch.ones(2))  # others do not notice

    def taken(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: sneaky(x), lambda x: x.clone(), (x,))

    with pytest.raises(OperatorSchemaError, match="sneaky"):
        torch.compile(taken, backend=debug)(torch.ones(2))


def test_eager_debug_passes_the_ops_own_errors() -> None:
    compiled = torch.compile(lambda x, i: x[i], backend=backends.get("eager_debug"))
    with pytest.raises(IndexError):
        compiled(torch.ones(2), torch.tensor([5]))


def test_pre_dispatch_shows_its_graph_and_does_not_mutate_while_compiling() -> None:
    shown: list[str] = []
    x = torch.zeros(2)
    torch.compile(lambda x: x.add_(1), backend=backends.get("pre_dispatch_eager", show=shown.append))(x)
    assert x.tolist() == [1.0, 1.0]
    assert len(shown) == 1 and "torch.ops.aten.add_" in shown[0]


def test_ts_says_what_it_cannot_do() -> None:
    fn, args, _, _ = PROGRAMS["branching"]()
    for name in ("ts", "aot_ts"):
        with pytest.raises(Exception, match="TorchScript cannot compile this graph: it has cond") as caught:
            torch.compile(fn, backend=backends.get(name))(*args)
        assert isinstance(getattr(caught.value, "inner_exception", caught.value), ScriptingError)
        torch.compiler.reset()


def test_ts_really_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    script = torch.jit.script
    monkeypatch.setattr(torch.jit, "script", lambda gm: made.append(script(gm)) or made[-1])
    torch.compile(lambda x: torch.relu(x) + 1, backend=backends.get("ts"))(torch.ones(2))
    assert [type(x).__name__ for x in made] == ["RecursiveScriptModule"]
