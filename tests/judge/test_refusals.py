"""What torch says when it does not compile a program, in its own words; what only looks alike is a fault."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from graphprobe.errors import Raised, raised_from
from graphprobe.judge.refusals import REFUSALS, refusal_of

X = torch.linspace(-1, 1, 4)


@torch.library.custom_op("graphprobe_refusals::no_fake", mutates_args=())
def no_fake(x: torch.Tensor) -> torch.Tensor:
    """An operator that does not say what its result looks like."""
    return x.clone()


@torch.library.custom_op("graphprobe_refusals::broken_fake", mutates_args=())
def broken_fake(x: torch.Tensor) -> torch.Tensor:
    """An operator that says it wrongly."""
    return x.clone()


@broken_fake.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    raise ValueError("this shape is not known")


def compiled(fn: Callable[..., Any], *, backend: Any = "eager", **settings: Any) -> Callable[[], Any]:
    return lambda: torch.compile(fn, backend=backend, **settings)(X)


def double_backward() -> None:
    x = X.clone().requires_grad_()
    total = torch.compile(lambda x: x.sin() * x, backend="aot_eager")(x).sum()
    (first,) = torch.autograd.grad(total, x, create_graph=True)
    first.sum().backward()


def graph_break(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    torch._dynamo.graph_break()
    return y * 2


def branching(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.sum() > 0 else x


def printing(x: torch.Tensor) -> torch.Tensor:
    print("x")
    return x + 1


def side_effect_in_cond(x: torch.Tensor) -> torch.Tensor:
    seen = []

    def positive(x: torch.Tensor) -> torch.Tensor:
        seen.append(1)
        return x + 1

    result: torch.Tensor = torch.cond(x.sum() > 0, positive, lambda x: x - 1, (x,))
    return result * len(seen)


def many_recompilations() -> None:
    with torch._dynamo.config.patch(recompile_limit=1):
        call = torch.compile(lambda x, n: x + n, backend="eager", dynamic=False, fullgraph=True)
        for n in range(4):
            call(X, n)


REFUSED: dict[str, tuple[Callable[[], Any], str, str]] = {
    "double backward": (double_backward, "support double backward", "the second derivative"),
    "no fake": (compiled(lambda x: no_fake(x) + 1), "no fake impl", "register_fake"),
    "no fake in AOTAutograd": (compiled(lambda x: no_fake(x), backend="aot_eager"), "no fake impl", "register_fake"),
    "a graph break": (compiled(graph_break, fullgraph=True), "graph_break", "fullgraph=True"),
    "a branch": (compiled(branching, fullgraph=True), "Data-dependent branching", "fullgraph=True"),
    "a call that is not traced": (compiled(printing, fullgraph=True), "builtin", "fullgraph=True"),
    "a side effect in cond": (compiled(side_effect_in_cond), "side effect", "no graph breaks"),
    "one recompilation too many": (many_recompilations, "fullgraph=True", "raise the limit"),
}


def raised_by(call: Callable[[], Any]) -> Raised:
    with pytest.raises(Exception) as raised:
        call()
    return raised_from(raised.value)


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_is_told_in_the_words_of_torch_with_the_remedy(case: str) -> None:
    call, words, remedy = REFUSED[case]
    told = refusal_of(raised_by(call))
    assert told.startswith("torch does not compile this: ")
    assert words in told and remedy in told
    assert "\n" not in told and len(told) < 600
    assert any(told.endswith(refusal.remedy) for refusal in REFUSALS)


def refusing_backend(gm: Any, inputs: Any) -> Any:
    raise ValueError("this backend knows no relu")


def wrong_kernel() -> None:
    with torch._inductor.config.patch({"cpp.inject_relu_bug_TESTING_ONLY": "compile_error"}):
        compiled(torch.relu, backend="inductor")()


def own_check(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("the second model does not support batches of 3")


NOT_REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "code that does not compile": (wrong_kernel, "InductorError"),
    "a program's own error": (compiled(own_check), "RuntimeError"),
    "an operator that raises": (compiled(lambda x: x.view(3)), "TorchRuntimeError"),
    "a fake that raises": (compiled(lambda x: broken_fake(x)), "TorchRuntimeError"),
    "another backend's error": (compiled(torch.relu, backend=refusing_backend), "BackendCompilerFailed"),
}


@pytest.mark.parametrize("case", NOT_REFUSED)
def test_what_is_no_refusal(case: str) -> None:
    call, name = NOT_REFUSED[case]
    raised = raised_by(call)
    assert raised.type.endswith(name)
    assert refusal_of(raised) is None


INDUCTOR, DYNAMO = "torch._inductor.exc.InductorError", "torch._dynamo.exc"
MESSAGES = [
    (INDUCTOR, "LoweringException: AssertionError: expected size 4==3, stride 1==1"),
    (INDUCTOR, "KeyError: 'relu_3'"),
    (f"{DYNAMO}.InternalTorchDynamoError", "IndexError: list index out of range"),
    (f"{DYNAMO}.BackendCompilerFailed", "backend='x' raised:\nNotImplementedError: no kernel"),
    ("AssertionError", "wrong number of dimensions3 for op: torch.ops.aten.mm"),
    ("RuntimeError", "a variable needed for gradient computation has been modified by an inplace operation"),
    ("RuntimeError", "Trying to backward through the graph a second time"),
    ("RuntimeError", "The operator does not support double precision; run it backward"),
    ("mine.Unsupportable", "no"),
    ("builtins.NotImplementedError", ""),
]


def test_messages_and_remedies() -> None:
    assert [message for message in MESSAGES if refusal_of(Raised(*message, "")) is not None] == []
    for refusal in REFUSALS:
        assert refusal.remedy[0].isupper() and refusal.remedy.endswith(".")
        assert refusal.types or refusal.text, "a refusal of everything"
