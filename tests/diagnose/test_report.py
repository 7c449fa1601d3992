"""REPORT.md: beside what pytorch's template asks for, and that it names no machine; real ones are in test_golden.py."""

import ast
import re
from typing import Any

import pytest

from graphprobe.diagnose.dossier import report as dossier
from graphprobe.diagnose.settings import versions
from graphprobe.findings import Finding, Kind, Rung, Worst

NUMERIC = ("wrong_value", "wrong_gradient", "nonfinite", "lost_mutation")
"""Kinds that have a worst element."""

VERSIONS = {
    "PyTorch version": "2.13.0+cpu",
    "Is debug build": "False",
    "OS": "Debian GNU/Linux 12 (bookworm) (x86_64)",
    "Versions of relevant libraries": "[pip3] numpy==2.4.6\n[pip3] torch==2.13.0+cpu",
}

CODE = """\
# torch.compile: wrong value from aten.relu.default (codegen)
import torch


def program(view):
    return torch.ops.aten.relu.default(view)  # /home/alice/secret/model.py:14
"""


CPP_LOG = """\
torch._inductor.exc.InductorError: CppCompileError: C++ compile error

Command:
g++ /tmp/torchinductor_alice/5e/c5ec.main.cpp -D CPU_CAPABILITY_AVX512 -O3 -I/home/alice/torch/include -o /tmp/x/c.so

Output:
/tmp/torchinductor_alice/5e/c5ec.main.cpp: In function ‘void kernel(const float*, float*)’:
/tmp/torchinductor_alice/5e/c5ec.main.cpp:18:37: error: ‘compile’ was not declared in this scope
   18 |                         auto tmp1 = compile error!;
      |                                     ^~~~~~~
In file included from /home/alice/venv/lib/python3.11/site-packages/torch/include/ATen/cpu/vec/vec512/vec512.h:15,
                 from /tmp/torchinductor_alice/precompiled_headers/cywc.h:1:
/home/alice/venv/lib/python3.11/site-packages/torch/include/ATen/cpu/vec/vec.h:20:27:   required from here
/home/alice/venv/lib/python3.11/site-packages/torch/include/ATen/cpu/vec/vec.h:18:7: warning: overflow [-Woverflow]
 1866 |       0x80,
      |       ^~~~

Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace (please do this especially if you're reporting a bug to PyTorch).
"""


def rungs(*right: str, wrong: tuple[str, ...] = ()) -> list[Rung]:
    states: dict[Any, Any] = dict.fromkeys(("dynamo", "aot", "passes", "kernels", "plain"), "not_run")
    states |= dict.fromkeys(right, "right") | dict.fromkeys(wrong, "wrong")
    return [Rung(name=name, state=state) for name, state in states.items()]


RELU: dict[str, Any] = {"stage": "codegen", "op": "aten.relu.default", "source": "/home/alice/secret/model.py:14"}
ROW = {"index": (5, 7), "expected": 0.0, "actual": -1.0698287, "off": 1.0698287, "legitimate": 2e-7}
FAULTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "wrong_value": (
        {
            **RELU,
            **{"node": "relu", "kernel": "cpp_fused_relu_0", "module": "blocks.0.mlp", "local_z": 8.4e37},
            **{"reason": "rms of z is 3.72e+37, the limit 4", "accumulated_z": float("inf")},
            "worst": Worst(label="output 0", wrong=512, of=512, **ROW),  # type: ignore[arg-type]
        },
        {
            "output": "expected 0.0, actual -1.0698287487030029\n",
            "neighbour": "The graph that is lowered, run op by op, is right.",
            "settings": ['torch._inductor.config.cpp.inject_relu_bug_TESTING_ONLY = "accuracy"'],
        },
    ),
    "crash_compile": (
        {**RELU, "local_z": float("inf"), "reason": "torch._inductor.exc.InductorError: CppCompileError: C++ error"},
        {"output": CPP_LOG, "log": CPP_LOG},
    ),
    "hang": (
        {"stage": "post_grad", "pass_": "my_pass", "op": "aten.logsumexp.default", "local_z": float("inf")},
        {"output": "it does not end within 12 s\n"},
    ),
}


def report_of(kind: str) -> str:
    facts, more = FAULTS[kind]
    finding = Finding(kind=kind, **facts)  # type: ignore[arg-type]
    backends = dossier.backends_of(rungs("dynamo", "aot", "passes", wrong=("kernels", "plain")))
    files = {"repro.py": "shows the fault", "exact/repro.py": "the recorded graph on the recorded bits"}
    text = dossier.report_text(finding, code=CODE, versions=VERSIONS, files=files, **more)
    return dossier.with_backends(text, backends)


def text_of(kind: Kind, *, reason: str = "", **more: Any) -> str:
    """A report of a fault of which little is known."""
    return dossier.report_text(
        Finding(kind=kind, stage="unknown", reason=reason), **{"versions": {}, "files": {}, **more}
    )


@pytest.mark.parametrize("kind", FAULTS)
def test_every_field_of_pytorchs_template_is_there(kind: str) -> None:
    text = report_of(kind)
    fields = ["### 🐛 Describe the bug", "### Error logs", "### Versions"]
    assert re.findall(r"^### .*$", text, re.MULTILINE) == fields
    assert text.startswith("# torch.compile: ") and text.count("*Expected*") == text.count("*Actual*") == 1
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    ast.parse(code[1])
    for part in ("| `eager` | right |", "| `inductor` | **wrong** |", "PyTorch version: 2.13.0+cpu", "[pip3] numpy=="):
        assert part in text
    assert "alice" not in text and "/home" not in text and "/tmp" not in text
    assert " z " not in text or kind == "wrong_value"


def test_values_come_before_any_z() -> None:
    text = report_of("wrong_value")
    assert "- *Expected*: 0 at (5, 7) of output 0\n" in text
    assert "- *Actual*: -1.07; off by 1.07, where rounding explains 2e-07; 512 of 512 elements are wrong\n" in text
    assert text.index("*Actual*") < text.index(" of z is ")


@pytest.mark.parametrize("kind", [k for k in dossier.FAULTS_IN_WORDS if k not in NUMERIC])
def test_what_is_no_number_has_no_z(kind: Kind) -> None:
    finding = Finding(kind=kind, stage="unknown", local_z=float("inf"), accumulated_z=float("inf"), reason="because")
    text = dossier.report_text(finding, versions={}, files={})
    assert "noise" not in text and "rounding explains" not in text.replace("than rounding explains", "")
    assert not re.search(r"\b(inf|z)\b", text)


def test_faults_of_which_little_is_known() -> None:
    reason = "dtype torch.float32, uncompiled torch.float64. The repro is incomplete: x."
    text = text_of("wrong_dtype", reason=reason)
    assert "- *Expected*: torch.float64\n- *Actual*: dtype torch.float32\n" in text
    assert "The repro is incomplete: x." in text and "`repro.py` is attached" in text
    text = text_of("side_effect", code="", problems=["no text"])
    assert "repro.py" not in text and "- no text" in text
    assert dossier.title_of(Finding(kind="hang", stage="unknown")) == "torch.compile: hang"
    made = Finding(kind="crash_compile", stage="joint", pass_="p", op="aten.sin.default", direction="backward")
    assert dossier.title_of(made) == "torch.compile: compile error from aten.sin.default in the backward (joint, p)"


def test_what_is_long_is_cut_or_attached() -> None:
    finding = Finding(kind="crash_runtime", stage="unknown", flaky_rate=0.5)
    log = "Traceback\n" + "".join(f"line {i}\n" for i in range(500)) + "RuntimeError: the end"
    graph = "".join(f"    n{i} = 0\n" for i in range(500))
    text = dossier.report_text(
        finding, code="x = 1\n" * 300, log=log, graph=graph, problems=["no"], versions={}, files={}
    )
    assert "RuntimeError: the end" in text and "line 3\n" not in text and "lines before" in text
    assert "more lines in graph.txt" in text and "x = 1" not in text and "- no" in text and "50%" in text
    assert len(text.splitlines()) < 220


def test_backends_of_rungs() -> None:
    assert dossier.backends_of([]) == {}
    assert list(dossier.backends_of(rungs("dynamo", "plain")).values()) == ["right", "not_run", "not_run", "right"]
    found = dossier.backends_of(rungs("dynamo", wrong=("kernels",)), backend="mine")
    assert found["mine"] == "wrong" and "inductor" not in found
    text = dossier.with_backends(text_of("hang"), found)
    assert "| `aot_eager` | not run |" in text and "| `mine` | **wrong** |" in text


def test_what_is_shown_of_paths_code_and_logs() -> None:
    for text, expected in (
        ("in /home/alice/p/model.py:3", "in model.py:3"),
        ('File "/opt/v/lib/python3.11/site-packages/torch/_dynamo/x.py", line 3', 'File "torch/_dynamo/x.py", line 3'),
        ("/usr/lib/python3.11/ast.py", "ast.py"),
        ("-I/usr/include/python3.11 x", "-Ipython3.11 x"),
        ("see https://pytorch.org/docs/main or a/b/c or 3/4", "see https://pytorch.org/docs/main or a/b/c or 3/4"),
        ("file:///home/alice/x.py", "x.py"),
        ("cd /home/alice; cd /Users/bob/", "cd ~; cd ~"),
        ("/tmp/torchinductor_alice/ab/x.cpp in /tmp/torchinductor_alice", "x.cpp in torchinductor"),
    ):
        assert dossier.scrubbed(text) == expected
    code = 'a = b = c = 8\nx = a /b/c  # /home/alice/m.py\ny = """\n/home/alice/n.py\n"""\n'
    assert dossier.scrubbed_code(code) == 'a = b = c = 8\nx = a /b/c  # m.py\ny = """\nn.py\n"""\n'
    assert dossier.scrubbed_code("def f(:  # /home/alice/x") == "def f(:  # x"
    assert dossier.trimmed(CPP_LOG).splitlines() == [
        "torch._inductor.exc.InductorError: CppCompileError: C++ compile error",
        "",
        "c5ec.main.cpp: In function ‘void kernel(const float*, float*)’:",
        "c5ec.main.cpp:18:37: error: ‘compile’ was not declared in this scope",
        "   18 |                         auto tmp1 = compile error!;",
        "      |                                     ^~~~~~~",
    ]
    assert dossier.trimmed("") == ""
    log = """Traceback (most recent call last):
  File "/home/alice/graphprobe/diagnose/program.py", line 103, in _call
    result = function(*args)
             ^^^^^^^^^^^^^^^
  File "/home/alice/lib/python3.11/site-packages/torch/_inductor/x.py", line 3, in g
    return h()
           ^^^
RuntimeError: no
"""
    assert dossier.trimmed(log).splitlines() == [
        "Traceback (most recent call last):",
        '  File "torch/_inductor/x.py", line 3, in g',
        "    return h()",
        "RuntimeError: no",
    ]


def test_of_several_threads_the_main_one_stays_from_its_innermost_frame_on() -> None:
    log = 'Timeout (0:00:12)!\nThread 0x7f (most recent call first):\n  File "/usr/lib/threading.py", line 3\n\n'
    log += 'Thread 0x8f (most recent call first):\n  File "/home/alice/repro.py", line 14 in my_pass\n'
    log += "".join(f'  File "/x/site-packages/torch/f{i}.py", line {i} in g\n' for i in range(60))
    lines = dossier.trimmed(log).splitlines()
    assert lines[:3] == [
        "Timeout (0:00:12)!",
        "Thread 0x8f (most recent call first):",
        '  File "repro.py", line 14 in my_pass',
    ]
    assert lines[3] == '  File "torch/f0.py", line 0 in g' and "more lines" in lines[-1]
    report = text_of("hang", reason="it did not end", code="x = 1\n", output=log + "actual: it does not end.\n")
    assert "in my_pass" in report.partition("### Error logs")[2] and report.count("in my_pass") == 1


def test_the_environment_costs_little_and_names_nobody() -> None:
    found = versions()
    assert {"PyTorch version", "Is debug build", "OS", "GCC version", "Python version", "CPU"} <= set(found)
    assert "[pip3] torch==" in found["Versions of relevant libraries"]
    text = "\n".join(found.values())
    assert dossier.scrubbed(text) == text
