"""The tree of a training step: graph break, recompile, late backwards."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import damaged
from graphprobe.store import Run

PROGRAM = Path(__file__).parent / "programs" / "late_backward.py"


@pytest.fixture(scope="module")
def collected(run_warm: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Any]:
    out = tmp_path_factory.mktemp("tree")
    done = run_warm("-m", "graphprobe", "run", "--out", str(out), "--save-inputs", "--graph-dump", "py", str(PROGRAM))
    assert done.code == 0, done.err
    return Run.open(out), done


def facts(run: Run) -> list[dict[str, Any]]:
    return [
        json.loads((run.tool_dir / f"model__{model.number}" / "compile.json").read_text()) for model in run.models()
    ]


@pytest.mark.heavy
def test_program_prints_the_same_as_without(run_warm: Callable[..., Any], collected: tuple[Run, Any]) -> None:
    plain = run_warm(str(PROGRAM))
    assert plain.code == 0 and plain.out.startswith("RESULT ["), plain.err
    assert collected[1].out == plain.out


@pytest.mark.slow
def test_manifest_says_how_it_ended(collected: tuple[Run, Any]) -> None:
    manifest = collected[0].manifest
    assert manifest.state == "finished"
    assert manifest.missing == []
    assert manifest.models == 4
    assert set(manifest.taps.values()) == {"on"}
    assert "torch._inductor.config.fx_graph_cache" in manifest.caches_bypassed
    assert manifest.settings["save_inputs"].source == "argument"


@pytest.mark.slow
def test_each_part_of_the_function_and_each_shape_is_a_model_with_its_reason(collected: tuple[Run, Any]) -> None:
    found = facts(collected[0])
    assert [f["compile_id"] for f in found] == ["0/0", "1/0", "0/1", "1/1"]
    assert [f["function"] for f in found] == 2 * ["Classifier", "torch_dynamo_resume_in_Classifier_at_16"]
    first, rest, again, rest_again = found
    assert first["reason"] == "first compile of this function"
    assert first["recompile_reason"] is None
    assert "graph_break()" in first["graph_break"]["reason"]
    assert first["graph_break"]["user_stack"][-1].endswith("late_backward.py:16 in forward")
    assert rest["reason"] == "continuation behind a graph break"
    assert rest["graph_break"] is None
    assert "size mismatch at index 1. expected 16, actual 24" in again["recompile_reason"]
    assert again["reason"].startswith("recompile: ")
    assert "recompile_reason" in rest_again
    assert any(guard["source"] == "L['tokens']" and guard["kind"] == "TENSOR_MATCH" for guard in first["guards"])
    assert first["timings_ms"]["entire_frame"] > first["timings_ms"]["code_generation"] > 0


@pytest.mark.slow
def test_each_late_backward_lies_under_its_own_model(collected: tuple[Run, Any]) -> None:
    run = collected[0]
    for model in run.models():
        assert {"joint", "forward", "backward", "pre_grad"} <= set(model.graphs())
        assert facts(run)[model.number]["timings_ms"]["backward.entire_backward"] > 0
    # The sequence length is in the backward's shapes: 16 under the first model, 24 under its recompile.
    texts = {n: run.text(run.find(f"model__{n}/backward/graph")) for n in (0, 2)}
    assert "[2, 16, 64]" in texts[0] and "[2, 24, 64]" not in texts[0]
    assert "[2, 24, 64]" in texts[2] and "[2, 16, 64]" not in texts[2]
    # They were compiled in the other order: the events say so.
    compiled = [e.where.model for e in run.events() if e.where.direction == "backward" and e.kind == "code"]
    assert compiled == [3, 2, 1, 0]


@pytest.mark.slow
def test_numbers_have_no_gap_in_any_direction(collected: tuple[Run, Any]) -> None:
    run = collected[0]
    folders = [p for p in run.tool_dir.glob("model__*/*") if p.is_dir()]
    assert len(folders) == 16
    for folder in folders:
        files = [p.name for p in folder.iterdir() if not p.name.endswith(".constants.safetensors")]
        numbers = sorted(int(name[:3]) for name in files if re.match(r"\d{3}_", name))
        assert numbers == list(range(len(numbers))), folder


@pytest.mark.slow
def test_only_changed_passes_are_written_and_all_are_listed(collected: tuple[Run, Any]) -> None:
    run = collected[0]
    passes = [e for e in run.events() if e.kind == "pass"]
    assert len(passes) > 100
    for event in passes:
        assert (event.path is not None) == event.changed, event
        if event.changed:
            assert event.before is not None and event.before != event.path
    names = {e.name for e in passes}
    assert {"remove_noop_ops", "reinplace_inplaceable_ops", "view_to_reshape"} <= names


@pytest.mark.slow
def test_every_file_is_in_the_events_and_as_it_was_written(collected: tuple[Run, Any]) -> None:
    run = collected[0]
    listed = {e.path for e in run.events() if e.path is not None}
    on_disk = {str(p.relative_to(run.tool_dir)) for p in run.tool_dir.rglob("*") if p.is_file()}
    told_line_by_line = {"events.jsonl", "steps.jsonl", "debug.log", *(f"model__{i}/graphs.jsonl" for i in range(4))}
    assert on_disk - listed == {"manifest.json", "compiler_settings.json"} | told_line_by_line
    assert listed <= on_disk
    assert damaged(run) == []
    assert run.problems == []


@pytest.mark.heavy
def test_every_script_reproduces_the_outputs_in_another_process(
    collected: tuple[Run, Any], run_warm: Callable[..., Any]
) -> None:
    run = collected[0]
    scripts = sorted(run.tool_dir.glob("model__*/*/*.py"))
    assert len(scripts) == 4 * 2 * 3
    for script in scripts:
        done = run_warm(str(script), cwd=run.tool_dir, env={"PYTHONPATH": ""})
        assert done.code == 0, f"{script}\n{done.out}\n{done.err}"
        assert re.search(r"^EQUAL: all \d+ outputs$", done.out, re.M), done.out


@pytest.mark.slow
def test_a_changed_input_makes_the_script_say_so(
    collected: tuple[Run, Any], run_warm: Callable[..., Any], tmp_path: Path
) -> None:
    """The check can fail: one bit of one input flipped."""
    folder = collected[0].tool_dir / "model__1" / "forward"
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    data = bytearray((tmp_path / "inputs.safetensors").read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    begin = next(v["data_offsets"][0] for k, v in header.items() if k not in ("__metadata__",) and "rng" not in k)
    data[start + begin + 2] ^= 0x40
    (tmp_path / "inputs.safetensors").write_bytes(bytes(data))
    done = run_warm(str(tmp_path / "output_code.py"), env={"PYTHONPATH": ""})
    assert done.code == 1, done.out + done.err
    assert "DIFFERENT" in done.out


@pytest.mark.slow
def test_every_launch_leads_back_to_a_source_line(collected: tuple[Run, Any]) -> None:
    run = collected[0]
    for model in run.models():
        for direction in ("forward", "backward"):
            trace = json.loads(run.text(run.find(f"model__{model.number}/{direction}/ops")))
            launches = [e for e in trace["traceEvents"] if e["ph"] == "X"]
            assert launches
            assert [e["args"]["index"] for e in launches] == list(range(trace["otherData"]["launches"]))
            sources = [s for e in launches for s in e["args"]["sources"]]
            if model.number in (0, 2):
                assert any("late_backward.py" in s for s in sources)
            code = run.text(run.find(f"model__{model.number}/{direction}/code")).splitlines()
            for launch in launches:
                assert launch["args"]["scheduler_nodes"], launch
                assert launch["name"].split(".")[-1] in code[launch["args"]["output_code_line"] - 1]


@pytest.mark.heavy
def test_pbtxt_parses_and_passes_the_checks_of_onnx(run_warm: Callable[..., Any], tmp_path: Path) -> None:
    import onnx
    from google.protobuf import text_format

    done = run_warm("-m", "graphprobe", "run", "-q", "--out", str(tmp_path), "--graph-dump", "pbtxt", str(PROGRAM))
    assert done.code == 0, done.err
    as_onnx = Run.open(tmp_path)
    files = sorted(as_onnx.tool_dir.glob("model__*/*/*.pbtxt"))
    assert len(files) == 4 * 2 * 2
    for file in files:
        model = text_format.Parse(file.read_text(), onnx.ModelProto())
        onnx.checker.check_model(model)
        written = as_onnx.find(str(file.relative_to(as_onnx.tool_dir)))
        # What a graph returns without a buffer of its own (a size, None, an input) gets a node of graphprobe's domain.
        assert len([n for n in model.graph.node if n.domain != "graphprobe"]) == written.nodes_after
        domains = {node.domain for node in model.graph.node} - {"graphprobe"}
        assert "aten" in domains and domains <= {"aten", "inductor", "prims"}, domains


@pytest.mark.slow
def test_logs(collected: tuple[Run, Any]) -> None:
    run = collected[0]
    ours = (run.tool_dir / "debug.log").read_text()
    torchs = (run.run_dir / "torchdynamo" / "debug.log").read_text()
    assert "calling compiler function inductor" in torchs
    assert "calling compiler function inductor" in ours and "done compiling BACKWARDS graph" in ours
    assert "INFO" not in collected[1].err, "torch's log must not appear where the user did not ask for it"
