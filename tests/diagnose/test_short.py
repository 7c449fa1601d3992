"""A short repro says what the recorded graph and values say, in lines that a person would write."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from reduction.reduction_cases import captured
from safetensors.torch import load
from torch import nn

from graphprobe.diagnose.case import Case
from graphprobe.diagnose.check_case import reference_of
from graphprobe.diagnose.dossier import short, template
from graphprobe.diagnose.dossier.own_backend import OwnBackend
from graphprobe.diagnose.dossier.plain import Form, PlainFunction, PlainInputs
from graphprobe.diagnose.dossier.short import short_program, short_repros
from graphprobe.diagnose.dossier.template import MOST_LINES, Repro
from graphprobe.diagnose.dossier.writer import first_shown
from graphprobe.diagnose.program import Program
from graphprobe.diagnose.settings import Compilation
from graphprobe.engine.values import capture, same_bits
from graphprobe.findings import Finding, Kind, Worst
from graphprobe.probe.formats.literals import Unreproducible
from graphprobe.program_text.plain_values import constructor_text

RELU_BUG = {"cpp.inject_relu_bug_TESTING_ONLY": "accuracy"}


def graph_of(fn: Callable[..., Any], *args: Any) -> tuple[torch.fx.GraphModule, Any]:
    """The graph that Dynamo makes of `fn`, with what it is called with."""
    graph, (values,) = captured(fn, args)
    return graph, values


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
        "complex": torch.tensor([1 + 2j, 0.5]),
        "integers": torch.tensor([[-3, 250]], dtype=torch.int16),
        "no dimension": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
        "transposed": base.t(),
        "a slice": base[1:3, ::2],
        "expanded": torch.randn(3, 1).expand(3, 4),
        "channels last": torch.randn(2, 3, 2, 2).to(memory_format=torch.channels_last),
        "permuted": torch.randn(2, 3, 4).permute(1, 2, 0),
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


def test_views_gradients_and_lists() -> None:
    base = torch.randn(3, 4)
    (a, b), _ = made("inline", base, base[1:])
    a.fill_(7)
    assert bool((b == 7).all())
    leaf = torch.randn(3, requires_grad=True)
    (first, pair, n), inputs = made("inline", leaf, [leaf * 2, torch.ones(2)], 5)
    assert first.requires_grad and first.is_leaf and pair[0].requires_grad and not pair[0].is_leaf and n == 5
    assert inputs.wants == ["v0", "v1_0"]


def relu_in_a_branch(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda a: a.relu() * 2, lambda a: a.relu() - 1, (x,))


def relu_twice(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) * 2


def shorts(
    fn: Callable[..., Any],
    x: torch.Tensor,
    kind: Kind = "wrong_value",
    *,
    flaky: float = 1.0,
    own: str = "",
    **how: Any,
) -> list[Repro]:
    """The short repros of a function; `own`: the text of a backend of the program's, `how`: settings of Inductor."""
    gm, values = graph_of(fn, x)
    how |= {"backend": "eager", "own_backend": OwnBackend("backend", own)} if own else {}
    case = Case(gm, [values], kind, grad=x.requires_grad, **how)
    finding = Finding(kind=kind, stage="codegen", op="torch.relu", flaky_rate=flaky)
    parts = () if own else {"outputs", "gradients"}
    return list(short_repros(case, reference_of(case), finding, parts=parts, took_s=0.1))


FAULTS: list[tuple[Kind, str, int, str]] = [
    ("wrong_value", "accuracy", 8, "expected 0.0, actual"),
    ("wrong_gradient", "accuracy", 300, "expected"),
    ("crash_compile", "compile_error", 8, "error:"),
]


@pytest.mark.usefixtures("warm_proofs")
@pytest.mark.parametrize(("kind", "value", "size", "told"), FAULTS)
def test_it_shows_the_fault_alone_in_few_lines(kind: Kind, value: str, size: int, told: str) -> None:
    x = torch.linspace(-2, 2, size, requires_grad=kind == "wrong_gradient")
    found = shorts(relu_twice, x, kind, configs={"inductor": {"cpp.inject_relu_bug_TESTING_ONLY": value}})
    assert found and not found[0].files, "no file beside it"
    assert found[0].text.count("\n") <= MOST_LINES
    assert found[0].text.replace('backend="inductor"', 'backend="eager"') == found[0].control
    shown = first_shown(found[:1])
    assert shown is not None and told in shown.output
    if kind != "crash_compile":
        assert shown.output.count("\n") <= 6


def test_parameters_are_drawn_too_if_they_are_many() -> None:
    first, second = shorts(nn.Sequential(nn.Linear(3, 200), nn.ReLU()), torch.ones(1, 3))
    assert len(first.text) < 3000 and "torch.randn(200, 3)" in first.text and not first.files
    assert len(second.text) < 3000 and len(second.files["inputs.safetensors"]) >= 800 * 4


def test_inputs_that_cannot_be_drawn_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(case: Case) -> Any:
        raise RuntimeError("the graph does not take these values")

    monkeypatch.setattr(short, "reference_of", refuses)
    (only,) = shorts(relu_twice, torch.randn(100))
    assert list(load(only.files["inputs.safetensors"])) == ["x"] and "inputs.safetensors" in only.text


@pytest.mark.heavy
@pytest.mark.usefixtures("warm_proofs")
def test_a_fault_inside_of_a_branch() -> None:
    assert first_shown(shorts(relu_in_a_branch, torch.linspace(-2, 3, 8), configs={"inductor": RELU_BUG})) is not None


ENDS = {"segfault": "os.kill(os.getpid(), 11)", "hang": "time.sleep(1000)"}


@pytest.mark.usefixtures("warm_proofs")
@pytest.mark.parametrize("kind", ["segfault", pytest.param("hang", marks=pytest.mark.heavy)])
def test_a_program_that_does_not_live_to_its_end(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template, "HANG_LEAST_S", 12.0)
    backend = "def backend(gm, inputs):\n    import os, time\n    return lambda *args: (LINE, gm(*args))[1]"
    for line, is_shown in ((ENDS[kind], True), ("None", False)):
        found = shorts(relu_twice, torch.ones(3), kind, own=backend.replace("LINE", line))
        assert (first_shown(found) is not None) == is_shown


def test_a_backend_whose_names_are_those_of_the_script() -> None:
    own = "def f(gm):\n    return gm\n\ndef backend(gm, inputs):\n    return f(gm)"
    assert shorts(relu_twice, torch.ones(3), own=own) == []


@pytest.mark.usefixtures("warm_proofs")
def test_a_fault_that_does_not_always_show_is_tried_again() -> None:
    own = """
calls = []

def backend(gm, inputs):
    def run(*args):
        calls.append(1)
        return tuple(value + (len(calls) % 3 == 0) for value in gm(*args))
    return run
"""
    found = shorts(relu_twice, torch.ones(3), own=own, flaky=1 / 3)
    assert found and "for _ in range(18):" in found[0].text
    assert first_shown(found) is not None


def test_what_also_shows_without_compiling_is_no_proof() -> None:
    right, wrong = "raise SystemExit(0)\n", "raise SystemExit(1)\n"
    assert [first_shown([Repro(wrong, control)]) is not None for control in (wrong, right)] == [False, True]
    assert first_shown([Repro(right, right)]) is None


def program_of(log: list[int]) -> Callable[..., Any]:
    def program(x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            log.append(1)
        return x * scale

    program.log = log  # type: ignore[attr-defined]
    return program


counted: list[int] = []


def f(x: torch.Tensor) -> torch.Tensor:
    if not torch.compiler.is_compiling():
        counted.append(1)
    return x + 1


result: list[int] = []
options = {"by": 2.0}


def run(x: torch.Tensor) -> torch.Tensor:
    if not torch.compiler.is_compiling():
        result.append(len(os.sep))
    return x * options["by"]


def fn(x: torch.Tensor) -> torch.Tensor:
    return run(x) + 1


@pytest.mark.parametrize("brief", [False, True])
def test_a_gradient_that_does_not_come(brief: bool) -> None:
    text = template.check_text("wrong_gradient", "[torch.ones(2)]", "[None]", brief=brief)
    with pytest.raises(SystemExit, match=r"value 0: expected tensor\(\[1\., 1\.\]\), actual None"):
        exec(f"import sys, torch\n{text}", {})
    text = template.check_text("wrong_gradient", "[torch.ones(2)]", "[torch.ones(2)]", brief=brief)
    exec(f"import sys, torch\n{text}", {})


@pytest.mark.parametrize(
    "kind", ["wrong_value", "wrong_stride", "crash_compile", "missing_exception", "hang", "segfault"]
)
def test_a_check_has_few_lines(kind: str) -> None:
    text = template.check_text(kind, "run(f)", "run(g)", optional=True, limit_s=1)
    assert len(text.splitlines()) <= 15 and compile(text, "check", "exec")


@pytest.mark.parametrize("brief", [False, True])
def test_texts_among_values_are_compared(brief: bool) -> None:
    values = "['int 3', torch.ones(2)]"
    text = template.check_text("wrong_value", values, values, optional=True, brief=brief)
    exec(f"import sys, torch\n{text}", {})
    text = template.check_text("wrong_value", values, "['raises', torch.ones(2)]", optional=True, brief=brief)
    with pytest.raises(SystemExit, match="value 0: expected int 3, actual raises"):
        exec(f"import sys, torch\n{text}", {})


def left_out(x: torch.Tensor) -> Any:
    hidden = x.sin()
    loss = hidden.sum()
    torch._dynamo.graph_break()
    hidden.retain_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    return hidden.grad


def numbers() -> Any:
    yield 1.0


def generated(x: torch.Tensor) -> Any:
    return x + 1, numbers()


ONES: Any = ((torch.ones(3),), {})
LEAF: Any = ((torch.ones(3, requires_grad=True),), {})
LOST = "expected [1]\nactual   []"
GENERATOR = "expected [<generator object numbers>]\nactual   [<tuple_iterator object>]"
WHOLE: dict[str, tuple[Any, Kind, str, list[Any], str]] = {
    "loses a side effect": (program_of([]), "side_effect", "program.log", [(ONES[0], {"scale": 3.0})], LOST),
    "has a name that scripts use": (f, "side_effect", "counted", [ONES], LOST),
    "has each name that scripts use": (fn, "side_effect", "result", [ONES], LOST),
    "loses nothing": (relu_twice, "wrong_value", "outputs[0]", [ONES, ((torch.ones(4),), {})], ""),
    "leaves out the gradient of what is between": (left_out, "wrong_value", "outputs[0]", [LEAF], "actual None"),
    "returns another object": (generated, "wrong_value", "outputs[1]", [ONES], GENERATOR),
}


@pytest.mark.usefixtures("warm_proofs")
@pytest.mark.parametrize("name", WHOLE)
def test_a_program_that(name: str) -> None:
    fn, kind, where, calls, told = WHOLE[name]
    program = Program(fn, calls, grad=True if where == "outputs[1]" else None)
    worst = None if where == "outputs[1]" else Worst(label=where, expected=0.0, actual=0.0, off=0.0, of=3)
    finding = Finding(kind=kind, stage="dynamo", worst=worst)
    found = list(short_program(program, Compilation("aot_eager", None, Path()), finding, where))
    assert all(short.text.count("\n") <= MOST_LINES for short in found)
    shown = first_shown(found)
    assert told in shown.output if shown is not None else told == ""


MODULES: dict[str, Callable[[], nn.Module]] = {
    "Linear(3, 4, bias=False)": lambda: nn.Linear(3, 4, bias=False),
    "Sequential(Conv1d(1, 2, (3,), stride=(1,), padding=(1,), dilation=(1,)), BatchNorm1d(2), ReLU()).eval()": lambda: (
        nn.Sequential(nn.Conv1d(1, 2, 3, padding=1), nn.BatchNorm1d(2), nn.ReLU()).eval()
    ),
    "TransformerEncoder(TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True), 2)": lambda: (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    ),
    "MultiheadAttention(8, 2, bias=False, kdim=8, vdim=8)": lambda: nn.MultiheadAttention(8, 2, bias=False),
    "Embedding(5, 3, padding_idx=1)": lambda: nn.Embedding(5, 3, padding_idx=1),
    "none": lambda: nn.Linear(3, 4).requires_grad_(False),
    "none of another dtype": lambda: nn.Linear(3, 4).half(),
    "none of the program's": Held,
}


@pytest.mark.parametrize("text", MODULES)
def test_a_module_of_torch_by_the_call_that_makes_it(text: str) -> None:
    module = MODULES[text]()
    found = constructor_text(module, lambda kind: kind.__name__)
    assert found == (None if text.startswith("none") else text)
    made = eval(found, vars(nn).copy()) if found else module
    assert repr(made) == repr(module) and made.training == module.training


def test_a_large_module_is_made_anew() -> None:
    encoder = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.1)).eval()

    def program(x: torch.Tensor) -> torch.Tensor:
        return encoder(x) * encoder[0].in_features

    told = Program(program, [((torch.ones(2, 8),), {})])
    finding = Finding(kind="wrong_gradient", stage="dynamo")
    (only,) = short_program(told, Compilation("eager", None, Path()), finding, "outputs[0]")
    assert "torch.manual_seed(0)\n" in only.text and not only.files
    assert "torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Dropout(p=0.1)).eval()" in only.text


def test_the_memory_that_arguments_are_views_of_is_written_once() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.as_strided((4,), (1,), 2) + y

    memory = torch.arange(8.0)
    told = Program(program, [((memory[:4], memory[4:]), {})])
    finding = Finding(kind="crash_compile", stage="aot")
    *_, exact = short_program(told, Compilation("eager", None, Path()), finding, "")
    assert exact.text.count("_memory = torch.") == 1
    assert "    x = x_memory.as_strided((4,), (1,), 0)\n    y = x_memory.as_strided((4,), (1,), 4)\n" in exact.text


@pytest.mark.parametrize(("value", "bound"), [([1.0, torch.inf], 1.05e-6), ([torch.nan, torch.inf], 0.0)])
def test_only_finite_elements_may_be_off(monkeypatch: pytest.MonkeyPatch, value: list[float], bound: float) -> None:
    monkeypatch.setattr(short, "allowed", lambda _: [[torch.tensor([1e-6, 8e32])]])
    leaves = SimpleNamespace(outputs=[torch.tensor(value)], inputs=[], gradients=[])
    reference: Any = SimpleNamespace(eager=[[leaves]])
    assert short._bound(reference, 0, "outputs", 0) == pytest.approx(bound, rel=0.05)
