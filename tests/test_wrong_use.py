"""Wrong use: a message that names the value, what was expected and what to do; and nothing on disk."""

from __future__ import annotations

import re
import shlex
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import graphprobe
from conftest import Finished
from graphprobe.cli.main import COMMANDS as NAMES
from graphprobe.cli.main import main
from graphprobe.errors import GraphprobeWarning, SettingError, UsageError

Python = Callable[..., Finished]

FORM = re.compile(r"error\[[a-z-]+\]: \S[^\n]*\n(?:  hint: \S[^\n]*\n)?")
"""All that a wrong use is told, on the standard error: what is wrong, and what to do, each on a line."""

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
    "unknown command": (["rum", "ok.py"], {}, ["'rum'", "did you mean 'run'?"]),
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
    assert FORM.fullmatch(done.err), done.err
    assert sorted(tmp_path.rglob("*")) == before


USES: dict[str, list[str]] = {
    # commands, and what is common to all
    "rn ok.py": ["no command 'rn'", "did you mean 'run'?"],
    "compair dump dump": ["no command 'compair'", "did you mean 'compare'?"],
    "zzz": ["no command 'zzz'", "graphprobe --help lists the commands"],
    "--vresion": ["no option '--vresion'", "did you mean '--version'?"],
    "help recompile": ["no command 'recompile'", "did you mean 'recompiles'?"],
    "help run ls": ["help takes one command, not 2: run ls"],
    # run
    "run --dmp stats ok.py": ["no option '--dmp'", "did you mean '--dump'?"],
    "run -x ok.py": ["no option '-x'", "see graphprobe run --help"],
    "run --dump stat ok.py": ["'--dump'", "'stat'", "did you mean 'stats'?"],
    "run --dump stats --level L7 ok.py": ["'--level'", "'L7'", "'mix'"],
    "run --dump stats --steps -1 ok.py": ["'-1'", "0|3-5|10"],
    "run --dump-graph statistics ok.py": ["--dump-graph", "'statistics'", "stats"],
    "run --dump-graph stats --dump-max-bytes none ok.py": ["--dump-max-bytes = 'none'", "above 0"],
    "run --dump-to X ok.py": ["--dump-to", "has no effect", "--dump or --dump-graph"],
    "run --logs dynmo=debug ok.py": ["'dynmo'", "dynamo"],
    "run --only-function '' ok.py": ["only_function", "''"],
    "run --max-bytes": ["'--max-bytes' requires an argument", "see graphprobe run --help"],
    "run -o ok.py ok.py": ["ok.py", "name a folder that can be written to"],
    # runs that are read
    "ls nowhere": ["nowhere does not exist"],
    "ls ok.py": ["no run at ok.py", "name the run folder"],
    "ls run extra": ["extra argument (extra)", "see graphprobe ls --help"],
    "ls --al": ["no option '--al'", "did you mean '--all'?"],
    "show": ["show takes [RUN] ADDRESS, not 0 arguments"],
    "show run model__0/forward/grph": ["no artifact", "nearest: model__0/forward/graph"],
    "show --rwa x": ["no option '--rwa'", "did you mean '--raw'?"],
    "diff run": ["diff takes --pass NAME, or [RUN] ADDRESS_A ADDRESS_B"],
    "diff --model 7 run": ["--model and --direction go with --pass"],
    "diff run --pass fuse --model 7": ["the run has no model 7", "its models: 0"],
    "diff run --pass fsue": ["no pass 'fsue' ran there", "fuse"],
    "diff run --pass fuse --direction forwards": ["'forwards'", "did you mean 'forward'?"],
    "diff run --pass fuse --model one": ["'--model'", "'one' is no whole number"],
    "diff run --pass fuse --model -1": ["'--model'", "-1 is not in the range x>=0"],
    "logs nowhere": ["nowhere does not exist"],
    "logs run --level loud": ["--level loud", "levels: debug, info"],
    "logs run --tail -1": ["'--tail'", "-1 is not in the range x>=0"],
    "logs run --leve info": ["no option '--leve'", "did you mean '--level'?"],
    "recompiles nowhere.py": ["no script at 'nowhere.py'"],
    "recompiles run extra": ["run is a run, which takes no arguments; got 'extra'"],
    "recompiles run --alow 1": ["no option '--alow'", "did you mean '--allow'?"],
    "recompiles --allow many run": ["'--allow'", "'many' is no whole number"],
    "recompiles --json profile.json ok.py": ["--json profile.json: it exists already"],
    # programs that are examined
    "explain": ["nothing to explain", "graphprobe explain SCRIPT"],
    "explain nowhere.py": ["no script and no run at 'nowhere.py'"],
    "explain --backend inducter wrong_use_model.py:make": ["no such backend", "did you mean 'inductor'?"],
    "explain --backend eager run": ["--backend, --dynamic and --only-function: a run has been compiled already"],
    "explain wrong_use_model.py:mkae": ["wrong_use_model.py has no 'mkae'", "it has make, number"],
    "explain wrong_use_model.py:number": ["number() in wrong_use_model.py returned 3", "(fn, args)"],
    "explain --json nowhere/x.json ok.py": ["--json nowhere/x.json: there is no folder"],
    "explain --dynamc ok.py": ["no option '--dynamc'", "did you mean '--dynamic'?"],
    "diagnose": ["nothing to diagnose", "graphprobe diagnose SCRIPT"],
    "diagnose empty": ["'empty' is a folder without a __main__.py"],
    "diagnose nowhere.py:make": ["no file at 'nowhere.py'", "FILE.py:CALLABLE"],
    "diagnose wrong_use_model.py:make extra": ["takes no arguments, and got 'extra'"],
    "diagnose --budget soon wrong_use_model.py:make": ["--budget is 'soon'", "a number of seconds above 0"],
    "diagnose --budget 0 ok.py": ["--budget is '0'", "a number of seconds above 0"],
    "diagnose --step-limit -5 wrong_use_model.py:make": ["--step-limit is '-5'", "above 0"],
    "diagnose --budget 60 --step-limit 61 ok.py": ["--step-limit is 61, more than the 60 of --budget", "no more than"],
    "diagnose -o run wrong_use_model.py:make": ["--out run", "not an empty folder"],
    "diagnose --nograd wrong_use_model.py:make": ["no option '--nograd'", "did you mean '--no-grad'?"],
    "reduce": ["nothing to reduce", "graphprobe reduce DOSSIER"],
    "reduce nowhere.py": ["no script and no case at 'nowhere.py'", "name a Python file"],
    "reduce empty": ["holds no repro.py"],
    "reduce --resume -o dump ok.py": ["holds no reduction to go on with", "leave --resume out"],
    "reduce -o dump ok.py": ["holds something already"],
    "reduce --after a0t ok.py": ["'--after'", "'a0t'", "did you mean 'aot'?"],
    "recompiles --backend eager run": ["--backend and --only-function: a run has been compiled already"],
    "ls run --json profile.json": ["--json", "profile.json"],
    "reduce --timeout 0 ok.py": ["--timeout 0: it takes a number above 0"],
    "reduce --fail-regex ( ok.py": ["--fail-regex '('", "no regular expression"],
    "reduce --import there_is_none ok.py": ["--import there_is_none", "ModuleNotFoundError"],
    "reduce --chek x ok.py": ["no option '--chek'", "did you mean '--check'?"],
    "replay": ["there is nothing at torch_compile_debug"],
    "replay run": ["no record of a frame in run", "graphprobe run --record-frames"],
    "replay --timeout 0 run": ["'--timeout'", "x>0"],
    "replay --backend qqqq run": ["--backend qqqq: there is no such backend", "eager"],
    "replay --device gpuu run": ["--device gpuu", "cpu"],
    "replay --backend eager --import there_is_none run": ["--import there_is_none", "ModuleNotFoundError"],
    "profile": ["nothing to profile", "graphprobe profile SCRIPT"],
    "profile --json ok.py": ["--json goes with profiles that are read"],
    "profile profile.json -o x.json": ["--out x.json", "nothing is run"],
    "profile ok.py.json": ["ok.py.json cannot be read"],
    "profile -o ok.py --force ok.py": ["--out ok.py: it is not replaced"],
    "profile --tpo 3 profile.json": ["no option '--tpo'", "did you mean '--top'?"],
    # dumps
    "compare dump": ["missing argument 'REFERENCE'", "see graphprobe compare --help"],
    "compare dump nowhere": ["there is no dump nowhere"],
    "compare dump empty": ["empty is no dump that can be read"],
    "compare dump dump --steps 5-2": ["--steps 5-2", "ends before it begins", "2-5"],
    "compare dump dump --ranks first": ["--ranks first", "no number and no range"],
    "compare dump dump --stack": ["--stack", "has no effect", "--csv FILE"],
    "compare dump dump --candidate-data nowhere": ["no folder of values at nowhere"],
    "compare dump dump --reference-data empty": ["dump is no text of ptdbg"],
    "compare dump dump --json profile.json": ["profile.json exists already"],
    "compare dump dump --json profile.json --force": ["profile.json: it is not replaced"],
    "compare dump dump --fail-on diference": ["'diference'", "did you mean 'difference'?"],
    "compare dump dump --no-repaly": ["no option '--no-repaly'", "did you mean '--no-replay'?"],
    "merge": ["missing argument 'DIR...'"],
    "merge dump dump": ["has 1 rank", "two ranks or more"],
    "merge dump -o ok.py": ["'ok.py' is a file"],
    "merge dump --forse": ["no option '--forse'", "did you mean '--force'?"],
    "parse dump": ["missing argument 'CALL'"],
    "parse dump rulu": ["dump has no call 'rulu'", "relu.0.forward"],
    "parse dump relu.0 --rank r": ["'--rank'", "'r' is no whole number"],
    "parse dump relu.0 --data empty": ["dump is no text of ptdbg"],
    "convert": ["missing argument 'PATH...'"],
    "convert nowhere": ["nowhere does not exist"],
    "convert dump --to nyp": ["'nyp'", "did you mean 'npy'?"],
    "convert dump --to msprobe": ["--to msprobe needs --out"],
    "convert dump --to msprobe -o dump": ["lie one in the other"],
    "convert dump --to ptdbg -o ok.py": ["--out ok.py", ".pkl"],
    # forms of others
    "export": ["missing option '--to'", "chrome-trace"],
    "export run --to chrome-trace": ["missing option '-o' / '--out'"],
    "export run --to chrme-trace -o x.json": ["'chrme-trace'", "did you mean 'chrome-trace'?"],
    "export nowhere --to parquet -o x": ["nowhere does not exist"],
    "export run --to chrome-trace -o profile.json": ["--out profile.json: it exists already"],
    "export run --to chrome-trace --force -o run/manifest.json": ["it is not replaced"],
    "export dump --to chrome-trace -o x.json": ["dump is a dump of calls", "tensorboard"],
    "report nowhere": ["nowhere does not exist"],
    "report run -o nowhere/x.html": ["--out nowhere/x.html: there is no folder"],
    "report run -o ok.py --force": ["--out ok.py: it is not replaced"],
    "report run --source-root nowhere": ["--source-root nowhere: there is no such folder"],
    "report run dump": ["extra argument (dump)"],
    "issue": ["missing argument 'DOSSIER'"],
    "issue empty": ["it has no REPORT.md"],
    "issue empty --titel": ["no option '--titel'", "did you mean '--title'?"],
    "demo -o run": ["--out run", "not an empty folder"],
    "demo --opne": ["no option '--opne'", "did you mean '--no-open'?"],
    "doctor extra": ["extra argument (extra)"],
    "doctor --jsn": ["no option '--jsn'", "did you mean '--json'?"],
}
"""By what is typed: words of the message."""


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one of each that the commands take; no use below may change it."""
    import torch

    from graphprobe.probe.profile import profile

    folder = tmp_path_factory.mktemp("things")
    for name, text in {**FILES, "wrong_use_model.py": MODEL}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    with graphprobe.dump(folder / "dump", data="stats"):
        torch.relu(torch.ones(2))
    _record_run(folder / "run")
    with profile(program="ok.py") as running:
        pass
    running.save(folder / "profile.json")
    return folder


MODEL = "def make():\n    return abs, (3,)\n\n\ndef number():\n    return 3\n"


def _record_run(folder: Path) -> None:
    import shutil

    from graphprobe.records import Manifest, Where
    from graphprobe.store import layout
    from graphprobe.store.writer import RunWriter

    manifest = Manifest(graphprobe="0", python="3", platform="", argv=[], cwd="/", pid=1, parent_pid=1, started_ns=1)
    writer = RunWriter.create(folder.parent / "runs", manifest=manifest, rank=None, max_bytes=None)
    for kind, name, file in (
        ("graph", "aot_forward_graph", layout.graph_file(0, "forward", number=0)),
        ("pass", "fuse", layout.pass_file(0, "forward", "fuse", number=1)),
    ):
        where = Where(model=0, direction="forward", pass_name=name if kind == "pass" else None)
        writer.event(where=where, kind=kind, name=name, file=writer.write_text(file, name), changed=True)  # type: ignore[arg-type]
    writer.close("finished")
    shutil.move(str(writer.tool_dir), folder)
    shutil.rmtree(folder.parent / "runs")


def _contents(folder: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def test_the_table_is_of_all_commands() -> None:
    counted = Counter(use.split()[0] for use in USES)
    assert len(USES) >= 60
    assert {name: counted[name] for name in NAMES if counted[name] < 2} == {}


@pytest.mark.parametrize("use", USES)
def test_every_command(
    use: str, things: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(things)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = _contents(things)
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(use), prog_name="graphprobe")
    said = capfd.readouterr()
    assert FORM.fullmatch(said.err), said.err
    assert ended.value.code == 2
    assert said.out == "", "nothing is told as a result, and no program runs"
    for word in USES[use]:
        assert word in said.err, said.err
    assert _contents(things) == before
    assert graphprobe.disable() is None, "nothing may be left switched on"


def test_help_of_a_command_and_the_version(run_python: Python) -> None:
    spelled = run_python("-m", "graphprobe", "help", "diff")
    assert (spelled.code, spelled.out) == (0, run_python("-m", "graphprobe", "diff", "--help").out)
    asked = {"_GRAPHPROBE_COMPLETE": "bash_complete", "COMP_WORDS": "graphprobe rep", "COMP_CWORD": "1"}
    code = "from graphprobe.cli.main import main; main(prog_name='graphprobe')"
    assert run_python("-c", code, env=asked).out.split() == ["plain,replay", "plain,report"]
    assert run_python("-m", "graphprobe", "-V").out == run_python("-m", "graphprobe", "--version").out != ""


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
