"""`graphprobe issue`: title and body of a dossier, and the same without the names and values of the program."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from cli.calling import call
from conftest import ROOT

GOLDEN = ROOT / "tests" / "diagnose" / "golden"

CODE = """\
import torch
from secret_lab.kernels import secret_backend

class SecretBlock(torch.nn.Module):
    def __init__(self, secret_width):
        super().__init__()
        self.secret_scale = torch.nn.Parameter(torch.tensor([0.25, -3.5, 0.0]))

    def secret_step(self, x):
        return x * self.secret_scale

    def forward(self, x):
        return self.secret_step(x) + len(torch.ones(3))

def secret_program(secret_input, flag=True):
    return SecretBlock(3)(secret_input)  # the secret of model.py

secret_value = torch.tensor([[0.125, 7], [0, 9]])
try:
    secret_program(secret_input=secret_value, flag=False)
except ValueError as secret_error:
    print(f"{secret_error}")
torch.compile(secret_program, backend=secret_backend)(secret_value)
"""

LOG = """\
Traceback (most recent call last):
  File "model.py", line 14, in secret_program
    y = secret_program(secret_thing)
  File "torch/_dynamo/eval_frame.py", line 3, in _fn
    raise e
RuntimeError: no
"""


def invoke(*args: object, **options: Any) -> Result:
    return call("issue", *args, **options)


@pytest.fixture
def dossier(tmp_path: Path) -> Path:
    folder = tmp_path / "codegen-aten.relu.default"
    folder.mkdir()
    (folder / "REPORT.md").write_bytes((GOLDEN / "wrong_value.md").read_bytes())
    finding = {"source": "/home/alice/wrong_value.py:15", "module": "0", "worst": {"label": "output 0"}}
    (folder / "finding.json").write_text(json.dumps(finding))
    return folder


def test_title_and_body(dossier: Path) -> None:
    whole = (dossier / "REPORT.md").read_text()
    title, _, body = whole.partition("\n")
    assert invoke(dossier, "--title").output == title.removeprefix("# ") + "\n"
    assert invoke(dossier, "--body").output == body.lstrip("\n")
    for args in ([dossier], [dossier / "REPORT.md"], [dossier, "--title", "--body"]):
        assert invoke(*args).stdout == whole.removeprefix("# ")


def test_a_reduction_is_taken_too(dossier: Path) -> None:
    reduction = dossier.parent / "it-reduced"
    reduction.mkdir()
    dossier.rename(reduction / "repro")
    assert invoke(reduction, "--title").output.startswith("torch.compile: wrong value")


def test_what_is_no_dossier_is_refused(dossier: Path) -> None:
    result = invoke(dossier.parent, code=2)
    assert "has no REPORT.md" in result.output
    assert "codegen-aten.relu.default" in result.output, "it names what lies there"
    invoke(dossier / "nothing", code=2)
    (dossier / "REPORT.md").write_text("Changed\n")
    result = invoke(dossier, code=2)
    assert "no title" in result.output


def private(folder: Path, title: str, body: str, **finding: str) -> str:
    """What `--private` makes of a dossier with this report."""
    (folder / "REPORT.md").write_text(f"# {title}\n\n{body}", encoding="utf-8")
    (folder / "finding.json").write_text(json.dumps({"worst": {"label": "output 0"}, **finding}))
    result = invoke("--private", folder, code=0)
    assert "before you post it" in result.stderr, result.output
    return result.stdout


def test_private(dossier: Path) -> None:
    result = invoke("--private", dossier, code=0)
    assert "before you post it" in result.stderr
    for gone in ("wrong_value.py", "2;", "0.125", "addmm", "module_1"):
        assert gone not in result.stdout, gone
    for kept in ("aten.relu.default", "PyTorch version: …", "off by 1", "128 of 128", "`inductor`", "file_1.py"):
        assert kept in result.stdout, kept
    assert "- *Expected*: a value at (0, 24) of output 0\n- *Actual*: another value; off by" in result.stdout


def test_private_scripts_do_the_same_under_other_names(tmp_path: Path) -> None:
    body = f"### 🐛 Describe the bug\n\nIn `secret_program`:\n\n```python\n{CODE}```\n\n"
    body += "```\nexpected 3, actual -0.5e-3\n```\n"
    body += f"\n### Error logs\n\n```\n{LOG}```\n\n### Versions\n\ntorch 2.13.0\n"
    title = "torch.compile: hang from secret_lab.op"
    made = private(tmp_path, title, body, op="secret_lab.op", source="model.py:3")
    assert "secret" not in made and "model.py" not in made
    assert "2.13.0" in made and "expected …, actual …" in made and "raise e" in made
    code = re.search(r"```python\n(.*?)```", made, re.DOTALL)
    assert code is not None
    tree = ast.parse(code[1])
    kinds, before = (
        [type(node).__name__ for node in ast.walk(one) if not isinstance(node, ast.expr_context)]
        for one in (tree, ast.parse(CODE))
    )
    assert kinds == before
    assert "torch.tensor([[1.0, 1], [0, 1]])" in code[1] and "[1.0, -1.0, 0.0]" in code[1]
    assert "def forward(self" in code[1] and "torch.ones(3)" in code[1]
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    called = {n.func.attr for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)}
    assert "method_1" in names & called


def test_private_without_code_that_can_be_read(tmp_path: Path) -> None:
    body = "```python\ndef f(:  # secret\n# secret\n    x = 1\n```\n"
    assert private(tmp_path, "t", body).endswith("```python\ndef f(:  # secret\n    x = 1\n```\n")
