"""What must start fast and without torch: the package itself and every command that only reads files."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analysis.test_timing import compiled, profile_of
from cli.calling import record
from conftest import ROOT, Finished
from graphprobe.analysis.timing import write_profile
from report.samples import fault

CPU_LIMIT_S = 0.3
HEAVY = {"torch", "transformers", "onnx", "numpy"}
HELP = "from graphprobe.cli.main import main; main([*sys.argv[1:], '--help'])"

Run = Callable[..., Finished]


def after(run_python: Run, code: str, *args: str, **options: Any) -> tuple[Finished, set[str]]:
    """A program as it ended, and the top-level packages that it had imported by then."""
    told = "sorted({name.partition('.')[0] for name in sys.modules})"
    program = f"import json, sys\ntry: {code}\nfinally: sys.stderr.write('\\nLOADED ' + json.dumps({told}))"
    done = run_python("-W", "error", "-c", program, *args, **options)
    said, mark, names = done.err.rpartition("\nLOADED ")
    assert mark, done.err
    return dataclasses.replace(done, err=said), set(json.loads(names))


def test_the_measurement_sees_torch(run_python: Run, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("")
    assert "torch" in after(run_python, "import torch", cwd=tmp_path)[1]


@pytest.mark.parametrize("switch", [None, "", "0"])
def test_importing_and_listing_the_package_imports_nothing_heavy(switch: str | None, run_python: Run) -> None:
    code = "import graphprobe; dir(graphprobe); graphprobe.__version__"
    code += "; graphprobe.CompilerConfig().dump_config.plan(environ={})"
    code += "; graphprobe.scope.data_dump; graphprobe.backends; from graphprobe.compat import torchair; torchair.scope"
    done, loaded = after(run_python, code, env={} if switch is None else {"TORCH_COMPILE_DEBUG": switch})
    assert (done.code, done.err) == (0, ""), done
    assert loaded.isdisjoint(HEAVY)


@pytest.mark.parametrize("command", ["", "ls", "show", "diff", "compare"])
def test_help_imports_nothing_heavy(command: str, run_python: Run) -> None:
    done, loaded = after(run_python, HELP, *command.split())
    assert done.code == 0 and "Usage" in done.out, done.err
    assert loaded.isdisjoint({"torch"} if command else {*HEAVY, "rich", "msgspec"})


READING = """
import sys
import graphprobe
from graphprobe.cli.main import main
def told(name, code):
    heavy = {"torch", "transformers", "dask", "fsspec", "numpy"} & sys.modules.keys()
    print("LOADED", code, ",".join(sorted(heavy)) or "-", name)
for line in sys.argv[1:]:
    try:
        main(line.split())
    except SystemExit as end:
        told(line, end.code)
list(graphprobe.open_dump("calls").calls(0, 0))
graphprobe.report("calls", force=True)
told("open_dump", 0)
"""


def test_what_reads_imports_no_torch(run_python: Run, tmp_path: Path) -> None:
    record(tmp_path / "runs")
    fault(tmp_path)
    write_profile(profile_of(compiled()), tmp_path / "cold.json")
    (tmp_path / "calls").symlink_to(ROOT / "tests" / "data" / "msprobe" / "tensor")
    (tmp_path / "stats").symlink_to(ROOT / "tests" / "data" / "msprobe" / "statistics")
    light = ["ls nowhere", "ls runs", "show runs after:fuse", "diff runs --pass fuse", "explain runs"]
    others = ["recompiles runs", "logs runs", "profile cold.json cold.json", "compare stats stats", "merge stats"]
    values = ["parse calls Functional.relu.0.forward", "compare calls calls --no-replay"]  # of .pt files
    values += ["convert calls --to ptdbg --out a.pkl"]
    others += ["report calls", "report runs -o run.html", "report result.json -o fault.html", *values]
    done = run_python("-c", READING, *light, *others, cwd=tmp_path)
    assert done.code == 0, done.err
    rows = [line.split(maxsplit=3) for line in done.out.splitlines() if line.startswith("LOADED ")]
    assert [name for *_, name in rows] == [*light, *others, "open_dump"]
    assert {heavy for _, _, heavy, name in rows if name in light} == {"-"}
    assert {name for _, _, heavy, name in rows if "torch" in heavy} == {*values, "open_dump"}
    assert {heavy for _, _, heavy, _ in rows if "torch" not in heavy} == {"-", "numpy"}
    codes = {name: int(code) for _, code, _, name in rows}
    undecided = {"ls nowhere": 2, "merge stats": 2, "explain runs": 125, "recompiles runs": 125}
    assert {name: code for name, code in codes.items() if code not in (0, 1)} == undecided


def test_help_takes_little_cpu(run_python: Run) -> None:
    best = min(after(run_python, HELP)[0].cpu_s for _ in range(3))
    assert best < CPU_LIMIT_S, f"`graphprobe --help` took {best:.2f} s of CPU time at best"
