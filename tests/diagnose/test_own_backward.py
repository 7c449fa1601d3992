"""Programs that run a backward themselves, that no backward can follow, or whose results have one each."""

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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "note"),
    [
        ("own", "the function runs a backward itself"),
        ("refused", "raises uncompiled, too (NotImplementedError"),
        ("apart", ""),
    ],
)
def test_it_is_wrong_where_a_backward_is_its_own(form: str, note: str, diagnosed: Any, tmp_path: Any) -> None:
    done, document = diagnosed("train.py", form, "right", text=SCRIPT, code=0)
    assert "ended" in done.out
    assert [one["verdict"] for one in document["diagnoses"]] == ["healthy"]
    assert any(note in told for told in document["diagnoses"][0]["notes"]) or not note
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
        loss.backward()
        return loss

    module = torch.nn.Module()
    module.w, module.forward = w, step
    x = torch.tensor([1.0, 2.0])
    (own,) = [read(record) for record in Program(module, [((x,), {})], grad="own").run(lambda fn: fn)]
    (more,) = [read(record) for record in Program(module, [((x,), {})], grad=True).run(lambda fn: fn)]
    assert [v.tolist() for v in own.gradients if v is not None] == [[2.0, 8.0]]
    assert more.raised is not None and "a second time" in more.raised.message
