"""Debug backends: each computes what the program computes uncompiled, and does what is its own."""

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._functorch.config as functorch_config
from torch.fx import symbolic_trace
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import BaseTorchDispatchMode, TorchDispatchMode

import graphprobe
from backends.programs_debug import PROGRAMS, Transformer, run, same
from graphprobe import backends
from graphprobe.backends.aot import boxed
from graphprobe.backends.eager import GraphRaisedError, OperatorSchemaError
from graphprobe.backends.graphs import copy_graph_module
from graphprobe.backends.torchscript import ScriptingError
from graphprobe.errors import UsageError

ROUNDS = (
    "aot_eager_decomp_partition",
    "aot_eager_decomp_partition_with_mode",
    "aot_eager_decomp_partition_crossref",
)
"""Decompositions round differently from the operators they replace."""

FAMILIES = (
    *("eager", "eager_noexcept", "eager_debug", "pre_dispatch_eager", "ts", "aot_ts"),
    *("aot_eager", "aot_eager_default_partitioner", "invoke_subgraph", *ROUNDS),
)


def backend_for(name: str) -> Any:
    if name.endswith("with_mode"):
        return backends.get(name, mode=BaseTorchDispatchMode())
    return backends.get(name, show=lambda text: None) if name == "pre_dispatch_eager" else backends.get(name)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_bit_equal(name: str, program: str) -> None:
    if name.endswith("ts") and program == "branching":
        pytest.skip("TorchScript has no cond: see test_ts_says_what_it_cannot_do")
    fn, args, other_args, dynamic = PROGRAMS[program]()
    compiled = torch.compile(fn, backend=backend_for(name), dynamic=dynamic)
    for arguments in filter(None, (args, other_args)):
        assert same(run(fn, arguments), run(compiled, arguments))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["bert", "gpt2"])
def test_transformers(model: str) -> None:
    module, tokens = Transformer(model), (torch.arange(12).view(2, 6),)
    plain = run(module, tokens)
    for name in FAMILIES:
        torch.compiler.reset()
        found = run(torch.compile(module, backend=backend_for(name)), tokens)
        assert same(plain, found, exact=name not in ROUNDS), name


class Counting(TorchFunctionMode):
    def __init__(self, name: str = "", log: list[str] | None = None) -> None:
        super().__init__()
        self.name = name
        self.log: list[str] = [] if log is None else log

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.log.append(self.name + getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


def test_modes_see_each_op_in_order() -> None:
    log: list[str] = []
    modes = [Counting("outer ", log), Counting("inner ", log)]
    compiled = torch.compile(torch.relu, backend=backends.get("eager_with_torch_function_modes", modes=modes))
    for x in (torch.ones(2), torch.ones(2, dtype=torch.float64)):  # two graphs
        log.clear()
        compiled(x)
        assert [entry for entry in log if entry.endswith("relu")] == ["inner relu", "outer relu"]


def test_one_mode_and_a_wrong_one() -> None:
    mode = Counting()
    torch.compile(torch.sin, backend=backends.get("eager_with_torch_function_modes", modes=[mode]))(torch.ones(2))
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
    with pytest.raises(GraphRaisedError, match=r"ValueError at node .*picky.*test_families.*negative") as caught:
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


class Seeing(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.append(str(func))
        return func(*args, **(kwargs or {}))


WITH_MODE, CROSSREF = "aot_eager_decomp_partition_with_mode", "aot_eager_decomp_partition_crossref"


def test_mode_sees_decomposed_forward_and_backward() -> None:
    mode = Seeing()
    out = torch.compile(torch.nn.functional.silu, backend=backends.get(WITH_MODE, mode=mode))(
        torch.ones(2, requires_grad=True)
    )
    forward = list(mode.ops)
    mode.ops.clear()
    out.sum().backward()
    assert forward and mode.ops
    assert not any("silu" in op for op in forward + mode.ops)


def test_mode_sees_inside_the_branch_taken_and_must_be_one() -> None:
    mode = Seeing()
    fn, args, _, _ = PROGRAMS["branching"]()
    torch.compile(fn, backend=backends.get(WITH_MODE, mode=mode))(*args)
    assert "aten.sin.default" in mode.ops and "aten.cos.default" not in mode.ops
    with pytest.raises(Exception, match="mode takes a mode object"):
        torch.compile(torch.sin, backend=backends.get(WITH_MODE, mode="x"))(torch.ones(2))


@pytest.fixture(scope="module")
def lying() -> Any:
    @torch.library.custom_op("graphprobe_tests::lying", mutates_args=())
    def lying(x: torch.Tensor) -> torch.Tensor:
        return x.t().contiguous()

    lying.register_fake(lambda x: torch.empty_like(x))
    return lying


def test_crossref_catches_a_wrong_fake_kernel(lying: Any) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return lying(x).sin()

    wide, square = torch.ones(2, 3), torch.ones(3, 3)  # of the square the shape is right, and so are the strides
    plain = backends.get("aot_eager_decomp_partition")
    torch.compile(fn, backend=plain)(wide)
    with pytest.raises(Exception, match=r"graphprobe_tests\.lying.*mismatched tensor metadata"):
        torch.compile(fn, backend=backends.get(CROSSREF))(wide)
    for check in ("all", "custom_ops"):
        torch.compiler.reset()
        torch.compile(fn, backend=backends.get(CROSSREF, check=check))(square)
    torch.compiler.reset()
    with pytest.raises(Exception, match="check takes"):
        torch.compile(torch.sin, backend=backends.get(CROSSREF, check="some"))(square)
    with functorch_config.patch(fake_tensor_crossref="custom_ops"), pytest.raises(Exception, match="lying"):
        torch.compile(fn, backend=plain)(wide)  # torch's own setting is honoured


def test_boxed_call_frees_inputs_after_their_last_use() -> None:
    alive: list[bool] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        alive.append(watched() is not None)
        return x

    gm = symbolic_trace(lambda x: torch.relu(x))
    with gm.graph.inserting_before(next(iter(reversed(gm.graph.nodes)))):
        relu = next(node for node in gm.graph.nodes if node.op == "call_function")
        looked = gm.graph.call_function(look, (relu,))
    next(iter(reversed(gm.graph.nodes))).args = (looked,)
    gm.recompile()
    run_boxed = boxed(gm, [torch.ones(2)])
    args = [torch.ones(2)]
    watched = weakref.ref(args[0])
    run_boxed(args)
    assert args == [] and alive == [False]


def test_debug_mode_outside_is_honoured() -> None:
    from torch.utils._debug_mode import DebugMode

    compiled = torch.compile(lambda x: torch.relu(x) + 1, backend=backends.get("aot_eager"))
    compiled(torch.ones(2))
    with DebugMode(run_compile_with_interpreter=True) as mode:
        compiled(torch.ones(2))
    assert "relu" in mode.debug_string() and "aot_eager" in mode.debug_string()


def test_invoke_subgraph_stays_whole_under_make_fx() -> None:
    import torch._dynamo.config as config
    from torch.fx.experimental.proxy_tensor import make_fx

    compiled = torch.compile(lambda x: torch.relu(x) + 1, backend=backends.get("invoke_subgraph"))
    if not hasattr(config, "force_compile_during_fx_trace"):
        pytest.skip("this torch does not compile inside make_fx")
    with config.patch(force_compile_during_fx_trace=True):
        traced = make_fx(lambda x: compiled(x) * 2)(torch.ones(2))
    assert "invoke_subgraph" in traced.code
    assert "relu" not in traced.code


def test_copy_leaves_the_original_alone() -> None:
    gm = symbolic_trace(lambda x: torch.relu(x) + 1)
    copied = copy_graph_module(gm)
    next(node for node in copied.graph.nodes if node.target is torch.relu).target = torch.sin
    copied.recompile()
    assert "relu" in gm.code and "sin" in copied.code


def test_wrapped_backend_is_collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    backend = graphprobe.wrap(backends.get("aot_eager"))
    explained = backends.ExplainWithBackend(backend)
    torch.compile(lambda x: torch.relu(x).sum(), backend=explained)(torch.ones(2, requires_grad=True)).backward()
    graphprobe.disable()
    names = {path.name for path in tmp_path.rglob("*.txt")}
    assert {"dynamo_out_graph.txt", "000_aot_forward_graph.txt", "000_aot_backward_graph.txt"} <= names
    assert explained.output().graph_count == 1
