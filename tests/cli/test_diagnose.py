"""`graphprobe diagnose`: targets, exit codes, the JSON, scripts that go wrong by themselves, and `--only-function`."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from click.testing import Result

from cli.calling import call as invoke
from conftest import ROOT, Finished, module_at
from graphprobe.cli.ending import Signals
from graphprobe.findings import Diagnosis, NamedStep, ScriptDocument, read_document

Python = Callable[..., Finished]

TARGETS = """\
import torch

def small():
    def double(x, *, budget_s):
        return x * budget_s + 1
    return double, (torch.linspace(-1, 1, 8),), {"budget_s": 2.0}

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


@pytest.fixture
def diagnosed(diagnose: Python, tmp_path: Path) -> Callable[..., tuple[Finished, dict[str, Any]]]:
    """How diagnosing a script ended, and its document."""

    def run(script: str, code: int, *options: str) -> tuple[Finished, dict[str, Any]]:
        (tmp_path / "script.py").write_text(script)
        done = diagnose("--json", "result.json", *options, "script.py", "--epochs", "1")
        assert done.code == code, done.out + done.err
        return done, json.loads((tmp_path / "result.json").read_text())

    return run


@pytest.mark.parametrize(("options", "inside"), [((), "not_run"), (("--deep",), "right")])
def test_healthy_callable(options: tuple[str, ...], inside: str, diagnose: Python, tmp_path: Path) -> None:
    """What the user runs is right: that is all, unless one looks inside."""
    # Options may stand behind a callable, which takes no arguments of its own.
    done = diagnose("targets.py:small", "--json", "small.json", "--backend", "aot_eager", *options)
    assert done.code == 0, done.err
    assert done.out.startswith("HEALTHY: targets.py:small:")
    document = json.loads((tmp_path / "small.json").read_text())
    assert tuple(document) == Diagnosis.__struct_fields__
    diagnosis = msgspec.convert(document, Diagnosis)
    assert (diagnosis.verdict, diagnosis.latent) == ("healthy", [])
    assert [(rung.name, rung.state) for rung in diagnosis.rungs] == [("dynamo", inside), ("plain", "right")]
    assert sorted(p.name for p in tmp_path.iterdir() if p.name != "__pycache__") == ["small.json", "targets.py"]


@pytest.mark.heavy
def test_fault_in_a_script(diagnosed: Any, tmp_path: Path) -> None:
    done, document = diagnosed(RELU, 1, "--out", "proofs")
    assert "arguments ['script.py', '--epochs', '1'] __main__" in done.out
    assert read_document(document, ScriptDocument).schema == 1
    assert (document["target"], document["ended"]) == ("script.py", None)
    names = [d["function"] for d in document["diagnoses"]]
    # Calls with the same shapes are not diagnosed again, and no function more than three times.
    right = "right (script.py:10)"
    assert names == ["wrong (script.py:6)", right, f"{right}, call 3", f"{right}, call 4"]
    assert [d["verdict"] for d in document["diagnoses"]] == ["fault", "healthy", "healthy", "healthy"]
    ladders = [[rung["state"] for rung in diagnosis["rungs"]] for diagnosis in document["diagnoses"]]
    assert ladders[0] == ["right", "right", "right", "wrong", "wrong"]
    assert ladders[1:] == [["not_run", "right"]] * 3, "the second has a backend of its own"
    found = document["diagnoses"][0]["findings"][0]
    assert (found["kind"], found["op"]) == ("wrong_value", "aten.relu.default")
    assert found["source"] == f"{tmp_path / 'script.py'}:8"
    assert Path(found["dossier"]).parent == tmp_path / "proofs" / "0-wrong"
    assert (Path(found["dossier"]) / "repro.py").is_file()
    assert "return torch.relu(x * 2)" in done.out
    assert f"python {Path(found['dossier']).relative_to(tmp_path)}/repro.py\n" in done.out
    assert "script.py: 3 healthy, 1 fault" in done.out


@pytest.mark.slow
def test_script_that_raises(diagnosed: Any) -> None:
    done, document = diagnosed(RAISING, 125)
    assert done.out.count("HEALTHY") == 1
    assert "nothing was compiled" in done.out, "nn.Linear.compile() compiles nothing, in plain torch too"
    assert "gradient None torch.Size([2, 2])" in done.out, "diagnosing leaves no trace in the script"
    assert "script.py: the script was ended by ValueError: the data is gone\n" in done.out
    assert 'raise ValueError("the data is gone' in done.err
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


@pytest.mark.slow
def test_nothing_that_was_compiled_is_no_all_clear(diagnosed: Any) -> None:
    done, document = diagnosed(LEFT_ALONE, 2)
    shown = " ".join(done.out.split())
    assert "HEALTHY" not in shown and "why: nothing was compiled: torch.compile made no graph" in shown
    assert [(d["verdict"], d["graphs"]) for d in document["diagnoses"]] == [("undecided", 0)] * 2


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


@pytest.mark.slow
def test_a_function_that_is_compiled_anew_goes_on_from_its_calls(diagnosed: Any) -> None:
    found = diagnosed(AGAIN_AND_AGAIN, 1)[1]["diagnoses"]
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


def test_what_dynamo_gives_up_on_runs_uncompiled_and_is_right(diagnosed: Any) -> None:
    done, document = diagnosed(LEFT_AS_IT_IS, 0)
    assert "0 graphs compiled" not in done.out
    said = " ".join(done.out.split())
    assert "torch.compile makes no graph of it and runs it uncompiled (Attempted to wrap RNN" in said
    assert [(d["verdict"], d["graphs"]) for d in document["diagnoses"]] == [("healthy", 0)]


NOT_TRIED = """\
import torch
import torch.distributed as dist

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
own = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU())
print(torch.compile(torch.nn.parallel.DistributedDataParallel(own), backend="eager")(torch.ones(2, 8)).shape)
"""


def test_a_generator_that_dynamo_leaves_does_not_make_a_program_healthy(diagnosed: Any) -> None:
    (found,) = diagnosed(NOT_TRIED, 2)[1]["diagnoses"]
    assert (found["verdict"], found["graphs"]) == ("undecided", 0)
    assert found["notes"][0].startswith("nothing was compiled")


@pytest.mark.slow
def test_script_goes_on_after_a_crash(diagnosed: Any) -> None:
    done, _ = diagnosed(CRASHING, 1)
    assert "went on with 2.0 2.0" in done.out
    assert "kills the whole process" in done.out
    assert "the script went on with the uncompiled function" in done.out


@pytest.mark.parametrize(
    ("target", "source", "said"),
    [
        ("program.py", "print(1)\n", ["compiled nothing: no call of torch.compile"]),
        (
            "program.py",
            "import torch\ntorch.compile(abs)\n",
            ["it gave 1 function to torch.compile"],
        ),
        ("program.py", "x\n", ["compiled nothing", "NameError: name 'x'", "run it with python"]),
        ("program.py:make", "x\n", ["program.py cannot be imported: NameError"]),
        ("program.py:make", "def make(): {}['weights']\n", ["make() in program.py raised KeyError: 'weights'"]),
    ],
)
def test_wrong_use(target: str, source: str, said: list[str], diagnose: Python, tmp_path: Path) -> None:
    """What shows a traceback or runs the program; the rest is in tests/test_wrong_use.py."""
    (tmp_path / "program.py").write_text(source)
    done = diagnose(target)
    assert done.code == 2, done.out + done.err
    assert done.err.splitlines()[-1].startswith(("error[usage]: ", "  hint: "))
    for word in said:
        assert word in done.err
    assert {p.name for p in tmp_path.iterdir()} - {"__pycache__"} == {"targets.py", "program.py"}


def test_published_schema_is_current() -> None:
    script = module_at("scripts", "diagnosis_schema.py")
    assert script.FILE.read_text(encoding="utf-8") == script.schema_text(), "run scripts/diagnosis_schema.py"
    page = (ROOT / "docs" / "formats" / "diagnosis.md").read_text(encoding="utf-8")
    for name, component in script.diagnosis_schema()["$defs"].items():
        for field in component["properties"]:
            assert f"`{field}`" in page, f"{name}.{field} is not on the page"


BACKEND = "relu_accuracy_error_TESTING_ONLY"
"""Adds one to every relu: `bad` is wrong when it is compiled, `good` never is."""

PROGRAM = f"""\
import torch


def good(x):
    return x.sin()


def bad(x):
    return torch.relu(x)


def whole(x):
    return good(x) + bad(x)


def make():
    return whole, (torch.linspace(-1, 1, 8),)


if __name__ == "__main__":
    fn, args = make()
    print("sum", torch.compile(fn, backend={BACKEND!r})(*args).sum().item())
"""


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)

    def run(*args: str) -> Result:
        for name in ("argv", "path"):
            monkeypatch.setattr(sys, name, list(getattr(sys, name)))
        monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
        monkeypatch.delitem(sys.modules, "program", raising=False)
        return invoke(*args)

    return run


DIAGNOSE = ("diagnose", "--backend", BACKEND, "--no-grad", "--json", "result.json")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "code", "verdict", "said"),
    [
        ("bad", 1, "FAULT", "compiled: 1 function: bad (program.py:8)"),
        ("good", 0, "HEALTHY", "bad (program.py:8)"),
        ("nobody", 2, "UNDECIDED", "'nobody' matched no function"),
    ],
)
def test_diagnose(call, name: str, code: int, verdict: str, said: str) -> None:
    done = call(*DIAGNOSE, "--only-function", name, "program.py:make")
    assert done.exit_code == code, done.output
    assert any(line.startswith(f"{verdict}: program.py:make") for line in done.stdout.splitlines()[-5:]), done.stdout
    assert said in done.stderr
    findings = json.loads(Path("result.json").read_text())["findings"]
    assert [finding["source"].rpartition("/")[2] for finding in findings] == ["program.py:9"] * (name == "bad")


def test_diagnose_of_a_script_by_the_environment(call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHPROBE_ONLY_FUNCTION", "good")
    done = call("diagnose", "program.py")
    assert (done.exit_code, "HEALTHY: program.py: 1 healthy" in done.stdout) == (0, True), done.output
    assert "bad (program.py:8)" in done.stderr.partition("left uncompiled")[2]


def test_what_is_known_is_in_the_json_until_the_diagnosis_is_made(call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a script and of a callable; a step without a fact writes nothing."""
    file = Path("result.json")
    facts = ["compiled, it raises ValueError: no", "proven: Compiled, sin cannot be compiled."]
    healthy = Diagnosis(verdict="healthy")

    def noted(on_step: Any) -> Any:
        on_step(NamedStep("plain", 1.0))
        assert not file.exists()
        for fact in facts:
            on_step(NamedStep("plain", 2.0, fact=fact))
        return json.loads(file.read_text())

    def run_diagnosed(_: Any, __: Any, *, on_start: Any, on_step: Any, on_diagnosis: Any) -> Any:
        on_start("good (program.py:4)")
        so_far = read_document(noted(on_step), ScriptDocument)
        [found] = so_far.diagnoses
        assert (found.function, found.verdict, found.notes) == ("good (program.py:4)", "undecided", facts)
        assert so_far.unfinished and found.unfinished
        on_diagnosis("good (program.py:4)", healthy)
        return SimpleNamespace(
            diagnoses=[("good", healthy)], problem=problem, unfinished=False, equal=[], calls=[], graphs=1
        )

    def diagnosis(*_: Any, on_step: Any, **__: Any) -> Diagnosis:
        found = read_document(noted(on_step), Diagnosis)
        assert (found.verdict, found.notes, found.unfinished) == ("undecided", facts, True)
        return healthy

    monkeypatch.setattr("graphprobe.diagnose.script.run_diagnosed", run_diagnosed)
    monkeypatch.setattr("graphprobe.diagnose.script.ScriptOptions.diagnosis", diagnosis)
    for problem, target in ((None, "program.py"), (None, "program.py:make"), ("the script ended with 3", "program.py")):
        done = call("diagnose", "--json", "result.json", target)
        assert done.exit_code == (125 if problem else 0), done.output
        assert (
            not json.loads(file.read_text())["unfinished"] and "no" not in file.read_text().partition("notes")[2][:20]
        )
        assert ("why:" in done.output and "the script ended with 3; TORCHDYNAMO_DISABLE=1" in done.output) is bool(
            problem
        )
        file.unlink()


def test_what_is_known_of_a_function_is_printed_where_the_end_is_forced(call, monkeypatch: pytest.MonkeyPatch) -> None:
    fact = "compiled, it raises ValueError: no"

    def run_diagnosed(_: Any, __: Any, *, on_start: Any, on_step: Any, on_diagnosis: Any) -> None:
        for name in ("good (program.py:4)", "bad (program.py:8)"):
            on_start(name)
            on_step(NamedStep("plain", 2.0, fact=f"{name[:4]} {fact}"))
            if name.startswith("good"):
                on_diagnosis(name, Diagnosis(verdict="healthy"))
        Signals.current.ways[-1].known("ended by SIGTERM")
        raise SystemExit(143)

    monkeypatch.setattr("graphprobe.diagnose.script.run_diagnosed", run_diagnosed)
    done = call("diagnose", "--json", "result.json", "program.py")
    assert done.exit_code == 143 and "1 healthy, 1 undecided" in done.output
    assert f"bad (program.py:8): bad  {fact}" in done.output and f"good {fact}" not in done.output.partition("bad  ")[2]
    first, second = read_document(json.loads(Path("result.json").read_text()), ScriptDocument).diagnoses
    assert (first.verdict, second.verdict, second.notes) == ("healthy", "undecided", [f"bad  {fact}"])


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        pytest.param("bad", 1, "REDUCED: 1 call -> 1", marks=pytest.mark.heavy),
        ("good", 0, "NOT REDUCED: program.py: nothing fails: 1 graphs"),
        ("nobody", 2, "error[usage]: program.py compiled nothing"),
    ],
)
def test_reduce(call, name: str, code: int, said: str) -> None:
    done = call("reduce", "-o", "small", "--only-function", name, "program.py")
    assert done.exit_code == code, done.output
    assert any(line.startswith(said) for line in (done.stdout + done.stderr).splitlines()), done.output
    assert Path("small/repro/repro.py").is_file() == (name == "bad")
