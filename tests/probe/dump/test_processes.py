"""A folder for each rank, and for a forked child; a killed process leaves what opens; scripts of TorchAir's users."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from graphprobe.probe.dump.sessions import open_sessions
from graphprobe.store import DumpFolder, open_dump

SCRIPT = """\
import torch
from graphprobe.compat import torchair
from graphprobe.compat.torchair import logger

class Model(torch.nn.Module):
    def forward(self, x, y):
        return torch.add(x, y) * 2

model = Model()
config = torchair.CompilerConfig()
# data dump开关：[必选]
config.dump_config.enable_dump = True
config.dump_config.dump_mode = "all"
config.dump_config.dump_path = 'dump'
config.dump_config.quant_dumpable = True
config.dump_config.dump_step = "0|1"
config.dump_config.dump_layer = "Add Mul_1"
config.dump_config.dump_data = "{data}"
config.dump_config.dump_config_path = "dump_config.json"
npu_backend= torchair.get_npu_backend(compiler_config=config)
opt_model = torch.compile(model, backend=npu_backend)
for _ in range(3):
    print(opt_model(torch.ones(2, 2), torch.ones(2, 2)).sum().item())
"""


@pytest.mark.parametrize("data", ["stats", pytest.param("tensor", marks=pytest.mark.heavy)])
def test_a_script_of_torchair_with_every_option(data: str, run_warm: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "dump").mkdir()
    (tmp_path / "dump_config.json").write_text('{"dump": {"dump_path": "dump", "dump_mode": "output"}}', "utf-8")
    (tmp_path / "main.py").write_text(SCRIPT.replace("{data}", data), "utf-8")
    done = run_warm("main.py", cwd=tmp_path)
    assert (done.code, done.out.split()) == (0, ["16.0"] * 3), done.err
    (folder,) = open_dump(tmp_path / "dump").folders
    assert folder.time_dir.parent == tmp_path / "dump" / "worldsize1_global_rank0"
    assert len(folder.time_dir.name) == 14 and folder.time_dir.name.isdecimal()
    assert sorted(path.name for path in folder.time_dir.glob("0/Model/0/*")) == ["0", "1"]
    ops = [op.record for op in folder.ops()]
    assert [op.op.op_type for op in ops] == ["Data", "Data", "cpp_fused"] * 2
    assert "add" in ops[2].op.fx_nodes
    manifest = folder.manifest
    assert manifest is not None and manifest.state == "finished" and manifest.missing == []
    assert any("dump_mode" in note for note in manifest.notes), "the option and the file disagree"
    assert any("'Mul_1' matched no op" in note for note in manifest.notes)
    assert all(note in done.err for note in manifest.notes)
    if data == "stats":
        names = {path.name for path in folder.time_dir.glob("0/Model/0/0/*")}
        assert names == {"stats.csv"}
        assert {row.stats["Max"] for row in folder.stats()} == {1.0, 4.0}
    else:
        names = sorted(path.name.rsplit(".", 2)[0] for path in folder.time_dir.glob("0/Model/0/0/*"))
        assert names[:2] == ["Data.arg0_1", "Data.arg1_1"] and names[2].startswith("cpp_fused.cpp_fused_add_mul")


def test_a_forked_child_has_a_folder_of_its_own(dumping: Any) -> None:
    compiled = dumping.compile(lambda x: x.sin() + 1, "aot_eager")
    compiled(torch.ones(2))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            compiled(torch.full((2,), 5.0))
            (session,) = open_sessions()
            code = 0 if session.flush() else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    found = dumping.end()
    mine, other = open_dump(found.path).folders
    assert mine.manifest is not None and mine.manifest.pid == os.getpid()
    seen = [[op.values()["output.0"].array().tolist() for op in folder.ops()][:1] for folder in (mine, other)]
    assert seen == [[[1.0, 1.0]], [[5.0, 5.0]]]


KILLED = """\
import os, signal, sys
import torch, graphprobe
name, data = sys.argv[1:]
config = graphprobe.CompilerConfig()
config.dump_config.enable_dump = True
config.dump_config.dump_path = "."
config.dump_config.dump_data = data
config.dump_config.write_through = True
compiled = torch.compile(lambda x: x.sin() + 1, backend=graphprobe.get_backend(compiler_config=config, backend=name))
for step in range(5):
    compiled(torch.full((2,), float(step)))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("data", ["tensor", "stats"])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_nothing_before_a_kill_is_lost_when_written_through(
    backend: str, data: str, run_warm: Callable[..., Any], tmp_path: Path
) -> None:
    assert run_warm("-c", KILLED, backend, data, cwd=tmp_path).code == -9
    (folder,) = open_dump(tmp_path).folders
    assert folder.state == "killed" and folder.problems == []
    steps = [op.record.place.step for op in folder.ops()]
    assert sorted(set(steps)) == [0, 1, 2, 3, 4]
    assert all(steps.count(step) == steps.count(0) for step in range(5))
    if data == "stats":
        assert len({row.task_id for row in folder.stats()}) == len(steps)
    else:
        assert all(op.values() for op in folder.ops())


def read(folder: DumpFolder) -> dict[str, list[int]]:
    """The steps of each op; every value and every row is read."""
    found: dict[str, list[int]] = {}
    for op in folder.ops():
        for value in op.values().values() if op.has_values else ():
            value.array()
        assert op.record.place.step is not None
        found.setdefault(op.record.op.op_name, []).append(op.record.place.step)
    list(folder.stats())
    assert folder.problems == []
    return found


@pytest.mark.parametrize("data", ["tensor", "stats"])
def test_the_byte_budget_ends_the_dump_and_not_the_program(data: str, dumping: Any) -> None:
    limit = 160_000
    compiled = dumping.compile(lambda x: (x.sin() + 1).cos(), "aot_eager", dump_data=data, max_bytes=limit)
    x = torch.randn(1000)
    for _ in range(60):
        assert torch.equal(compiled(x), (x.sin() + 1).cos())
    found = dumping.end()
    files = [path for path in found.folder.time_dir.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= limit
    assert found.manifest.stopped is not None and "max_bytes" in found.manifest.stopped
    numbers = [op.record.seq for op in found.ops()]
    read(found.folder)
    assert numbers == list(range(len(numbers))) and numbers, "a prefix"
    (missing,) = found.manifest.missing  # of what was handed in by then: later calls are not looked at
    assert f"not written: {found.manifest.stopped}; first: " in missing and f"(op {len(numbers)})" in missing
