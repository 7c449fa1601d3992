"""Whoever asks Dynamo to compile is seen; what could not be diagnosed is listed; what is raised only compiled, too."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import Finished

Diagnosed = Callable[..., tuple[Finished, dict[str, Any]]]

HEAD = """\
import sys
import threading
import torch
from torch import compile as under_another_name, nn

wrong = sys.argv[1] == "wrong"

def backend(graph, inputs):
    return lambda *args: [value + wrong for value in graph(*args)]

def f(x):
    return x * 2

"""

FORMS = {
    "optimize": "torch._dynamo.optimize(backend)(f)(x)",
    "another name": "under_another_name(f, backend=backend)(x)",
    "a compiled method": """\
class Net(nn.Module):
    @torch.compile(backend=backend)
    def encode(self, x):
        return f(x)
Net().encode(x)""",
    "a method, again and again": """\
class Net(nn.Module):
    def step(self, x):
        return f(x)
net = Net()
for _ in range(3):
    torch.compile(net.step, backend=backend)(x)""",
    "compile() of a module": """\
class Net(nn.Module):
    def forward(self, x):
        return f(x)
net = Net()
net.compile(backend=backend)
net(x)""",
    "a class": """\
class Net(nn.Module):
    def forward(self, x):
        return f(x)
torch.compile(Net, backend=backend)()(x)""",
    "in a thread": """\
thread = threading.Thread(target=lambda: torch.compile(f, backend=backend)(x))
thread.start()
thread.join()""",
}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_every_way_to_compile(form: str, diagnosed: Diagnosed) -> None:
    script = f"{HEAD}x = torch.ones(3)\n{FORMS[form]}\nprint('ended')\n"
    named = "Module._call_impl (" if form == "a class" else "(train.py:"
    for how, verdict in (("wrong", "fault"), ("right", "healthy")):
        done, document = diagnosed("train.py", how, text=script, code=int(how == "wrong"))
        [found] = document["diagnoses"]
        assert "ended" in done.out and verdict.upper() in done.out
        assert found["verdict"] == verdict and named in found["function"]


AHEAD = """\
import sys
import torch
import torch._inductor.config

if sys.argv[1] == "wrong":
    torch._inductor.config.cpp.inject_relu_bug_TESTING_ONLY = "accuracy"

def f(x):
    return torch.relu(x - 1) * 2

def g(x):
    return f(x.sin())

x = torch.linspace(-2, 2, 32)
first = torch.compile(f, fullgraph=True).aot_compile(((x,), {}))
second = torch.compile(g, fullgraph=True).aot_compile(((x,), {}))
for _ in range(2):
    first(x), second(x)
"""


@pytest.mark.slow
def test_what_is_compiled_ahead_of_its_calls(diagnosed: Diagnosed) -> None:
    for how, verdict in (("wrong", "fault"), ("right", "healthy")):
        _, document = diagnosed("train.py", how, text=AHEAD, code=int(how == "wrong"))
        found = {one["function"].partition(" ")[0]: one for one in document["diagnoses"]}
        assert [one["verdict"] for one in found.values()] == [verdict] * 2 and [*found] == ["f", "g"]
        if how == "wrong":
            assert [found[name]["findings"][0]["op"] for name in "fg"] == ["aten.relu.default"] * 2


LIGHTNING = """\
import sys
import torch
sys.path.insert(0, "site-packages")
import signatures
from torch import nn

how = sys.argv[1]

def backend(graph, inputs):
    return lambda *args: [value * (1 + (how == "wrong")) for value in graph(*args)]

class Lit(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 1)

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, i):
        x, y = batch
        loss = (self(x)[:, 0] - y).square().mean()
        if how == "log":
            self.log("loss", loss)
        return loss

    def log(self, name, value):
        signatures.named(self.training_step)

def from_compiled(model):
    lit = model._orig_mod
    lit.forward = model.dynamo_ctx(lit.forward)
    lit.training_step = model.dynamo_ctx(lit.training_step)
    return lit

lit = from_compiled(torch.compile(Lit(), backend=backend))
lit.training_step((torch.randn(8, 4), torch.randn(8)), 0).backward()
print("gradient", lit.net.weight.grad.shape)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("how", "code"), [("wrong", 1), ("log", 1), ("right", 0)])
def test_methods_that_lightning_compiles(how: str, code: int, diagnosed: Diagnosed, tmp_path: Path) -> None:
    """Lightning takes the context of the compiled module; its `log` asks a method for its attributes."""
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "signatures.py").write_text("def named(method):\n    return vars(method)\n")
    done, document = diagnosed("train.py", how, text=LIGHTNING, code=code)
    found = document["diagnoses"][0]
    assert found["function"] == "Lit.training_step (train.py:20)" and "gradient torch.Size([1, 4])" in done.out
    if how == "log":
        [finding] = found["findings"]
        assert "InternalTorchDynamoError: AttributeError: 'method' object has no attribute '__dict__'" in done.err
        assert (finding["kind"], finding["stage"], finding["op"]) == ("crash_compile", "dynamo", "vars")
        assert finding["source"].endswith("signatures.py:2") and finding["called_from"].endswith("train.py:28")
        assert "at train.py:28; looking" in done.err


OUTSIDE = """\
import sys
import torch

torch._dynamo.config.raise_on_ctx_manager_usage = False

def f(x):
    return x * 2

def backend(graph, inputs):
    if sys.argv[1] == "raises":
        raise ValueError("no such kernel")
    return graph.forward

with torch._dynamo.optimize(backend) if sys.argv[1] != "plain" else torch.no_grad():
    print(f(torch.ones(2)))
"""


def test_what_could_not_be_diagnosed_is_listed(diagnosed: Diagnosed) -> None:
    done, document = diagnosed("train.py", "compiles", text=OUTSIDE, code=125)
    [found], said = document["diagnoses"], "Dynamo compiled 1 graph outside of the calls that are diagnosed: f ("
    assert found["verdict"] == "undecided" and found["notes"][0].startswith(said), found
    assert "train.py:6)" in found["notes"][0] and said[:30] in " ".join(done.out.split())
    note = diagnosed("train.py", "raises", code=125)[1]["diagnoses"][0]["notes"][0]
    assert "torch's compiler raised BackendCompilerFailed" in note and "no such kernel" in note
    done, _ = diagnosed("train.py", "plain", code=2)
    assert "train.py compiled nothing: no call of torch.compile" in done.err


LATE = """\
import sys
import torch

how, calls = sys.argv[1], 0

def backend(graph, inputs):
    def run(*args):
        global calls
        calls += 1
        if how == "by value" and float(args[0].max()) > 100 or how == "by number" and calls == 13:
            raise RuntimeError("kernel launch failed")
        return graph(*args)
    return run

@torch.compile(backend=backend, fullgraph=True)
def f(x):
    if how == "refused":
        torch._dynamo.graph_break()
    if how == "both":
        torch.linalg.cholesky(x.new_full((2, 2), 1.0) * (1 - x.max()))
    return x * x

for step in range(1, 21):
    try:
        f(torch.full((4,), 200.0 if step == 13 else 0.5))
    except RuntimeError as error:
        print("caught", error)
print("ended")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "code"), [("by value", 1), ("by number", 125), ("both", 0), ("never", 0), ("refused", 125)]
)
def test_an_exception_of_a_late_call(how: str, code: int, diagnosed: Diagnosed) -> None:
    """Though the script catches the exception: a finding, if the call raises compiled alone, and never HEALTHY."""
    done, document = diagnosed("train.py", how, text=LATE, code=code)
    found = document["diagnoses"]
    assert "ended" in done.out and ("caught" in done.out) is (how != "never")
    if how == "by value":
        assert (found[-1]["function"], found[-1]["verdict"]) == ("f (train.py:15), call 13", "fault")
    if how == "by number":
        assert found[-1]["notes"][0].startswith("call 13 raised RuntimeError: kernel launch failed, which")
    if how == "refused":
        assert [finding["kind"] for one in found for finding in one["findings"]] == ["unsupported"] and len(found) == 1
    if how == "both":
        assert found[-1]["raises"]
