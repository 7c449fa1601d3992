"""One bad call among the last hundred of a script is found, in whatever way it is bad; a script without is healthy."""

from pathlib import Path
from typing import Any

import pytest
import torch

from graphprobe.diagnose.dossier.whole_proof import prove_by_script
from graphprobe.diagnose.script_calls import Around, CallBefore
from graphprobe.findings import Finding
from graphprobe.probe.script import ScriptTarget

SCRIPT = """\
import sys
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

form, wrong = sys.argv[1], sys.argv[2] == "wrong"
LATE = 271
scale = 2.0

def is_large(args):
    return any(isinstance(value, torch.Tensor) and value.numel() and float(value.max()) > 100 for value in args)

def backend(graph, inputs):
    def run(*args):
        found = graph(*args)
        if wrong and form == "overflow" and is_large(args):
            found = [value / 0 for value in found]
        if wrong and form == "shape" and any(7 in value.shape for value in args if isinstance(value, torch.Tensor)):
            found = [value + 1 for value in found]
        return found
    return run

def backward(graph, inputs):
    def run(*args):
        found = graph(*args)
        return [value / 0 if value is not None and wrong and is_large(args) else value for value in found]
    return make_boxed_func(run)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        return (x * self.weight * scale).cos() + x

options = {"guard_filter_fn": lambda entries: [False] * len(entries)} if form == "guard" and wrong else {}
if form == "gradient":
    backend = aot_autograd(fw_compiler=lambda graph, inputs: make_boxed_func(graph.forward), bw_compiler=backward)
net, total = torch.compile(Net(), backend=backend, dynamic=False, options=options), 0.0
for step in range(1, 301):
    size = 7 if step == LATE and form == "shape" else 4 + step % 3 if form == "shape" else 4
    scale = 3.0 if step == LATE and form == "guard" else 2.0
    x = torch.full((size,), 200.0 if step == LATE and form in ("overflow", "gradient") else 0.5)
    net(x).sum().backward()
    total += float(net.weight.grad)
    net.weight.grad = None
print("ended", total)
"""


@pytest.mark.slow
@pytest.mark.parametrize("form", ["overflow", "shape", "guard", "gradient"])
def test_one_bad_call_among_the_last_hundred(form: str, diagnosed: Any, run_warm: Any, tmp_path: Path) -> None:
    for how, code in (("wrong", 1), ("right", 0)):
        done, document = diagnosed("train.py", form, how, text=SCRIPT, code=code)
        assert run_warm("train.py", form, how, cwd=tmp_path).out in done.out, "the script computes as under python"
        assert "ended" in done.out and "HEALTHY on " in done.out if how == "right" else "FAULT" in done.out
        last = document["diagnoses"][-1]
        if how == "wrong":
            assert (last["function"], last["verdict"]) == ("Net (train.py:34), call 271", "fault")
            assert 271 in document["calls"][0]["looked_at"]


def test_arguments_that_calls_change_are_told_as_they_were() -> None:
    changed: set[int] = set()
    x, y = torch.ones(2), torch.ones(2)
    for number, kept in enumerate(([2.0, 2.0], [2.0, 2.0], [4.0, 4.0])):
        given = CallBefore((x,), {"more": [y, 3]}, changed)
        x.mul_(2)
        (before,), named = given.before()
        assert before.tolist() == kept, number
        assert named["more"][0] is y and changed == {0}, "what no call changes is not copied"
    assert x.tolist() == [8, 8]
    with torch.inference_mode():
        assert CallBefore((torch.ones(2),), {}, {0}).before()[0][0].tolist() == [1, 1]


LEVEL, COUNT = 1.0, 0


def reading(x: torch.Tensor) -> torch.Tensor:
    return x * LEVEL + COUNT


def test_values_around_a_function_that_change(monkeypatch: pytest.MonkeyPatch) -> None:
    around = Around()
    assert [around.is_other(reading) for _ in range(3)] == [False] * 3
    for number in range(1, 6):
        monkeypatch.setitem(globals(), "COUNT", number)
        assert around.is_other(reading) is (number <= 3), "a counter is no news after a while"
    monkeypatch.setitem(globals(), "COUNT", 6)
    monkeypatch.setitem(globals(), "LEVEL", 2.0)
    assert around.is_other(reading), "another value has changed, too"


PATCHED = """\
import sys
import torch
from torch._inductor import decomposition

if sys.argv[1] == "wrong":
    table = decomposition.decompositions
    table[torch.ops.aten.logsumexp.default] = lambda x, dim, keepdim=False: x.exp().sum(dim).log()
    decomposition.fast_random_decomps.cache_clear()
f = torch.compile(lambda x: torch.logsumexp(x, -1) * 2, backend="aot_eager_decomp_partition")
for step in range(40):
    f(torch.full((4, 8), 300.0 if step == 33 else 1.0))
"""
"""Wrong only where a table of torch's was changed, which no text of the function says."""


@pytest.mark.slow
@pytest.mark.parametrize(("how", "code"), [("wrong", 1), ("right", 0)])
def test_what_only_the_script_shows_is_proven_by_the_script(how: str, code: int, diagnosed: Any, run_warm: Any) -> None:
    done, document = diagnosed("patched.py", how, text=PATCHED, code=code)
    findings = document["diagnoses"][-1]["findings"]
    assert [finding["proof"] for finding in findings] == ["program"] * code
    for finding in findings:
        assert (finding["op"], finding["kind"]) == ("torch.logsumexp", "nonfinite")
        assert finding["reason"].endswith("The script, run again, does.") and "in-the-script" in done.out
        shown = run_warm(str(Path(finding["dossier"]) / "repro.py"))
        assert shown.code == 1 and "actual inf" in shown.out + shown.err


RAISES = """\
import torch

def backend(graph, inputs):
    def run(*args):
        if args[0].numel() == 7:
            raise ValueError("seven")
        return graph(*args)
    return run

f = torch.compile(torch.sin, backend=backend, dynamic=False)
for size in (3, 7):
    f(torch.ones(size))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "shown"), [(2, True), (1, False)])
def test_a_call_of_the_script_that_raises(number: int, shown: bool, tmp_path: Path) -> None:
    (tmp_path / "raises.py").write_text(RAISES)
    program = ScriptTarget("script", str(tmp_path / "raises.py"))
    finding = Finding(kind="extra_exception", stage="backend")
    assert prove_by_script(tmp_path / "proof", finding, program, number, {}, 120) is shown
    assert (tmp_path / "proof").exists() is shown
    if shown:
        assert "ValueError" in (tmp_path / "proof" / "REPORT.md").read_text()
