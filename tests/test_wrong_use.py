"""Wrong use: a message that names the value, what was expected and what to do; and nothing on disk."""

import re
import shlex
import sys
import warnings
from collections import Counter
from pathlib import Path

import pytest

import graphprobe
from cli.calling import Python, call, record
from graphprobe.api import obey_environment
from graphprobe.cli.main import COMMANDS, main
from graphprobe.errors import GraphprobeWarning, SettingError, UsageError

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
    "list.json": "[1, 2]",
    "fault.json": '{"verdict": "fault", "findings": [{}]}',
    "no_profile.json": '{"format": "graphprobe-profile", "version": 1}',
    "empty/readme.txt": "",
    "badpackage/__init__.py": "",
    "wrong_use_model.py": """
SIZE = 3
def make():
    return abs, (3,)
def number():
    return 3
def swapped():
    return (3,), abs
""",
}

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
    "run --graph-dump svg ok.py": ["graph_dump", "'svg'", "txt, pbtxt, py"],
    "GRAPHPROBE_GRAPH_DUMP=svg run ok.py": ["GRAPHPROBE_GRAPH_DUMP", "'svg'", "txt, pbtxt, py"],
    "GRAPHPROBE_SAVE_INPUTS=maybe run ok.py": ["GRAPHPROBE_SAVE_INPUTS", "'maybe'"],
    "run --log-level DEBUG ok.py": ["log_level", "'DEBUG'", "warning, info, debug"],
    "run --max-bytes '2 potatoes' ok.py": ["max_bytes", "'2 potatoes'", "2GiB"],
    "run --max-bytes -1 ok.py": ["max_bytes", "'-1'"],
    "run --out '' ok.py": ["--out is empty"],
    "run --dump stats --dump-to '' ok.py": ["--dump-to is empty"],
    "run --dump-graph stats --dump-to= ok.py": ["--dump-to is empty"],
    "run --dump stats --dump-to ok.py ok.py": ["ok.py exists already"],
    "run --dump stats --dump-to ok.py/calls ok.py": ["no dump can be written under", "Not a directory"],
    "run --config none.json ok.py": ["'none.json'", "No such file"],
    "run --config typo.json ok.py": ["save_input", "did you mean 'save_inputs'"],
    "run --config section.json ok.py": ["graph_probe", "did you mean 'graphprobe'"],
    "run --config value.json ok.py": ["value.json: $.graphprobe.graph_dump", "'svg'"],
    "run --config torn.json ok.py": ["torn.json", "not valid JSON"],
    "GRAPHPROBE_CONFIG=none.json run ok.py": ["GRAPHPROBE_CONFIG", "none.json"],
    "run": ["nothing to run", "graphprobe run SCRIPT"],
    "run none.py x": ["no script at 'none.py'", "-m NAME"],
    "run empty": ["'empty'", "__main__.py"],
    "run -m there.is.none": ["there.is.none", "python -m"],
    "run -m badpackage": ["badpackage", "python -m"],
    "run -m": ["-m"],
    "run -m ''": ["''"],
    "run broken.py": ["broken.py, line 2", "SyntaxError"],
    "run -c 'a b'": ["<string>, line 1", "SyntaxError"],
    "run -m broken": ["broken.py, line 2", "SyntaxError", "if True print(1)"],
    "run nul.py": ["nul.py", "null bytes"],
    "run torchrun --nproc-per-node 2 ok.py": ["torchrun", "-m graphprobe run"],
    "run -m torch.distributed.run ok.py": ["-m graphprobe run"],
    "run --level mix ok.py": ["--level"],
    "run --dump stats --steps 3-1 ok.py": ["3-1"],
    "run --api-config none.json ok.py": ["none.json"],
    "run --dump-graph stats --steps 5-3 ok.py": ["--steps = '5-3'"],
    "run --dump-graph stats --dump-to ok.py ok.py": ["--dump-to = 'ok.py'"],
    "run --dump-config nowhere.json ok.py": ["nowhere.json"],
    "run --steps 0 ok.py": ["--steps: no calls are dumped"],
    "TORCHDYNAMO_REPRO_AFTER=foo run ok.py": ["TORCHDYNAMO_REPRO_AFTER='foo': it takes dynamo or aot"],
    "TORCHDYNAMO_REPRO_LEVEL=3 run ok.py": ["says nothing without TORCHDYNAMO_REPRO_AFTER"],
    # runs that are read
    "ls nowhere": ["error[run-not-found]: nowhere does not exist"],
    "ls ok.py": ["no run at ok.py", "name the run folder"],
    "ls run extra": ["extra argument (extra)", "see graphprobe ls --help"],
    "show": ["error[usage]: show takes [RUN] ADDRESS, not 0 arguments"],
    "show a b c": ["error[usage]: show takes"],
    "show run model__0/forward/grph": ["error[artifact-not-found]: no artifact", "nearest: model__0/forward/graph"],
    "diff a b c --pass x": ["at most two runs"],
    "diff run --pass fuse --model 7": ["the run has no model 7", "its models: 0"],
    "diff run --pass fsue": ["no pass 'fsue' ran there", "fuse"],
    "diff run --pass fuse --direction forwards": ["'forwards'", "did you mean 'forward'?"],
    "diff run --pass fuse --model one": ["'--model'", "'one' is no whole number"],
    "diff run --pass fuse --model -1": ["'--model'", "-1 is not in the range x>=0"],
    "logs nowhere": ["nowhere does not exist"],
    "logs run --level loud": ["--level loud", "levels: debug, info"],
    "logs run --tail -1": ["'--tail'", "-1 is not in the range x>=0"],
    "watch nowhere.py": ["no script at 'nowhere.py'"],
    "watch --on nan,spik=3 ok.py": ["watch(on='spik=3'): there is no such trigger", "did you mean 'spike=10'?"],
    "watch --on spike=1 ok.py": ["watch(on='spike=1'): a spike takes a number above 1", "ten times the median loss"],
    "watch --shadow -1 ok.py": ["'--shadow'", "-1 is not in the range x>=0"],
    "watch --json ok.py": ["--json goes with a run that is read", "graphprobe watch RUN --json"],
    "drift nowhere.py": ["no script at 'nowhere.py'"],
    "drift run": ["run holds no runs of several ranks", "graphprobe drift RUN_A RUN_B"],
    "drift --perturbed 0 ok.py": ["'--perturbed'", "0 is not in the range x>=1"],
    "recompiles nowhere.py": ["no script at 'nowhere.py'"],
    "recompiles run extra": ["run is a run, which takes no arguments; got 'extra'"],
    "recompiles --json profile.json ok.py": ["--json profile.json: it exists already"],
    "logs run --component guards": ["the run has no log 'guards'"],
    "recompiles": ["torch_compile_debug does not exist"],
    "recompiles .": ["no run at ."],
    "recompiles --allow -1 ok.py": ["-1"],
    "recompiles --json no/x.json ok.py": ["there is no folder"],
    "recompiles -m torch.distributed.run ok.py": ["would not be observed"],
    # programs that are examined
    "explain .": ["no run at"],
    "explain run more": ["takes no arguments"],
    "explain wrong_use_model.py:make more": ["takes no arguments"],
    "explain --json profile.json ok.py": ["it exists already"],
    "diagnose nowhere.py": ["no script at 'nowhere.py'", "FILE.py:CALLABLE"],
    "diagnose wrong_use_model.py:mkae": ["wrong_use_model.py has no 'mkae'", "make, number, swapped"],
    "diagnose wrong_use_model.py:SIZE": ["'SIZE' in wrong_use_model.py is a int"],
    "diagnose wrong_use_model.py:number": ["number() in wrong_use_model.py returned 3", "(fn, args, kwargs)"],
    "diagnose wrong_use_model.py:swapped": ["swapped() in wrong_use_model.py returned", "(fn, args, kwargs)"],
    "diagnose --backend inducter wrong_use_model.py:make": ["--backend inducter", "inductor"],
    "diagnose --json no/x.json wrong_use_model.py:make": ["--json no/x.json", "no folder"],
    "diagnose --json=profile.json wrong_use_model.py:make": ["--json profile.json", "exists already"],
    "diagnose --only-function '' wrong_use_model.py:make": ["empty pattern"],
    "diagnose --only-function bad --only-function ' ' ok.py": ["empty pattern"],
    "reduce --only-function '' ok.py": ["empty pattern"],
    "reduce --only-function bad empty": ["for a script"],
    "reduce --level 7 ok.py": ["'7' is not one of"],
    "reduce empty/readme.txt": ["is no case"],
    "reduce --json no/x.json ok.py": ["there is no folder"],
    "TORCHDYNAMO_REPRO_AFTER=foo reduce ok.py": ["TORCHDYNAMO_REPRO_AFTER='foo': it takes dynamo or aot"],
    "TORCHDYNAMO_REPRO_LEVEL=3 reduce ok.py": ["says nothing without TORCHDYNAMO_REPRO_AFTER"],
    "replay nowhere": ["nowhere"],
    "profile profile.json profile.json profile.json": ["not 3"],
    "profile profile.json ok.py": ["ok.py is no profile"],
    "profile typo.json": ["typo.json is no profile"],
    "profile nowhere.py": ["no script"],
    "profile --trace t.json profile.json profile.json": ["not with two"],
    "profile --trace typo.json profile.json": ["exists already"],
    "profile -o no/x.json ok.py": ["there is no folder"],
    "profile -o typo.json ok.py": ["exists already"],
    "explain": ["nothing to explain", "graphprobe explain SCRIPT"],
    "explain nowhere.py": ["no script and no run at 'nowhere.py'"],
    "explain --backend inducter wrong_use_model.py:make": ["no such backend", "did you mean 'inductor'?"],
    "explain --backend eager run": ["--backend, --dynamic and --only-function: a run has been compiled already"],
    "explain wrong_use_model.py:mkae": ["wrong_use_model.py has no 'mkae'", "it has make, number"],
    "explain wrong_use_model.py:number": ["number() in wrong_use_model.py returned 3", "(fn, args)"],
    "explain --json nowhere/x.json ok.py": ["--json nowhere/x.json: there is no folder"],
    "diagnose": ["nothing to diagnose", "graphprobe diagnose SCRIPT"],
    "diagnose empty": ["'empty' is a folder without a __main__.py"],
    "diagnose nowhere.py:make": ["no file at 'nowhere.py'", "FILE.py:CALLABLE"],
    "diagnose wrong_use_model.py:make extra": ["takes no arguments, and got 'extra'"],
    "diagnose --budget soon wrong_use_model.py:make": ["--budget is 'soon'", "a number of seconds above 0"],
    "diagnose --budget 0 ok.py": ["--budget is '0'", "a number of seconds above 0"],
    "diagnose --step-limit -5 wrong_use_model.py:make": ["--step-limit is '-5'", "above 0"],
    "diagnose --budget 60 --step-limit 61 ok.py": ["--step-limit is 61, more than the 60 of --budget", "no more than"],
    "diagnose --call 0 ok.py": ["--call 0", "counted from 1"],
    "diagnose --calls 5-3 ok.py": ["--call 5-3", "N, N-M", "all"],
    "diagnose --call 2 wrong_use_model.py:make": ["--call 2 goes with a script"],
    "diagnose -o run wrong_use_model.py:make": ["--out run", "not an empty folder"],
    "reduce": ["nothing to reduce", "graphprobe reduce DOSSIER"],
    "reduce nowhere.py": ["no script and no case at 'nowhere.py'", "name a Python file"],
    "reduce empty": ["holds no repro.py"],
    "reduce --resume -o dump ok.py": ["holds no reduction to go on with", "leave --resume out"],
    "reduce -o dump ok.py": ["holds something already"],
    "recompiles --backend eager run": ["--backend and --only-function: a run has been compiled already"],
    "ls run --json profile.json": ["--json", "profile.json"],
    "reduce --timeout 0 ok.py": ["--timeout 0: it takes a number above 0"],
    "reduce --fail-regex ( ok.py": ["--fail-regex '('", "no regular expression"],
    "reduce --import there_is_none ok.py": ["--import there_is_none", "ModuleNotFoundError"],
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
    # dumps
    "compare dump dump --json no/x.json": ["there is no folder"],
    "convert empty": ["no dump at"],
    "convert dump -o ok.py": ["is a file"],
    "convert dump --to ptdbg -o no/a.pkl": ["there is no folder"],
    "convert dump empty --to ptdbg -o x": ["takes one dump, 2 are given"],
    "compare dump": ["missing argument 'REFERENCE'", "see graphprobe compare --help"],
    "compare dump nowhere": ["there is no dump nowhere"],
    "compare dump empty": ["empty is no dump that can be read"],
    "compare dump dump --steps 5-2": ["--steps 5-2", "ends before it begins", "2-5"],
    "compare dump dump --ranks first": ["--ranks first", "no number and no range"],
    "compare dump dump --stack": ["--stack", "has no effect", "--csv FILE"],
    "compare dump dump --candidate-data nowhere": ["no folder of values at nowhere"],
    "compare dump dump --reference-data empty": ["dump is no text of ptdbg"],
    "compare --out '' dump dump": ["--out is empty"],
    "compare dump dump --csv ok.py --out there": ["ok.py exists already"],
    "compare dump dump --json profile.json": ["profile.json exists already"],
    "compare dump dump --json profile.json --force": ["profile.json: it is not replaced"],
    "merge": ["missing argument 'DIR...'"],
    "merge dump dump": ["has 1 rank", "two ranks or more"],
    "merge dump -o there": ["dump has 1 rank", "two ranks or more"],
    "merge dump dump -o ''": ["--out is empty"],
    "convert dump -o ''": ["--out is empty"],
    "demo -o ''": ["--out is empty"],
    "merge dump -o ok.py": ["'ok.py' is a file"],
    "parse dump": ["missing argument 'CALL'"],
    "parse dump rulu": ["dump has no call 'rulu'", "relu.0.forward"],
    "parse dump relu.0 --data empty": ["dump is no text of ptdbg"],
    "convert": ["missing argument 'PATH...'"],
    "convert nowhere": ["nowhere does not exist"],
    "convert dump --to ptdbg": ["--to ptdbg needs --out"],
    "convert dump --to ptdbg -o dump": ["lie one in the other"],
    "convert dump --to ptdbg -o ok.py": ["--out ok.py", ".pkl"],
    # forms of others
    "report empty": ["is nothing that graphprobe reads"],
    "report empty/readme.txt": ["is nothing that graphprobe reads"],
    "report list.json": ["is nothing that graphprobe reads"],
    "report typo.json": ["is nothing that graphprobe reads"],
    "report torn.json": ["is no JSON"],
    "report fault.json": ["missing required field"],
    "report no_profile.json": ["is no profile"],
    "export": ["missing option '--to'", "chrome-trace"],
    "export run --to chrome-trace": ["missing option '-o' / '--out'"],
    "export run --to chrme-trace -o x.json": ["'chrme-trace'", "did you mean 'chrome-trace'?"],
    "export nowhere --to onnx-text -o x": ["nowhere does not exist"],
    "export run --to chrome-trace -o profile.json": ["--out profile.json: it exists already"],
    "export run --to chrome-trace --force -o run/manifest.json": ["it is not replaced"],
    "export dump --to chrome-trace -o x.json": ["dump is a dump of calls", "model-explorer"],
    "report nowhere": ["nowhere does not exist"],
    "report run -o nowhere/x.html": ["--out nowhere/x.html: there is no folder"],
    "report run -o ok.py --force": ["--out ok.py: it is not replaced"],
    "report run --source-root nowhere": ["--source-root nowhere: there is no such folder"],
    "issue": ["missing argument 'DOSSIER'"],
    "issue empty": ["it has no REPORT.md"],
    "issue empty --titel": ["no option '--titel'", "did you mean '--title'?"],
    "demo -o run": ["--out run", "not an empty folder"],
    "demo --opne": ["no option '--opne'", "did you mean '--no-open'?"],
    "doctor extra": ["extra argument (extra)"],
    "doctor --jsn": ["no option '--jsn'", "did you mean '--json'?"],
}
"""By what is typed, variables first: words of the message."""


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one of each that the commands take; no use below may change it."""
    import torch

    from graphprobe.probe.profile import profile

    folder = tmp_path_factory.mktemp("things")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    with graphprobe.dump(folder / "dump", data="stats"):
        torch.relu(torch.ones(2))
    record(tmp_path_factory.mktemp("runs")).tool_dir.rename(folder / "run")
    with profile(program="ok.py") as running:
        pass
    running.save(folder / "profile.json")
    return folder


def _contents(folder: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def test_the_table_is_of_all_commands() -> None:
    counted = Counter(word for use in USES for word in shlex.split(use)[:2])
    assert {name: counted[name] for name in COMMANDS if counted[name] < 2} == {}


@pytest.mark.parametrize("use", USES)
def test_every_command(
    use: str, things: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(things)
    monkeypatch.setattr(sys, "path", [*sys.path])
    words = shlex.split(use)
    while re.match("[A-Z_]+=", words[0]):
        monkeypatch.setenv(*words.pop(0).split("="))
    before = _contents(things)
    with pytest.raises(SystemExit) as ended:
        main(words, prog_name="graphprobe")
    said = capfd.readouterr()
    assert FORM.fullmatch(said.err), said.err
    assert ended.value.code == 2
    assert said.out == "", "nothing is told as a result, and no program runs"
    for word in USES[use]:
        assert word in said.err, said.err
    assert _contents(things) == before
    assert graphprobe.disable() is None, "nothing may be left switched on"


def test_help_of_a_command_and_the_version() -> None:
    assert call("help", "diff").output == call("diff", "--help").output
    asked = {"_GRAPHPROBE_COMPLETE": "bash_complete", "COMP_WORDS": "graphprobe rep", "COMP_CWORD": "1"}
    assert call(env=asked, prog_name="graphprobe").output.split() == ["plain,replay", "plain,report"]
    assert call("-V").output == call("--version").output == f"graphprobe {graphprobe.__version__}\n"


@pytest.mark.parametrize("value", ["true", "True", "yes", "2", " 1", "on"])
def test_a_value_that_torch_ignores(value: str) -> None:
    with pytest.warns(GraphprobeWarning, match="switches nothing on.*Set TORCH_COMPILE_DEBUG=1") as caught:
        obey_environment({"TORCH_COMPILE_DEBUG": value})
    assert f"TORCH_COMPILE_DEBUG={value!r} " in str(caught[0].message)


def test_of_a_value_that_torch_ignores_a_program_is_warned_and_nothing_is_collected(
    run_warm: Python, tmp_path: Path
) -> None:
    program = "import os; os.environ['TORCH_COMPILE_DEBUG'] = '2'\nimport graphprobe, torch\n"
    program += "torch.compile(lambda x: x + 1, backend='eager')(torch.ones(1))"
    done = run_warm("-c", program, cwd=tmp_path)
    assert done.code == 0 and "GraphprobeWarning: TORCH_COMPILE_DEBUG='2' switches nothing on" in done.err
    assert list(tmp_path.iterdir()) == []


CALLS: dict[type[Exception], dict[str, list[str]]] = {
    SettingError: {
        "graphprobe.enable(save_input=True)": ["'save_input'", "'save_inputs'"],
        "graphprobe.enable(save_inputs='yes')": ["'yes'", "True or False"],
        "graphprobe.enable(graph_dump='svg')": ["'svg'", "txt, pbtxt, py"],
        "graphprobe.enable(max_bytes=-5)": ["-5", "a size"],
        "graphprobe.wrap('eager', out_dir='x')": ["out_dir", "enable()"],
        "graphprobe.wrap('eager', max_bytes=1)": ["max_bytes", "enable()"],
        "graphprobe.wrap('eager', dump='py')": ["'dump'"],
        "graphprobe.wrap('eager', graph_dump='dot')": ["'dot'", "txt, pbtxt, py"],
        "graphprobe.get_backend(compiler_config={'mode': 'default'})": ["CompilerConfig", "dict", "mode"],
        "config.moed = 'default'": ["moed", "mode, debug"],
        "config.debug.graph_dmp = 'txt'": ["debug.graph_dmp", "graph_dump"],
        "config.debugg": ["debugg", "debug"],
        "config.mode = 'max-autotun'": ["'max-autotun'", "max-autotune"],
        "config.mode = 'fast'": ["mode = 'fast'", "reduce-overhead"],
        "config.mode.value = 'fast'": ["'fast'", "reduce-overhead"],
        "config.debug.graph_dump.type = 'svg'": ["debug.graph_dump.type", "'svg'", "txt, pbtxt, py"],
        "config.debug = 'py'": ["debug", "group", "graph_dump"],
        "config.dump_config.dump_steps = '1'": ["dump_config.dump_steps", "dump_step"],
        "config.dump_config.dumpmode": ["dump_config.dumpmode", "dump_mode"],
        "config.dump_config = True": ["dump_config is a group", "enable_dump"],
        "config.dumpconfig = True": ["dumpconfig does not exist", "dump_config"],
        "torchair.CompilerConfig().mode = 'npu'": ["'npu'"],
    },
    UsageError: {
        "graphprobe.wrap('nonsense')": ["'nonsense'", "inductor"],
        "graphprobe.wrap('inducter')": ["'inducter'", "inductor"],
        "graphprobe.wrap(42)": ["42", "int", "callable"],
        "graphprobe.wrap(None)": ["None", "callable"],
        "graphprobe.CompileProfiler('no_such')": ["no_such"],
        "graphprobe.CompileProfiler(allowed=True)": ["allowed"],
        "graphprobe.observe_pass(3, 'name').__enter__()": ["GraphModule", "int"],
        "graphprobe.observe_pass(traced, '').__enter__()": ["''", "non-empty"],
        "graphprobe.observe_pass(traced, 7).__enter__()": ["7", "non-empty"],
        "graphprobe.observe_pass(traced, 'n', phase='fwd').__enter__()": ["'fwd'", "forward, inference"],
        "torchair.get_npu_backend(aot_config={'a': 1})": ["aot_config", "wrap("],
        "torchair.get_npu_backend(custom_decompositions={'a': 1})": ["custom_decompositions", "leave it out"],
        "graphprobe.assert_compiles_like_eager(abs, 1, backend='no_such')": ["there is no such backend"],
        "graphprobe.assert_compiles_like_eager(abs, 1, grad='yes')": ["it takes True, False, 'auto' or 'apart'"],
        "graphprobe.assert_compiles_like_eager(abs, 1, dynamic=1.5)": ["it takes True, False or None"],
        "graphprobe.assert_compiles_like_eager(abs, 1, out='.')": ["it exists and is not an empty folder"],
        "graphprobe.assert_compiles_like_eager(3)": ["fn must be a function or module"],
        "graphprobe.compare(candidate=3, reference='gone')": ["candidate=3", "path", "open_dump"],
        "graphprobe.compare(candidate='a', reference='b', steps=3)": ["steps=3", "[0, 3]"],
        "graphprobe.compare(candidate='a', reference='b', steps=[])": ["steps=[]", "[0, 3]"],
        "graphprobe.compare(candidate='a', reference='b', ranks=[-1])": ["ranks=[-1]", "from 0"],
        "graphprobe.compare(candidate='a', reference='b', jobs=0)": ["jobs=0", "from 1"],
        "graphprobe.compare(candidate='a', reference='b', scheduler=8786)": ["scheduler=8786", "address"],
        "graphprobe.open_dump(None)": ["None", "path"],
        "graphprobe.open_dump('file.txt')": ["file.txt is no dump", "expected"],
        "graphprobe.open_dump('file.txt', data_dir='gone')": ["no folder of values at gone"],
        "graphprobe.open_run(b'x')": ["open_run(path=b'x')", "path"],
        "graphprobe.report('file.txt')": ["nothing that graphprobe reads"],
        "graphprobe.report(graphprobe)": ["report(path=", "path"],
        "graphprobe.report('file.txt', out='.')": ["report(out='.')", "folder"],
        "graphprobe.report('file.txt', out='no/x.html')": ["report(out='no/x.html')", "no folder"],
        "graphprobe.report('file.txt', source_roots='.')": ["source_roots='.'", "list"],
        "graphprobe.report('file.txt', source_roots=['gone'])": ["source_roots", "no folder gone"],
        "graphprobe.reduce('gone')": ["there is no", "gone", "repro.py"],
        "graphprobe.reduce('file.txt')": ["is no case", "Name a folder"],
        "graphprobe.reduce('gone', timeout_s=0)": ["timeout_s=0", "above 0"],
        "graphprobe.reduce('gone', memory_bytes=-1)": ["memory_bytes=-1", "above 0"],
        "graphprobe.reduce('gone', budget_s='1')": ["budget_s='1'", "above 0"],
        "graphprobe.reduce('gone', max_calls=True)": ["max_calls=True", "from 1"],
        "graphprobe.reduce('gone', hints='relu')": ["hints='relu'", "['relu']"],
        "graphprobe.reduce('gone', fail_regex='(')": ["fail_regex='('", "no regular expression"],
        "graphprobe.export('gone', 'x', 'svg')": ["no form 'svg'", "onnx-text"],
    },
    graphprobe.RunNotFoundError: {
        "graphprobe.open_run('gone')": ["gone does not exist", "graphprobe run"],
        "graphprobe.report('gone')": ["gone does not exist", "expected"],
        "graphprobe.compare(candidate='gone', reference='gone')": ["there is no dump gone", "expected"],
    },
    AttributeError: {"graphprobe.enabel": ["enabel"]},
}
"""By the error and the line of Python: words of the message."""


@pytest.mark.parametrize(("kind", "line"), [(kind, line) for kind, lines in CALLS.items() for line in lines])
def test_calls(kind: type[Exception], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from graphprobe.compat import torchair

    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.txt").write_text("here")
    traced = torch.fx.symbolic_trace(torch.nn.ReLU())
    names = {"graphprobe": graphprobe, "torchair": torchair, "traced": traced, "config": graphprobe.CompilerConfig()}
    with pytest.raises(kind) as raised:
        exec(line, names)
    assert type(raised.value) is kind
    text = raised.value.render() if isinstance(raised.value, UsageError) else str(raised.value)
    for word in CALLS[kind][line]:
        assert word in text, text
    if isinstance(raised.value, UsageError):
        assert raised.value.exit_code == 2
    assert graphprobe.disable() is None, "nothing may be left switched on"
    assert [path.name for path in tmp_path.iterdir()] == ["file.txt"]


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
