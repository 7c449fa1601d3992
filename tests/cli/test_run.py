"""`graphprobe run` runs a program as `python` does, and dumps one that knows nothing of graphprobe."""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cli.calling import Python
from conftest import ROOT, Finished
from graphprobe.cli.commands.run import command
from graphprobe.cli.dumps import SPELLED, plan_of
from graphprobe.compare import open_dump as open_calls
from graphprobe.dump_plan.options import OPTIONS
from graphprobe.errors import DumpConfigError, SettingError, UsageError
from graphprobe.store import Run, layout, open_api_dump, open_dump

INTROSPECT = '''\
"""The docstring."""
import os, sys
import __main__
import sibling
x: int = 1
print("argv", sys.argv)
print("name", __name__, __package__, __doc__)
print("file", globals().get("__file__"))
print("spec", None if __spec__ is None else (__spec__.name, __spec__.origin, __spec__.parent))
print("loader", type(__loader__).__name__ if __loader__ is not None else None)
print("path", sys.path[0], os.getcwd())
print("main", __main__ is sys.modules["__main__"], __main__.x, vars(__main__) is globals())
print("code", (lambda: 0).__code__.co_filename, sibling.__file__)
print("flags", [m for m in ("torch", "numpy", "onnx", "sympy", "click.testing") if m in sys.modules])
def nested():
    exec("def f(): return __name__", globals())
    return f()
print("exec", nested(), annotated.__annotations__ if "annotated" in globals() else __annotations__)
'''


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with a script, a package, a folder to run, and a module that each of them imports."""
    folder = tmp_path / "work"
    files = dict.fromkeys(("sibling.py", "scripts/sibling.py", "runnable/sibling.py"), "x = 1\n")
    scripts = "module.py scripts/script.py package/__main__.py package/inner/leaf.py runnable/__main__.py"
    files |= dict.fromkeys(scripts.split(), INTROSPECT)
    files |= {"package/__init__.py": "", "package/inner/__init__.py": "print('inner is imported')"}
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(text)
    return folder


def without_summary(stderr: str) -> str:
    return "".join(line for line in stderr.splitlines(True) if not line.startswith("graphprobe: "))


def alike(run_python: Python, folder: Path, *args: str, code: int | None = None) -> Finished:
    """Run it both ways, and hold exit code, stdout and stderr against each other."""
    plain = run_python(*args, cwd=folder)
    done = run_python("-m", "graphprobe", "run", "--out", str(folder.parent / "out"), *args, cwd=folder)
    assert done.out == plain.out
    assert without_summary(done.err) == plain.err
    assert done.code == (plain.code if code is None else code)
    return done


@pytest.mark.parametrize(
    "args",
    [
        ("scripts/script.py",),
        ("./scripts/../scripts/script.py", "a", "-v", "--graph-dump", "x", "--", "-m", ""),
        ("module.py", "--help"),
        ("-m", "module", "-q", "--out", "elsewhere"),
        ("-m", "package", "x"),
        ("-mpackage", "-c", "x", "--", "-m"),
        ("-m", "package.inner.leaf", "x"),
        ("runnable", "-x"),
        ("runnable/", "-x"),
        ("-c", INTROSPECT, "-x", "--max-bytes", "none"),
        ("link.py",),
        ("{folder}/module.py",),
    ],
    ids=lambda args: "code" if args[0] == "-c" else " ".join(args),
)
def test_the_program_sees_itself_as_under_python(args: tuple[str, ...], run_python: Python, programs: Path) -> None:
    (programs / "link.py").symlink_to(programs / "scripts" / "script.py")
    done = alike(run_python, programs, *(arg.replace("{folder}", str(programs)) for arg in args), code=0)
    assert "name __main__" in done.out
    assert "flags []" in done.out, "graphprobe must not import these on the program's behalf"


ENDINGS = {
    "end": "pass",
    "exit 3": "import sys; sys.exit(3)",
    "exit text": "import sys; sys.exit('some text')",
    "exit None": "raise SystemExit",
    "exit large": "raise SystemExit(263)",
    "exit negative": "raise SystemExit(-1)",
    "exit float": "raise SystemExit(2.5)",
    "os._exit": "import os; print('x', flush=True); os._exit(5)",
    "exception": "def f():\n    raise ValueError('no')\nprint('before')\nf()",
    "chained": "try:\n    1/0\nexcept Exception as e:\n    raise KeyError('k') from e",
    "group": "raise ExceptionGroup('several', [ValueError(1), TypeError(2)])",
    "base exception": "class Mine(BaseException): pass\nraise Mine('x')",
    "noted": "e = ValueError('v'); e.add_note('a note')\nraise e",
    "syntax error below": "exec('a b')",
    "import error": "import there_is_no_such_module",
    "excepthook": "import sys\nsys.excepthook = lambda *a: print('HOOK', a[0].__name__)\n1/0",
    "interrupt": "print('x')\nraise KeyboardInterrupt",
    "exit in a thread": "import threading, sys\nt = threading.Thread(target=sys.exit, args=(4,))\nt.start(); t.join()",
    "error in atexit": "import atexit\natexit.register(lambda: print('bye'))\natexit.register(exec, '1/0')",
    "syntax warning": "print('\\d'), 1 is 1",
    "dealt with": "import sys\ntry:\n    1/0\nexcept ZeroDivisionError as e:\n    sys.last_value = e",
    "forked child": "import os, sys\nif os.fork() == 0: sys.exit(7)\nprint(os.waitstatus_to_exitcode(os.wait()[1]))",
    "warning": "import warnings\nwarnings.warn('look')",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_endings(ending: str, run_python: Python, programs: Path) -> None:
    (programs / "ends.py").write_text(ENDINGS[ending] + "\n")
    done = alike(run_python, programs, "ends.py")
    run = Run.open(programs.parent / "out")
    if done.code in (0, 3, 5):
        assert run.state == ("killed" if ending == "os._exit" else "finished") and run.manifest.exception is None
    assert done.err.count("graphprobe: in ") <= 1, "a child has nothing to sum up"
    if ending in ("exception", "chained", "interrupt", "excepthook"):
        assert run.state == "failed" and run.manifest.exception is not None


def test_the_packages_around_a_module_are_part_of_the_program(run_python: Python, programs: Path) -> None:
    """Not imported before collecting begins; and what they raise is shown as the program's own."""
    (programs / "package/__init__.py").write_text(
        "import sys\nfrom graphprobe.probe import active\nprint(active.session() is not None, sys.argv, flush=True)\n"
    )
    done = run_python("-m", "graphprobe", "run", "-m", "package", "-x", cwd=programs)
    assert done.out.startswith("True ['-m', '-x']\n"), done.out
    (programs / "package/__init__.py").write_text("raise RuntimeError('in the package')")
    done = run_python("-m", "graphprobe", "run", "-m", "package", "-x", cwd=programs)
    assert done.code == 1 and done.err.count("Traceback") == 1
    assert "RuntimeError: in the package" in done.err
    assert "graphprobe/" not in without_summary(done.err)
    assert Run.open(programs).manifest.exception == "RuntimeError: in the package"


def test_a_traceback_has_no_frame_of_ours(run_python: Python, programs: Path) -> None:
    done = alike(run_python, programs, "-c", "import sibling\ndef f():\n    sibling.nope\nf()", code=1)
    assert "AttributeError" in done.err and "graphprobe/" not in without_summary(done.err)


def started(programs: Path, script: str, source: str) -> subprocess.Popen[bytes]:
    """A program under `graphprobe run`, with pipes to all of its streams."""
    (programs / script).write_text(source)
    return subprocess.Popen(
        [sys.executable, "-m", "graphprobe", "run", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=programs,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        # A shell starts its background jobs, and so perhaps this test, with SIGINT ignored; that is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def test_stdin_and_binary_stdout_pass_through(programs: Path) -> None:
    data = bytes(range(256)) * 10
    with started(programs, "cat.py", "import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read()[::-1])") as process:
        out, err = process.communicate(data, timeout=60)
    assert (process.returncode, out) == (0, data[::-1])
    assert err.startswith(b"graphprobe: nothing was compiled")


def test_a_folder_in_which_nobody_may_write(run_python: Python) -> None:
    place = Path("/sys/kernel")  # not even root
    if not place.is_dir():
        pytest.skip("no such folder")
    done = run_python("-m", "graphprobe", "run", "-c", "print('ran'); exit(3)", cwd=place)
    assert (done.code, done.out) == (3, "ran\n")
    assert "warning: no run can be written under /sys/kernel/torch_compile_debug" in done.err
    named = run_python("-m", "graphprobe", "run", "-o", "/sys/kernel/x", "-c", "print('ran')", cwd=place)
    assert (named.code, named.out) == (2, ""), "a place that somebody has named is a mistake"


def test_summary_is_on_stderr_and_quiet_leaves_it_out(run_python: Python, programs: Path) -> None:
    loud = run_python("-m", "graphprobe", "run", "-c", "print('out')", cwd=programs)
    quiet = run_python("-m", "graphprobe", "run", "-q", "-c", "print('out')", cwd=programs)
    assert loud.out == quiet.out == "out\n"
    assert loud.err.startswith("graphprobe: nothing was compiled in this process")
    assert "graphprobe ls torch_compile_debug/run_" in loud.err
    assert quiet.err == ""


def test_order_at_exit(run_python: Python, programs: Path) -> None:
    """The program's threads end first, then what it registered; the run is open for all of it."""
    source = (
        "import atexit, threading, time, sys\n"
        "from graphprobe.probe import active\n"
        "def say(what): print(what, active.session() is not None, flush=True)\n"
        "atexit.register(say, 'atexit')\n"
        "threading.Thread(target=lambda: (time.sleep(0.3), say('thread'))).start()\n"
        "say('main')\n"
    )
    done = run_python("-m", "graphprobe", "run", "-c", source, cwd=programs)
    assert done.out == "main True\nthread True\natexit True\n"
    assert Run.open(programs).state == "finished"


def test_spawned_children_import_the_script_again(run_python: Python, programs: Path) -> None:
    (programs / "spawns.py").write_text(
        "import multiprocessing as mp, sys\n"
        "print('imported as', __name__, flush=True)\n"
        "def work(n):\n"
        "    return n * 2, sys.argv[1:]\n"
        "if __name__ == '__main__':\n"
        "    with mp.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map(work, [1, 2]))\n"
    )
    for args in (("spawns.py", "-a"), ("-m", "spawns", "-a")):
        done = alike(run_python, programs, *args, code=0)
        assert "imported as __mp_main__" in done.out
        assert "[(2, ['-a']), (4, ['-a'])]" in done.out


ENVIRONMENT = """\
import os, sys, threading, atexit, time
assert "torch" not in sys.modules
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TORCH_LOGS"] = "graph_code"
import torch
print("threads", torch.get_num_threads())

def f(x):
    return x.sin() + 1
def late(x):
    return x.cos() + 2
def last(x):
    return x.tan() + 3

def main():
    print(torch.compile(f, backend="eager")(torch.zeros(2)).tolist())
    atexit.register(lambda: print(torch.compile(last, backend="eager")(torch.zeros(2)).tolist()))
    def work():
        time.sleep(0.5)
        print(torch.compile(late, backend="aot_eager")(torch.zeros(2)).tolist())
    threading.Thread(target=work).start()

if __name__ == "__main__":
    main()
    print("main is over", "torch._inductor.scheduler" in sys.modules)
"""


@pytest.mark.heavy
def test_environment_set_by_the_program_and_compiles_after_its_end(run_python: Python, programs: Path) -> None:
    (programs / "env.py").write_text(ENVIRONMENT)
    plain = run_python("env.py", cwd=programs)
    done = run_python("-m", "graphprobe", "run", "env.py", cwd=programs)
    assert done.code == plain.code == 0, done.err
    assert done.out == plain.out and done.out.startswith("threads 1\n")
    assert plain.err.count("TRACED GRAPH") == done.err.count("TRACED GRAPH") > 0
    run = Run.open(programs)
    assert [model.compile["function"] for model in run.models()] == ["f", "late", "last"]
    assert (run.manifest.state, run.manifest.missing) == ("finished", [])


def test_switches_of_the_command_line_are_in_the_manifest(run_python: Python, programs: Path) -> None:
    args = ("--save-inputs", "--graph-dump", "py", "--log-level", "warning", "--max-bytes", "1.5MiB", "--no-ops")
    env = {"GRAPHPROBE_GRAPH_DUMP": "pbtxt"}
    done = run_python("-m", "graphprobe", "run", *args, "module.py", "x", cwd=programs, env=env)
    assert done.code == 0, done.err
    manifest = Run.open(programs).manifest
    found = {name: setting.value for name, setting in manifest.settings.items() if setting.source == "argument"}
    assert found == {
        "save_inputs": True, "graph_dump": "py", "log_level": "warning", "max_bytes": 1572864, "capture_ops": False,
    }  # fmt: skip
    assert manifest.argv[-1] == "x"


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


CALLS = """
import sys, torch
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print("arguments", sys.argv[1:])
sys.exit(7)
"""


def test_calls_are_dumped_by_options(run_warm: Python, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(CALLS)
    options = ("--dump", "tensor", "--level", "mix", "--steps", "0|2", "--apis", "Linear,*linear", "--dump-to", "d")
    done = run_warm("-m", "graphprobe", "run", *options, "train.py", "--own", cwd=tmp_path)
    assert done.code == 7, done.err
    assert done.out == "arguments ['--own']\n"
    assert "8 calls dumped to d" in done.err
    dump = open_api_dump(tmp_path / "d")
    assert dump.steps(0) == (0, 2) and dump.problems() == ()
    assert [call.label for call in dump.calls(0, 2)] == [
        "nn.functional.linear.0.forward",
        "Module.Linear.0.forward",
        "nn.functional.linear.0.backward",
        "Module.Linear.0.backward",
    ]
    assert [call.source for call in dump.calls(0, 0)] == ["train.py:6"] * 4


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


OVERFLOW = """
import torch
@torch.compile(backend="aot_eager")
def loss(x):
    return (x * 2).exp().sum()
for step in range(4):
    loss(torch.full((2, 4), 1000.0 if step == STEP else 1.0))
"""


@pytest.mark.parametrize("step", [2, None])
def test_overflow_without_a_file_or_a_folder(step: int | None, run_warm: Python, tmp_path: Path) -> None:
    done = finished(run_warm, tmp_path, "--overflow", script=OVERFLOW.replace("STEP", str(step)))
    said = [line for line in done.err.splitlines() if line.startswith("graphprobe: overflow: ")]
    assert {path.name for path in tmp_path.iterdir()} == {"script.py", layout.ROOT}
    if step is None:
        assert said == [] and "no op overflowed in 4 calls of graphs" in done.err and " ls " in done.err
        return
    assert re.search(
        r"first: exp \(.*script.py:5\) overflows in step 2, forward: output.0 has \+inf in 8 of 8", said[0]
    )
    assert "uncompiled, the same call on the same inputs makes it, too: exp (" in said[1] and len(said) == 2
    assert re.search(r"next: .* report .*graph_dump$", done.err.strip())


def test_a_conflict_with_the_file_names_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.json").write_text(json.dumps({"dump": {"dump_path": ".", "dump_debug": "on"}}))
    with pytest.raises(DumpConfigError, match=r"\$\.dump\.dump_debug.*--dump-layer"):
        plan_of({"dump_config_path": "c.json", "dump_layer": "add"}, {})
