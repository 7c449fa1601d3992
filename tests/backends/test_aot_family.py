"""Backends that go through AOTAutograd."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx import symbolic_trace
from torch.utils._python_dispatch import TorchDispatchMode

import graphprobe
from backends.programs_debug import PROGRAMS, Transformer, run, same
from graphprobe import backends
from graphprobe.backends.aot import boxed
from graphprobe.backends.graphs import copy_graph_module

FAMILY = (
    "aot_eager",
    "aot_eager_default_partitioner",
    "aot_eager_decomp_partition",
    "aot_eager_decomp_partition_with_mode",
    "aot_eager_decomp_partition_crossref",
    "invoke_subgraph",
)
NOT_EXACT = {
    "aot_eager_decomp_partition",
    "aot_eager_decomp_partition_with_mode",
    "aot_eager_decomp_partition_crossref",
}
"""Decompositions round differently from the operators they replace."""


class Seeing(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.append(str(func))
        return func(*args, **(kwargs or {}))


def backend_for(name: str) -> Any:
    return backends.get(name, mode=Seeing()) if name.endswith("with_mode") else backends.get(name)


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("program", PROGRAMS)
def test_bit_equal(name: str, program: str) -> None:
    fn, args, other_args, dynamic = PROGRAMS[program]()
    compiled = torch.compile(fn, backend=backend_for(name), dynamic=dynamic)
    for arguments in filter(None, (args, other_args)):
        assert same(run(fn, arguments), run(compiled, arguments))


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("model", ["bert", "gpt2"])
def test_transformers(name: str, model: str) -> None:
    module = Transformer(model)
    tokens = (torch.arange(12).view(2, 6),)
    got = run(torch.compile(module, backend=backend_for(name)), tokens)
    assert same(run(module, tokens), got, exact=name not in NOT_EXACT)


def test_mode_sees_decomposed_forward_and_backward() -> None:
    mode = Seeing()
    compiled = torch.compile(
        lambda x: torch.nn.functional.silu(x), backend=backends.get("aot_eager_decomp_partition_with_mode", mode=mode)
    )
    out = compiled(torch.ones(2, requires_grad=True))
    forward = list(mode.ops)
    mode.ops.clear()
    out.sum().backward()
    assert forward and mode.ops
    assert not any("silu" in op for op in forward + mode.ops)


def test_mode_sees_inside_the_branch_taken() -> None:
    mode = Seeing()
    fn, args, _, _ = PROGRAMS["branching"]()
    compiled = torch.compile(fn, backend=backends.get("aot_eager_decomp_partition_with_mode", mode=mode))
    compiled(*args)
    assert "aten.sin.default" in mode.ops and "aten.cos.default" not in mode.ops


def test_mode_must_be_one() -> None:
    with pytest.raises(Exception, match="mode takes a mode object"):
        torch.compile(torch.sin, backend=backends.get("aot_eager_decomp_partition_with_mode", mode="x"))(torch.ones(2))


@pytest.fixture(scope="module")
def lying() -> Any:
    @torch.library.custom_op("graphprobe_tests::lying", mutates_args=())
    def lying(x: torch.Tensor) -> torch.Tensor:
        return x.t().contiguous()

    lying.register_fake(lambda x: torch.empty_like(x))
    return lying


def test_crossref_catches_a_wrong_fake_kernel(lying: Any) -> None:
    x = torch.ones(2, 3)
    torch.compile(lambda x: lying(x), backend=backends.get("aot_eager_decomp_partition"))(x)
    with pytest.raises(Exception, match=r"graphprobe_tests\.lying.*mismatched tensor metadata"):
        torch.compile(lambda x: lying(x), backend=backends.get("aot_eager_decomp_partition_crossref"))(x)


def test_crossref_options(lying: Any) -> None:
    x = torch.ones(3, 3)  # square: the shape is right, and so are the strides
    for check in ("all", "custom_ops"):
        torch.compile(
            lambda x: lying(x).sin(), backend=backends.get("aot_eager_decomp_partition_crossref", check=check)
        )(x)
        torch.compiler.reset()
    with pytest.raises(Exception, match="check takes"):
        torch.compile(lambda x: x.sin(), backend=backends.get("aot_eager_decomp_partition_crossref", check="some"))(x)


def test_torchs_crossref_setting_is_honoured(lying: Any) -> None:
    import torch._functorch.config as config

    with config.patch(fake_tensor_crossref="custom_ops"), pytest.raises(Exception, match="lying"):
        torch.compile(lambda x: lying(x), backend=backends.get("aot_eager_decomp_partition"))(torch.ones(2, 3))


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
    before = gm.code
    run_boxed = boxed(gm, backend="aot_eager")
    args = [torch.ones(2)]
    watched = weakref.ref(args[0])
    run_boxed(args)
    assert args == [] and alive == [False]
    assert gm.code == before


def test_debug_mode_outside_is_honoured() -> None:
    from torch.utils._debug_mode import DebugMode

    compiled = torch.compile(lambda x: torch.relu(x) + 1, backend=backends.get("aot_eager"))
    compiled(torch.ones(2))
    with DebugMode(run_compile_with_interpreter=True) as mode:
        compiled(torch.ones(2))
    assert "aten::relu" in mode.debug_string() or "relu" in mode.debug_string()
    assert "aot_eager" in mode.debug_string()


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
    try:
        explained = backends.ExplainWithBackend(backend)
        torch.compile(lambda x: torch.relu(x).sum(), backend=explained)(torch.ones(2, requires_grad=True)).backward()
    finally:
        graphprobe.disable()
    names = {path.name for path in tmp_path.rglob("*.txt")}
    assert {"dynamo_out_graph.txt", "000_aot_forward_graph.txt", "000_aot_backward_graph.txt"} <= names
    assert explained.output().graph_count == 1
