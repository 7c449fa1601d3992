"""Where an exception comes from, told by the frames that it passed in real compilations."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch._inductor.config
from torch._inductor import lowering
from torch.fx import Graph, GraphModule

from graphprobe.diagnose.exceptions import chain, frames, origin_of, origin_of_stack

ATEN = torch.ops.aten


@pytest.fixture(autouse=True)
def no_caches() -> Iterator[None]:
    with torch._inductor.config.patch(force_disable_caches=True):
        yield


class Inner(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) + 1


class Outer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(torch.relu(x))


def error_of(fn: Callable[..., Any], *args: Any, **how: Any) -> BaseException:
    with pytest.raises(Exception) as raised:
        torch.compile(fn, **how)(*args)
    return raised.value


def failing(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("planted")


def test_a_chain_has_the_original_last() -> None:
    try:
        try:
            failing()
        except ZeroDivisionError as error:
            raise KeyError("outer") from error
    except KeyError as error:
        found = list(chain(error))
        innermost = frames(error)[0]
    assert [type(e) for e in found] == [KeyError, ZeroDivisionError]
    assert innermost.f_code.co_name == "failing"


def test_a_chain_that_bites_its_tail_ends() -> None:
    first, second = ValueError("1"), ValueError("2")
    first.__cause__, second.__cause__ = second, first
    assert list(chain(first)) == [first, second]


def test_an_exception_of_the_program() -> None:
    try:
        failing()
    except ZeroDivisionError as error:
        found = origin_of(error)
    assert (found.stage, found.pass_, found.node, found.op) == ("runtime", None, None, None)


def test_an_exception_of_dynamo() -> None:
    def backend(gm: GraphModule, _: Sequence[Any]) -> Any:
        raise RuntimeError("no")

    assert origin_of(error_of(torch.sin, torch.ones(2), backend=backend)).stage == "dynamo"


def test_an_exception_while_lowering_names_op_line_and_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lowering.lowerings, ATEN.sin.default, failing)
    found = origin_of(error_of(Outer(), torch.ones(2), backend="inductor"))
    assert (found.stage, found.op, found.node) == ("lowering", "aten.sin.default", "sin")
    assert found.source == f"{__file__}:{Inner.forward.__code__.co_firstlineno + 1}"
    assert found.module == "inner"
    assert found.pass_ is None


def test_an_exception_in_the_body_of_a_loop_names_the_op_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor's loops are graphs, too; what they call `sin` is a method and no op of the program."""
    from torch._inductor.codegen import cpp

    for overrides in (cpp.CppOverrides, cpp.CppVecOverrides):
        monkeypatch.setattr(overrides, "sin", staticmethod(failing))
    found = origin_of(error_of(Outer(), torch.ones(20), backend="inductor"))
    assert (found.stage, found.op, found.node) == ("codegen", "aten.sin.default", "sin")
    assert found.source == f"{__file__}:{Inner.forward.__code__.co_firstlineno + 1}"


@pytest.mark.parametrize(
    ("setting", "stage", "name"),
    [
        ("post_grad_custom_pre_pass", "post_grad", "post_grad_custom_pre_pass"),
        ("joint_custom_pre_pass", "joint", "joint_custom_pre_pass"),
        ("pre_grad_custom_pass", "pre_grad", "pre_grad_custom_pass"),
    ],
)
def test_an_exception_of_a_pass_names_it(setting: str, stage: str, name: str) -> None:
    def custom(graph: Graph) -> None:
        for node in graph.nodes:
            if "sin" in str(node.target):
                failing(node)

    with torch._inductor.config.patch({setting: custom}):
        found = origin_of(error_of(Outer(), torch.ones(2), backend="inductor"))
    assert (found.stage, found.pass_) == (stage, name)
    assert found.op in ("aten.sin.default", "torch.sin")


def test_an_error_of_the_cpp_compiler_names_no_op() -> None:
    """What its callers still hold of loops that have ended was not being worked on."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x).sum()

    with torch._inductor.config.patch({"cpp.inject_relu_bug_TESTING_ONLY": "compile_error"}):
        found = origin_of(error_of(fn, torch.ones(8, 8), backend="inductor"))
    assert (found.stage, found.op, found.node, found.source) == ("codegen", None, None, None)


def test_a_frame_of_a_pass_names_the_pass_and_what_it_works_on() -> None:
    seen: list[Any] = []

    def custom(graph: Graph) -> None:
        for node in graph.nodes:
            if "sin" in str(node.target):
                seen.append(origin_of_stack(sys._getframe()))

    with torch._inductor.config.patch({"post_grad_custom_pre_pass": custom}):
        torch.compile(Outer(), backend="inductor")(torch.ones(2))
    (found,) = seen
    assert (found.stage, found.pass_) == ("post_grad", "post_grad_custom_pre_pass")
    assert (found.op, found.module) == ("aten.sin.default", "inner")


def test_a_pass_that_holds_no_node_is_named_alone() -> None:
    """Nodes that the functions around it hold are no part of it."""
    seen: list[Any] = []

    def custom(graph: Graph) -> None:
        seen.append(origin_of_stack(sys._getframe()))

    with torch._inductor.config.patch({"post_grad_custom_post_pass": custom}):
        torch.compile(Outer(), backend="inductor")(torch.ones(2))
    (found,) = seen
    assert (found.stage, found.pass_, found.op) == ("post_grad", "post_grad_custom_post_pass", None)


def test_an_exception_of_a_decomposition(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import decomposition

    original = decomposition.decompositions[ATEN.silu.default]
    code = compile("def silu(x):\n    raise ZeroDivisionError('planted')", original.__code__.co_filename, "exec")
    made: dict[str, Any] = {}
    exec(code, made)
    monkeypatch.setitem(decomposition.decompositions, ATEN.silu.default, made["silu"])
    decomposition.fast_random_decomps.cache_clear()
    x = torch.ones(2)
    try:
        found = origin_of(error_of(torch.nn.functional.silu, x, backend="inductor"))
    finally:
        decomposition.fast_random_decomps.cache_clear()
    assert found.stage == "decomposition"


def test_an_exception_of_aot_autograd() -> None:
    from torch._dynamo.backends.common import aot_autograd

    error = error_of(torch.sin, torch.ones(2), backend=aot_autograd(fw_compiler=failing))
    assert origin_of(error).stage == "aot"


def test_an_exception_while_a_pattern_is_replaced_names_what_it_matched() -> None:
    """Not the view that comes last: the ops that compute, and which pattern it was."""
    from torch._inductor.pattern_matcher import PatternMatcherPass, fwd_only, register_replacement

    def sine_of_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a * b).sin().transpose(0, 1)

    def otherwise(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a + b).transpose(0, 1)

    patterns = PatternMatcherPass()
    examples = [torch.ones(2, 3), torch.ones(2, 3)]
    register_replacement(sine_of_product, otherwise, examples, fwd_only, patterns, extra_check=failing)

    def program(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a * b).sin().transpose(0, 1)

    with torch._inductor.config.patch(post_grad_custom_pre_pass=patterns.apply):
        found = origin_of(error_of(program, torch.ones(2, 3), torch.ones(2, 3), backend="inductor"))
    assert (found.stage, found.pattern) == ("post_grad", "sine_of_product")
    assert (found.op, found.also) == ("aten.sin.default", ["aten.mul.Tensor"])
    assert found.source == f"{__file__}:{program.__code__.co_firstlineno + 1}"


def test_an_index_of_a_tensor_is_named_and_not_what_made_the_tensor() -> None:
    graph = torch.fx.symbolic_trace(lambda x, i: torch.relu(x)[i])
    with pytest.raises(IndexError) as caught:
        torch.fx.Interpreter(graph).run(torch.ones(2), torch.tensor([7]))
    assert origin_of(caught.value).op == "operator.getitem"
