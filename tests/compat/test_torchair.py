"""TorchAir's two example scripts, with only the imports and the name of the device changed."""

import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import graphprobe
from conftest import Finished
from graphprobe.compat import torchair
from graphprobe.store import Run

HEAD = """\
import os
# 配置环境变量
os.environ["TORCH_COMPILE_DEBUG"] = "1"
import torch
{imports}
import logging
# 开启Dynamo日志
torch._logging.set_logs(dynamo=logging.DEBUG,aot=logging.DEBUG,output_code=True,graph_code=True)

config = torchair.CompilerConfig()
"""
MODEL = """
npu_backend = torchair.get_npu_backend(compiler_config=config)
device = "cpu"

class Model(torch.nn.Module):
    def forward(self, x):
        return 2 * x

model = Model().to(device)
model = torch.compile(model, backend=npu_backend, dynamic=False)
"""
MAX_AUTOTUNE = HEAD + '''
# 仅适用max-autotune模式
config.debug.graph_dump.type = "pbtxt"
config.mode.value = "max-autotune"
''' + MODEL + '''
x = torch.randn(10, 10, requires_grad=True, device=device)
out = model(x)
loss_fn = torch.nn.MSELoss()
target = torch.randn(10, 10, device=device)
loss = loss_fn(out, target)
loss.backward()

x = torch.randn(20, 20, requires_grad=False, device=device)
out = model(x)
'''  # fmt: skip
REDUCE_OVERHEAD = HEAD + '''
config.mode.value = "reduce-overhead"
''' + MODEL + '''
x = torch.randn(20, 20, requires_grad=False, device=device)
out = model(x)
'''  # fmt: skip
IMPORTS = "from graphprobe.compat import torchair\nfrom graphprobe.compat.torchair import logger"


def tree(folder: Path, script: str, run_warm: Callable[..., Finished]) -> tuple[Run, list[str]]:
    (folder / "main.py").write_text(script.format(imports=IMPORTS), encoding="utf-8")
    done = run_warm("main.py", cwd=folder)
    assert done.code == 0, done.err
    run = Run.open(folder)
    (only,) = (folder / "torch_compile_debug").glob("run_*")
    assert re.fullmatch(r"run_\d{4}(_\d\d){5}_\d{6}-pid_\d+", only.name)
    assert only.name == run.run_dir.name
    return run, sorted(str(path.relative_to(only)) for path in only.rglob("*") if path.is_file())


@pytest.mark.slow
def test_max_autotune(run_warm: Callable[..., Finished], tmp_path: Path) -> None:
    run, files = tree(tmp_path, MAX_AUTOTUNE, run_warm)
    text = "\n".join(files)
    parts = """debug.log manifest.json model__0/dynamo_out_graph.txt model__0/forward/000_aot_forward_graph.txt
        model__0/backward/000_aot_backward_graph.txt model__1/dynamo_out_graph.txt
        model__1/forward/000_aot_forward_graph.txt"""
    assert {"torchdynamo/debug.log", *(f"graphprobe/{part}" for part in parts.split())} <= set(files), text
    for folder in ("model__0/forward", "model__0/backward", "model__1/forward"):
        direction = folder.partition("/")[2]
        for stage in ("original", "optimized"):
            assert re.search(rf"^graphprobe/{folder}/\d{{3}}_aot_{direction}_{stage}_graph\.pbtxt$", text, re.M), text
    assert "model__1/backward" not in text
    assert "[10, 10]" in run.text(run.find("model__0/forward/graph"))
    assert "[20, 20]" in run.text(run.find("model__1/forward/graph"))
    assert (run.manifest.state, run.manifest.missing) == ("finished", [])
    assert (run.run_dir / "torchdynamo/debug.log").stat().st_size > 0  # the script has set_logs on


def test_reduce_overhead(run_warm: Callable[..., Finished], tmp_path: Path) -> None:
    run, files = tree(tmp_path, REDUCE_OVERHEAD, run_warm)
    parts = """debug.log model__0/dynamo_out_graph.txt model__0/forward/000_aot_forward_graph.txt
        model__0/forward/output_code.py model__0/forward/captured_ops.json"""
    assert {"torchdynamo/debug.log", *(f"graphprobe/{part}" for part in parts.split())} <= set(files), files
    assert (run.manifest.models, run.manifest.missing) == (1, [])


def test_names_defaults_and_what_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert isinstance(torchair.logger, logging.Logger)
    config = torchair.CompilerConfig()
    assert config.mode == config.mode.value == "max-autotune"
    assert config.debug.graph_dump.type.value is None
    for value in (None, {}, []):
        backend = torchair.get_npu_backend(compiler_config=None, aot_config=value, custom_decompositions=value)
        graphprobe.disable()
        assert callable(backend)


def test_what_the_logger_says_is_in_the_runs_log(tmp_path: Path) -> None:
    with graphprobe.trace(tmp_path) as folder:
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
        torchair.logger.warning("a word from the script")
    assert "a word from the script" in (folder / "graphprobe/debug.log").read_text()
