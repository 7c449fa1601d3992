"""Wrong use: a message that names the value, what was expected and what to do; and nothing on disk."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import graphprobe
from conftest import Finished
from graphprobe.errors import GraphprobeWarning, SettingError, UsageError

Python = Callable[..., Finished]

FILES = {
    "ok.py": "print('ran')",
    "broken.py": "print('ran')\nif True print(1)\n",
    "nul.py": "x = '\0'\n",
    "typo.json": '{"graphprobe": {"save_input": true}}',
    "section.json": '{"graph_probe": {}}',
    "value.json": '{"graphprobe": {"graph_dump": "svg"}}',
    "torn.json": '{"graphprobe": {',
    "empty/readme.txt": "",
    "badpackage/__init__.py": "",
}

COMMANDS: dict[str, tuple[list[str], dict[str, str], list[str]]] = {
    "unknown option": (["run", "--sav-inputs", "ok.py"], {}, ["--sav-inputs", "--save-inputs"]),
    "unknown command": (["rum", "ok.py"], {}, ["rum"]),
    "graph dump": (["run", "--graph-dump", "svg", "ok.py"], {}, ["graph_dump", "'svg'", "txt, pbtxt, py"]),
    "graph dump by environment": (
        ["run", "ok.py"],
        {"GRAPHPROBE_GRAPH_DUMP": "svg"},
        ["GRAPHPROBE_GRAPH_DUMP", "'svg'", "txt, pbtxt, py"],
    ),
    "flag by environment": (
        ["run", "ok.py"],
        {"GRAPHPROBE_SAVE_INPUTS": "maybe"},
        ["GRAPHPROBE_SAVE_INPUTS", "'maybe'"],
    ),
    "log level": (["run", "--log-level", "DEBUG", "ok.py"], {}, ["log_level", "'DEBUG'", "warning, info, debug"]),
    "size": (["run", "--max-bytes", "2 potatoes", "ok.py"], {}, ["max_bytes", "'2 potatoes'", "2GiB"]),
    "negative size": (["run", "--max-bytes", "-1", "ok.py"], {}, ["max_bytes", "'-1'"]),
    "empty out": (["run", "--out", "", "ok.py"], {}, ["out_dir", "''"]),
    "no config": (["run", "--config", "none.json", "ok.py"], {}, ["'none.json'", "No such file"]),
    "unknown key": (["run", "--config", "typo.json", "ok.py"], {}, ["save_input", "did you mean 'save_inputs'"]),
    "unknown section": (["run", "--config", "section.json", "ok.py"], {}, ["graph_probe", "did you mean 'graphprobe'"]),
    "value in a file": (
        ["run", "--config", "value.json", "ok.py"],
        {},
        ["value.json: $.graphprobe.graph_dump", "'svg'"],
    ),
    "no JSON": (["run", "--config", "torn.json", "ok.py"], {}, ["torn.json", "not valid JSON"]),
    "config by environment": (["run", "ok.py"], {"GRAPHPROBE_CONFIG": "none.json"}, ["GRAPHPROBE_CONFIG", "none.json"]),
    "nothing to run": (["run"], {}, ["nothing to run", "graphprobe run SCRIPT"]),
    "missing script": (["run", "none.py", "x"], {}, ["no script at 'none.py'", "-m NAME"]),
    "folder without main": (["run", "empty"], {}, ["'empty'", "__main__.py"]),
    "missing module": (["run", "-m", "there.is.none"], {}, ["there.is.none", "python -m"]),
    "package without main": (["run", "-m", "badpackage"], {}, ["badpackage", "python -m"]),
    "module option without value": (["run", "-m"], {}, ["-m"]),
    "empty module": (["run", "-m", ""], {}, ["''"]),
    "syntax error": (["run", "broken.py"], {}, ["broken.py, line 2", "SyntaxError"]),
    "syntax error in code": (["run", "-c", "a b"], {}, ["<string>, line 1", "SyntaxError"]),
    "syntax error in a module": (["run", "-m", "broken"], {}, ["broken.py, line 2", "SyntaxError", "if True print(1)"]),
    "null byte": (["run", "nul.py"], {}, ["nul.py", "null bytes"]),
    "torchrun": (["run", "torchrun", "--nproc-per-node", "2", "ok.py"], {}, ["torchrun", "-m graphprobe run"]),
    "torchrun as a module": (["run", "-m", "torch.distributed.run", "ok.py"], {}, ["-m graphprobe run"]),
}


@pytest.mark.parametrize("case", COMMANDS)
def test_commands(case: str, run_python: Python, tmp_path: Path) -> None:
    args, env, words = COMMANDS[case]
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    before = sorted(tmp_path.rglob("*"))
    done = run_python("-m", "graphprobe", *args, cwd=tmp_path, env=env)
    assert done.code == 2, done.out + done.err
    assert done.out == "", "the program must not run"
    for word in words:
        assert word in done.err, done.err
    assert "Traceback" not in done.err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("value", ["true", "True", "yes", "2", " 1", "on"])
def test_a_value_that_torch_ignores(value: str, run_python: Python, tmp_path: Path) -> None:
    program = "import graphprobe, torch\nprint(torch.compile(lambda x: x + 1, backend='eager')(torch.ones(1)).tolist())"
    code = "import graphprobe" if value != "2" else program
    done = run_python("-c", code, cwd=tmp_path, env={"TORCH_COMPILE_DEBUG": value})
    assert done.code == 0, done.err
    assert f"GraphprobeWarning: TORCH_COMPILE_DEBUG={value!r} switches nothing on" in done.err
    assert "Set TORCH_COMPILE_DEBUG=1" in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", ["", "0"])
def test_a_value_that_switches_off_is_no_mistake(value: str, run_python: Python, tmp_path: Path) -> None:
    done = run_python("-W", "error", "-c", "import graphprobe", cwd=tmp_path, env={"TORCH_COMPILE_DEBUG": value})
    assert (done.code, done.err) == (0, "")


def config_with(**values: Any) -> graphprobe.CompilerConfig:
    config = graphprobe.CompilerConfig()
    for name, value in values.items():
        owner: Any = config
        *path, last = name.split("__")
        for part in path:
            owner = getattr(owner, part)
        setattr(owner, last, value)
    return config


def observe(*args: Any, **kwargs: Any) -> None:
    with graphprobe.observe_pass(*args, **kwargs):
        raise AssertionError("the block must not run")


def torchair() -> Any:
    from graphprobe.compat import torchair

    return torchair


def module() -> Any:
    import torch

    return torch.fx.symbolic_trace(torch.nn.ReLU())


CALLS: dict[str, tuple[Callable[[], Any], type[Exception], list[str]]] = {
    "enable: unknown setting": (
        lambda: graphprobe.enable(save_input=True),
        SettingError,
        ["'save_input'", "'save_inputs'"],
    ),
    "enable: text for a flag": (lambda: graphprobe.enable(save_inputs="yes"), SettingError, ["'yes'", "True or False"]),
    "enable: graph dump": (lambda: graphprobe.enable(graph_dump="svg"), SettingError, ["'svg'", "txt, pbtxt, py"]),
    "enable: size": (lambda: graphprobe.enable(max_bytes=-5), SettingError, ["-5", "a size"]),
    "wrap: unknown backend": (lambda: graphprobe.wrap("nonsense"), UsageError, ["'nonsense'", "inductor"]),
    "wrap: near name": (lambda: graphprobe.wrap("inducter"), UsageError, ["'inducter'", "inductor"]),
    "wrap: number": (lambda: graphprobe.wrap(42), UsageError, ["42", "int", "callable"]),  # type: ignore[arg-type]
    "wrap: None": (lambda: graphprobe.wrap(None), UsageError, ["None", "callable"]),  # type: ignore[arg-type]
    "wrap: out_dir": (lambda: graphprobe.wrap("eager", out_dir="x"), SettingError, ["out_dir", "enable()"]),
    "wrap: max_bytes": (lambda: graphprobe.wrap("eager", max_bytes=1), SettingError, ["max_bytes", "enable()"]),
    "wrap: unknown setting": (lambda: graphprobe.wrap("eager", dump="py"), SettingError, ["'dump'"]),
    "wrap: value": (lambda: graphprobe.wrap("eager", graph_dump="dot"), SettingError, ["'dot'", "txt, pbtxt, py"]),
    "observe_pass: no graph": (lambda: observe(3, "name"), UsageError, ["GraphModule", "int"]),
    "observe_pass: no name": (lambda: observe(module(), ""), UsageError, ["''", "non-empty"]),
    "observe_pass: name": (lambda: observe(module(), 7), UsageError, ["7", "non-empty"]),
    "observe_pass: phase": (lambda: observe(module(), "n", phase="fwd"), UsageError, ["'fwd'", "forward, inference"]),
    "get_backend: config": (
        lambda: graphprobe.get_backend(compiler_config={"mode": "default"}),  # type: ignore[arg-type]
        SettingError,
        ["CompilerConfig", "dict", "mode"],
    ),
    "CompilerConfig: option": (lambda: config_with(moed="default"), SettingError, ["moed", "mode, debug"]),
    "CompilerConfig: nested": (
        lambda: config_with(debug__graph_dmp="txt"),
        SettingError,
        ["debug.graph_dmp", "graph_dump"],
    ),
    "CompilerConfig: read": (lambda: graphprobe.CompilerConfig().debugg, SettingError, ["debugg", "debug"]),
    "CompilerConfig: mode": (lambda: config_with(mode="max-autotun"), SettingError, ["'max-autotun'", "max-autotune"]),
    "CompilerConfig: mode.value": (
        lambda: config_with(mode__value="fast"),
        SettingError,
        ["'fast'", "reduce-overhead"],
    ),
    "CompilerConfig: type": (
        lambda: config_with(debug__graph_dump__type="svg"),
        SettingError,
        ["debug.graph_dump.type", "'svg'", "txt, pbtxt, py"],
    ),
    "CompilerConfig: group": (lambda: config_with(debug="py"), SettingError, ["debug", "group", "graph_dump"]),
    "torchair: aot_config": (
        lambda: torchair().get_npu_backend(aot_config={"a": 1}),
        UsageError,
        ["aot_config", "wrap("],
    ),
    "torchair: decompositions": (
        lambda: torchair().get_npu_backend(custom_decompositions={"a": 1}),
        UsageError,
        ["custom_decompositions", "leave it out"],
    ),
    "torchair: mode": (lambda: torchair().CompilerConfig().__setattr__("mode", "npu"), SettingError, ["'npu'"]),
    "no such name": (lambda: graphprobe.enabel, AttributeError, ["enabel"]),  # type: ignore[attr-defined]
}


@pytest.mark.parametrize("case", CALLS)
def test_calls(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    call, kind, words = CALLS[case]
    with pytest.raises(kind) as raised:
        call()
    assert type(raised.value) is kind
    text = raised.value.render() if isinstance(raised.value, UsageError) else str(raised.value)
    for word in words:
        assert word in text, text
    if isinstance(raised.value, UsageError):
        assert raised.value.exit_code == 2
    assert graphprobe.disable() is None, "nothing may be left switched on"
    assert list(tmp_path.iterdir()) == []


def test_enable_twice(tmp_path: Path) -> None:
    with graphprobe.trace(tmp_path / "first") as folder:
        for again in (graphprobe.enable, lambda where: graphprobe.trace(where).__enter__()):
            with pytest.raises(UsageError, match="collecting is on already") as raised:
                again(tmp_path / "second")
            assert str(folder) in str(raised.value)
            assert "graphprobe.disable()" in raised.value.hint
    assert not (tmp_path / "second").exists()
    assert graphprobe.disable() is None


def test_a_model_compiled_before(tmp_path: Path) -> None:
    import torch

    def early(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def later(x: torch.Tensor) -> torch.Tensor:
        return x + 2

    first, second = (torch.compile(f, backend="eager") for f in (early, later))
    first(torch.ones(2))
    with pytest.warns(GraphprobeWarning) as caught:
        folder = graphprobe.enable(tmp_path)
    text = str(caught[0].message)
    assert f"early ({__file__}:" in text
    assert "later" not in text
    assert "torch._dynamo.reset()" in text
    assert caught[0].filename == __file__, "the warning points at the caller"
    first(torch.ones(2))
    second(torch.ones(2))
    assert graphprobe.disable() == folder
    run = graphprobe.Run.open(folder)
    assert [model.compile["function"] for model in run.models()] == ["later"]
    assert any("early" in note for note in run.manifest.notes)


def test_nothing_compiled_before_means_no_warning(tmp_path: Path) -> None:
    import torch

    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graphprobe.enable(tmp_path)
        graphprobe.disable()
