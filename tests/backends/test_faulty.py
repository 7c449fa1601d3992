"""Planted faults hit exactly the call asked for, and nothing where it is not; what `faulty` matches and refuses."""

import signal
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._functorch.config as functorch_config

from backends.programs_debug import run, same
from conftest import Finished
from graphprobe import backends
from graphprobe.backends.faulty import FAULT_KINDS, Faulty, PlantedFault, faulty
from graphprobe.errors import GraphprobeWarning, UsageError

X = torch.linspace(-1, 1, 12).view(3, 4)


def three_sines(x: torch.Tensor) -> torch.Tensor:
    first = torch.sin(x)
    second = torch.sin(first * 2)
    third = torch.sin(second * 3)
    return first + 10 * second + 100 * third + 0 * x


def without_sines(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).tanh() + x


def compiled_run(backend: Any, fn: Callable[..., Any] = three_sines) -> list[Any]:
    torch.compiler.reset()
    return run(torch.compile(fn, backend=backend), (X.clone().requires_grad_(),))


def planted(kind: str, where: str, nth: int, inner: Any = "aot_eager") -> Faulty:
    op = "aten.sin" if where == "forward" else "aten.cos"
    if inner == "eager":
        op = "sin"
    return faulty(op=op, kind=kind, where=where, nth=nth, inner=inner)


@pytest.mark.parametrize("nth", [0, 2])
@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("kind", ["accuracy", "nan"])
@pytest.mark.parametrize("inner", ["eager", "aot_eager", "aot_eager_decomp_partition"])
def test_values_are_spoiled_at_that_call_only(inner: str, kind: str, where: str, nth: int) -> None:
    healthy = run(three_sines, (X.clone().requires_grad_(),))
    backend = planted(kind, where, nth, inner)
    output, x, gradient = compiled_run(backend)
    assert [(hit.kind, hit.direction, hit.call) for hit in backend.hits] == [(kind, where, nth)]
    assert "test_faulty.py" in str(backend.hits[0].where)
    assert torch.equal(x, healthy[1])
    if where == "backward":
        assert torch.equal(output, healthy[0])
        assert not torch.equal(gradient, healthy[2])
        assert bool(gradient.isnan().any()) == (kind == "nan")
    elif kind == "nan":
        assert output.isnan().nonzero().tolist() == [[0, 0]]
    else:
        sines = [torch.sin(X), None, None]
        sines[0] = torch.sin(X) + (nth == 0)
        sines[1] = torch.sin(sines[0] * 2)
        sines[2] = torch.sin(sines[1] * 3) + (nth == 2)
        assert torch.equal(output, sines[0] + 10 * sines[1] + 100 * sines[2] + 0 * X)


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("kind", ["compile", "runtime"])
def test_errors_name_what_was_hit(kind: str, where: str) -> None:
    backend = planted(kind, where, 1)
    with pytest.raises(Exception, match=f"planted {kind} fault: aten.*, call 1, node .*, {where}, .*faulty") as caught:
        compiled_run(backend)
    assert isinstance(getattr(caught.value, "inner_exception", caught.value), PlantedFault)
    assert len(backend.hits) == 1


@pytest.mark.parametrize("kind", ["dtype", "stride"])
def test_dtype_and_stride_have_the_right_values_in_the_wrong_form(kind: str) -> None:
    output = torch.compile(torch.sin, backend=faulty(op="sin", kind=kind))(X)
    assert torch.equal(output.to(X.dtype), torch.sin(X))
    assert (output.dtype == X.dtype) == (kind == "stride")
    assert (output.stride() == X.stride()) == (kind == "dtype")

    torch.compiler.reset()
    seen: list[torch.Tensor] = []
    x = X.clone().requires_grad_()
    backend = faulty(op="aten.mul.Tensor", kind=kind, where="backward")
    y = torch.compile(torch.sin, backend=backend)(x)
    x.register_hook(seen.append)
    y.sum().backward()
    assert len(backend.hits) == 1
    assert torch.equal(seen[0].to(X.dtype), torch.cos(X))
    assert kind == "dtype" or seen[0].stride() != X.stride()


def test_alias_overwrites_the_operand() -> None:
    x = X.clone()
    with functorch_config.patch(error_on_custom_op_aliasing=False):  # torch turns it on where CI is set
        output = torch.compile(lambda x: torch.sin(x), backend=faulty(op="sin", kind="alias"))(x)
    assert torch.equal(output, torch.sin(X))
    assert torch.equal(x, output) and x.data_ptr() == output.data_ptr()

    torch.compiler.reset()
    backend = faulty(op="aten.mul.Tensor", kind="alias", where="backward")
    x = X.clone().requires_grad_()
    gradient = torch.full_like(X, 3.0)
    torch.compile(torch.sin, backend=backend)(x).backward(gradient)
    assert torch.equal(gradient, 3 * torch.cos(X)) and len(backend.hits) == 1


@pytest.mark.parametrize("inner", ["eager", "aot_eager", "aot_eager_decomp_partition", backends.get("aot_eager")])
@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_silent_control(kind: str, where: str, inner: Any) -> None:
    try:
        backend = faulty(op="sin", kind=kind, where=where, inner=inner)
    except UsageError:
        assert where == "backward" and kind in ("compile", "dtype", "alias") and inner not in ("aot_eager",)
        return
    assert same(run(without_sines, (X.clone().requires_grad_(),)), compiled_run(backend, without_sines), exact=False)
    beyond = planted(kind, where, 3, inner)
    assert same(run(three_sines, (X.clone().requires_grad_(),)), compiled_run(beyond))
    assert backend.hits == beyond.hits == []


@pytest.mark.parametrize(("kind", "where"), [("accuracy", "forward"), ("accuracy", "backward"), ("runtime", "forward")])
def test_inductor(kind: str, where: str) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x).relu()

    backend = faulty(op="aten.relu" if where == "forward" else "aten.cos", kind=kind, where=where, inner="inductor")
    healthy = run(fn, (X.clone().requires_grad_(),))
    if kind == "runtime":
        with pytest.raises(PlantedFault, match=r"aten\.relu\.default"):
            compiled_run(backend, fn)
        return
    output, _, gradient = compiled_run(backend, fn)
    assert torch.allclose(output, healthy[0] + (where == "forward"))
    assert where == "forward" or not torch.allclose(gradient, healthy[2])
    assert len(backend.hits) == 1
    assert same(healthy, compiled_run("inductor", fn), exact=False), "the fault stayed in a cache of torch"


@pytest.mark.parametrize(("kind", "code"), [("segfault", -signal.SIGSEGV), ("hang", 7)])
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_process_ends_or_hangs(kind: str, code: int, where: str, run_warm: Callable[..., Finished]) -> None:
    op = "aten.sin" if where == "forward" else "aten.cos"
    script = f"""
import os, sys, threading, time, traceback, torch
from graphprobe import backends

def watch():
    while True:
        time.sleep(0.2)
        stacks = [traceback.extract_stack(frame) for frame in sys._current_frames().values()]
        if any(frame.name == "_fault" for stack in stacks for frame in stack):
            os._exit(7)

if {kind == "hang"}:
    threading.Thread(target=watch, daemon=True).start()
x = torch.ones(2, requires_grad=True)
torch.compile(torch.sin, backend=backends.get("faulty", op={op!r}, kind={kind!r}, where={where!r}))(x).sum().backward()
print("came through")
os._exit(0)
"""
    done = run_warm("-c", script, timeout_s=60)
    assert "came through" not in done.out
    assert done.code == code, done.err


def two_sines(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(torch.sin(x) * 2)


def test_callers_graph_is_not_edited() -> None:
    codes: list[tuple[str, str]] = []

    def watching(gm: Any, inputs: Any) -> Any:
        before = gm.code
        compiled = faulty(op="sin", kind="accuracy", nth=None, inner="eager")(gm, inputs)
        codes.append((before, gm.code))
        return compiled

    assert not torch.equal(torch.compile(two_sines, backend=watching)(X), two_sines(X))
    assert codes[0][0] == codes[0][1]


def test_names_in_dynamos_and_in_aotautograds_graph() -> None:
    for name in ("relu", "torch.relu", "F.relu", "*.relu", "rel?"):
        backend = faulty(op=name, inner="eager", nth=None)
        torch.compile(lambda x: torch.relu(x), backend=backend)(X)
        assert len(backend.hits) == (name != "F.relu")
    for name in ("relu", "relu.default", "aten.relu", "aten.relu.default", "aten::relu", "aten.*"):
        backend = faulty(op=name)
        torch.compile(lambda x: torch.nn.functional.relu(x), backend=backend)(X)
        assert [hit.op for hit in backend.hits] == ["aten.relu.default"]


def test_what_is_not_planted_is_told() -> None:
    def two(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.relu(x) + 1)

    for fn, backend, told in (
        (
            two,
            faulty(op="relux", inner="eager"),
            "no call of 'relux', so nothing is planted in it; did you mean 'relu'",
        ),
        (two, faulty(op="relu", nth=5, inner="eager"), "no call 5 of 'relu', so nothing is planted in it; it has 2"),
        (torch.sin, "graphprobe:relu_accuracy_error_TESTING_ONLY", "no call of 'relu'"),
    ):
        with pytest.warns(GraphprobeWarning, match=told):
            torch.compile(fn, backend=backend)(X)
        torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error", GraphprobeWarning)
        torch.compile(two, backend=faulty(op="relu", nth=1, inner="eager"))(X)


def test_methods_tuples_branches_and_custom_ops() -> None:
    method = faulty(op="relu", inner="eager")
    torch.compile(lambda x: x.relu(), backend=method)(X)
    assert [hit.op for hit in method.hits] == ["Tensor.relu"]
    several = faulty(op="aten.topk")
    values, where = torch.compile(lambda x: torch.topk(x, 2), backend=several)(X)
    assert torch.equal(values, torch.topk(X, 2).values + 1) and torch.equal(where, torch.topk(X, 2).indices)
    branch = faulty(op="aten.sin")
    fn = torch.compile(lambda x: torch.cond(x.sum() > 5, torch.sin, torch.cos, (x,)), backend=branch)
    ten = torch.full((2,), 10.0)
    assert torch.equal(fn(ten), torch.sin(ten) + 1) and len(branch.hits) == 1


def test_options_reach_the_backend_through_torch_compile() -> None:
    function = backends.describe("faulty").function
    out = torch.compile(torch.sin, backend=function, options={"op": "sin", "amount": 2.0, "inner": "eager"})(X)
    assert torch.equal(out, torch.sin(X) + 2)


def test_wrong_options() -> None:
    for options, message in (
        ({"op": "sin", "kind": "rot"}, "there are compile"),
        ({"op": "sin", "where": "up"}, "'forward' or 'backward'"),
        ({"op": "sin", "nth": -1}, "a number from 0"),
        ({"op": "sin", "nth": True}, "a number from 0"),
        ({"op": "sin", "inner": "nobody"}, "no backend named"),
        ({"op": "sin", "inner": "eager", "where": "backward", "kind": "dtype"}, "needs the backward graph"),
        ({"kind": "nan"}, "op"),
        ({"op": "sin", "nht": 1}, "nht"),
    ):
        with pytest.raises(UsageError, match=message):
            faulty(**options)


def test_fault_that_cannot_be() -> None:
    for fn, op, kind, message in (
        (lambda x: x > 0, "aten.gt", "nan", "has no NaN"),
        (lambda x: x > 0, "aten.gt", "dtype", "no dtype"),
        (lambda x: x.sum(), "aten.sum", "alias", "an alias needs an operand"),
    ):
        torch.compiler.reset()
        with pytest.raises(Exception, match=message):
            torch.compile(fn, backend=faulty(op=op, kind=kind))(X)


def test_crossref_catches_a_planted_lie() -> None:
    backend = faulty(op="sin", kind="dtype", inner="aot_eager_decomp_partition_crossref")
    with pytest.raises(Exception, match=r"graphprobe\.fault.*mismatched tensor metadata"):
        torch.compile(torch.sin, backend=backend)(X)


def test_the_sources_four() -> None:
    module = torch.nn.ReLU()
    fns: list[Callable[..., Any]] = [lambda x: torch.relu(x) * 2, lambda x: x.relu() * 2, lambda x: module(x) * 2]
    for fn in fns:
        torch.compiler.reset()
        wrong = torch.compile(fn, backend=backends.get("relu_accuracy_error_TESTING_ONLY"))(X)
        assert torch.equal(wrong, fn(X) + 2)
        with pytest.raises(PlantedFault):
            torch.compile(fn, backend=backends.get("relu_runtime_error_TESTING_ONLY"))(X)
        with pytest.raises(Exception, match="ReluCompileError"):
            torch.compile(fn, backend=backends.get("relu_compile_error_TESTING_ONLY"))(X)
    for name in ("relu_accuracy_error", "relu_runtime_error", "relu_compile_error", "non_leaf_compile_error"):
        torch.compiler.reset()
        fine = torch.compile(without_sines, backend=backends.get(f"{name}_TESTING_ONLY"))
        assert torch.equal(fine(X), without_sines(X))
    torch.compiler.reset()
    non_leaf = torch.compile(without_sines, backend=backends.get("non_leaf_compile_error_TESTING_ONLY"))
    with pytest.raises(Exception, match="TestingOnlyCompileError"):
        non_leaf(X.clone().requires_grad_() * 1)
