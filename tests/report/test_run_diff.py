"""Two runs against each other: the first stage or pass, and the settings, in which they differ."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from graphprobe.cli.main import main
from graphprobe.records import CompilerSettings, Where
from graphprobe.report.run_diff import diff_runs, plain_text, verdict
from graphprobe.store import Run, layout
from store.dump_helpers import new_run

GRAPH = (
    'class G(torch.nn.Module):\n    def forward(self, a: "f32[2]"):\n        # File: {file}:3 in f, code: y = a + 1\n'
)
START = GRAPH + '        add: "f32[2]" = f(a)\n        return add\n'
FUSED = GRAPH + '        fused: "f32[2]" = g(a)\n        return fused\n'
OTHER = FUSED.replace("g(a)", "h(a)")
KERNEL = "k = async_compile.cpp(''''void k() {1}'''')\n"
CODE = "# AOT ID: ['0_forward']\n# kernel path: /tmp/torchinductor_{user}/ab/c{hash}.py\nadd(a, {number})\n"
EPILOGUE = "torch._inductor.config.epilogue_fusion"


def record(
    root: Path,
    *,
    file: str = "/home/x.py",
    fused: str | None = FUSED,
    number: int = 1,
    function: str = "step",
    settings: Mapping[str, str] | None = None,
    own: Mapping[str, str] | None = None,
    user: str = "me",
    torch: str = "2.13.0",
    kernel: str = "",
) -> Run:
    """A run of one compile; `fused`: the graph after a pass, None where the pass did not run."""
    writer = new_run(root, torch=torch)
    known = {EPILOGUE: "True"} if settings is None else settings
    document = CompilerSettings(torch=torch, settings=dict(known))
    writer.write_bytes(layout.COMPILER_SETTINGS, msgspec.json.encode(document))
    facts = writer.write_text(layout.compile_file(0), json.dumps({"function": function, "settings": own or {}}))
    writer.event(where=Where(model=0), kind="compile", name="compile", file=facts)
    graph = writer.write_text(layout.dynamo_file(0), START.format(file=file))
    writer.event(where=Where(model=0, phase="dynamo"), kind="graph", name="dynamo_out_graph", file=graph)
    forward = Where(model=0, direction="forward", phase="post_grad_passes")
    graph = writer.write_text(layout.graph_file(0, "forward", number=0), START.format(file=file))
    writer.event(where=forward, kind="graph", name="aot_forward_graph", file=graph)
    if fused is not None:
        graph = writer.write_text(layout.pass_file(0, "forward", "fuse", number=1), fused.format(file=file))
        where = msgspec.structs.replace(forward, pass_name="fuse")
        writer.event(where=where, kind="pass", name="fuse", file=graph, changed=True)
    text = kernel + CODE.format(user=user, hash=("a2" if user == "me" else "b3") * 25 + "x", number=number)
    code = writer.write_text(layout.code_file(0, "forward"), text)
    where = Where(model=0, direction="forward", phase="codegen")
    writer.event(where=where, kind="code", name="output_code", file=code)
    writer.close("finished")
    return Run.open(writer.run_dir)


def invoke(*args: object) -> Result:
    result = CliRunner().invoke(main, [str(arg) for arg in args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_same_program_in_another_folder_of_another_user_is_the_same(tmp_path: Path) -> None:
    a = record(tmp_path / "a")
    b = record(tmp_path / "b", file="/srv/other/x.py", user="you")
    assert a.text(a.find("forward/code")) != b.text(b.find("forward/code"))
    diff = diff_runs(a, b)
    assert (diff.outcome, diff.compared, diff.differences) == ("same", 4, ())
    result = invoke("diff", a.run_dir, b.run_dir)
    assert result.exit_code == 0
    assert "SAME: at every stage, of 4" in result.output


@pytest.mark.parametrize(
    ("other", "stage", "what"),
    [
        ({"number": 2}, "forward/code", "the generated code differs"),
        ({"fused": None}, "forward/after:fuse", "the pass runs in A only, and changes the graph"),
        ({"fused": START}, "forward/after:fuse", "the graph differs after the pass"),
        ({"fused": OTHER, "number": 7}, "forward/after:fuse", "the graph differs after the pass"),
        ({"function": "another"}, "model__0", "only A compiles it"),
    ],
    ids=["code", "pass left out", "pass did nothing", "pass before code", "another program"],
)
def test_first_stage_is_named(tmp_path: Path, other: dict[str, str], stage: str, what: str) -> None:
    a, b = record(tmp_path / "a"), record(tmp_path / "b", **other)  # type: ignore[arg-type]
    first = diff_runs(a, b).differences[0]
    assert (first.stage, first.what) == (stage, what)
    result = invoke("diff", a.run_dir, b.run_dir)
    assert result.exit_code == 1
    assert f"differs first at {stage}: {what}" in result.output
    assert "next:" in result.output


@pytest.mark.parametrize("kernel", [KERNEL, KERNEL.replace("1", "2")])
def test_a_wrapper_that_differs_is_told_from_kernels(kernel: str, tmp_path: Path) -> None:
    a, b = record(tmp_path / "a", kernel=KERNEL), record(tmp_path / "b", kernel=kernel, number=2)
    same = "the kernels are the same, the wrapper differs"
    assert diff_runs(a, b).differences[0].what == (same if kernel == KERNEL else "the generated code differs")


def test_next_command_shows_the_stage_node_by_node(tmp_path: Path) -> None:
    a, b = record(tmp_path / "a"), record(tmp_path / "b", fused=OTHER)
    command = invoke("diff", a.run_dir, b.run_dir).output.rpartition("next:")[2].split()
    assert command[1:] == ["diff", str(a.run_dir), str(b.run_dir), "--at", "model__0/forward/after:fuse"]
    shown = invoke(*command[1:])
    assert shown.exit_code == 1
    assert "h(a)" in shown.output
    assert invoke("diff", a.run_dir, b.run_dir, "--at", "model__0/forward/graph").exit_code == 0


def test_settings_of_the_run_and_of_one_compile_are_named(tmp_path: Path) -> None:
    a = record(tmp_path / "a", settings={EPILOGUE: "True", "torch.x.old": "1"})
    b = record(tmp_path / "b", settings={EPILOGUE: "True", "torch.x.new": "1"}, own={EPILOGUE: "False"}, torch="2.15.0")
    diff = diff_runs(a, b)
    assert [(one.name, one.a, one.b) for one in diff.settings] == [(EPILOGUE, "True", "False")]
    assert (diff.settings_only_a, diff.settings_only_b) == (("torch.x.old",), ("torch.x.new",))
    assert verdict(diff).startswith("DIFFERENT: 1 setting")
    result = invoke("diff", a.run_dir, b.run_dir)
    assert result.exit_code == 1
    assert "torch: 2.13.0 in A, 2.15.0 in B" in result.output
    assert "no graph and no generated code differs" in " ".join(result.output.split())


def test_json_names_the_first_difference(tmp_path: Path) -> None:
    a, b = record(tmp_path / "a"), record(tmp_path / "b", number=2)
    document = json.loads(invoke("diff", a.run_dir, b.run_dir, "--json").output)
    assert (document["outcome"], document["a"], document["compared"]) == ("different", str(a.run_dir), 4)
    assert document["differences"][0]["stage"] == "forward/code"
    assert document["differences"][0]["digest_a"] != document["differences"][0]["digest_b"]


@pytest.mark.parametrize("name", [layout.code_file(0, "forward"), layout.EVENTS, layout.COMPILER_SETTINGS])
@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"\x00{")], ids=["gone", "damaged"])
def test_damaged_run_is_never_the_same(tmp_path: Path, name: str, damage: Callable[[Path], object]) -> None:
    a, b = record(tmp_path / "a"), record(tmp_path / "b")
    damage(b.tool_dir / name)
    result = invoke("diff", a.run_dir, b.run_dir)
    assert "SAME" not in result.output
    assert result.exit_code in (1, 125)
    if name != layout.code_file(0, "forward") or not (b.tool_dir / name).exists():
        assert "not compared:" in result.output


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    a = record(tmp_path / "a")
    assert invoke("diff", a.run_dir, tmp_path / "missing").exit_code == 2
    assert invoke("diff", tmp_path / "x", a.run_dir).exit_code == 2
    assert "--at goes with two runs" in invoke("diff", a.run_dir, "--at", "forward/code").output
    assert invoke("diff", a.run_dir, a.run_dir, "--at", "nowhere").exit_code == 2
    assert "exclude each other" in invoke("diff", a.run_dir, "--at", "x", "--pass", "fuse").output


def test_normalised_text_keeps_what_is_computed() -> None:
    assert plain_text("x0 // 8 + 0x10, a / b / c") == "x0 // 8 + 0x10, a / b / c"
    assert plain_text('File "/usr/lib/torch/nn.py", line 12, in f') == 'File "nn.py", in f'
    assert plain_text("# AOT ID: ['1_inference']") == plain_text("# AOT ID: ['0_inference']")
    assert plain_text("/a/b/nn.py:7: at 0x7f12ab34cd") == "nn.py: at <address>"
