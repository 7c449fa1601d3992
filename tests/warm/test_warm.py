"""A fork of the server is what Python would have been: how it ends, what it says, where it finds things."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Finished
from warm.pool import Warm

Python = Callable[..., Finished]

WARM = "import sys; print('torch._inductor.compile_fx' in sys.modules)"


@pytest.mark.parametrize(
    "code",
    [
        "print('said', __name__, sys.argv)",
        "sys.exit(3)",
        "sys.exit('a reason')",
        "raise ValueError('no')",
        "os.kill(os.getpid(), signal.SIGSEGV)",
        "os._exit(4)",
        "atexit.register(print, 'at last'); threading.Timer(0.1, print, ['a thread']).start()",
        "print(sys.path[0] == '', 'graphprobe' in sys.modules, os.getcwd())",
    ],
)
def test_it_ends_and_says_what_python_does(code: str, run_warm: Python, tmp_path: Path) -> None:
    code = f"import atexit, os, signal, sys, threading\n{code}"
    plain = subprocess.run(
        [sys.executable, "-c", code, "word"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    fork = run_warm("-c", code, "word", cwd=tmp_path)
    assert (fork.code, fork.out, fork.err) == (plain.returncode, plain.stdout, plain.stderr)


def test_what_it_sees_and_what_it_starts(run_warm: Python, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("VALUE = 5\n")
    script = tmp_path / "script.py"
    script.write_text("import beside, sys\nprint(__name__, __file__, beside.VALUE, sys.argv[1:])\n")
    done = run_warm(str(script), "a", cwd=Path("/"))
    assert done.out == f"__main__ {script} 5 ['a']\n", done.err
    assert run_warm("-c", WARM, cwd=tmp_path).out == "True\n"
    assert run_warm("-c", WARM, cwd=tmp_path, env={"TORCH_LOGS": "graph_breaks"}).out == "False\n"
    assert run_warm("-X", "utf8", "-c", WARM, cwd=tmp_path).out == "False\n"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WARM!r}])"
    assert run_warm("-c", code, cwd=tmp_path).out == "True\n"


def test_it_ends_with_who_asked_for_it(warm: Warm, tmp_path: Path) -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    with subprocess.Popen([warm.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as client:
        program = Path("/proc", client.stdout.readline().strip())
        assert program.exists()
        client.kill()
    deadline = time.monotonic() + 20
    while program.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not program.exists()
