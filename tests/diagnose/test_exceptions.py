"""Where an exception comes from, told by the frames that it passed in real compilations."""

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._inductor.config
from torch._inductor import decomposition, lowering
from torch._inductor.codegen import cpp
from torch.fx import Graph

from graphprobe.diagnose.exceptions import Origin, chain, origin_of, origin_of_stack

ATEN = torch.ops.aten


@pytest.fixture(autouse=True)
def no_caches() -> Iterator[None]:
    with torch._inductor.config.patch(force_disable_caches=True):
        yield


class Inner(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) + 1


def outer() -> torch.nn.Module:
    return torch.nn.Sequential(OrderedDict(relu=torch.nn.ReLU(), inner=Inner()))


def failing(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("planted")


def origin(fn: Callable[..., Any], *args: Any, backend: Any = "inductor") -> Origin:
    """Of the exception that ends a compiled call."""
    with pytest.raises(Exception) as raised:
        torch.compile(fn, backend=backend)(*args)
    return origin_of(raised.value)


def at_the_sine(act: Callable[..., Any]) -> Callable[[Graph], None]:
    def custom(graph: Graph) -> None:
        for node in graph.nodes:
            if "sin" in str(node.target):
                act(node)

    return custom


def test_a_chain_has_the_original_last_and_ends() -> None:
    def chained() -> None:
        try:
            failing()
        except ZeroDivisionError as error:
            raise KeyError("outer") from error

    with pytest.raises(KeyError) as caught:
        chained()
    assert [type(e) for e in chain(caught.value)] == [KeyError, ZeroDivisionError]
    first, second = ValueError("1"), ValueError("2")
    first.__cause__, second.__cause__ = second, first
    assert list(chain(first)) == [first, second]


def test_an_exception_of_the_program_dynamo_or_aot_autograd() -> None:
    from torch._dynamo.backends.common import aot_autograd

    with pytest.raises(ZeroDivisionError) as caught:
        failing()
    found = origin_of(caught.value)
    assert (found.stage, found.pass_, found.node, found.op) == ("runtime", None, None, None)
    assert origin(torch.sin, torch.ones(2), backend=failing).stage == "dynamo"
    assert origin(torch.sin, torch.ones(2), backend=aot_autograd(fw_compiler=failing)).stage == "aot"


def test_an_exception_of_a_decomposition(monkeypatch: pytest.MonkeyPatch) -> None:
    original = decomposition.decompositions[ATEN.silu.default]
    code = compile("def silu(x):\n    raise ZeroDivisionError('planted')", original.__code__.co_filename, "exec")
    made: dict[str, Any] = {}
    exec(code, made)
    monkeypatch.setitem(decomposition.decompositions, ATEN.silu.default, made["silu"])
    decomposition.fast_random_decomps.cache_clear()
    try:
        assert origin(torch.nn.functional.silu, torch.ones(2)).stage == "decomposition"
    finally:
        decomposition.fast_random_decomps.cache_clear()


@pytest.mark.parametrize("stage", ["lowering", "codegen"])
def test_an_exception_of_an_op_names_it_with_its_line_and_module(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor's loops are graphs, too; what they call `sin` is a method and no op of the program."""
    if stage == "lowering":
        monkeypatch.setitem(lowering.lowerings, ATEN.sin.default, failing)
    for overrides in (cpp.CppOverrides, cpp.CppVecOverrides):
        monkeypatch.setattr(overrides, "sin", staticmethod(failing))
    found = origin(outer(), torch.ones(20))
    assert (found.stage, found.op, found.node, found.pass_) == (stage, "aten.sin.default", "sin", None)
    assert found.source == f"{__file__}:{Inner.forward.__code__.co_firstlineno + 1}"
    assert found.module == "inner"


PASSES = {
    "post_grad_custom_pre_pass": "post_grad",
    "joint_custom_pre_pass": "joint",
    "pre_grad_custom_pass": "pre_grad",
}


@pytest.mark.parametrize(("setting", "stage"), PASSES.items())
def test_an_exception_of_a_pass_names_it(setting: str, stage: str) -> None:
    with torch._inductor.config.patch({setting: at_the_sine(failing)}):
        found = origin(outer(), torch.ones(2))
    assert (found.stage, found.pass_) == (stage, setting)
    assert found.op in ("aten.sin.default", "torch.sin")


def test_a_frame_of_a_pass_names_the_pass_and_what_it_works_on() -> None:
    """Where it holds a node, that is: nodes that the functions around it hold are no part of it."""
    seen: list[Origin] = []

    def note(*_: Any) -> None:
        seen.append(origin_of_stack(sys._getframe()))

    passes = {"post_grad_custom_pre_pass": at_the_sine(note), "post_grad_custom_post_pass": note}
    with torch._inductor.config.patch(passes):
        torch.compile(outer(), backend="inductor")(torch.ones(2))
    assert [(found.stage, found.pass_) for found in seen] == [("post_grad", name) for name in passes]
    assert [(found.op, found.module) for found in seen] == [("aten.sin.default", "inner"), (None, None)]


def test_an_error_of_the_cpp_compiler_names_no_op() -> None:
    """What its callers still hold of loops that have ended was not being worked on."""
    with torch._inductor.config.patch({"cpp.inject_relu_bug_TESTING_ONLY": "compile_error"}):
        found = origin(lambda x: torch.relu(x).sum(), torch.ones(8, 8))
    assert (found.stage, found.op, found.node, found.source) == ("codegen", None, None, None)


def test_an_exception_while_a_pattern_is_replaced_names_what_it_matched() -> None:
    """Not the view that comes last: the ops that compute, and which pattern it was."""
    from torch._inductor.pattern_matcher import PatternMatcherPass, fwd_only, register_replacement

    def sine_of_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a * b).sin().transpose(0, 1)

    patterns, examples = PatternMatcherPass(), [torch.ones(2, 3), torch.ones(2, 3)]
    register_replacement(sine_of_product, torch.add, examples, fwd_only, patterns, extra_check=failing)
    with torch._inductor.config.patch(post_grad_custom_pre_pass=patterns.apply):
        found = origin(sine_of_product, *examples)
    assert (found.stage, found.pattern) == ("post_grad", "sine_of_product")
    assert (found.op, found.also) == ("aten.sin.default", ["aten.mul.Tensor"])
    assert found.source == f"{__file__}:{sine_of_product.__code__.co_firstlineno + 1}"


def test_an_index_of_a_tensor_is_named_and_not_what_made_the_tensor() -> None:
    graph = torch.fx.symbolic_trace(lambda x, i: torch.relu(x)[i])
    with pytest.raises(IndexError) as caught:
        torch.fx.Interpreter(graph).run(torch.ones(2), torch.tensor([7]))
    assert origin_of(caught.value).op == "operator.getitem"
