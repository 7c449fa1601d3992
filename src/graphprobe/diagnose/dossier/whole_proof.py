"""A fault that no piece of the program shows alone: the proof is the program itself, or the script that runs it."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from graphprobe.diagnose.dossier.long import long_program
from graphprobe.diagnose.dossier.report import title_of
from graphprobe.diagnose.dossier.short import short_program
from graphprobe.diagnose.dossier.template import MOST_LINES, Repro, check_text, script_of
from graphprobe.diagnose.dossier.writer import EXACT, NOT_ALONE, first_shown, write_files, write_proof
from graphprobe.diagnose.program import Program
from graphprobe.diagnose.prove import free_folder
from graphprobe.diagnose.settings import Compilation
from graphprobe.errors import GraphprobeError
from graphprobe.findings import Finding, told_more
from graphprobe.probe.script import ScriptTarget
from graphprobe.program_text.plain_values import Unwritable

log = logging.getLogger(__name__)

FINE = 16 * torch.finfo(torch.float32).eps
"""Relative tolerance of a second repro, where the first one does not see an error that the judge sees."""

NUMBERS = ("wrong_value", "wrong_gradient", "nonfinite", "lost_mutation")
"""Kinds of fault that are values out of bounds."""

SCRIPT = "script.py"
NEAR = 1e-3
"""How far a number may be off that a call of the script's returns, absolute and relative."""

SEEN = '''def seen(value, depth=0):
    """Texts and tensors: all there is to see of a value, and of what objects hold."""
    if isinstance(value, (float, complex, torch.Tensor)):
        tensor = torch.as_tensor(value).detach().to_dense().cpu()
        numbers = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        return [f"{tensor.dtype} {list(tensor.shape)}", numbers.to(torch.float64)]
    if value is None or isinstance(value, (int, str)):
        return [repr(value)]
    if isinstance(value, dict):
        value = list(value.items())
    if isinstance(value, (list, tuple)):
        return [f"{len(value)} values", *(part for item in value for part in seen(item, depth + 1))]
    slots = {name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ()) if hasattr(value, name)}
    held = {**getattr(value, "__dict__", {}), **{name: getattr(value, name) for name in sorted(slots)}}
    return [type(value).__name__, *(seen(held, depth + 1) if depth < 4 else [])]


def keep(kept, called, args, kwargs):
    """Keeps what is seen of a call, and ends."""
    try:
        value = called(*args, **kwargs)
    except Exception as error:
        value = f"{type(error).__name__}: {error}"[:200]
    parts = seen([value, args, kwargs])
    kept.write_text(json.dumps([part if isinstance(part, str) else part.tolist() for part in parts]))
    os._exit(0)


def run_script():
    """Runs the script, whose call ends it."""
    sys.argv, sys.stdout = [str(SCRIPT), *ARGUMENTS], open(os.devnull, "w")
    sys.path[:0] = [str(SCRIPT.parent), FOLDER]
    runpy.run_path(str(SCRIPT), run_name="__main__")
    os._exit(125)  # it ended before that call'''

UNTIL_COMPILED = '''def until_the_call(compiled, kept):
    """Runs the script until the call, keeps what is seen of it, and ends."""
    original, numbers = torch.compile, itertools.count(1)

    def compile(model=None, **settings):
        if model is None:
            return lambda model: compile(model, **settings)
        result = original(model, **{**settings, **OPTIONS})
        if settings.get("disable") or result is model or isinstance(model, type):
            return result
        called = result.forward if isinstance(result, torch.nn.Module) else result

        @functools.wraps(called)
        def call(*args, **kwargs):
            if next(numbers) != NUMBER:
                return called(*args, **kwargs)
            keep(kept, called if compiled else model, args, kwargs)

        vars(call).update(_torchdynamo_inline=model, _torchdynamo_orig_callable=model, _torchdynamo_wrapper_id=id(call))
        if called is result:
            return call
        result.forward = call
        return result

    torch.compile = compile
    run_script()'''

UNTIL_PACKAGE = '''def until_the_call(compiled, kept):
    """Runs the script until the call of a package, keeps what is seen of it or of the module, and ends."""
    export, numbers, modules = torch.export.export, itertools.count(1), []
    kind = importlib.import_module("torch.export.pt2_archive._package").AOTICompiledModel
    called = kind.__call__

    def exporting(module, *args, **kwargs):
        modules.append(module)
        return export(module, *args, **kwargs)

    def call(package, *args, **kwargs):
        if next(numbers) == NUMBER:
            target = functools.partial(called, package) if compiled else modules[OPTIONS["exported"]]
            keep(kept, lambda *args, **kwargs: torch.utils._pytree.tree_leaves(target(*args, **kwargs)), args, kwargs)
        return called(package, *args, **kwargs)

    torch.export.export, kind.__call__ = exporting, call
    run_script()'''

RUN = '''def run(compiled=False):
    """What is seen of the call, which is compiled as all others are, or left uncompiled."""
    with tempfile.TemporaryDirectory() as folder:
        if (child := os.fork()) == 0:
            until_the_call(compiled, Path(folder, "seen"))
        os.waitpid(child, 0)
        parts = json.loads(Path(folder, "seen").read_text())
    return [part if isinstance(part, str) else torch.tensor(part, dtype=torch.float64) for part in parts]'''

PROGRAM_S = 3600.0
"""What the program as its own proof may take: several processes, each with a limit of its own."""


def prove_by_program(program: Program, compilation: Compilation, finding: Finding, *, where: str = "") -> Finding:
    """Write the program as a repro and run it in a process of its own; the finding, filled in if it fails there.

    Args:
        where: what differs, as `Difference.where` has it.

    To be called where no call of the program has run yet. What could not be done is said in the finding's reason.
    """
    folder = free_folder(compilation.folder, finding)
    longs, problems = _long_forms(program, compilation, finding)
    # What a piece that is right alone needs of this process, a short script of the whole program has not either.
    scripts = (one.with_entries(compilation.entries) for one in short_program(program, compilation, finding, where))
    shown = first_shown(scripts, finding.stage, longs=lambda: longs, long_first=NOT_ALONE in finding.reason)
    if shown is not None:
        if shown.control and longs:
            write_files(folder / EXACT, longs[0].written())
        return _proven(folder, finding, shown)
    more = (
        f"The program could not be written down as a repro: {'; '.join(problems)}."
        if not longs
        else "Written down as a repro, the program does not fail in a process of its own."
    )
    finding.reason = told_more(finding.reason, more)
    if finding.dossier is None:  # it always has a folder
        finding.dossier = str(folder)
        write_proof(folder, finding, longs[-1] if longs else None)
    return finding


def _long_forms(program: Program, compilation: Compilation, finding: Finding) -> tuple[list[Repro], list[str]]:
    """The program with all that can be compared, the more tolerant script first; or why it cannot be written."""
    tolerances = (0.0,) if finding.kind == "not_bitwise" else (None, FINE) if finding.kind in NUMBERS else (None,)
    try:
        longs = [long_program(program, compilation, finding, tolerance) for tolerance in tolerances]
        return [one.with_entries(compilation.entries) for one in longs], []
    except Unwritable as error:
        return [], [str(error)]
    except (GraphprobeError, OSError, ValueError, TypeError, RuntimeError) as error:
        return [], [f"{type(error).__name__}: {error}"]


def shorten_by_program(program: Program, compilation: Compilation, finding: Finding, *, where: str = "") -> Finding:
    """Put the program in the place of a piece's long repro, if it is short and fails by itself; the finding then.

    The long one stays beside it, in `EXACT`. Arguments as of `prove_by_program`.
    """
    assert finding.dossier is not None
    folder, aside = Path(finding.dossier), Path(f"{finding.dossier}.{EXACT}")
    shown = first_shown(short_program(program, compilation, finding, where), finding.stage)
    if shown is None or shown.text.count("\n") > MOST_LINES:
        return finding
    folder.rename(aside)
    folder.mkdir()
    aside.rename(folder / EXACT)
    return _proven(folder, finding, shown)


def has_long_repro(finding: Finding) -> bool:
    """Whether a piece fails by itself, and no short script shows it."""
    repro = Path(finding.dossier or "") / "repro.py"
    return finding.proof == "piece" and repro.is_file() and repro.read_text("utf-8").count("\n") > MOST_LINES


def _proven(folder: Path, finding: Finding, shown: Repro) -> Finding:
    """Note the proof in the finding, and write what lies beside the repro, and the repro itself if it is short."""
    finding.dossier, finding.proof = str(folder), "program"
    finding.reason = finding.reason.replace(NOT_ALONE, "").strip()
    beside = {name: "the same with all that can be compared" for name in [EXACT] if (folder / name).is_dir()}
    write_proof(folder, finding, shown, files=beside)
    return finding


def prove_by_script(
    folder: Path,
    finding: Finding,
    program: ScriptTarget,
    number: int,
    options: Mapping[str, Any],
    timeout_s: float,
    *,
    packaged: bool = False,
) -> bool:
    """Write the user's script as a repro if it shows the fault in a process of its own; whether it does.

    Args:
        folder: must not exist.
        number: of the call, from 1, among all calls of what the script compiles.
        options: arguments of `torch.compile` in the place of the script's own; `exported` is the number of the module.
        packaged: the call is one of a package, among all of these.
    """
    if program.kind != "script":
        return False
    path = Path(program.target).absolute()
    facts = f"SCRIPT, ARGUMENTS = Path(__file__).with_name({SCRIPT!r}), {list(program.arguments)!r}\n"
    facts += f"FOLDER = {str(path.parent)!r}  # of what the script imports\n"
    facts += f"NUMBER, OPTIONS = {number}, {dict(options)!r}  # of the call, among all of what it compiles"
    imports = [f"import {name}" for name in ("functools", "importlib", "itertools", "json", "runpy", "tempfile")]
    call = "\n\n\n".join([SEEN, UNTIL_PACKAGE if packaged else UNTIL_COMPILED, RUN])
    text = script_of(
        [title_of(finding)],
        [*imports, "from pathlib import Path"],
        [facts, call],
        partial(check_text, "", "run()", "run(compiled=True)", bounds=[NEAR], rtol=NEAR, optional=True),
        as_main=True,
    )
    code = path.read_text("utf-8")
    short = Repro(text, text.replace("run(compiled=True)", "run()"), {SCRIPT: code.encode()})
    shown = first_shown([short], finding.stage, timeout_s=timeout_s)
    if shown is None:
        return False
    if finding.dossier is not None:  # its repro does not show it
        shutil.rmtree(finding.dossier, ignore_errors=True)
    finding.dossier, finding.proof = str(folder), "program"
    files = {
        SCRIPT: "the program",
        "repro.py": f"runs `{SCRIPT}` with one call uncompiled, and compares",
        "test_repro.py": "the same as a test",
        "finding.json": "what was found",
    }
    write_proof(folder, finding, shown, code=code, files=files)
    return True
