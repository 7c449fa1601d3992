"""Programs that run a backward themselves, that no backward can follow, whose results have one each, or that step."""

from typing import Any

import pytest
import torch

from graphprobe.diagnose.program import Program
from graphprobe.judge import read

SCRIPT = """\
import sys
import torch

form, wrong = sys.argv[1], sys.argv[2] == "wrong"
torch.manual_seed(0)
first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)

def backend(graph, inputs):
    def run(*args):
        found = graph(*args)
        return [value * 2 if wrong and value.requires_grad else value for value in found]
    return run

class Refuses(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x + 1

    @staticmethod
    def backward(ctx, grad):
        raise NotImplementedError("it has none")

@torch.compiler.disable
def refuses(x):
    return Refuses.apply(x)

@torch.compile(backend=("aot_eager" if wrong else "eager") if form == "apart" else backend)
def step(x):
    hidden = first(x)
    if form == "apart":
        return second(hidden.detach()).tanh().mean(), second(hidden).tanh().mean()
    loss = refuses(hidden).mean() if form == "refused" else second(hidden).tanh().mean()
    if form == "own":
        loss.backward()
    return loss

result = step(torch.randn(8, 4))
for loss in result if form == "apart" else ():
    loss.backward()
print("ended")
"""

NOTES = {
    "own": "the function runs a backward itself",
    "refused": "raises uncompiled, too (NotImplementedError",
}


@pytest.mark.slow
@pytest.mark.parametrize("form", ["own", "refused", "apart"])
def test_it_is_wrong_where_a_backward_is_its_own(form: str, diagnosed: Any) -> None:
    done, document = diagnosed("train.py", form, "right", text=SCRIPT, code=0)
    assert "ended" in done.out
    assert [one["verdict"] for one in document["diagnoses"]] == ["healthy"]
    notes = " ".join(document["diagnoses"][0]["notes"])
    assert NOTES.get(form, "") in notes
    done, document = diagnosed("train.py", form, "wrong", text=SCRIPT, code=1)
    finding = document["diagnoses"][-1]["findings"][0]
    assert finding["proof"] is not None
    if form == "apart":
        assert (finding["kind"], finding["stage"]) == ("crash_runtime", "aot")
        assert "a backward of its own" in finding["reason"]
    else:
        assert finding["kind"] in ("wrong_value", "wrong_gradient")


def test_where_backwards_begin() -> None:
    w = torch.ones(2, requires_grad=True)

    def call(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return w * x, w * 2, x

    counts = {
        grad: [len(start) for start in Program(call, [], grad=grad).starts(call(w.detach()))]
        for grad in (True, "apart", "own", None)
    }
    assert counts == {True: [2], "apart": [1, 1], "own": [], None: []}


def test_gradients_of_its_own_are_observed() -> None:
    w = torch.nn.Parameter(torch.ones(2))

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = (w * x).square().sum()
        torch.autograd.backward(loss)
        return loss

    module = torch.nn.Module()
    module.w, module.forward = w, step
    x = torch.tensor([1.0, 2.0])
    (own,) = [read(record) for record in Program(module, [((x,), {})], grad="own").run(lambda fn: fn)]
    (more,) = [read(record) for record in Program(module, [((x,), {})], grad=True).run(lambda fn: fn)]
    assert [v.tolist() for v in own.gradients if v is not None] == [[2.0, 8.0]]
    assert more.raised is not None and "a second time" in more.raised.message


OPTIMIZERS = """\
import sys
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

form, wrong = sys.argv[1], sys.argv[2] == "wrong"
torch.manual_seed(0)
net = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)

def compiler(graph, inputs):
    def run(*args):
        found = graph(*args)
        return [value * 1.5 if wrong and torch.is_tensor(value) and value.dim() == 2 else value for value in found]
    return make_boxed_func(run)

def clipped():
    torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    optimizer.step()

@torch.no_grad()
def given(parameters):
    for parameter in parameters:
        parameter.add_(parameter.grad, alpha=-0.1)

made = {"step": optimizer.step, "clipped": clipped, "given": given}[form]
step = torch.compile(made, backend=aot_autograd(fw_compiler=compiler))
for _ in range(2):
    optimizer.zero_grad()
    net(torch.randn(8, 4)).square().mean().backward()
    step(*[list(net.parameters())] * (form == "given"))
print("ended")
"""


@pytest.mark.slow
@pytest.mark.parametrize("form", ["step", "clipped", "given"])
def test_a_compiled_step_of_an_optimizer(form: str, diagnosed: Any) -> None:
    done, document = diagnosed("train.py", form, "right", text=OPTIMIZERS, code=0)
    assert "ended" in done.out
    assert [one["verdict"] for one in document["diagnoses"]] == ["healthy"]
    assert document["calls"][0]["looked_at"] == [1, 2]
    done, document = diagnosed("train.py", form, "wrong", text=OPTIMIZERS, code=1)
    finding = document["diagnoses"][0]["findings"][0]
    assert finding["proof"] is not None
    assert finding["kind"] == "wrong_value"


@pytest.mark.parametrize("kind", ["SGD", "Adam", "NAdam", "RAdam", "Adamax", "Adadelta", "RMSprop", "Rprop", "Adagrad"])
def test_what_a_step_changes_is_observed_in_each_run(kind: str) -> None:
    (wide,) = [read(record) for record in program_of_a_step(kind).run_wide(None, 2.0**-24)]
    program = program_of_a_step(kind)
    assert program.reads_gradients()
    (call,) = [read(record) for record in program.run(lambda fn: fn)]
    assert call.raised is None
    assert wide.raised is None
    torch.testing.assert_close(call.inputs[0].double(), wide.inputs[0].double(), rtol=1e-4, atol=1e-6)
    assert call.inputs[0].tolist() != [1.0, 2.0]
    assert call.gradients[0].tolist() == [0.5, -0.25]


def program_of_a_step(kind: str) -> Program:
    w = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    w.grad = torch.tensor([0.5, -0.25])
    return Program(getattr(torch.optim, kind)([w], lr=0.125).step, [((), {})], grad=True)
