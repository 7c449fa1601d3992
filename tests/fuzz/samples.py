"""Whole files for the fuzzer: a run, a diagnosis, a profile, a recorded frame, and dumps of each kind."""

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
from click.testing import CliRunner

from compare import pairs
from conftest import ROOT
from graphprobe.analysis.timing import CacheEvent, Compile, Profile, Span, write_profile
from graphprobe.cli.main import main
from graphprobe.records import GraphArgument, GraphRuns, GraphsLine, NodeLine, NodeSource, NodeTarget, NodeValue
from graphprobe.store import layout
from msprobe_tool import DATA
from report import samples
from store.test_frame_record import RECORD, put

LOG = """2026-01-31 12:00:00,000 DEBUG torch._dynamo.convert_frame convert_frame.py:1] [0/0] begun
2026-01-31 12:00:01,000 WARNING torch._inductor.graph graph.py:7] [0/0] lowering
  of two lines
V0131 12:00:02.123456 77 torch/_dynamo/guards.py:3] [0/0] [__guards] GUARDS:
"""
RECORDED = "001_aot_forward_graph_after_remove_noop_ops"
OPS = {"ts": 0.0, "dur": 1.5, "pid": 1, "tid": 1, "cat": "kernel"}


def everything(folder: Path) -> None:
    """One of each kind, in folders of `folder`."""
    pairs.dumped(pairs.Run(pairs.trained(2, depth=1)), folder / "calls", data="tensor", stack=True)
    pairs.graphs_dumped(folder / "graphs", folder / "values")
    _findings(folder / "graphs")
    shutil.copytree(DATA / "tensor", folder / "msprobe")
    (folder / "ptdbg").mkdir()
    for command in (
        f"convert {folder}/calls --to ptdbg --out {folder}/ptdbg/dump.pkl",
        f"compare --no-replay {folder}/calls {folder}/calls --out {folder}/comparison",
    ):
        assert CliRunner().invoke(main, command.split()).exit_code == 0, command
    ranks = folder / "ranks"
    shutil.copytree(folder / "calls", ranks / "one")
    (ranks / "graphprobe-ranks.json").write_text('{"schema": 1, "ranks": {"0": "one"}}')
    _run(folder / "run")
    _diagnosis(folder / "diagnosis")
    _profile(folder / "profile")
    put(folder / "frame", RECORD | {"modules": [{"name": "train", "own": True, "file": "/a/train.py"}]})
    _settings(folder / "settings")


def _findings(dump: Path) -> None:
    """What the observers of a dump leave, beside its index."""
    (index,) = dump.rglob("ops.jsonl")
    first = json.loads(index.read_text().splitlines()[0])
    op = {"op": first["op"]["op_name"], "op_type": "sin", "source": "model.py:14", "module": "mlp"}
    value = {"output": "output.0", "dtype": "float32", "shape": [4], "elements": 1, "of": 4}
    problem = value | {"kind": "inf", "sign": "+", "first": [[0]]}
    victim = op | {"slot": "input.0", "value": "x"}
    elements = {"first": 0, "last": 3, "changed": 2, "of": 4}
    lines: list[dict[str, Any]] = [
        op | {"kind": "overflow", "step": 0, "problems": [problem], "file": first["file"]},
        op | {"kind": "overwritten", "step": 0, "culprit": op, "victim": victim, "elements": elements},
        op | {"kind": "exception", "step": 1, "text": "it raised", "document": "exception.json"},
    ]
    (index.parent / "findings.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (index.parent / "exception.json").write_text(json.dumps({"traceback": "Traceback: …", "callers": "model.py"}))
    (index.parent / first["file"]).with_name("overflow.json").write_text(
        json.dumps({"origins": [op], "carriers": [op]})
    )


def _run(folder: Path) -> None:
    """A run with a file of every kind that a run may have; `run` is the run itself."""
    beside = folder.with_name("made_run")
    beside.mkdir()
    made = samples.MadeRun(beside)
    made.add_steps()
    made.add_losses()
    made.writer.append_text(layout.LOG, LOG)
    made.writer.append_text(layout.log_file("dynamo"), LOG)
    for line in _records():
        made.writer.append_text(layout.graphs_file(0), msgspec.json.encode(line).decode() + "\n")
    shutil.move(made.close(), folder)
    (captured,) = folder.rglob("captured_ops.json")
    document = json.loads(captured.read_text())
    document["traceEvents"] = [event | OPS for event in document["traceEvents"]]
    captured.write_text(json.dumps(document))


def _records() -> list[GraphsLine]:
    """Records of one graph of the run; those of the others are read from their texts."""
    value = NodeValue("float32", (2, "s0"), ("s0", 1), "cpu")
    several = GraphArgument(kind="dict", items=(GraphArgument(text="torch.float32"), None, True, 2.5), keys=("a", "b"))
    nodes = (
        NodeLine(name="x", op="placeholder", target=0, values=(value,)),
        NodeLine(name="mm", op="call_function", target=1, source=0, args=(GraphArgument(node="x"), 2), values=(value,)),
        NodeLine(name="topk", op="call_function", target=2, args=(several,), values=(value, value), several=True),
        NodeLine(name="output", op="output", target=3, args=(GraphArgument(items=(GraphArgument(node="topk"),)),)),
    )
    targets = tuple(map(NodeTarget, ("x", "torch.ops.aten.mm.default", "torch.ops.aten.topk.default", "output")))
    source = NodeSource("model.py", 3, "forward", "y = x @ x", "mlp")
    graph, inner = GraphRuns("GraphModule", ((0, 2), (3, 1))), GraphRuns("GraphModule/body_0", ((2, 2),))
    changed, failed = (f"model__0/forward/{name}.txt" for name in (RECORDED, "002_failure"))
    return [GraphsLine(changed, (graph, inner), targets, (source,), nodes), GraphsLine(failed, (graph,))]


def _diagnosis(folder: Path) -> None:
    """`result.json`, and the dossier `proofs/codegen-aten.relu.default`."""
    folder.mkdir()
    samples.fault(folder)
    (proof,) = folder.glob("proofs/*")
    (proof / "REPORT.md").write_bytes((ROOT / "tests" / "diagnose" / "golden" / "wrong_value.md").read_bytes())


def _profile(folder: Path) -> None:
    folder.mkdir()
    spans = [
        Span("dynamo", 0, 2_000_000_000, 1_000, compile_id="0/0"),
        Span("pass.post_grad.mine", 10, 1_000_000, 10, parent=0, compile_id="0/0", kind="pass"),
        Span("g++", 20, 500_000, 10, parent=1, kind="build", detail="model.cpp", unfinished=True),
    ]
    compiles = [Compile("0/0", function="forward", file="model.py", line=13, calls=3, recompile_reason="x == 4")]
    profile = Profile(
        "0.1", "2.13", "3.11", 0, 3_000_000_000, 3, spans, compiles, [CacheEvent("fx_graph", "miss", "0/0")], ["main"]
    )
    write_profile(profile, folder / "profile.json")


def _settings(folder: Path) -> None:
    """The JSON files that say what is dumped or collected, and what a reduction is of."""
    folder.mkdir()
    dump = {
        "dump_path": str(folder), "dump_data": "stats", "dump_mode": "all", "dump_stats": ["Max"], "dump_step": "0|2-3",
        "dump_list": [
            {"model_name": "m*", "layer": ["sin", "add*"], "opname_range": [{"begin": "sin", "end": "add"}]},
            {"optype_blacklist": [{"name": "aten.mul*", "pos": ["input0"]}]},
        ],
    }  # fmt: skip
    (folder / "dump.json").write_text(json.dumps({"dump": dump}))
    (folder / "api.json").write_text(json.dumps({"api_dump": {"path": "out", "data": "stats", "steps": "0-2"}}))
    (folder / "graphprobe.json").write_text(json.dumps({"graphprobe": {"max_bytes": "1GiB"}}))
    state = {"schema": 1, "identity": "abc", "signature": "wrong_value", "check": "true", "fail_regex": None}
    (folder / "reduction.json").write_text(json.dumps(state))
