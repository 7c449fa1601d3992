"""Faults between values, or around the call, are named as what they are; the same done harmlessly is healthy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest
import torch
from msgspec.structs import replace
from torch.autograd import forward_ad
from torch.nn import Module

import graphprobe
from graphprobe.diagnose.dossier import whole_proof
from graphprobe.diagnose.program import Program
from graphprobe.diagnose.rungs import RungReport, Watch, aot_rung
from graphprobe.diagnose.searches import relations
from graphprobe.diagnose.settings import Compilation
from graphprobe.engine.forked_child import isolated
from graphprobe.judge import read

X = torch.linspace(-1, 1, 6)
COMPILATION = Compilation("aot_eager", None, Path())


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


class Drawing(Net):
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.add(self.inner(x), torch.rand(6, generator=self.generator))


class Left(Net):
    """Leaves autocast in a part that is compiled by itself."""

    def left(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return torch.mul(self.inner(x), 100)

    @torch._dynamo.disable(recursive=False)  # type: ignore[untyped-decorator, no-untyped-call]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.left(x)


class LeftTwice(Left):
    def left(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return torch.mul(x.view(2, 3) @ self.inner.weight[:3, :2], 1000).cos()


class LeftByGradient(Left):
    def left(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return torch.bmm(self.inner(x).view(1, 2, 3), self.inner.weight[:3, :3].expand(1, 3, 3)) / 3


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


def replaced_reversed(x: torch.Tensor, other: torch.Tensor) -> Any:
    old = x.view(2, 3).t()
    x.data = other.flip(0)
    return old


def replaced_of_another(x: torch.Tensor, other: torch.Tensor) -> Any:
    both = [x.detach(), other[1:]]
    other.data = x.exp()
    return both[1]


def viewed(x: torch.Tensor) -> Any:
    hidden = x.sin()
    with torch.no_grad():
        seen = hidden.view(2, 3)
    return seen, hidden


@torch.no_grad()
def rest_of(x: torch.Tensor) -> torch.Tensor:
    return x[1:]


def viewed_in_another(x: torch.Tensor) -> Any:
    return rest_of(x), x * 3


def viewed_apart(x: torch.Tensor) -> Any:
    hidden = x.sin()
    with torch.no_grad():
        seen = hidden.view(2, 3)
    return seen.detach(), hidden


def inferred(x: torch.Tensor) -> Any:
    given = x.detach()
    with torch.inference_mode():
        fixed = given * 2
    return fixed.is_inference(), x + 1


def inferred_later(x: torch.Tensor) -> Any:
    given = x.detach()
    with torch.inference_mode():
        fixed = given.exp()
    torch._dynamo.graph_break()
    fixed.add_(1)
    return fixed


def inferred_inside(x: torch.Tensor) -> Any:
    given = x.detach()
    with torch.inference_mode():
        fixed = given * 2
    return (x + fixed).cos()


def typed(x: torch.Tensor) -> Any:
    torch.set_default_dtype(torch.float64)
    ones = torch.full((6,), 0.1)
    torch.set_default_dtype(torch.float32)
    return x * ones


def typed_after_a_break(x: torch.Tensor) -> Any:
    torch.set_default_dtype(torch.float64)
    torch._dynamo.graph_break()
    counted = torch.arange(6) / 3
    torch.set_default_dtype(torch.float32)
    return counted


def typed_by_name(x: torch.Tensor) -> Any:
    torch.set_default_dtype(torch.float64)
    ones = torch.full((6,), 0.1, dtype=torch.float32)
    torch.set_default_dtype(torch.float32)
    return x * ones


def entered(x: torch.Tensor) -> Any:
    mode = torch.no_grad()
    mode.__enter__()
    torch._dynamo.graph_break()
    fixed = x * 3
    mode.__exit__(None, None, None)
    return fixed + x


def entered_by_with(x: torch.Tensor) -> Any:
    with torch.no_grad():
        fixed = x * 2
        torch._dynamo.graph_break()
        fixed = fixed * 3
    return fixed + x


def parts(x: torch.Tensor) -> Any:
    with torch.no_grad():
        yield x * 2
        yield x * 3


def taken_to_the_end(x: torch.Tensor) -> Any:
    first, second = parts(x)
    return first + second, x * 5


def hooked_by_mode(x: torch.Tensor) -> Any:
    hidden = x * 2
    hidden.register_hook(lambda g: g * (3 if torch.is_grad_enabled() else 5))  # type: ignore[no-untyped-call]
    return hidden.sin()


def hooked_alike(x: torch.Tensor) -> Any:
    hidden = x * 2
    hidden.register_hook(lambda g: g * (3 if torch.is_grad_enabled() else 3.0))  # type: ignore[no-untyped-call]
    return hidden.sin()


def modal(x: torch.Tensor) -> Any:
    """Follows grad mode, default dtype and default device."""
    factor = 2 if torch.is_grad_enabled() else 3
    made = torch.tensor(1.5), torch.arange(4) / 3, torch.linspace(0, 1, 3)
    return x * factor, *((t.dtype, t.device.type) for t in made), torch.is_inference_mode_enabled()


def replaced_alone(x: torch.Tensor, other: torch.Tensor) -> Any:
    x.data = other * 2
    return x + 1


def numbers() -> Any:
    yield 1.0


def generated(x: torch.Tensor) -> Any:
    return x + 1, numbers()


def cubed(x: torch.Tensor) -> torch.Tensor:
    return x**3


def bent(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * x).sum()


def moved(x: torch.Tensor, *, by: torch.Tensor) -> torch.Tensor:
    return x.exp() + by


def tangent(x: torch.Tensor, v: torch.Tensor) -> Any:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, v)  # type: ignore[no-untyped-call]
        torch._dynamo.graph_break()
        out = cubed(dual)
        torch._dynamo.graph_break()
        found: Any = forward_ad.unpack_dual(out).tangent  # type: ignore[no-untyped-call]
    return torch.zeros_like(x) if found is None else found


def tangent_of_a_sum(x: torch.Tensor, v: torch.Tensor) -> Any:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x * 2, v)  # type: ignore[no-untyped-call]
        torch._dynamo.graph_break()
        out = bent(dual)
        torch._dynamo.graph_break()
        found: Any = forward_ad.unpack_dual(out).tangent  # type: ignore[no-untyped-call]
    return 0.0 if found is None else found


def tangent_of_one(x: torch.Tensor, v: torch.Tensor) -> Any:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, v)  # type: ignore[no-untyped-call]
        torch._dynamo.graph_break()
        out = moved(x, by=dual)
        torch._dynamo.graph_break()
        found: Any = forward_ad.unpack_dual(out)[1]  # type: ignore[no-untyped-call]
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


def before_forth(net: Net, i: int) -> None:
    net.inner.register_forward_pre_hook(lambda module, given: (given[0] * 10,))


def before_back(net: Net, i: int) -> None:
    net.inner.register_full_backward_pre_hook(lambda module, got: (got[0] * 10,))  # type: ignore[index]


def without_gradients(net: Any, i: int) -> None:
    torch.set_grad_enabled(False)


def in_doubles(net: Any, i: int) -> None:
    torch.set_default_dtype(torch.float64)


def elsewhere(net: Any, i: int) -> None:
    torch.set_default_device("meta")


def drawn_anew(net: Drawing, i: int) -> None:
    net.generator = torch.Generator().manual_seed(8)


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
    "viewed": (viewed, {}, "aot", "torch.Tensor.view", "seen = hidden.view"),
    "inferred": (inferred, {}, "aot", "operator.mul", "fixed = given * 2"),
    "entered": (entered, {}, "dynamo", "torch.no_grad", "mode = torch.no_grad()"),
    "hooked by mode": (hooked_by_mode, {"grad": True}, "dynamo", "torch.is_grad_enabled", "hidden.register_hook("),
    "typed": (typed, {}, "aot", "torch.set_default_dtype", "set_default_dtype(torch.float64)"),
    "generated": (generated, {}, "dynamo", "generator", "x + 1, numbers()"),
    "replaced": (replaced, {"other": True}, "aot", "torch.Tensor.set_", "x.data = other * 2"),
    "tangent": (tangent, {"other": True, "backend": "inductor"}, "runtime", "make_dual", "make_dual(x, v)"),
}
TITLES = {
    "retained": "no gradient goes from loss to hidden",
    "hooked": "no gradient goes from loss to hidden",
    "asked": "no gradient goes from loss to hidden",
    "marked": "no guard looks at `is`: code of an earlier call is taken again",
    "left": "the backward of torch._C._nn.linear runs under the autocast that is on around the call",
    "generated": "the generator that is returned is a tuple_iterator",
    "replaced": "what was taken from x before its data is assigned does not keep its memory",
    "viewed": "seen has a gradient, though it is a view that is made under no_grad",
    "inferred": "fixed is no inference tensor, though it is made under inference_mode",
    "hooked by mode": "a hook reads the grad mode of the forward",
    "typed": "the default dtype does not change to torch.float64",
    "tangent": "the forward-mode tangent of an argument is dropped",
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
    "replaced": "other memory (set_)",
    "viewed": ".detach() the program is right",
    "inferred": "Enter inference_mode() around the call",
    "entered": "the program is right if this alone is not compiled",
    "hooked by mode": "Read the mode outside of the hook",
    "typed": "name the dtype where tensors are made",
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
    assert name == "entered" or (found.relation and found.relation == TITLES.get(name, found.relation))


SIBLINGS: dict[str, tuple[Any, Any, bool, str, str]] = {
    "replaced reversed": (replaced_reversed, None, True, "torch.Tensor.set_", "x.data = other.flip"),
    "replaced of another": (replaced_of_another, None, True, "torch.Tensor.set_", "other.data = x"),
    "viewed in another": (viewed_in_another, None, False, "operator.getitem", "return x[1:]"),
    "inferred later": (inferred_later, None, False, "torch.Tensor.exp", "fixed = given.exp()"),
    "typed after a break": (typed_after_a_break, None, False, "torch.set_default_dtype", "dtype(torch.float64)"),
    "before forth": (Net, before_forth, False, "register_forward_pre_hook", "net.inner.register_forward_pre_hook"),
    "before back": (Net, before_back, False, "register_full_backward_pre_hook", "register_full_backward_pre_hook"),
    "left twice": (LeftTwice, None, False, "operator.matmul", "@ self.inner.weight"),
    "left by gradient": (LeftByGradient, None, False, "torch.bmm", "self.inner(x).view(1, 2, 3)"),
    "tangent of a sum": (tangent_of_a_sum, None, True, "torch.autograd.forward_ad.make_dual", "x * 2, v"),
    "tangent of one": (tangent_of_one, None, True, "torch.autograd.forward_ad.make_dual", "make_dual(x, v)"),
}


def tried(name: str, program: Callable[[], Program]) -> tuple[relations.Relation | None, RungReport]:
    """The first relation that there may be in a program, and the run that it should mend."""
    kind = name.partition(" ")[0]
    if kind == "before":
        switched = relations._dynamo(program(), COMPILATION, skip_nnmodule_hook_guards=False)
        return relations._later_hooks(program(), 1)[0], switched
    if way := {"left": relations._backward_apart, "tangent": relations._with_tangents}.get(kind):
        report = way(program(), COMPILATION)
        return report.relation, report
    inside = isolated(lambda: relations._inside(program(), COMPILATION)).value
    relation = msgspec.convert(inside, list[relations.Relation])[0]
    return relation, relations._in_parts(program(), COMPILATION, relation)


def values_of(calls: list[Any]) -> list[Any]:
    found = [read(call) for call in calls]
    return [[c.raised.message if c.raised else None, [*map(repr, (*c.outputs, *c.gradients))]] for c in found]


@pytest.mark.slow
@pytest.mark.parametrize("name", SIBLINGS)
def test_a_sibling_has_the_same_relation_and_is_mended(name: str) -> None:
    make, between, two, op, text = SIBLINGS[name]
    backend = "inductor" if "tangent" in name else "aot_eager"

    def program() -> Program:
        fn = make() if isinstance(make, type) else make
        args = (X.clone(), X + 1) if two else (needing(),)
        return Program(fn, [(args, {})] * (1 if between is None else 2), between, grad=None if two else True)

    def mended() -> list[Any]:
        relation, report = tried(name, program)
        assert relation is not None and relation.source is not None
        return [values_of(report.calls), relation.op, relation.source]

    right = isolated(lambda: values_of(program().run(lambda fn: fn))).value
    wrong = isolated(lambda: values_of(program().run(lambda fn: torch.compile(fn, backend=backend)))).value
    outcome = isolated(mended)
    assert outcome.raised is None, outcome.raised.trace
    found, named, source = outcome.value
    assert right != wrong and found == right
    file, _, line = source.rpartition(":")
    assert (named, file) == (op, __file__) and text in Path(file).read_text("utf-8").splitlines()[int(line) - 1]


@pytest.mark.slow
def test_the_parts_that_mend_a_program_are_compiled() -> None:
    def compiled() -> int:
        watches: list[Watch] = []
        whole = aot_rung

        def watched(watch: Watch) -> Any:
            watches.append(watch)
            return whole(watch)

        with mock.patch.object(relations, "aot_rung", watched):
            program = Program(retained, [((needing(),), {})])
            relations._in_parts(program, COMPILATION, relations._inside(program, COMPILATION)[0])
        return len(watches[-1].dynamo)

    assert isolated(compiled).value == 2


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
    "a view that is detached": (viewed_apart, {}, False),
    "inference mode of what is only read": (inferred_inside, {}, False),
    "no_grad by with": (entered_by_with, {}, False),
    "a generator that comes to its end": (taken_to_the_end, {}, False),
    "a hook that does the same in each mode": (hooked_alike, {"grad": True}, False),
    "a dtype that is named": (typed_by_name, {}, False),
    "grad mode changed between calls": (modal, {"between": without_gradients}, False),
    "default dtype changed between calls": (modal, {"between": in_doubles}, False),
    "default device changed between calls": (modal, {"between": elsewhere}, False),
    "a generator of its own": (Drawing(), {"between": drawn_anew}, False),
    "no view of what is replaced": (replaced_alone, {}, True),
    "no tangent of what is compiled": (primal, {"backend": "inductor"}, True),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HARMLESS)
def test_a_relation_that_does_no_harm_is_healthy(name: str, tmp_path: Path) -> None:
    fn, how, two = HARMLESS[name]
    found = diagnosed(fn, tmp_path, *([X.clone(), X + 1] if two else [needing()]), **how)
    assert found.verdict == "healthy" and not found.findings
