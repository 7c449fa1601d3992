"""`graphprobe diagnose`: targets, exit codes, the JSON, and scripts that go wrong by themselves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from conftest import ROOT, Finished, module_at
from graphprobe.findings import Diagnosis, ScriptDocument, read_document

Python = Callable[..., Finished]

TARGETS = """\
import torch

number = 3

def small():
    def double(x, *, budget_s):
        return x * budget_s + 1
    return double, (torch.linspace(-1, 1, 8),), {"budget_s": 2.0}

def pair():
    return torch.sin, [torch.ones(3)]

def garbage():
    return "nothing of use"

def swapped():
    return (torch.ones(3),), torch.sin

def raising():
    raise KeyError("no weights")
"""

RELU = """\
import sys
import torch

torch._inductor.config.cpp.inject_relu_bug_TESTING_ONLY = "accuracy"

@torch.compile
def wrong(x):
    return torch.relu(x * 2)

@torch.compile(backend="eager")
def right(x):
    return x + 1

print("arguments", sys.argv, __name__)
with torch.no_grad():
    wrong(torch.linspace(-1, 1, 16))
    right(torch.ones(2))
    right(torch.ones(2))
    right(torch.ones(3))
    for size in range(4, 9):
        right(torch.ones(size))
"""

RAISING = """\
import torch

@torch.compile(backend="aot_eager")
def f(x):
    return x * 3

model = torch.nn.Linear(2, 2)
model.compile(backend="eager")
f(torch.ones(2))
print("gradient", model(torch.ones(2)).sum().backward(), model.weight.grad.shape)
raise ValueError("the data is gone\\nand so are we")
"""

CRASHING = """\
import os, signal
import torch

def backend(graph, inputs):
    def run(*args):
        os.kill(os.getpid(), signal.SIGSEGV)
    return run

torch._dynamo.register_backend(backend, name="crashing")
f = torch.compile(lambda x: x + 1, backend="crashing")
print("went on with", f(torch.ones(1)).item(), f(torch.ones(1)).item())
"""


@pytest.fixture
def diagnose(run_warm: Python, tmp_path: Path) -> Python:
    (tmp_path / "targets.py").write_text(TARGETS)

    def run(*args: str) -> Finished:
        return run_warm("-m", "graphprobe", "diagnose", *args, cwd=tmp_path)

    return run


def test_healthy_callable(diagnose: Python, tmp_path: Path) -> None:
    # Options may stand behind a callable, which takes no arguments of its own.
    done = diagnose("targets.py:small", "--json", "small.json", "--backend", "aot_eager")
    assert done.code == 0, done.err
    assert done.out.startswith("HEALTHY: targets.py:small:")
    document = json.loads((tmp_path / "small.json").read_text())
    fields = (
        "verdict seconds graphs compiles findings ruled_out latent differences largest_z notes raises rungs unfinished"
    )
    assert list(document) == fields.split()
    assert msgspec.convert(document, Diagnosis).verdict == "healthy"
    states = [(rung["name"], rung["state"]) for rung in document["rungs"]]
    assert states == [("dynamo", "not_run"), ("kernels", "right")], "what the user runs is right: that is all"
    assert sorted(p.name for p in tmp_path.iterdir() if p.name != "__pycache__") == ["small.json", "targets.py"]


def test_deep_looks_inside_of_what_is_healthy(diagnose: Python, tmp_path: Path) -> None:
    done = diagnose("targets.py:small", "--json", "small.json", "--backend", "aot_eager", "--deep")
    assert done.code == 0, done.err
    document = json.loads((tmp_path / "small.json").read_text())
    assert (document["verdict"], document["latent"]) == ("healthy", [])
    assert [(rung["name"], rung["state"]) for rung in document["rungs"]] == [("dynamo", "right"), ("kernels", "right")]


@pytest.mark.heavy
def test_fault_in_a_script(diagnose: Python, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RELU)
    done = diagnose("--json", "result.json", "--out", "proofs", "train.py", "--epochs", "1")
    assert done.code == 1, done.out + done.err
    assert "arguments ['train.py', '--epochs', '1'] __main__" in done.out
    document = json.loads((tmp_path / "result.json").read_text())
    assert read_document(document, ScriptDocument).schema == 1
    assert (document["target"], document["ended"]) == ("train.py", None)
    names = [d["function"] for d in document["diagnoses"]]
    # Calls with the same shapes are not diagnosed again, and no function more than three times.
    right = "right (train.py:10)"
    assert names == ["wrong (train.py:6)", right, f"{right}, call 3", f"{right}, call 4"]
    assert [d["verdict"] for d in document["diagnoses"]] == ["fault", "healthy", "healthy", "healthy"]
    ladders = [[rung["state"] for rung in diagnosis["rungs"]] for diagnosis in document["diagnoses"]]
    assert ladders == [
        ["right", "right", "right", "wrong", "wrong"],
        *[["not_run", "right"]] * 3,
    ]  # the second has a backend of its own
    found = document["diagnoses"][0]["findings"][0]
    assert (found["kind"], found["op"]) == ("wrong_value", "aten.relu.default")
    assert found["source"] == f"{tmp_path / 'train.py'}:8"
    assert Path(found["dossier"]).parent == tmp_path / "proofs" / "0-wrong"
    assert (Path(found["dossier"]) / "repro.py").is_file()
    assert "return torch.relu(x * 2)" in done.out
    assert f"python {Path(found['dossier']).relative_to(tmp_path)}/repro.py\n" in done.out
    assert "train.py: 3 healthy, 1 fault" in done.out


def test_script_that_raises(diagnose: Python, tmp_path: Path) -> None:
    (tmp_path / "raising.py").write_text(RAISING)
    done = diagnose("--json", "result.json", "raising.py")
    assert done.code == 125, done.out + done.err
    assert done.out.count("HEALTHY") == 1
    assert "nothing was compiled" in done.out, "nn.Linear.compile() compiles nothing, in plain torch too"
    assert "gradient None torch.Size([2, 2])" in done.out, "diagnosing leaves no trace in the script"
    assert "raising.py: the script was ended by ValueError: the data is gone\n" in done.out
    assert 'raise ValueError("the data is gone' in done.err
    document = json.loads((tmp_path / "result.json").read_text())
    assert document["ended"] == "the script was ended by ValueError: the data is gone"
    assert [d["function"].split()[0] for d in document["diagnoses"]] == ["f", "Linear"]


LEFT_ALONE = """\
import torch

@torch.compiler.disable
def inner(x):
    return x * 3

@torch.compile(backend="eager")
def outer(x):
    return inner(x)

model = torch.nn.Linear(2, 2)
model.compile(backend="eager")
outer(torch.ones(2))
print(model(torch.ones(2)).shape)
"""


def test_nothing_that_was_compiled_is_no_all_clear(diagnose: Python, tmp_path: Path) -> None:
    (tmp_path / "left_alone.py").write_text(LEFT_ALONE)
    done = diagnose("--json", "result.json", "left_alone.py")
    assert done.code == 2, done.out + done.err
    shown = " ".join(done.out.split())
    assert "HEALTHY" not in shown and "why: nothing was compiled: torch.compile made no graph" in shown
    found = json.loads((tmp_path / "result.json").read_text())["diagnoses"]
    assert [(d["verdict"], d["graphs"]) for d in found] == [("undecided", 0)] * 2


AGAIN_AND_AGAIN = """\
import torch

def wrong_with_symbols(gm, inputs):
    symbolic = any(isinstance(value, torch.SymInt) for value in inputs)
    return (lambda *args: tuple(v + 1 for v in gm(*args))) if symbolic else gm.forward

def fn(x):
    return x * x.shape[0]

def other(x):
    return x * x.shape[0]

for size in (4, 5):
    for f in (fn, lambda x: other(x)):
        torch.compile(f, backend=wrong_with_symbols)(torch.ones(size))
"""


def test_a_function_that_is_compiled_anew_goes_on_from_its_calls(diagnose: Python, tmp_path: Path) -> None:
    (tmp_path / "again.py").write_text(AGAIN_AND_AGAIN)
    done = diagnose("--json", "result.json", "again.py")
    assert done.code == 1, done.out + done.err
    found = json.loads((tmp_path / "result.json").read_text())["diagnoses"]
    named = [(d["function"].partition(" (")[0] + d["function"].partition(")")[2], d["verdict"]) for d in found]
    names = ("fn", "<lambda>")
    assert named == [*((name, "healthy") for name in names), *((f"{name}, call 2", "fault") for name in names)]


LEFT_AS_IT_IS = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.recurrent = torch.nn.LSTM(4, 4)

    def forward(self, x):
        return self.recurrent(x)[0]

print(torch.compile(Net(), backend="eager")(torch.ones(2, 1, 4)).shape)
"""


def test_what_dynamo_gives_up_on_runs_uncompiled_and_is_right(diagnose: Python, tmp_path: Path) -> None:
    (tmp_path / "left.py").write_text(LEFT_AS_IT_IS)
    done = diagnose("--json", "result.json", "left.py")
    assert done.code == 0, done.out + done.err
    assert "0 graphs compiled" not in done.out
    said = " ".join(done.out.split())
    assert "torch.compile makes no graph of it and runs it uncompiled (Attempted to wrap RNN" in said
    (found,) = json.loads((tmp_path / "result.json").read_text())["diagnoses"]
    assert (found["verdict"], found["graphs"]) == ("healthy", 0)


NOT_TRIED = """\
import torch
import torch.distributed as dist

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
own = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU())
print(torch.compile(torch.nn.parallel.DistributedDataParallel(own), backend="eager")(torch.ones(2, 8)).shape)
"""


def test_a_generator_that_dynamo_leaves_does_not_make_a_program_healthy(diagnose: Python, tmp_path: Path) -> None:
    (tmp_path / "left.py").write_text(NOT_TRIED)
    done = diagnose("--json", "result.json", "left.py")
    assert done.code == 2, done.out + done.err
    (found,) = json.loads((tmp_path / "result.json").read_text())["diagnoses"]
    assert (found["verdict"], found["graphs"]) == ("undecided", 0)
    assert found["notes"][0].startswith("nothing was compiled")


def test_script_goes_on_after_a_crash(diagnose: Python, tmp_path: Path) -> None:
    (tmp_path / "crashing.py").write_text(CRASHING)
    done = diagnose("crashing.py")
    assert done.code == 1, done.out + done.err
    assert "went on with 2.0 2.0" in done.out
    assert "kills the whole process" in done.out
    assert "the script went on with the uncompiled function" in done.out


WRONG: dict[str, tuple[list[str], list[str]]] = {
    "nothing": ([], ["nothing to diagnose", "FILE.py:CALLABLE"]),
    "missing script": (["none.py"], ["no script at 'none.py'", "FILE.py:CALLABLE"]),
    "missing file": (["none.py:make"], ["no file at 'none.py'"]),
    "missing callable": (["targets.py:smal"], ["targets.py has no 'smal'", "small, pair, garbage"]),
    "no callable": (["targets.py:number"], ["'number' in targets.py is a int"]),
    "garbage": (["targets.py:garbage"], ["garbage() in targets.py returned 'nothing of use'", "(fn, args, kwargs)"]),
    "swapped": (["targets.py:swapped"], ["swapped() in targets.py returned", "(fn, args, kwargs)"]),
    "callable raises": (["targets.py:raising"], ["raising() in targets.py raised KeyError: 'no weights'"]),
    "file does not import": (["broken.py:make"], ["broken.py cannot be imported: NameError"]),
    "arguments for a callable": (["targets.py:small", "8"], ["takes no arguments", "'8'"]),
    "backend": (["--backend", "inducter", "targets.py:small"], ["--backend inducter", "inductor"]),
    "json folder": (["--json", "there/is/none.json", "targets.py:small"], ["--json there/is/none.json", "no folder"]),
    "json exists": (["--json=targets.py", "targets.py:small"], ["--json targets.py", "exists already"]),
    "out is used": (["--out", ".", "targets.py:small"], ["--out .", "empty folder"]),
    "budget": (["--budget", "0", "targets.py:small"], ["--budget is '0'"]),
    "compiles nothing": (["quiet.py"], ["quiet.py compiled nothing: no call of torch.compile"]),
    "calls nothing": (["unused.py"], ["unused.py compiled nothing: it gave 1 functions to torch.compile"]),
    "raises first": (["broken.py"], ["broken.py compiled nothing", "NameError: name 'x'", "run it with python"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_use(case: str, diagnose: Python, tmp_path: Path) -> None:
    args, expected = WRONG[case]
    (tmp_path / "broken.py").write_text("x\n")
    (tmp_path / "quiet.py").write_text("print(1)\n")
    (tmp_path / "unused.py").write_text("import torch\ntorch.compile(lambda x: x)\n")
    before = {p.name for p in tmp_path.iterdir()}
    done = diagnose(*args)
    assert done.code == 2, done.out + done.err
    assert done.err.splitlines()[-1].startswith(("error[usage]: ", "error[bad-setting]: ", "  hint: "))
    for word in expected:
        assert word in done.err
    assert {p.name for p in tmp_path.iterdir()} - {"__pycache__"} == before


def test_published_schema_is_current() -> None:
    script = module_at("scripts", "diagnosis_schema.py")
    assert script.FILE.read_text(encoding="utf-8") == script.schema_text(), "run scripts/diagnosis_schema.py"
    page = (ROOT / "docs" / "formats" / "diagnosis.md").read_text(encoding="utf-8")
    for name, component in script.diagnosis_schema()["$defs"].items():
        for field in component["properties"]:
            assert f"`{field}`" in page, f"{name}.{field} is not on the page"
