"""A dossier and runs for the tests of the report, with what graphprobe writes for a small model, made in no time."""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graphprobe.findings import Diagnosis, Finding, LargestZ, Rung, Worst
from graphprobe.records import Where
from graphprobe.report.graph_diff import DiffSide, GraphDiff, diff_sides
from graphprobe.store import StepLine, WrittenFile, json_line, layout
from report.printed_graphs import printed, written
from store.dump_helpers import new_run

MODEL = '''"""A model."""

import torch


class Mlp(torch.nn.Module):
    """Two layers."""

    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(16, 32)

    def forward(self, x, scale):
        hidden = torch.relu(self.up(x)) * scale
        print("mean", float(hidden.mean()))
        return hidden
'''
LINE, BREAK_LINE = 14, 15
"""The lines of the relu and of the graph break."""

KERNEL = """extern "C"  void  kernel(float* in_out_ptr0)
{
    // <script>alert("kernel")</script>
    for(int64_t x0=0L; x0<512L; x0+=16L)
    {
        auto tmp0 = at::vec::Vectorized<float>::loadu(in_out_ptr0 + x0, 16);
        auto tmp1 = tmp0 + decltype(tmp0)(1);
        tmp1.store(in_out_ptr0 + x0);
    }
}
"""
CODE = """from torch._inductor.async_compile import AsyncCompile
cpp_fused_relu_0 = async_compile.cpp_pybinding(['float*'], '''
extern "C"  void  kernel(float* in_out_ptr0) { }
''')
def call(args):
    extern_kernels.addmm(primals_2, primals_3, primals_1, out=buf0)
    cpp_fused_relu_0(buf0)
    return (buf0, )
"""


def source(folder: Path) -> Path:
    file = folder / "model.py"
    file.write_text(MODEL)
    # Older than what was recorded of it, as a program is.
    os.utime(file, (time.time() - 3600,) * 2)
    return file


def graph(file: Path, *, fused: bool = False, more: int = 0) -> str:
    """A printed graph of the model; `more` further nodes."""
    comment = f"        # File: {file}:{LINE} in forward, code: hidden = torch.relu(self.up(x)) * scale\n"
    dead = "" if fused else '        alias: "f32[4, 32]" = torch.ops.aten.alias.default(relu)\n'
    tail = "".join(f'        neg_{i}: "f32[4, 32]" = torch.ops.aten.neg.default(relu)\n' for i in range(more))
    return (
        "class GraphModule(torch.nn.Module):\n"
        '    def forward(self, primals_1: "f32[32, 16]", primals_2: "f32[32]", primals_3: "f32[4, 16]"):\n'
        f"{comment}"
        '        addmm: "f32[4, 32]" = torch.ops.aten.addmm.default(primals_2, primals_3, primals_1)\n'
        '        relu: "f32[4, 32]" = torch.ops.aten.relu.default(addmm);  addmm = None\n'
        f"{dead}{tail}        return (relu,)\n"
    )


WORST = Worst(
    label="output 0", index=(5, 7), expected=0.0, actual=-1.0698287, off=1.0698287, legitimate=2e-7, wrong=128, of=128
)


def finding(folder: Path, file: Path, **changes: Any) -> Finding:
    """A wrong kernel, and the dossier that proves it."""
    proof = folder / "proofs" / "codegen-aten.relu.default"
    fields: dict[str, Any] = {"kind": "wrong_value", "stage": "codegen", "op": "aten.relu.default", "node": "relu"}
    fields |= {"kernel": "cpp_fused_relu_0", "source": f"{file}:{LINE}", "module": "blocks.0.mlp"}
    fields |= {"local_z": 8.4e37, "accumulated_z": float("inf"), "reason": "rms of z is 3.72e+37, the limit 4"}
    fields |= {"dossier": str(proof), "proof": "piece", "worst": WORST}
    made = Finding(**(fields | ({"proof": None} if changes.get("dossier", "") is None else {}) | changes))
    if made.dossier is not None and not proof.exists():
        proof.mkdir(parents=True)
        plain = Diagnosis(verdict="fault", findings=[made]).to_json()["findings"][0]
        (proof / "finding.json").write_text(json.dumps(plain))
        (proof / "graph.txt").write_text(graph(file, fused=True))
        (proof / "kernel.cpp").write_text(KERNEL)
        (proof / "REPORT.md").write_text("# torch.compile: wrong value from aten.relu.default (codegen)\n")
        (proof / "repro.py").write_text("raise SystemExit(1)\n")
    return made


def rungs(*right: str, wrong: Sequence[str] = ()) -> list[Rung]:
    """The ladder of a diagnosis; a rung that is named nowhere was not run."""
    found: dict[Any, Any] = dict.fromkeys(("dynamo", "aot", "passes", "kernels", "plain"), "not_run")
    found |= dict.fromkeys(right, "right") | dict.fromkeys(wrong, "wrong")
    return [
        Rung(name=name, state=state, difference="wrong_value in outputs[0]: off" if state == "wrong" else "")
        for name, state in found.items()
    ]


def fault(folder: Path) -> Path:
    """The JSON of a diagnosis that found a fault, with its dossier beside it."""
    diagnosis = Diagnosis(
        verdict="fault",
        seconds=35.7,
        compiles=4,
        findings=[finding(folder, source(folder))],
        ruled_out=["decompositions: 14 ops agree with theirs"],
        rungs=rungs("dynamo", "aot", "passes", wrong=["kernels"]),
        largest_z=LargestZ("forward:getitem_9", 1.876),
    )
    return _json(folder / "result.json", diagnosis.to_json())


def healthy(folder: Path) -> Path:
    """The JSON of a diagnosis that found nothing."""
    diagnosis = Diagnosis(
        verdict="healthy",
        seconds=8.2,
        compiles=2,
        ruled_out=["decompositions: 14 ops agree with theirs"],
        rungs=rungs("dynamo", "aot", "passes", "kernels", "plain"),
        largest_z=LargestZ("forward:getitem_7", 1.76),
    )
    return _json(folder / "healthy.json", diagnosis.to_json())


def _json(path: Path, document: object) -> Path:
    path.write_text(json.dumps(document, indent=2))
    return path


class MadeRun:
    """A run with one model whose forward two passes looked at."""

    def __init__(self, folder: Path) -> None:
        self.file = source(folder)
        self.started_ns = time.time_ns() - 10**10
        facts = {"argv": ["bin/graphprobe", "run", "model.py"], "cwd": str(folder), "started_ns": self.started_ns}
        taps = {"graph_breaks": "on", "recompiles": "on"}
        self.writer = new_run(folder / "runs", **facts, taps=taps, models=1)
        self._model()
        self._forward()

    def _model(self) -> None:
        facts = {"function": "forward", "file": str(self.file), "line": 13, "ops": 3, "guards": [{}, {}]}
        facts |= {"reason": "first compile of this function", "timings_ms": {"entire_frame": 3727.9}}
        file = self.writer.write_text(layout.compile_file(0), json.dumps(facts))
        self.writer.event(where=Where(model=0, compile_id="0/0"), kind="compile", name="compile", file=file)

    def _forward(self) -> None:
        where = Where(model=0, compile_id="0/0", direction="forward", phase="post_grad_passes")
        first = written(self.writer, layout.graph_file(Where(model=0, direction="forward"), number=0), graph(self.file))
        self.writer.event(where=where, kind="graph", name="aot_forward_graph", file=first)
        self.add_pass("remove_noop_ops", graph(self.file, fused=True), removed=("alias",))
        self.add_pass("idle_pass", None)
        code = self.writer.write_text("model__0/forward/output_code.py", CODE)
        self.writer.event(where=where, kind="code", name="output_code", file=code)
        places = [f"{self.file}:{LINE} in forward: hidden = torch.relu(self.up(x)) * scale"]
        launches = []
        for name, line, node in (("extern_kernels.addmm", 6, "addmm"), ("cpp_fused_relu_0", 7, "relu")):
            args = {"output_code_line": line, "fx_nodes": [{"name": node}], "sources": places}
            launches.append({"name": name, "ph": "X", "args": args})
        ops = self.writer.write_text("model__0/forward/captured_ops.json", json.dumps({"traceEvents": launches}))
        self.writer.event(where=where, kind="ops", name="captured_ops", file=ops)

    def add_pass(self, name: str, after: str | None, *, removed: tuple[str, ...] = (), number: int = 1) -> None:
        """A pass of the forward; it changed nothing where there is no graph after it."""
        where = Where(model=0, direction="forward", phase="post_grad_passes", pass_name=name)
        file: WrittenFile | None = None
        if after is not None:
            file = written(
                self.writer, layout.pass_file(Where(model=0, direction="forward"), name, number=number), after
            )
        self.writer.event(
            where=where,
            kind="pass",
            name=name,
            file=file,
            changed=after is not None,
            before=layout.graph_file(Where(model=0, direction="forward"), number=0),
            elapsed_ns=2_500_000,
            nodes_before=6,
            nodes_after=6 - len(removed),
            removed=removed,
        )

    def add_steps(self) -> None:
        """Dynamo 2 s, in it Inductor 1.5 s, and a C++ build of 5 s on another thread."""
        trace = f"Mlp.forward ({self.file}:13)"
        self._step(0, 0, 2_000, component="dynamo", name="trace", detail=trace, compile_id="0/0", thread=1)
        self._step(1, 200, 1_700, component="inductor", name="lower", compile_id="0/0", thread=1)
        self._step(2, 300, 5_300, component="inductor", name="compile C++", thread=2)

    def _step(self, number: int, begin_ms: int, end_ms: int, **what: Any) -> None:
        at = self.started_ns
        self.writer.append_text(layout.STEPS, json_line(StepLine(number, at + begin_ms * 10**6, **what)))
        self.writer.append_text(layout.STEPS, json_line(StepLine(number, at + end_ms * 10**6)))

    def add_losses(self) -> None:
        """A graph break and a recompilation."""
        frame = {"file": str(self.file), "line": BREAK_LINE, "function": "forward", "source": 'print("mean", …)'}
        reason = "Unsupported Tensor.item() call with capture_scalar_outputs=False"
        fact = {"fact": "break", "reason": reason, "gb_type": reason, "stack": [frame], "compile_id": "0/0"}
        fact |= {"function": "forward", "file": str(self.file), "first_line": 13}
        self.writer.append_text(layout.BREAKS, json.dumps(fact) + "\n")
        guard = {"entry": "0/0", "text": "tensor 'x' size mismatch at index 0. expected 4, actual 6"}
        again = {"function": "forward", "file": str(self.file), "line": 13, "guards": [guard], "compile_id": "0/1"}
        caller = {"file": str(self.file), "line": LINE, "function": "<module>"}
        again |= {"caller": caller, "versions": 1, "limit": 8}
        file = self.writer.write_text(layout.RECOMPILES, json.dumps(again) + "\n")
        self.writer.event(where=Where(), kind="log", name="recompiles", file=file)

    def close(self, *, exception: str | None = None) -> Path:
        self.writer.close("failed" if exception else "finished", exception)
        return self.writer.run_dir


def diff_texts(before: str, after: str, before_name: str = "before", after_name: str = "after") -> GraphDiff:
    """The difference of two texts, of printed graphs node by node."""
    return diff_sides(
        DiffSide(before_name, before, printed(before)),
        DiffSide(after_name, after, printed(after)),
    )
