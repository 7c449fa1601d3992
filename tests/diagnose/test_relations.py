"""Faults between values, or around the call, are named as what they are; the same done harmlessly is healthy."""

from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch.autograd import forward_ad
from torch.nn import Module

import graphprobe
from graphprobe.diagnose.dossier import whole_proof

X = torch.linspace(-1, 1, 6)


class Net(Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = torch.nn.Linear(6, 6)
        self.marks = [object(), object()]
        self.mark = self.marks[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.inner(x))


class Marked(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin() if self.mark is not self.marks[0] else x.cos()


class Left(Net):
    """Leaves autocast in a part that is compiled by itself."""

    def left(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return torch.mul(self.inner(x), 100)

    @torch._dynamo.disable(recursive=False)  # type: ignore[untyped-decorator, no-untyped-call]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.left(x)


class Kept(Left):
    """Stays in it."""

    def left(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.inner(x)).float()


def retained(x: torch.Tensor) -> Any:
    hidden = x.sin()
    loss = (hidden * hidden).sum()
    torch._dynamo.graph_break()
    hidden.retain_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    return hidden.grad


def hooked(x: torch.Tensor) -> Any:
    hidden = x.sin()
    loss = (hidden * hidden).sum()
    torch._dynamo.graph_break()
    hidden.register_hook(lambda g: g * 5)  # type: ignore[no-untyped-call]
    return loss


def asked(x: torch.Tensor) -> Any:
    hidden = x.sin()
    loss = (hidden * hidden).sum()
    torch._dynamo.graph_break()
    return torch.autograd.grad(loss, hidden, allow_unused=True)[0]


def asked_of_input(x: torch.Tensor) -> Any:
    hidden = x.sin()
    loss = (hidden * hidden).sum()
    torch._dynamo.graph_break()
    return torch.autograd.grad(loss, x)[0], hidden


def split_before(x: torch.Tensor) -> Any:
    hidden = x.sin()
    torch._dynamo.graph_break()
    loss = (hidden * hidden).sum()
    hidden.register_hook(lambda g: g * 5)  # type: ignore[no-untyped-call]
    return loss


def replaced(x: torch.Tensor, other: torch.Tensor) -> Any:
    old = x[:3]
    x.data = other * 2
    return old


def replaced_alone(x: torch.Tensor, other: torch.Tensor) -> Any:
    x.data = other * 2
    return x + 1


def numbers() -> Any:
    yield 1.0


def generated(x: torch.Tensor) -> Any:
    return x + 1, numbers()


def cubed(x: torch.Tensor) -> torch.Tensor:
    return x**3


def tangent(x: torch.Tensor, v: torch.Tensor) -> Any:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, v)  # type: ignore[no-untyped-call]
        torch._dynamo.graph_break()
        out = cubed(dual)
        torch._dynamo.graph_break()
        found: Any = forward_ad.unpack_dual(out).tangent  # type: ignore[no-untyped-call]
    return torch.zeros_like(x) if found is None else found


def primal(x: torch.Tensor, v: torch.Tensor) -> Any:
    with forward_ad.dual_level():
        forward_ad.make_dual(x, v)  # type: ignore[no-untyped-call]
        torch._dynamo.graph_break()
        return cubed(x)


def back(net: Net, i: int) -> None:
    net.inner.register_full_backward_hook(lambda module, given, got: (given[0] * 10,))  # type: ignore[index]


def forth(net: Net, i: int) -> None:
    net.inner.register_forward_hook(lambda module, given, got: got * 10)


def silent(net: Net, i: int) -> None:
    net.inner.register_full_backward_hook(lambda module, given, got: None)


def other_mark(net: Net, i: int) -> None:
    net.mark = net.marks[i % 2]


def needing() -> torch.Tensor:
    return X.clone().requires_grad_()


def diagnosed(fn: Any, out: Path, *args: torch.Tensor, between: Any = None, **how: Any) -> graphprobe.Diagnosis:
    calls: list[Any] = [(args, {})] * (1 if between is None else 2)
    return graphprobe.diagnose(fn, calls=calls, between=between, out=out, **{"backend": "aot_eager", **how})


FAULTS: dict[str, tuple[Any, dict[str, Any], str, str, str]] = {
    "retained": (retained, {}, "aot", "Tensor.retain_grad", "hidden.retain_grad()"),
    "hooked": (hooked, {}, "aot", "Tensor.register_hook", "hidden.register_hook("),
    "asked": (asked, {}, "aot", "torch.autograd.grad", "allow_unused=True"),
    "back": (Net(), {"between": back}, "dynamo", "register_full_backward_hook", "register_full_backward_hook"),
    "forth": (Net(), {"between": forth}, "dynamo", "register_forward_hook", "register_forward_hook"),
    "marked": (Marked(), {"between": other_mark}, "dynamo", "is", "self.mark is not"),
    "left": (Left(), {}, "aot", "torch._C._nn.linear", "self.inner(x), 100"),
    "generated": (generated, {}, "dynamo", "generator", "x + 1, numbers()"),
    "replaced": (replaced, {"other": True}, "aot", "torch.Tensor.set_", "x.data = other * 2"),
    "tangent": (tangent, {"other": True, "backend": "inductor"}, "runtime", "make_dual", "make_dual(x, v)"),
}
TOLD = {
    "retained": "hidden and loss are both outputs of one compiled function",
    "hooked": "hidden and loss are both outputs of one compiled function",
    "asked": "or return only loss from what is compiled",
    "back": "skip_nnmodule_hook_guards = False the program is right",
    "forth": "The hook of module inner was registered after the first call",
    "marked": "No guard looks at this",
    "left": 'backward_pass_autocast = "off" the program is right',
    "generated": "the generator that is returned is a tuple_iterator",
    "replaced": "gives x other memory",
    "tangent": "is dropped: kernels do not look at it",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_relation_is_named_with_its_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        whole_proof, "prove_by_program", lambda _, __, finding, where: replace(finding, proof="program")
    )
    fn, how, stage, op, text = FAULTS[name]
    other = [X + 1] if how.get("other") else []
    first = X.clone() if other else needing()
    how = {key: value for key, value in how.items() if key != "other"}
    found = diagnosed(fn, tmp_path, first, *other, **how).findings[0]
    assert found.stage == stage and found.op is not None and found.op.endswith(op)
    assert found.source is not None
    file, _, line = found.source.rpartition(":")
    assert file == __file__ and text in Path(file).read_text("utf-8").splitlines()[int(line) - 1]
    assert TOLD[name] in found.reason


@pytest.mark.slow
def test_the_proof_of_a_relation_is_the_program_and_short(tmp_path: Path) -> None:
    found = diagnosed(hooked, tmp_path, needing()).findings[0]
    assert found.proof == "program" and found.dossier is not None
    assert Path(found.dossier, "repro.py").read_text("utf-8").count("\n") < 50


HARMLESS: dict[str, tuple[Any, dict[str, Any], bool]] = {
    "asked of an input": (asked_of_input, {}, False),
    "broken between": (split_before, {}, False),
    "a hook that changes nothing": (Net(), {"between": silent}, False),
    "autocast that is not left": (Kept(), {}, False),
    "no view of what is replaced": (replaced_alone, {}, True),
    "no tangent of what is compiled": (primal, {"backend": "inductor"}, True),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HARMLESS)
def test_a_relation_that_does_no_harm_is_healthy(name: str, tmp_path: Path) -> None:
    fn, how, two = HARMLESS[name]
    found = diagnosed(fn, tmp_path, *([X.clone(), X + 1] if two else [needing()]), **how)
    assert found.verdict == "healthy" and not found.findings
