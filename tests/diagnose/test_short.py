"""A short repro says what the recorded graph and values say, in lines that a person would write."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from graphprobe.diagnose.case import Case
from graphprobe.diagnose.check_case import reference_of
from graphprobe.diagnose.dossier import short, short_check
from graphprobe.diagnose.dossier.own_backend import OwnBackend
from graphprobe.diagnose.dossier.plain_inputs import Form, PlainInputs
from graphprobe.diagnose.dossier.short import PlainFunction, Short, short_repros
from graphprobe.diagnose.dossier.short_check import MOST_LINES
from graphprobe.diagnose.dossier.short_program import ShortProgram, short_program
from graphprobe.diagnose.dossier.writer import first_shown
from graphprobe.engine.values import capture, same_bits
from graphprobe.findings import Finding, Kind
from graphprobe.probe.formats.literals import Unreproducible

RELU_BUG = {"cpp.inject_relu_bug_TESTING_ONLY": "accuracy"}


def graph_of(fn: Callable[..., Any], *args: Any) -> tuple[torch.fx.GraphModule, list[Any]]:
    """The graph that Dynamo makes of `fn`, with what it is called with."""
    found: list[Any] = []

    def keep(gm: torch.fx.GraphModule, inputs: object) -> Callable[..., Any]:
        def run(*values: Any) -> Any:
            found.extend([gm, capture(list(values))])
            return gm(*values)

        return run

    torch._dynamo.reset()
    torch.compile(fn, backend=keep, fullgraph=True)(*args)
    return found[0], found[1]


def in_place(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    y[1:, 0] = 2.0
    y += x
    y[..., None, ::2].mul_(3)
    return y


def branches(x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda a: (a.sin(), a - 1), lambda a: (a.cos(), -a), (x,))


def signs(x: torch.Tensor, n: int) -> tuple[torch.Tensor, ...]:
    return x**2 - -1, -x @ x, (x > 0) & (x < n), x // 0.3, torch.where(x >= 0, x, float("inf"))


class Held(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))
        self.register_buffer("count", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return torch.nn.functional.linear(x, self.weight).softmax(-1) + self.count[0]


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "in place": (in_place, (torch.randn(3, 4), torch.randn(3, 4))),
    "branches": (branches, (torch.randn(4),)),
    "signs": (signs, (torch.randn(4, 4), 2)),
    "a module": (Held(), (torch.randn(2, 3),)),
    "methods and dtypes": (lambda x: x.to(torch.bfloat16).view(2, -1).sum(0, keepdim=True), (torch.randn(4),)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_function_computes_what_the_graph_does(name: str) -> None:
    gm, captured = graph_of(*(FUNCTIONS[name][0], *FUNCTIONS[name][1]))
    plain = PlainFunction(gm)
    space: dict[str, Any] = {"torch": torch}
    exec("\n".join([*(f"import {module}" for module in plain.imports), *plain.functions]), space)
    held = [value.detach().clone() for value in plain.constants.values()]
    mine, theirs = captured.restore(), captured.restore()
    got, expected = space["f"](*mine, *held), gm(*theirs)
    listed = expected[0] if isinstance(expected, tuple) and len(expected) == 1 else expected
    assert same_bits(listed, got, stride=True) == []
    assert same_bits(theirs, mine) == [], "and changes its arguments as the graph does"
    assert same_bits([value.detach() for value in plain.constants.values()], held) == []


def test_a_function_of_the_program_is_refused() -> None:
    @torch.library.custom_op("graphprobe_short::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    gm, _ = graph_of(lambda x: twice(x), torch.ones(2))
    with pytest.raises(Unreproducible, match="registered by the program"):
        PlainFunction(gm)


def odd() -> dict[str, torch.Tensor]:
    base = torch.randn(4, 6)
    return {
        "float32": torch.tensor([0.1, -0.0, torch.nan, torch.inf, -torch.inf, 3e38, 1e-42]),
        "float64": torch.tensor([0.1, 1e300], dtype=torch.float64),
        "bfloat16": torch.randn(5).bfloat16(),
        "half": torch.randn(5).half(),
        "complex": torch.tensor([1 + 2j, 0.5]),
        "integers": torch.tensor([[-3, 250]], dtype=torch.int16),
        "booleans": torch.tensor([True, False]),
        "no dimension": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
        "transposed": base.t(),
        "a slice": base[1:3, ::2],
        "expanded": torch.randn(3, 1).expand(3, 4),
        "channels last": torch.randn(2, 3, 2, 2).to(memory_format=torch.channels_last),
        "permuted": torch.randn(2, 3, 4).permute(1, 2, 0),
        "one value": torch.full((40,), 0.25),
        "zeros": torch.zeros(9, dtype=torch.int64),
        "counted": torch.arange(24.0).view(4, 6),
    }


def made(form: Form, *values: Any) -> tuple[list[Any], PlainInputs]:
    inputs, names = PlainInputs(form), [f"v{i}" for i in range(len(values))]
    inputs.call(capture(list(values), rng=False), names)
    space: dict[str, Any] = {"torch": torch, "saved": inputs.tensors}
    exec("\n".join(inputs.lines), space)
    return [space[name] for name in names], inputs


@pytest.mark.parametrize("form", ["inline", "recorded"])
@pytest.mark.parametrize("name", odd())
def test_values_come_back_bit_for_bit(form: Form, name: str) -> None:
    value = odd()[name]
    (got,), _ = made(form, value)
    assert same_bits(value, got, stride=value.numel() > 1) == []


DTYPES = [torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64,
          torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn,
          torch.float8_e5m2, torch.complex64, torch.complex128]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_of_any_dtype(dtype: torch.dtype) -> None:
    """The same everywhere, a few, and many."""
    for values in ([1, 1, 1], [0, 0], [1, 0], [1], [0, 1] * 50):
        value = torch.tensor(values, dtype=torch.float64).to(dtype)
        for form in ("inline", "recorded"):
            (got,), _ = made(form, value)
            assert same_bits(value, got) == []
        (got,), _ = made("drawn", value)
        assert (got.dtype, got.shape) == (value.dtype, value.shape)


@pytest.mark.parametrize("name", odd())
def test_drawn_values_have_shape_strides_dtype_and_range(name: str) -> None:
    value = odd()[name].repeat(*[3] * odd()[name].ndim) if odd()[name].ndim else odd()[name]
    value = value.nan_to_num(0.0, 1.0, -1.0) if value.is_floating_point() else value
    (got,), _ = made("drawn", value)
    assert (got.dtype, got.shape) == (value.dtype, value.shape)
    assert got.stride() == value.stride() or value.numel() < 2
    if not (value.is_floating_point() or value.is_complex()) and value.dtype is not torch.bool and value.numel():
        assert value.min() <= got.min() and got.max() <= value.max()


def test_views_of_one_memory_share_it_again() -> None:
    base = torch.randn(3, 4)
    (a, b), _ = made("inline", base, base[1:])
    a.fill_(7)
    assert bool((b == 7).all())


def test_gradients_and_lists() -> None:
    leaf = torch.randn(3, requires_grad=True)
    (first, pair, n), inputs = made("inline", leaf, [leaf * 2, torch.ones(2)], 5)
    assert first.requires_grad and first.is_leaf and pair[0].requires_grad and not pair[0].is_leaf and n == 5
    assert inputs.wants == ["v0", "v1_0"]


def relu_in_a_branch(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda a: a.relu() * 2, lambda a: a.relu() - 1, (x,))


def relu_twice(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) * 2


def shorts(
    kind: Kind, *args: Any, config: dict[str, Any], fn: Callable[..., Any] = relu_twice
) -> tuple[Case, list[Short]]:
    gm, captured = graph_of(fn, *args)
    case = Case(gm, [captured], kind, inductor_config=config, grad=args[0].requires_grad)
    finding = Finding(kind=kind, stage="codegen", op="torch.relu")
    found = short_repros(case, reference_of(case), finding, parts={"outputs", "gradients"}, title="relu is wrong")
    return case, list(found)


@pytest.mark.parametrize(
    ("kind", "value", "size", "told"),
    [
        ("wrong_value", "accuracy", 8, "expected 0.0, actual"),
        ("wrong_gradient", "accuracy", 300, "expected"),
        ("crash_compile", "compile_error", 8, "error:"),
    ],
)
def test_it_shows_the_fault_alone_in_few_lines(kind: Kind, value: str, size: int, told: str) -> None:
    x = torch.linspace(-2, 2, size, requires_grad=kind == "wrong_gradient")
    _, found = shorts(kind, x, config={"cpp.inject_relu_bug_TESTING_ONLY": value})
    assert found and not found[0].tensors, "no file beside it"
    assert found[0].text.count("\n") <= MOST_LINES
    assert found[0].text.replace('backend="inductor"', 'backend="eager"') == found[0].control
    shown = first_shown(found[:1])
    assert shown is not None and told in shown.output
    if kind != "crash_compile":
        assert shown.output.count("\n") <= 6


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(3, 200)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.up(x))


def test_parameters_are_drawn_too_if_they_are_many() -> None:
    gm, captured = graph_of(Wide(), torch.ones(1, 3))
    case = Case(gm, [captured], "wrong_value")
    finding = Finding(kind="wrong_value", stage="codegen")
    first, second = short_repros(case, reference_of(case), finding, parts=(), title="relu is wrong")
    assert len(first.text) < 3000 and "torch.randn(200, 3)" in first.text and not first.tensors
    assert len(second.text) < 3000 and sum(value.numel() for value in second.tensors.values()) >= 800


def test_inputs_that_cannot_be_drawn_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(case: Case) -> Any:
        raise RuntimeError("the graph does not take these values")

    gm, captured = graph_of(relu_twice, torch.randn(100))
    case, finding = Case(gm, [captured], "wrong_value"), Finding(kind="wrong_value", stage="codegen")
    reference = reference_of(case)
    monkeypatch.setattr(short, "reference_of", refuses)
    (only,) = short_repros(case, reference, finding, parts=(), title="relu is wrong")
    assert list(only.tensors) == ["x"] and "inputs.safetensors" in only.text


@pytest.mark.heavy
def test_a_fault_inside_of_a_branch() -> None:
    _, found = shorts("wrong_value", torch.linspace(-2, 3, 8), config=RELU_BUG, fn=relu_in_a_branch)
    assert first_shown(found) is not None


@pytest.mark.parametrize("kind", ["segfault", pytest.param("hang", marks=pytest.mark.heavy)])
def test_a_program_that_does_not_live_to_its_end(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short_check, "HANG_LEAST_S", 12.0)
    backend = "def backend(gm, inputs):\n    import os, time\n    return lambda *args: (LINE, gm(*args))[1]"
    ends = "os.kill(os.getpid(), 11)" if kind == "segfault" else "time.sleep(1000)"
    gm, captured = graph_of(relu_twice, torch.ones(3))
    for line, is_shown in ((ends, True), ("None", False)):
        own = OwnBackend("backend", backend.replace("LINE", line))
        case = Case(gm, [captured], kind, backend="eager", own_backend=own)
        finding = Finding(kind=kind, stage="codegen")
        found = short_repros(case, reference_of(case), finding, parts=(), title="it ends", took_s=0.1)
        assert (first_shown(found) is not None) == is_shown


def test_a_backend_whose_names_are_those_of_the_script() -> None:
    gm, captured = graph_of(relu_twice, torch.ones(3))
    own = OwnBackend("backend", "def f(gm):\n    return gm\n\ndef backend(gm, inputs):\n    return f(gm)")
    case = Case(gm, [captured], "wrong_value", backend="eager", own_backend=own)
    finding = Finding(kind="wrong_value", stage="codegen")
    assert list(short_repros(case, reference_of(case), finding, parts=(), title="it ends")) == []


def test_a_fault_that_does_not_always_show_is_tried_again() -> None:
    backend = """
calls = []

def backend(gm, inputs):
    def run(*args):
        calls.append(1)
        return tuple(value + (len(calls) % 3 == 0) for value in gm(*args))
    return run
"""
    gm, captured = graph_of(relu_twice, torch.ones(3))
    case = Case(gm, [captured], "wrong_value", backend="eager", own_backend=OwnBackend("backend", backend))
    finding = Finding(kind="wrong_value", stage="codegen", flaky_rate=1 / 3)
    found = list(short_repros(case, reference_of(case), finding, parts=(), title="now and then"))
    assert found and "for _ in range(18):" in found[0].text
    assert first_shown(found) is not None


def test_without_the_fault_nothing_is_shown() -> None:
    _, found = shorts("wrong_value", torch.linspace(-2, 2, 8), config={})
    assert first_shown(found) is None


def test_what_also_shows_without_compiling_is_no_proof() -> None:
    assert first_shown([Short("raise SystemExit(1)\n", "raise SystemExit(1)\n")]) is None
    assert first_shown([Short("raise SystemExit(1)\n", "raise SystemExit(0)\n")]) is not None


def program_of(log: list[int]) -> Callable[..., Any]:
    def program(x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            log.append(1)
        return x * scale

    program.log = log  # type: ignore[attr-defined]
    return program


def told(fn: Any, kind: Kind, where: str, *calls: tuple[tuple[Any, ...], dict[str, Any]]) -> list[Short]:
    program = ShortProgram(fn, calls, None, None, {"backend": "'eager'"}, "", [], where, kind, "it differs")
    return list(short_program(program, "", "instance("))


@pytest.mark.parametrize("brief", [False, True])
def test_a_gradient_that_does_not_come(brief: bool) -> None:
    text = short_check.check_text("wrong_gradient", "[torch.ones(2)]", "[None]", brief=brief)
    with pytest.raises(SystemExit, match=r"value 0: expected tensor\(\[1\., 1\.\]\), actual None"):
        exec(f"import sys, torch\n{text}", {})
    text = short_check.check_text("wrong_gradient", "[torch.ones(2)]", "[torch.ones(2)]", brief=brief)
    exec(f"import sys, torch\n{text}", {})


def test_a_program_that_loses_a_side_effect() -> None:
    found = told(program_of([]), "side_effect", "program.log", ((torch.ones(3),), {"scale": 3.0}))
    assert [one.text.count("\n") <= MOST_LINES for one in found] == [True]
    shown = first_shown(found)
    assert shown is not None and "expected [1]\nactual   []" in shown.output


counted: list[int] = []


def f(x: torch.Tensor) -> torch.Tensor:
    if not torch.compiler.is_compiling():
        counted.append(1)
    return x + 1


@pytest.mark.heavy
def test_a_program_of_the_name_that_scripts_use() -> None:
    shown = first_shown(told(f, "side_effect", "counted", ((torch.ones(3),), {})))
    assert shown is not None and "expected [1]" in shown.output


def test_a_program_that_loses_nothing() -> None:
    found = told(relu_twice, "wrong_value", "outputs[0]", ((torch.ones(3),), {}), ((torch.ones(4),), {}))
    assert len(found) == 1 and first_shown(found) is None


@pytest.mark.parametrize(("value", "bound"), [([1.0, torch.inf], 1.05e-6), ([torch.nan, torch.inf], 0.0)])
def test_only_finite_elements_may_be_off(monkeypatch: pytest.MonkeyPatch, value: list[float], bound: float) -> None:
    monkeypatch.setattr(short, "allowed", lambda _: [[torch.tensor([1e-6, 8e32])]])
    leaves = SimpleNamespace(outputs=[torch.tensor(value)], inputs=[], gradients=[])
    reference: Any = SimpleNamespace(eager=[[leaves]])
    assert short._bound(reference, 0, "outputs", 0) == pytest.approx(bound, rel=0.05)
