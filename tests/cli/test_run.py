"""`graphprobe run` runs a program as `python` does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Finished
from graphprobe.store.reader import Run

Python = Callable[..., Finished]

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
    for sub in ("", "scripts", "package", "package/inner", "runnable"):
        (folder / sub).mkdir(exist_ok=True, parents=True)
    sibling = "x = 1\n"
    for name in (
        "module.py",
        "scripts/script.py",
        "package/__main__.py",
        "package/inner/leaf.py",
        "runnable/__main__.py",
    ):
        (folder / name).write_text(INTROSPECT)
    for name in ("sibling.py", "scripts/sibling.py", "runnable/sibling.py"):
        (folder / name).write_text(sibling)
    (folder / "package/__init__.py").write_text("")
    (folder / "package/inner/__init__.py").write_text("print('inner is imported')")
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
    ],
    ids=lambda args: "code" if args[0] == "-c" else " ".join(args),
)
def test_the_program_sees_itself_as_under_python(args: tuple[str, ...], run_python: Python, programs: Path) -> None:
    done = alike(run_python, programs, *args, code=0)
    assert "name __main__" in done.out
    assert "flags []" in done.out, "graphprobe must not import these on the program's behalf"


def test_absolute_path_and_a_link(run_python: Python, programs: Path) -> None:
    (programs / "link.py").symlink_to(programs / "scripts" / "script.py")
    alike(run_python, programs, "link.py", code=0)
    alike(run_python, programs, str(programs / "module.py"), code=0)


ENDINGS = {
    "end": ("pass", None),
    "exit 3": ("import sys; sys.exit(3)", None),
    "exit text": ("import sys; sys.exit('some text')", None),
    "exit None": ("raise SystemExit", None),
    "exit large": ("raise SystemExit(263)", None),
    "exit negative": ("raise SystemExit(-1)", None),
    "exit float": ("raise SystemExit(2.5)", None),
    "os._exit": ("import os; print('x', flush=True); os._exit(5)", None),
    "exception": ("def f():\n    raise ValueError('no')\nprint('before')\nf()", None),
    "chained": ("try:\n    1/0\nexcept Exception as e:\n    raise KeyError('k') from e", None),
    "group": ("raise ExceptionGroup('several', [ValueError(1), TypeError(2)])", None),
    "base exception": ("class Mine(BaseException): pass\nraise Mine('x')", None),
    "noted": ("e = ValueError('v'); e.add_note('a note')\nraise e", None),
    "syntax error below": ("exec('a b')", None),
    "import error": ("import there_is_no_such_module", None),
    "excepthook": ("import sys\nsys.excepthook = lambda *a: print('HOOK', a[0].__name__)\n1/0", None),
    "interrupt": ("print('x')\nraise KeyboardInterrupt", 130),
    "exit in a thread": (
        "import threading, sys\nt = threading.Thread(target=sys.exit, args=(4,))\nt.start(); t.join()",
        None,
    ),
    "error in atexit": ("import atexit\natexit.register(lambda: print('bye'))\natexit.register(exec, '1/0')", None),
    "syntax warning": ("print('\\d'), 1 is 1", None),
    "warning": ("import warnings\nwarnings.warn('look')", None),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_endings(ending: str, run_python: Python, programs: Path) -> None:
    source, code = ENDINGS[ending]
    (programs / "ends.py").write_text(source + "\n")
    done = alike(run_python, programs, "ends.py", code=code)
    run = Run.open(programs.parent / "out")
    state = {0: "finished", 130: "failed", 5: "killed"}.get(done.code, run.state)
    assert run.state == state
    if ending in ("exception", "chained", "interrupt", "excepthook"):
        assert run.state == "failed"
        assert run.manifest.exception is not None
    if ending == "exit 3":
        assert run.state == "finished"


def test_the_packages_around_a_module_are_part_of_the_program(run_python: Python, programs: Path) -> None:
    """Not imported before collecting begins; and what they raise is shown as the program's own."""
    (programs / "package/__init__.py").write_text(
        "import sys\nfrom graphprobe.probe import active\nprint(active.session() is not None, sys.argv, flush=True)\n"
    )
    done = run_python("-m", "graphprobe", "run", "-m", "package", "-x", cwd=programs)
    assert done.out.startswith("True ['-m', '-x']\n"), done.out
    (programs / "package/__init__.py").write_text("raise RuntimeError('in the package')")
    done = run_python("-m", "graphprobe", "run", "-m", "package", "-x", cwd=programs)
    assert done.code == 1
    assert done.err.count("Traceback") == 1
    assert "RuntimeError: in the package" in done.err
    assert "graphprobe/" not in without_summary(done.err)
    assert Run.open(programs).manifest.exception == "RuntimeError: in the package"


def test_a_traceback_has_no_frame_of_ours_and_the_code_of_dash_c_too(run_python: Python, programs: Path) -> None:
    done = alike(run_python, programs, "-c", "import sibling\ndef f():\n    sibling.nope\nf()", code=1)
    assert "AttributeError" in done.err
    assert "graphprobe/" not in without_summary(done.err)


def test_an_error_that_the_program_dealt_with_is_no_failure(run_python: Python, programs: Path) -> None:
    source = "import sys\ntry:\n    1/0\nexcept ZeroDivisionError as e:\n    sys.last_value = e\n"
    alike(run_python, programs, "-c", source, code=0)
    run = Run.open(programs.parent / "out")
    assert (run.state, run.manifest.exception) == ("finished", None)


def test_stdin_and_binary_stdout_pass_through(programs: Path) -> None:
    (programs / "cat.py").write_text("import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read()[::-1])")
    data = bytes(range(256)) * 10
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run(
        [sys.executable, "-m", "graphprobe", "run", "cat.py"],
        input=data, capture_output=True, cwd=programs, env=env, check=True,
    )  # fmt: skip
    assert done.stdout == data[::-1]
    assert done.stderr.startswith(b"graphprobe: nothing was compiled")


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


def test_forked_children_do_not_end_the_run(run_python: Python, programs: Path) -> None:
    source = (
        "import os, sys\npid = os.fork()\n"
        "if pid == 0: sys.exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    (programs / "forks.py").write_text(source)
    done = run_python("-m", "graphprobe", "run", "forks.py", cwd=programs)
    assert done.out == "7\n"
    assert Run.open(programs).state == "finished"
    assert done.err.count("graphprobe: in ") == 1, "the child has nothing to sum up"


def test_ctrl_c(programs: Path) -> None:
    (programs / "waits.py").write_text("import time\nprint('ready', flush=True)\ntime.sleep(60)\n")
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    command = [sys.executable, "-m", "graphprobe", "run", "waits.py"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=programs,
        env=env,
        # A shell starts its background jobs, and so perhaps this test, with SIGINT ignored; that is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "KeyboardInterrupt" in err
    run = Run.open(programs)
    assert (run.state, run.manifest.exception) == ("failed", "KeyboardInterrupt: ")


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
    assert done.out == plain.out
    assert done.out.startswith("threads 1\n")
    assert plain.err.count("TRACED GRAPH") == done.err.count("TRACED GRAPH") > 0
    run = Run.open(programs)
    assert [model.compile["function"] for model in run.models()] == ["f", "late", "last"]
    assert run.manifest.state == "finished"
    assert run.manifest.missing == []


def test_switches_of_the_command_line_are_in_the_manifest(run_python: Python, programs: Path) -> None:
    args = ("--save-inputs", "--graph-dump", "py", "--log-level", "warning", "--max-bytes", "1.5MiB", "--no-ops")
    done = run_python(
        "-m", "graphprobe", "run", *args, "module.py", "x", cwd=programs, env={"GRAPHPROBE_GRAPH_DUMP": "pbtxt"}
    )
    assert done.code == 0, done.err
    manifest = Run.open(programs).manifest
    found = {name: setting.value for name, setting in manifest.settings.items() if setting.source == "argument"}
    assert found == {
        "save_inputs": True, "graph_dump": "py", "log_level": "warning", "max_bytes": 1572864, "capture_ops": False,
    }  # fmt: skip
    assert manifest.argv[-1] == "x"
