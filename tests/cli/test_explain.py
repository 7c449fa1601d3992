"""`graphprobe explain`: a script, a run, a callable; exit codes, JSON, wrong use; and docs/explain.md, executed."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from cli.calling import Python, call
from conftest import ROOT

PAGE = (ROOT / "docs" / "explain.md").read_text(encoding="utf-8")

PROGRAM = """\
import sys
import torch

@torch.compile(backend="eager")
def step(x):
    return x * x.sum().item()

@torch.compile(backend="aot_eager", fullgraph=True)
def whole(x):
    if x.sum() > 0:
        return x.sin()
    return x.cos()

@torch.compile(mode="max-autotune")
def by_default(x):
    return x + 1

print("arguments", sys.argv[1:], __name__)
step(torch.ones(3))
step(torch.ones(4))
by_default(torch.ones(3))
whole(torch.ones(3))
"""

TARGETS = """\
import torch

def broken():
    def f(x, *, n):
        y = x + n
        torch._dynamo.graph_break()
        return y.sin()
    return f, (torch.ones(3),), {"n": 2}

def whole():
    return torch.sin, (torch.ones(3),)
"""


def invoke(*args: object, **options: Any) -> Result:
    return call("explain", *args, **options)


def masked(text: str) -> str:
    """The guards are torch's business: other numbers in another version."""
    return re.sub(r"(?m)^( +\d+  \S+ +\d+  ) *\d+", r"\1", text)


def shown(command: str) -> str:
    blocks = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    (text,) = (part.removeprefix(command + "\n") for block in blocks for part in block.split("$ ") if command in part)
    return text


@pytest.fixture(scope="module")
def page_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        named = re.match(r"# (\w+\.py)\n", block)
        (folder / (named.group(1) if named else "api.py")).write_text(block, encoding="utf-8")
    return folder


@pytest.mark.parametrize(("name", "code"), [("toy.py", 1), ("mended.py", 0)])
def test_page_scripts(page_files: Path, run_warm: Python, name: str, code: int) -> None:
    done = run_warm("-m", "graphprobe", "explain", name, cwd=page_files)
    assert masked(done.out) == masked(shown(f"graphprobe explain {name}")) and done.code == code


LOOP = """
import sys
import torch
@torch.compile(backend="eager")
def step(x):
    n = x.sum().item()
    for i in range(2):
        x = x + n
        BREAK
    return x
step(torch.ones(3))
print("ended", file=sys.stderr)
"""


@pytest.mark.parametrize(("loop", "kind"), [(True, "fork"), (True, "process"), (False, "fork")])
def test_what_is_behind_a_break(loop: bool, kind: str, run_warm: Python, tmp_path: Path) -> None:
    """A break in the loop behind it leaves the rest uncompiled, and unseen where no child can look at it."""
    (tmp_path / "program.py").write_text(LOOP.replace("BREAK", "torch._dynamo.graph_break()" if loop else "pass"))
    done = run_warm("-m", "graphprobe", "explain", "program.py", cwd=tmp_path, env={"GRAPHPROBE_ISOLATION": kind})
    live = [line for line in done.err.splitlines() if line.startswith("graphprobe: break: ")]
    assert live[0].startswith("graphprobe: break: tensor-item at program.py:6 in step: ") and len(live) == 1 + loop
    assert done.err.index(live[-1]) < done.err.index("ended")
    assert ("compiled before and behind it" in done.out) != loop
    assert ("what comes behind it in the function runs uncompiled" in done.out) == loop
    assert ("more may follow" in done.out.splitlines()[-2]) == (kind == "process")
    assert ("  untried: " in done.out) == (kind == "process") and ("  instead: " in done.out) == (kind == "fork")


UNTRIED = (
    "a, b)`\n  effect",
    "a, b)`; or `torch.cond(b.sum() <\n           0, true_fn, false_fn, (…,))`\n  effect",
)
"""What helps is known only where it was tried: a run that was recorded shows all that may help."""


@pytest.fixture(scope="module")
def page_runs(page_files: Path, run_warm: Python) -> Path:
    done = run_warm("-m", "graphprobe", "run", "-q", "--out", "runs", "toy.py", cwd=page_files)
    assert (done.out, done.code) == (shown("graphprobe run -q --out runs toy.py"), 0)
    return page_files / "runs"


def test_page_run_is_explained_from_its_folder(page_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(page_runs.parent)
    told = invoke("runs", "--json", "toy.json", code=1)
    table = shown("graphprobe explain toy.py").removeprefix("woo\n")
    before = "change that line, then: graphprobe explain toy.py"
    table = table.replace("  instead:", "  untried:").replace(*UNTRIED)
    story, blank, closing = masked(table.replace(before, "graphprobe report runs")).rpartition("\nBREAKS: ")
    assert masked(told.stdout) == f"{story}Wrote {Path.cwd() / 'toy.json'}\n{blank}{closing}"
    document = json.loads(Path("toy.json").read_text(encoding="utf-8"))
    rows = [(row["kind"], row["line"], row["count"]) for row in document["breaks"]]
    assert rows == [("print", 8, 1), ("data-dependent-branch", 9, 1)]
    assert [graph["ops"] for graph in document["graphs"]] == [3, 2, 1] and document["op_count"] == 6
    assert all(graph["guards"] > 0 for graph in document["graphs"])
    assert json.loads(invoke("runs", "--json").stdout) == document


def test_page_python(page_files: Path) -> None:
    exec(compile((page_files / "api.py").read_text(encoding="utf-8"), str(page_files / "api.py"), "exec"), {})


def test_a_killed_run_and_a_run_without_the_tap(page_runs: Path, tmp_path: Path) -> None:
    (run,) = page_runs.iterdir()
    torn = tmp_path / "torn"
    shutil.copytree(run, torn)
    facts = torn / "graphprobe" / "graph_breaks.jsonl"
    facts.write_bytes(facts.read_bytes()[:-20])
    told = json.loads(invoke(str(torn), "--json").stdout)
    (unread,) = told["not_observed"]
    assert unread.startswith("graph_breaks.jsonl line 2 is cut off") and told["break_count"] == 1
    manifest = torn / "graphprobe" / "manifest.json"
    document = json.loads(manifest.read_text(encoding="utf-8"))
    del document["taps"]["graph_breaks"]
    manifest.write_text(json.dumps(document), encoding="utf-8")
    told = json.loads(invoke(str(torn), "--json").stdout)
    assert told["breaks"] == []
    assert told["not_observed"][0] == "graph breaks and functions left uncompiled were not recorded"


def test_script(tmp_path: Path, run_warm: Python) -> None:
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    command = ["explain", "--json", "out.json", "--backend", "eager", "program.py", "--json", "7"]
    done = run_warm("-m", "graphprobe", *command, cwd=tmp_path)
    assert done.out.startswith("arguments ['--json', '7'] __main__\n")
    assert "Traceback" in done.err and "graphprobe" not in done.err.partition("Traceback")[2].partition("from user")[0]
    assert done.code == 1
    found = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert found["ended"].startswith("the script was ended by Unsupported: Data-dependent branching")
    file = str(tmp_path / "program.py")
    assert [(row["kind"], row["file"], row["line"], row["count"], row["outcome"]) for row in found["breaks"]] == [
        ("data-dependent-branch", file, 10, 1, "raised"),
        ("tensor-item", file, 6, 2, "continued"),
    ]
    assert found["not_observed"] == [] and len(found["graphs"]) == 5


DIES = """
import numpy as np
import torch


@torch.compile(backend="eager")
def dies(x):
    y = x + 1; print("seen"); n = int(x.sum().item()); a = np.frombuffer(b"zero", dtype=np.float32)
    return y * n + torch.from_numpy(a.copy()).sum()


try:
    dies(torch.ones(3))
except AssertionError:
    print("caught")
"""


def test_an_error_of_dynamo_is_tied_to_its_break(tmp_path: Path, run_warm: Python) -> None:
    """In the table, in the verdict, and in the JSON; though the program catches it. Names are those of the columns."""
    (tmp_path / "dies.py").write_text(DIES, encoding="utf-8")
    done = run_warm("-m", "graphprobe", "explain", "--json", "out.json", "dies.py", cwd=tmp_path)
    assert done.code == 1 and "caught" in done.out
    table, _, verdict = done.out.rpartition("\nBREAKS: ")
    error = "AssertionError: Expected np.nditer base, got <class 'bytes'> (at dies.py:9 in dies)"
    assert f"  error:   {error}\n" in table and f"error: {error} " in " ".join(verdict.split())
    assert verdict.startswith("3 graph breaks, 0 functions not compiled, 1 compile error\n")
    found = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    rows = {row["kind"]: row for row in found["breaks"]}
    assert {kind: row["outcome"] for kind, row in rows.items()} == {
        "numpy": "died",
        "print": "continued",
        "tensor-item": "continued",
    }
    assert rows["numpy"]["error"].endswith("dies.py:9 in dies)") and found["break_count"] == 3
    assert rows["numpy"]["cause"].startswith("`np.frombuffer(b'zero', dtype=np.float32)`")
    assert "use `x.sum().long()` in the place of `int(x.sum().item())`" in rows["tensor-item"]["remedy"]


def test_script_that_compiles_nothing(tmp_path: Path, run_python: Python) -> None:
    (tmp_path / "nothing.py").write_text("import sys\nprint('torch' in sys.modules)\n", encoding="utf-8")
    done = run_python("-m", "graphprobe", "explain", "nothing.py", cwd=tmp_path)
    assert (done.out, done.code) == ("False\n", 2) and "compiled nothing" in done.err


def test_callable_and_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "targets.py").write_text(TARGETS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    told = invoke("targets.py:broken", "--json")
    found = json.loads(told.stdout)
    assert told.exit_code == 1 and [(row["kind"], row["line"]) for row in found["breaks"]] == [("explicit-break", 6)]
    (tmp_path / "there.json").write_text('{"not_observed": []}', encoding="utf-8")
    invoke("--force", "--json", "there.json", "targets.py:whole", code=0)
    assert json.loads((tmp_path / "there.json").read_text(encoding="utf-8"))["break_count"] == 0
