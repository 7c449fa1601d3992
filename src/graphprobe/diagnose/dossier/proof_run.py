"""A proof, run alone in a fresh process: under this python, and under others, which have other versions of torch.

Imports no torch, so that the interpreters can be checked before a script that sets torch up.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from graphprobe.diagnose.dossier.report import VERSIONS_HEAD, versions_table, with_table
from graphprobe.diagnose.dossier.watch import end_with_parent
from graphprobe.errors import EXIT_FOUND, EXIT_OK, EXIT_UNDECIDED, UsageError
from graphprobe.findings import Diagnosis, Finding, ProofRun, Stage, finding_json
from graphprobe.settings.limits import TimeBudget
from graphprobe.store.files import replace_file

OUTPUT = 20_000
"""Characters of a script's output that are kept, the last ones."""


def run_script(
    arguments: Sequence[str], timeout_s: float, stage: Stage, *, python: str = sys.executable, compiled: bool = True
) -> tuple[int, str]:
    """Exit code and output of a script, run alone.

    torch's caches of graphs are left alone; a fault of the stage `runtime` may come out of them, so that it gets empty
    ones of its own.

    Args:
        python: the interpreter.
        compiled: False: `torch.compile` does nothing in it.
    """
    env = {**os.environ, "TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}
    if not compiled:
        env["TORCH_COMPILE_DISABLE"] = "1"
    if python == sys.executable and "torch" in sys.modules:
        from graphprobe.internals.after_fork import instructions_known

        env |= instructions_known()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as elsewhere:
        if stage == "runtime":
            env |= dict.fromkeys(("TORCHINDUCTOR_FX_GRAPH_CACHE", "TORCHINDUCTOR_AUTOGRAD_CACHE"), "1")
            env["TORCHINDUCTOR_CACHE_DIR"] = str(Path(elsewhere) / "cache")
        process = subprocess.Popen(
            [python, "-I", *arguments],
            cwd=elsewhere,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return EXIT_UNDECIDED, f"it did not end within {timeout_s:g} s"
        finally:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    code = process.returncode
    return (code if code >= 0 else EXIT_UNDECIDED), output.decode("utf-8", "replace")[-OUTPUT:]


START_S, PROOF_S = 120.0, 300.0
"""What importing torch may take, and one run of a proof."""

ASK = "import torch; print(torch.__version__)"


@dataclass(frozen=True)
class OtherPython:
    """An interpreter that has torch.

    Attributes:
        path: of the executable; links are left as they are, for an environment is found by its link.
        torch: version of its torch.
    """

    path: str
    torch: str


def other_pythons(named: Iterable[str | Path], *, called: str) -> list[OtherPython]:
    """The interpreters that paths, names of commands or folders of environments stand for, each asked for its torch.

    Args:
        called: the option, as its user spells it, with a place for the value: `--python {}`.

    Raises:
        UsageError: there is no such interpreter, it does not start, or it has no torch.
    """
    return [_asked(str(name), called.format(name)) for name in dict.fromkeys(named)]


def _asked(name: str, told: str) -> OtherPython:
    hint = "name the python of an environment that has torch, e.g. other/bin/python"
    path = Path(name, "bin", "python") if Path(name).is_dir() else Path(name)
    found = shutil.which(str(path.absolute()) if path.exists() else name)
    if found is None:
        raise UsageError(f"{told}: there is no such program", hint=hint)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as elsewhere:
        try:
            done = subprocess.run(
                [found, "-I", "-c", ASK],
                cwd=elsewhere,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=START_S,
            )
        except subprocess.TimeoutExpired as error:
            raise UsageError(f"{told}: it did not import torch within {START_S:g} s", hint=hint) from error
        except OSError as error:
            raise UsageError(f"{told}: it does not start: {error.strerror}", hint=hint) from error
    version = _last_line(done.stdout)
    if done.returncode != 0 or not version[:1].isdigit():
        why = _last_line(done.stderr) or f"exit code {done.returncode}, and no version"
        raise UsageError(f"{told}: it cannot import torch: {why}", hint=hint)
    return OtherPython(found, version)


def this_python() -> OtherPython:
    """The interpreter that runs, asked in a process of its own."""
    return _asked(sys.executable, sys.executable)


def compare_pythons(diagnosis: Diagnosis, others: Sequence[OtherPython], budget: TimeBudget) -> Diagnosis:
    """Run each proof of a diagnosis, which fails here, under other interpreters too, and note in it what they show."""
    if not others:
        return diagnosis
    import torch

    here = ProofRun(python=sys.executable, torch=str(torch.__version__), state="wrong")
    for finding in diagnosis.findings:
        if finding.dossier is None or finding.proof is None:
            continue
        if not budget.left_s:
            diagnosis.notes.append("no time was left to run the proofs under other pythons")
            break
        run_proof(Path(finding.dossier), finding, others, known=[here], limit_s=min(PROOF_S, budget.left_s))
    return diagnosis


def run_proof(
    folder: Path,
    finding: Finding,
    pythons: Sequence[OtherPython],
    *,
    known: Sequence[ProofRun] = (),
    limit_s: float = PROOF_S,
) -> None:
    """Run the proof in `folder` under each interpreter, and note in the finding, its file and its report what it shows.

    Args:
        known: runs that were made before.
        limit_s: for one run.
    """
    folder = folder.resolve()
    finding.proof_runs = [*known, *(_run(folder / "repro.py", finding, python, limit_s) for python in pythons)]
    replace_file(folder / "finding.json", finding_json(finding))
    report = folder / "REPORT.md"
    if report.is_file():
        text = with_table(report.read_text("utf-8"), VERSIONS_HEAD, versions_table(finding.proof_runs))
        replace_file(report, text.encode())


def _run(repro: Path, finding: Finding, other: OtherPython, limit_s: float) -> ProofRun:
    """One run. A script that fails shows the fault only if it does not fail uncompiled, too."""
    code, output = run_script([str(repro)], limit_s, finding.stage, python=other.path)
    if code == EXIT_OK:
        return ProofRun(python=other.path, torch=other.torch, state="right")
    reason = _last_line(output)
    if code == EXIT_FOUND:
        code, output = run_script([str(repro)], limit_s, finding.stage, python=other.path, compiled=False)
        if code == EXIT_OK:
            return ProofRun(python=other.path, torch=other.torch, state="wrong")
        reason = f"it fails uncompiled, too: {_last_line(output)}"
    return ProofRun(python=other.path, torch=other.torch, state="unsure", reason=reason)


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
