"""`graphprobe diagnose`: is it the compiler, and if so, where."""

from __future__ import annotations

import contextlib
import os
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from click.core import ParameterSource

from graphprobe.cli.ending import AtSignal, at_signal, tell
from graphprobe.cli.ranks import Ranks, ranks_from
from graphprobe.cli.shared_options import (
    JSON_HELP,
    JSON_METAVAR,
    STDOUT,
    JsonTo,
    exit_code,
    filtered,
    new_folder,
    only_function_option,
    options_from,
    take,
    write_json,
)
from graphprobe.cli.target import (
    TargetCommand,
    TypedTarget,
    call_from_file,
    callable_of,
    check_backend,
    is_run,
    is_saved,
)
from graphprobe.errors import EXIT_FOUND, EXIT_OK, EXIT_UNDECIDED, EXIT_USAGE, SettingError, UsageError
from graphprobe.findings import CallsLookedAt, Diagnosis, FunctionDiagnosis, NamedStep, ScriptDocument
from graphprobe.report.diagnosis import print_diagnosis, print_end
from graphprobe.report.terminal import ProgressLine, print_closing
from graphprobe.report.visible import echo
from graphprobe.settings.limits import LIMITS, NoTimeLeft, TimeBudget, limits_from
from graphprobe.store.diagnosis_file import dossiers_in, proof_of, read_diagnosed

if TYPE_CHECKING:
    from graphprobe.diagnose.script import ScriptOptions
    from graphprobe.probe.script import ScriptTarget
    from graphprobe.select.step_ranges import StepSelection


RANKS_S = 60.0
"""Behind the budget, how long one rank waits for the others."""

AS_IT_ENDS = "TORCHDYNAMO_DISABLE=1 shows how it ends uncompiled"
"""Of a script that did not end well, behind how it ended."""

_SPELLED = {row.name: row.spelled.partition("/")[0] for row in LIMITS}

_WORDS: dict[int, Literal["healthy", "fault", "undecided"]] = {EXIT_OK: "healthy", EXIT_FOUND: "fault"}


@dataclass(frozen=True)
class _Told:
    """What was told, what the last lines are to say of it, and the document of `--json`."""

    code: int
    name: str
    verdict: str
    diagnoses: list[Diagnosis]
    document: Callable[[], Any]
    calls: Sequence[CallsLookedAt] = ()


def _is_proof(word: str) -> bool:
    """Whether it is a dossier, or a folder of dossiers, and no program."""
    return is_run(word) and bool(dossiers_in(Path(word)))


@click.command(
    cls=TargetCommand,
    takes="TARGET [ARGS]...",
    reads=lambda word: callable_of(word) is not None or _is_proof(word) or is_saved(word),
)
@click.option("--json", "json_path", metavar=JSON_METAVAR, help=JSON_HELP)
@click.option(
    "-o", "--out", "out_dir", metavar="DIR", help="Folder for the proofs. Default: a new one in graphprobe-diagnosis."
)
@click.option("--backend", metavar="NAME", help="Compile with this backend. Default: as the script says, or inductor.")
@click.option(
    "--dynamic/--no-dynamic", default=None, help="As dynamic=… of torch.compile. Default: as the script says."
)
@click.option("--grad/--no-grad", default=None, help="Check the backward too. Default: if gradients are required.")
@options_from(LIMITS)
@click.option("--call", "--calls", "calls", metavar="N|N-M|all", help="Diagnose these calls of each function, from 1.")
@click.option("--deep", is_flag=True, help="Look inside functions that are right, too, and list what disagrees there.")
@click.option(
    "--python", "pythons", metavar="PATH", multiple=True, help="Run proofs that are there under this python, too."
)
@click.option("--apply", is_flag=True, help="Run the script with the workarounds of the newest diagnosis, or of --out.")
@click.option("--inputs", metavar="FILE", help="Values for an exported program: safetensors, by name of the input.")
@only_function_option
def command(
    json_path: str | None,
    out_dir: str | None,
    backend: str | None,
    dynamic: bool | None,
    grad: bool | None,
    deep: bool,
    pythons: tuple[str, ...],
    apply: bool,
    inputs: str | None,
    only_function: tuple[str, ...],
    calls: str | None,
    target: TypedTarget,
    **limits: Any,
) -> int:
    """Check whether a program computes the same compiled as uncompiled. If not, name the culprit and prove it.

    TARGET is a script, which runs with its own arguments. Each function that it gives to torch.compile is diagnosed
    when it is called. Or TARGET is FILE.py:CALLABLE, a function without arguments that returns (fn, args) or
    (fn, args, kwargs). Then fn is diagnosed. Options stand before a script.

    What it exports, traces by make_fx or packages is, too. Or TARGET is a file of torch.export.save: its program is
    held against itself, decomposed and compiled by AOTInductor.

    TARGET may be a folder with proofs, too: they run again, with --python also under another python, with its torch:
    "wrong with torch 2.13, right with torch 2.15". Nothing is diagnosed again.

    \b
    Examples:
      graphprobe diagnose train.py --epochs 1
      graphprobe diagnose --json result.json model.py:make
      graphprobe diagnose graphprobe-diagnosis --python other/bin/python

    Exit codes: 0 healthy, 1 a fault was found, 2 wrong usage or nothing was compiled, 125 undecided.
    """
    word = target.first
    if not target.named and not word:
        raise UsageError("nothing to diagnose", hint="graphprobe diagnose SCRIPT [ARGS], or FILE.py:CALLABLE")
    if apply or _is_proof(word):
        return _applied(target.program(), out_dir) if apply else _proofs(target.words, pythons)
    if pythons:
        raise UsageError("--python goes with a folder of proofs", hint="graphprobe diagnose FOLDER --python PATH")
    check_backend(backend)
    found = limits_from(take(LIMITS, limits), os.environ, called=lambda name: _SPELLED[name]) | {"calls": _calls(calls)}
    budget = TimeBudget(found.pop("budget_s", None))
    result = JsonTo(_of_rank(json_path) if json_path and json_path != STDOUT else json_path)
    out = None if out_dir is None else new_folder(_of_rank(out_dir))
    saved = _is_saved(word, inputs)
    name, ranks = None if saved else _callable_of(target, calls), ranks_from(os.environ, out)
    out = out if ranks is None else ranks.folder / ("0" if name else "")
    from graphprobe.diagnose.script import ScriptOptions

    options = ScriptOptions(backend, dynamic, "auto" if grad is None else grad, budget, out, deep, **found)
    base, typed = Path.cwd(), target.typed  # a script may go elsewhere
    with filtered(only_function) as only:
        diagnose = partial(_program, target)
        if saved or name is not None:
            diagnose = partial(_saved, word, inputs) if name is None else partial(_function, word, name)
        told = _of_rank_too(partial(diagnose, options, result, base), typed, alone=ranks is None)
    return _finished(told, exit_code(only, told.code), typed, base, result, ranks, budget.left_s)


def _applied(program: ScriptTarget, folder: str | None) -> int:
    """Run a program with the workarounds of a diagnosis, and say which were used; its exit code."""
    from graphprobe.diagnose.workarounds.apply import InForce, workarounds_in

    found, workarounds = workarounds_in(None if folder is None else Path(folder))
    in_force = InForce(workarounds)
    found = found.resolve()  # a script may go elsewhere
    ended = in_force.run(program)
    for code, times in in_force.used.items():
        state = "in force" if times else "not used"
        echo(f"graphprobe: workaround {state}, of {found}:\n{textwrap.indent(code, '  ')}", err=True)
    return ended.code


def _of_rank_too(diagnose: Callable[[], _Told], typed: list[str], *, alone: bool) -> _Told:
    """The result; where there is nothing to diagnose, one rank of several must not end before the others."""
    try:
        return diagnose()
    except UsageError as error:
        if alone:
            raise
        tell(error)
        return _told(ScriptDocument(target=" ".join(typed), ended=str(error)), None)


def _finished(
    told: _Told, code: int, typed: list[str], base: Path, result: JsonTo, ranks: Ranks | None, left_s: float
) -> int:
    """The exit code, once the verdict is printed: of several ranks by one of them."""
    left_out, tells = code != told.code, True
    if ranks is not None:
        code, tells, words = ranks.settled(code, left_s + RANKS_S)
        lost = [Diagnosis(verdict="undecided", notes=[ranks.lost])] if ranks.lost else []
        told = replace(
            told, name=f"{told.name}{words}", verdict=_WORDS.get(code, "undecided"), diagnoses=[*lost, *told.diagnoses]
        )
    if tells and not result.printed:
        _end(told, typed, base, left_out=left_out)
    try:
        result.replaces_text(told.document)  # last, for a full disk ends it
    finally:
        if ranks is not None:
            ranks.leave()
    return code


def _calls(text: str | None) -> StepSelection | None:
    from graphprobe.select.step_ranges import MAX_STEP, StepSelection, steps_from_text

    if text is None or text == "all":
        return None if text is None else StepSelection(((1, MAX_STEP),))
    try:
        wanted = steps_from_text(text)
    except SettingError as error:
        raise UsageError(f"--call {text}: it takes N, N-M, several of these with | between, or all") from error
    if 0 in wanted:
        raise UsageError(f"--call {text}: calls are counted from 1")
    return wanted


def _is_saved(word: str, inputs: str | None) -> bool:
    """Whether the target is the file of an exported program, which alone takes `--inputs`."""
    saved = is_saved(word)
    if inputs is not None and not saved:
        raise UsageError("--inputs goes with a file of torch.export.save", hint="graphprobe diagnose model.pt2")
    return saved


def _callable_of(target: TypedTarget, calls: str | None) -> str | None:
    name = callable_of(target.first)
    if name is not None and calls is not None:
        raise UsageError(f"--call {calls} goes with a script; {target.first} is one call")
    if name is not None:
        target.refuse_arguments()
    return name


def _refuse_beside_proofs(words: tuple[str, ...]) -> None:
    """Of the options, only --python goes with proofs that are there already."""
    ctx = click.get_current_context()
    named = [
        p for p in ctx.command.params if p.name and ctx.get_parameter_source(p.name) is ParameterSource.COMMANDLINE
    ]
    wrong = [p.opts[0] for p in named if p.name not in ("words", "pythons")] + list(words[1:])
    if wrong:
        hint = "a proof has its own settings; only --python goes with it"
        raise UsageError(f"{words[0]} holds proofs, and got {wrong[0]} too", hint=hint)


def _proofs(words: tuple[str, ...], named: tuple[str, ...]) -> int:
    """Run the proofs in a folder under this python and others, and print what each shows; the exit code."""
    from graphprobe.diagnose.dossier.proof_run import proof_under, torch_of

    _refuse_beside_proofs(words)
    target = words[0]
    read = read_diagnosed(Path(target))
    findings = [finding for diagnosis in read.diagnoses for finding in diagnosis.findings]
    proofs = [(folder, f) for f in findings if (folder := proof_of(f, read.path)) and (folder / "repro.py").is_file()]
    if not proofs:
        raise UsageError(
            f"{target} holds no repro.py", hint="name the folder of a proof that graphprobe diagnose wrote"
        )
    others = [os.path.join(python, "bin", "python") if os.path.isdir(python) else python for python in named]
    others = [os.path.abspath(python) if os.path.exists(python) else python for python in others]
    pythons = {python: torch_of(python) for python in (sys.executable, *others)}
    states: list[str] = []
    for folder, finding in proofs:
        echo(f"graphprobe: running {folder / 'repro.py'} …", err=True)
        said = []
        for python, torch in pythons.items():
            state, reason = proof_under(python, (folder / "repro.py").resolve(), finding.stage)
            states.append(state)
            said.append(f"{state} with torch {torch}{f' ({reason})' if reason else ''}")
        echo(f"{folder}: {', '.join(said)}")
    code = EXIT_UNDECIDED if "unsure" in states else EXIT_OK
    code = EXIT_FOUND if "wrong" in states else code
    counts = ", ".join(f"{states.count(state)} {state}" for state in ("wrong", "right", "unsure") if state in states)
    first = str(proofs[0][0])
    follow = ["graphprobe", "issue", first] if code == EXIT_FOUND else ["python", f"{first}/repro.py"]
    print_closing(f"{_WORDS.get(code, 'undecided').upper()}: {target}: {counts}", [("proof", first)], follow=follow)
    return code


def _of_rank(path: str) -> str:
    """`result-rank_1.json` for `result.json` in a rank of several that a launcher has started."""
    from graphprobe.probe import environment

    if environment.world_size() == 1 or environment.rank() is None:
        return path
    named = Path(path)
    return str(named.with_name(f"{named.stem}-rank_{environment.rank()}{named.suffix}"))


def _program(asked: TypedTarget, options: ScriptOptions, result: JsonTo, base: Path) -> _Told:
    from graphprobe.diagnose.script import run_diagnosed

    program = asked.program()
    if program.kind == "script" and not os.path.exists(program.target):
        raise UsageError(
            f"no script at {program.target!r} (looked in {os.getcwd()})", hint="name a Python file, or FILE.py:CALLABLE"
        )
    target = program.name
    document = ScriptDocument(target=target, unfinished=True)
    progress, names, facts = ProgressLine(), [target], list[str]()

    def began(name: str) -> None:
        names.append(name)
        facts.clear()
        _announce(name)

    def on_step(step: NamedStep) -> None:
        progress.tell_step(names[-1], step)
        if step.fact:
            facts.append(step.fact)
            known = [*document.diagnoses, so_far()]
            write_json(result.file, ScriptDocument(target=target, diagnoses=known, unfinished=True).to_json())

    def so_far() -> FunctionDiagnosis:
        return FunctionDiagnosis(function=names[-1], verdict="undecided", notes=facts, unfinished=True)

    def made(name: str, diagnosis: Diagnosis) -> None:
        progress.stop()
        facts.clear()
        _show(name, diagnosis, base, result)
        document.diagnoses.append(FunctionDiagnosis.of(name, diagnosis))
        with contextlib.suppress(OSError):  # the disk is full, which the end says
            write_json(result.file, document.to_json())

    def known(why: str) -> None:
        problem = document.ended = f"the script was ended: {why}"
        if facts:
            document.diagnoses.append(so_far())
        if not result.printed:
            for fact in facts:
                echo(f"{names[-1]}: {fact}")
            echo(f"{target}: {problem}")
            _end(_told(document, problem), asked.typed, base, left_out=False)
        result.replaces_text(document.to_json)

    with at_signal(AtSignal(options.budget.end, known)), progress:
        ended = run_diagnosed(program, options, on_start=began, on_step=on_step, on_diagnosis=made)
    document.ended, document.calls, document.unfinished = ended.problem, ended.calls, ended.unfinished
    for name, note in ended.equal:
        echo(f"{name}: {note}", err=result.printed)
    if ended.problem is not None:
        echo(f"{target}: {ended.problem}", err=result.printed)
    return _told(document, ended.problem, graphs=ended.graphs)


def _told(document: ScriptDocument, problem: str | None, *, graphs: int = 0) -> _Told:
    """`graphs`: how many Dynamo compiled, whoever asked for them."""
    diagnoses: list[Diagnosis] = [*document.diagnoses]
    verdicts = [diagnosis.verdict for diagnosis in diagnoses]
    healthy = verdicts.count("healthy")
    found = [(n, word) for word in (*_WORDS.values(), "undecided") if (n := verdicts.count(word))]
    counts = [f"{n} {word}{'s' * (word == 'fault' and n > 1)}" for n, word in found]
    code = EXIT_OK if healthy == len(verdicts) and problem is None else EXIT_UNDECIDED
    if problem is None and not graphs and all(diagnosis.compiled_nothing for diagnosis in diagnoses):
        code = EXIT_USAGE
    code = EXIT_FOUND if "fault" in verdicts else code
    if problem is not None:
        diagnoses.append(Diagnosis(verdict="undecided", notes=[f"{problem}; {AS_IT_ENDS}"]))
    name = f"{document.target}: {', '.join(counts) or 'nothing diagnosed'}"
    return _Told(code, name, _WORDS.get(code, "undecided"), diagnoses, document.to_json, document.calls)


def _end(told: _Told, target: list[str], base: Path, *, left_out: bool) -> None:
    """The last lines; `left_out`: `--only-function` left nothing to look at."""
    name = f"{told.name}; --only-function left nothing to look at" if left_out else told.name
    verdict = "undecided" if left_out else told.verdict
    print_end(told.diagnoses, verdict=verdict, name=name, target=target, calls=told.calls, base=base)
    sys.stdout.flush()


def _function(target: str, name: str, options: ScriptOptions, result: JsonTo, base: Path) -> _Told:
    facts = list[str]()

    def on_step(step: NamedStep) -> None:
        progress.tell_step(target, step)
        if step.fact:
            facts.append(step.fact)
            write_json(result.file, Diagnosis(verdict="undecided", notes=facts, unfinished=True).to_json())

    try:
        with at_signal(AtSignal(options.budget.end)):
            with options.budget.alarm():
                fn, args, kwargs = call_from_file(target.rpartition(":")[0], name)
                from graphprobe.diagnose.api import CompileOverrides

            _announce(target)
            asked = CompileOverrides(options.backend, options.dynamic)
            with ProgressLine() as progress:
                diagnosis = options.diagnosis(fn, asked, [(args, kwargs)], out=options.out, on_step=on_step)
    except NoTimeLeft as spent:
        late = f"{spent}: the program was not there until then"
        diagnosis = Diagnosis(verdict="undecided", notes=[late], unfinished=True)
    _show(target, diagnosis, base, result)
    return _Told(diagnosis.exit_code, target, diagnosis.verdict, [diagnosis], diagnosis.to_json)


def _saved(target: str, inputs: str | None, options: ScriptOptions, result: JsonTo, base: Path) -> _Told:
    """What becomes of an exported program in a file."""
    from graphprobe.diagnose.ways.saved import saved_calls

    document = ScriptDocument(target=target)
    graphs = 0
    with at_signal(AtSignal(options.budget.end)), ProgressLine() as progress:
        for name, held in saved_calls(Path(target), None if inputs is None else Path(inputs)):
            _announce(name)
            out = None if options.out is None else options.out / str(len(document.diagnoses))
            diagnosis = options.way_diagnosis(held, out=out, on_step=partial(progress.tell_step, name))
            progress.stop()
            _show(name, diagnosis, base, result)
            document.diagnoses.append(FunctionDiagnosis.of(name, diagnosis))
            graphs += diagnosis.graphs or 0
    return _told(document, None, graphs=graphs)


def _announce(name: str) -> None:
    echo(f"graphprobe: diagnosing {name} …", err=True)


def _show(name: str, diagnosis: Diagnosis, base: Path, result: JsonTo) -> None:
    if result.printed:
        return
    print_diagnosis(diagnosis, name=name, base=base)
    echo()
    sys.stdout.flush()
