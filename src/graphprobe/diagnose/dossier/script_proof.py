"""A repro that is the user's script: it makes one call of a compiled function uncompiled, and compares."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graphprobe.diagnose.dossier.proof_run import run_script
from graphprobe.diagnose.dossier.report import title_of
from graphprobe.diagnose.dossier.writer import write_proof
from graphprobe.findings import Finding
from graphprobe.probe.script import ScriptTarget

SCRIPT = "script.py"
REPRO = f"runs `{SCRIPT}` with one call uncompiled, and compares"
REPRO_FAILS = 1

TEXT = '''# {title}
# Runs {script} up to call {number} of what it gave to torch.compile: once as it is, and with that one call uncompiled.
# Exit code 1: the two differ. 0: they do not. 125: this script cannot tell.
import functools, json, os, runpy, subprocess, sys, tempfile
from pathlib import Path

sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(125))  # else it would be 1

SCRIPT, ARGUMENTS = Path(__file__).with_name({script!r}), {arguments!r}
FOLDERS = {folders!r}  # of what the script imports
NUMBER, OPTIONS, TOLERANCE = {number}, {options!r}, 1e-3


def seen(value, depth=0):
    """What can be seen of a value: numbers, texts, and what objects hold."""
    import torch

    if isinstance(value, torch.Tensor):
        numbers = value.detach().to_dense().cpu()
        numbers = torch.view_as_real(numbers.resolve_conj()) if numbers.is_complex() else numbers
        return [str(value.dtype), list(value.shape), numbers.to(torch.float64).flatten().tolist()]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return [[seen(key, depth + 1), seen(held, depth + 1)] for key, held in value.items()]
    if isinstance(value, (list, tuple)):
        return [seen(held, depth + 1) for held in value]
    slots = {{name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ()) if hasattr(value, name)}}
    held = {{**getattr(value, "__dict__", {{}}), **{{name: getattr(value, name) for name in sorted(slots)}}}}
    return [type(value).__name__, seen(held, depth + 1) if depth < 4 else ""]


def differ(a, b):
    """What differs, in words; empty where nothing does."""
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return next(filter(None, map(differ, a, b)), "")
    near = isinstance(a, float) and isinstance(b, float) and abs(a - b) <= TOLERANCE * (1 + abs(a))
    return "" if near or a == b or (a != a and b != b) else f"expected {{a}}, got {{b}}"


def run(how, place):
    """Run the script until the call, write down what is seen of it, and end."""
    import torch

    made, calls = torch.compile, 0

    def compile(model=None, **settings):
        if model is None:
            return lambda model: compile(model, **settings)
        result = made(model, **{{**settings, **OPTIONS}})
        if settings.get("disable") or result is model or isinstance(model, type):
            return result
        called = result.forward if isinstance(result, torch.nn.Module) else result

        @functools.wraps(called)
        def call(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls != NUMBER:
                return called(*args, **kwargs)
            try:
                value = (model if how == "uncompiled" else called)(*args, **kwargs)
            except Exception as error:
                value = [type(error).__name__, str(error)[:200]]
            Path(place).write_text(json.dumps(seen([value, args, kwargs])))
            os._exit(0)

        vars(call).update(_torchdynamo_inline=model, _torchdynamo_orig_callable=model, _torchdynamo_wrapper_id=id(call))
        if called is result:
            return call
        result.forward = call
        return result

    torch.compile, sys.argv = compile, [str(SCRIPT), *ARGUMENTS]
    sys.path[:0] = [str(SCRIPT.parent), *FOLDERS]
    runpy.run_path(str(SCRIPT), run_name="__main__")


if __name__ == "__main__":
    if sys.argv[1:2] in (["uncompiled"], ["compiled"]):
        run(*sys.argv[1:])
        sys.exit(125)  # it ended before that call
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for how in ("uncompiled", "uncompiled", "compiled"):
            place = Path(folder, f"{{len(found)}}.json")
            subprocess.run([sys.executable, "-I", __file__, how, str(place)], stdout=subprocess.DEVNULL)
            found.append(json.loads(place.read_text()))
    if differ(found[0], found[1]):
        sys.exit(print("the script differs from itself:", differ(found[0], found[1])) or 125)
    what = differ(found[0], found[2])
    print(what or "compiled and uncompiled agree")
    sys.exit(1 if what else 0)
'''


def prove_by_script(
    folder: Path, finding: Finding, program: ScriptTarget, number: int, options: Mapping[str, Any], timeout_s: float
) -> bool:
    """Write the script as a repro and run it in a process of its own; whether it shows the fault there.

    Args:
        folder: must not exist.
        number: of the call, from 1, among all calls of what the script gives to `torch.compile`.
        options: arguments of `torch.compile` in the place of the script's own.
    """
    if program.kind != "script":
        return False
    path = Path(program.target).absolute()
    folder.mkdir(parents=True)
    shutil.copyfile(path, folder / SCRIPT)
    text = TEXT.format(
        title=title_of(finding),
        script=SCRIPT,
        arguments=list(program.arguments),
        folders=[str(path.parent)],
        number=number,
        options=dict(options),
    )
    (folder / "repro.py").write_text(text, "utf-8")
    code, output = run_script([str(folder / "repro.py")], timeout_s, finding.stage)
    if code != REPRO_FAILS:
        shutil.rmtree(folder)
        return False
    if finding.dossier is not None:  # its repro does not show it
        shutil.rmtree(finding.dossier, ignore_errors=True)
    finding.dossier, finding.proof = str(folder), "program"
    files = {
        SCRIPT: "the program",
        "repro.py": REPRO,
        "test_repro.py": "the same as a test",
        "finding.json": "what was found",
    }
    write_proof(folder, finding, code=path.read_text("utf-8"), output=output, files=files)
    return True
