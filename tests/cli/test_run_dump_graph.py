"""`graphprobe run --dump-graph`: a script that knows nothing of graphprobe is dumped."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from conftest import Finished
from graphprobe.cli.commands.run import command
from graphprobe.cli.dump_graph import SPELLED, plan_of
from graphprobe.cli.main import main
from graphprobe.compare.open import open_dump as open_calls
from graphprobe.dump_plan.options import OPTIONS
from graphprobe.errors import DumpConfigError, SettingError, UsageError
from graphprobe.store import layout
from graphprobe.store.dump_reader import open_dump

Python = Callable[..., Finished]

SCRIPT = """\
import sys
import torch
torch.manual_seed(0)

def own(gm, inputs):
    return gm

model = torch.compile(torch.nn.Linear(3, 3), backend="BACKEND")
cos = torch.compile(backend="BACKEND", fullgraph=True)(lambda x: x.cos())
function = torch.compile(lambda x: x.sin(), backend=own)
off = torch.compile(lambda x: x.tan(), disable=True)
for _ in range(2):
    y = off(function(cos(model(torch.ones(2, 3)))))
    y.sum().backward()
print(y.sum().item(), sys.argv)
"""


def finished(
    run_warm: Python, folder: Path, *options: str, script: str = SCRIPT, backend: str = "aot_eager"
) -> Finished:
    (folder / "script.py").write_text(script.replace("BACKEND", backend), "utf-8")
    done = run_warm("-m", "graphprobe", "run", *options, "script.py", "--flag", cwd=folder)
    assert done.code == 0, done.err
    return done


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.heavy)])
def test_a_script_as_it_is(backend: str, run_warm: Python, tmp_path: Path) -> None:
    done = finished(run_warm, tmp_path, "--dump-graph", "stats", "--steps", "1", backend=backend)
    assert done.out == run_warm("script.py", "--flag", cwd=tmp_path).out, "the program computes what it does without"
    (run,) = (tmp_path / layout.ROOT).iterdir()
    (folder,) = open_dump(run).folders
    ops = [op.record for op in folder.ops()]
    assert {op.place.model_name for op in ops} == {"Linear", "function"}
    assert {op.place.step for op in ops} == {1}
    assert {op.op.direction for op in ops} == {"forward", "backward"}
    assert list(folder.stats())
    assert open_calls(run.parent).steps(0) == (1,), "a folder with one run with one dump is that dump"
    assert {op.op.engine for op in ops} == {"kernel" if backend == "inductor" else "interpreter"}
    assert folder.manifest is not None
    (note,) = [note for note in folder.manifest.notes if "'own'" in note]
    assert note.startswith("not dumped")
    said = [line for line in done.err.splitlines() if line.startswith("graphprobe: dump: ")]
    assert said == [f"graphprobe: dump: {len(ops)} ops in {(run / layout.GRAPHS).relative_to(tmp_path)}"]


@pytest.mark.heavy
def test_single_ops_begin_with_the_import_of_torch(run_warm: Python, tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(json.dumps({"dump": {"dump_path": ".", "dump_list": [], "dump_op_switch": "on"}}))
    script = "import torch\nx = torch.ones(2)\ntorch.compile(lambda x: x.sin(), backend='BACKEND')(x)\nx.cos()\n"
    finished(run_warm, tmp_path, "--dump-config", "c.json", "--dump-to", ".", "--dump-layer", "ones cos", script=script)
    (folder,) = open_dump(tmp_path).folders
    assert [op.record.op.op_name for op in folder.ops() if op.record.op.engine == "eager"] == ["ones", "cos"]


def test_mistakes_are_told_before_the_script_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text("open('ran', 'w')\n")
    for options, said in (
        (("--dump-graph", "foo"), "--dump-graph = 'foo'"),
        (("--dump-graph", "stats", "--steps", "5-3"), "--steps = '5-3'"),
        (("--dump-graph", "stats", "--dump-to", "script.py"), "--dump-to = 'script.py'"),
        (("--dump-config", "nowhere.json"), "nowhere.json"),
        (("--steps", "0"), "--steps: no calls are dumped"),
    ):
        done = CliRunner().invoke(main, ["run", *options, "script.py"])
        assert done.exit_code == 2, (options, done.output)
        error = done.exception
        assert said in (done.output + str(error)), done.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["script.py"]


# -- what is in force -------------------------------------------------------------------------------------------------


def test_every_option_of_a_dump_has_one_of_the_command() -> None:
    assert SPELLED.keys() == {row.name for row in OPTIONS}
    taken = Counter(parameter.name for parameter in command.params)
    assert taken.most_common(1)[0][1] == 1, "two options with one keyword: the one would bound what the other is for"


def test_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.json").write_text(json.dumps({"dump": {"dump_path": ".", "dump_step": "2", "dump_mode": "input"}}))
    environ = {"GRAPHPROBE_DUMP_STEP": "1", "GRAPHPROBE_DUMP_MODE": "output", "GRAPHPROBE_DUMP_LAYER": "sin"}
    plan = plan_of({"dump_data": "stats", "dump_step": "3", "dump_config_path": "c.json"}, environ)
    assert plan is not None
    assert (plan.data, plan.mode) == ("stats", "input")
    assert plan.steps is not None and plan.steps.ranges == ((3, 3),)
    sources = [plan.sources[name] for name in ("enable_dump", "dump_step", "dump_mode", "dump_layer", "engine")]
    assert sources == ["argument", "argument", "file:c.json", "env:GRAPHPROBE_DUMP_LAYER", "default"]
    assert "--steps = '3' wins over $.dump.dump_step = '2'" in plan.warnings


def test_the_environment_alone(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of({"dump_step": "4"}, {"GRAPHPROBE_ENABLE_DUMP": "1", "GRAPHPROBE_DUMP_DATA": "stats"})
    assert plan is not None and (plan.data, plan.sources["enable_dump"]) == ("stats", "env:GRAPHPROBE_ENABLE_DUMP")
    assert plan_of({}, {}) is None and capsys.readouterr().err == ""
    assert plan_of({}, {"GRAPHPROBE_DUMP_STEP": "1"}) is None
    assert "environment variable GRAPHPROBE_DUMP_STEP is set" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"dump_data": "all"}, SettingError),
        ({"max_bytes": "none", "dump_data": "stats"}, SettingError),
        ({"engine": "kernel"}, UsageError),
        ({"quant_dumpable": True}, UsageError),
    ],
)
def test_values_that_mean_nothing(values: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        plan_of(values, {})


def test_a_conflict_with_the_file_names_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.json").write_text(json.dumps({"dump": {"dump_path": ".", "dump_debug": "on"}}))
    with pytest.raises(DumpConfigError, match=r"\$\.dump\.dump_debug.*--dump-layer"):
        plan_of({"dump_config_path": "c.json", "dump_layer": "add"}, {})
