"""Functions of `graphprobe` that put several rooms together: `enable`, `compare`, `reduce`, `report`, `open_run`."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from graphprobe.errors import GraphprobeWarning, UsageError
from graphprobe.settings import RunSettings, torch_compile_debug_state

if TYPE_CHECKING:
    from graphprobe.compare.run import Comparison
    from graphprobe.diagnose.reduction.reduce_case import CaseReduction
    from graphprobe.probe.active import Companion
    from graphprobe.reduce.outcome import Progress
    from graphprobe.store.calls import CallDump
    from graphprobe.store.reader import Run

AnyPath = str | os.PathLike[str]


def enable(out_dir: AnyPath | None = None, **settings: Unpack[RunSettings]) -> Path:
    """Collect every compile of this process from now on.

    Args:
        out_dir: folder that gets the run folder; default `torch_compile_debug` in the working directory.
        **settings: any setting by name, e.g. `save_inputs=True`, `graph_dump="py"`. As flags, True or False:
            `save_inputs`, `capture_ops`, `record_frames`. As text: `graph_dump`, "txt", "pbtxt" or "py"; `log_level`,
            "warning", "info" or "debug"; `config_path`, a JSON file with settings. As names with commas between, or a
            list: `logs`, `only_function`. `max_bytes`: a number of bytes, or text such as "2GiB".

    Returns:
        The run folder.

    Raises:
        UsageError: collecting is on already, or the folder cannot be written to.
        SettingError: a setting that does not exist, or a value that it cannot take.
    """
    from graphprobe.probe.active import enable_with, resolved

    chosen = resolved({**settings, "out_dir": None if out_dir is None else os.fspath(out_dir)})
    return enable_with(chosen, companion=_reducer())


@contextmanager
def trace(out_dir: AnyPath | None = None, **settings: Unpack[RunSettings]) -> Iterator[Path]:
    """`enable` for the length of a block; yields the run folder. Arguments and errors as `enable`."""
    from graphprobe.probe.active import close

    folder = enable(out_dir, **settings)
    try:
        yield folder
    except BaseException as error:
        close("failed", f"{type(error).__name__}: {error}")
        raise
    else:
        close("finished")


def obey_environment(environ: Mapping[str, str]) -> None:
    """Collect if torch would; say so if torch would ignore the value."""
    state = torch_compile_debug_state(environ)
    if state == "ignored":
        value = environ["TORCH_COMPILE_DEBUG"]
        warnings.warn(
            f"TORCH_COMPILE_DEBUG={value!r} switches nothing on: torch takes only '1' (what is no number "
            "keeps some versions from being imported), and so does graphprobe. "
            "Set TORCH_COMPILE_DEBUG=1 to collect, or unset it.",
            GraphprobeWarning,
            stacklevel=3,
        )
    elif state == "on":
        from graphprobe.probe.active import enable_on_first_use

        enable_on_first_use(_reducer)


def _reducer() -> Companion | None:
    """What reduces failing graphs, where the environment or torch's settings ask for that; raises UsageError."""
    from graphprobe.internals.dynamo.repro_hooks import VARIABLES, asked_of_torch

    if not any(name in os.environ for name in VARIABLES) and asked_of_torch()[0] is None:
        return None
    from graphprobe.diagnose.reduction.watch_script import watch_environment

    found = watch_environment()
    if found is None:
        return None
    watch = found

    def start() -> Callable[[], None]:
        watch.install()
        return watch.remove

    return start


def compare(
    *,
    candidate: CallDump | AnyPath,
    reference: CallDump | AnyPath,
    replay: bool = True,
    jobs: int | None = None,
    scheduler: str = "",
    steps: Iterable[int] | None = None,
    ranks: Iterable[int] | None = None,
    exact: bool = False,
    on_progress: Callable[[str], None] | None = None,
) -> Comparison:
    """Compare two dumps of one program, and name the first call that goes wrong by itself.

        with graphprobe.compare(candidate="dump_bf16", reference="dump_fp32") as comparison:
            print(comparison.summary.outcome, comparison.summary.first)

    The two may be of different formats, devices and dtypes. The call names both, so that nobody mixes them up.

    Args:
        candidate, reference: paths, as `open_dump` takes them, or dumps that it has opened.
        replay: where there are values, run operations again in float64 on their own recorded inputs. Needs torch.
        jobs: threads that judge values; None: one a processor.
        scheduler: address of a Dask scheduler on whose workers to judge; they must see both dumps under the same paths.
        steps, ranks: numbers of those to compare; None: all.
        exact: take other last bits for a difference, too, and name the first call that gives them.
        on_progress: called now and then with what is being judged, in words.

    Returns:
        the Comparison, a context manager: its rows are in a temporary file until it is closed.

    Raises:
        RunNotFoundError: there is no dump.
        UsageError: something is there, and it is no dump; or an argument is not of the kind named above.
        NotComparableError: one is of compiled graphs, and the other of API calls.
        SchemaError: a dump was written by a newer graphprobe.
    """
    _check_number("compare", "threads", jobs=jobs)
    if not isinstance(scheduler, str):
        raise UsageError(f"compare(scheduler={scheduler!r}): it takes the address of a Dask scheduler as text")
    wanted = {"steps": _numbers("steps", steps), "ranks": _numbers("ranks", ranks)}
    mine, theirs = _opened("candidate", candidate), _opened("reference", reference)
    from graphprobe.compare.options import Options, has_values
    from graphprobe.compare.run import compare_dumps

    replayer, replay = None, replay and has_values(mine) and has_values(theirs)
    if replay and not scheduler:
        from graphprobe.diagnose.call_replay import TorchReplayer

        replayer = TorchReplayer()
    options = Options(
        replayer=replayer,
        jobs=jobs,
        scheduler=scheduler,
        remote_replayer="graphprobe.diagnose.call_replay:TorchReplayer" if replay and scheduler else "",
        exact=exact,
        on_progress=on_progress,
        **wanted,
    )
    return compare_dumps(mine, theirs, options)


def reduce(
    case: AnyPath,
    *,
    out: AnyPath | None = None,
    check: str | None = None,
    fail_regex: str | None = None,
    timeout_s: float = 300.0,
    memory_bytes: int | None = None,
    budget_s: float | None = None,
    max_calls: int | None = None,
    hints: Sequence[str] = (),
    resume: bool = False,
    seed: int = 0,
    on_progress: Callable[[Progress], None] | None = None,
) -> CaseReduction:
    """Cut a failing case down to what still fails in the same way, and write a repro of it.

    The repro is on disk from the first moment on, always of the smallest case so far; Ctrl-C ends with that.

    Args:
        case: a dossier that `diagnose` wrote, a graph of a run as Python, or the folder of a reduction. It is imported,
            so it can do whatever a script can. `graphprobe reduce SCRIPT` takes a whole program.
        out: folder of the reduction, new or empty, except with `resume`. Default: `CASE-reduced`, beside the case.
        check: a shell command that runs in the repro's folder: exit code 0 passes, 125 is unresolved, all others fail.
        fail_regex: what must match: the exception with its traceback, the differences, or the output of `check`.
        timeout_s: for one candidate.
        memory_bytes: that one candidate may take; None: three quarters of what is free.
        budget_s, max_calls: end after so many seconds or candidates with what was found.
        hints: names of suspected nodes, the most suspected first.
        resume: go on with the reduction in `out`, without asking again what was answered.
        seed: of the order of some tries.
        on_progress: told after each answer.

    Returns:
        the CaseReduction: what it failed with, how many calls there were and are, and the folder with the repro.

    Raises:
        UsageError: the case cannot be read or run uncompiled, or an argument is not of the kind named above.
    """
    _check_search(hints, fail_regex, max_calls)
    _check_amounts("reduce", timeout_s=timeout_s, budget_s=budget_s, memory_bytes=memory_bytes)
    path = _path("reduce(case", case)
    folder = reduction_folder(path, resume=resume) if out is None else _path("reduce(out", out).absolute()
    from graphprobe.diagnose.reduction.load_case import load_case
    from graphprobe.diagnose.reduction.reduce_case import reduce_case

    return reduce_case(
        load_case(path),
        folder,
        check=check,
        fail_regex=fail_regex,
        timeout_s=timeout_s,
        memory_bytes=memory_bytes,
        budget_s=budget_s,
        max_calls=max_calls,
        hints=hints,
        resume=resume,
        seed=seed,
        on_progress=on_progress,
    )


def reduction_folder(case: Path, *, resume: bool) -> Path:
    """Where a reduction goes that was given no folder: where it was, on resume, else beside the case."""
    path = case.absolute()
    if resume and (path / "reduction.json").is_file():
        return path
    return path.with_name(f"{path.stem if path.is_file() else path.name}-reduced")


def report(
    path: AnyPath, *, out: AnyPath = "report.html", force: bool = False, source_roots: Sequence[AnyPath] = ()
) -> Path:
    """Make one HTML file of what was collected, for a browser. It loads nothing and can be sent on.

    Args:
        path: a run folder, or a folder with runs, of which the newest is taken; the JSON or the folder of a diagnosis;
            the folder or the `comparison.json` of `graphprobe compare --out`; a dump; the JSON of a profile or a drift.
        out: the file to write.
        force: replace an earlier report.
        source_roots: folders. Lines of the program are shown if they lie below one of them, below the working
            directory, or in the Python installation.

    Returns:
        the file, absolute.

    Raises:
        RunNotFoundError: nothing is there.
        UsageError: something is there, and no report can be made of it; or the file cannot be written.
        SchemaError: it was written by a newer graphprobe.
    """
    from graphprobe.report.subject import MARKS, page_of, write_page_to
    from graphprobe.store.files import file_to_write

    source, file = _path("report(path", path), str(_path("report(out", out))
    if isinstance(source_roots, str | os.PathLike):
        raise UsageError(f"report(source_roots={source_roots!r}): it takes a list of folders")
    roots = [_path("report(source_roots", folder) for folder in source_roots]
    for folder in roots:
        if not folder.is_dir():
            raise UsageError(f"report(source_roots=…): there is no folder {folder}")
    named = f"report(out={file!r})"
    target = file_to_write(file, *MARKS, named=named, force=force, by="force=True")
    write_page_to(target, page_of(source, source_roots=roots), named=named)
    return target


def open_run(path: AnyPath = "torch_compile_debug") -> Run:
    """The run at `path`, as it stands now: what a process has collected.

    Args:
        path: a run folder, its graphprobe folder, or a folder with runs, of which the newest is taken.

    Raises:
        RunNotFoundError: there is none; the message says what was looked for.
        SchemaError: it was written by a newer graphprobe.
    """
    from graphprobe.store.reader import Run

    return Run.open(_path("open_run(path", path))


def _opened(name: str, dump: CallDump | AnyPath) -> CallDump:
    from graphprobe.compare.open import open_dump

    if isinstance(dump, str | os.PathLike):
        return open_dump(os.fspath(dump))
    if not callable(getattr(dump, "calls", None)):
        raise UsageError(f"compare({name}={dump!r:.80}): it takes the path of a dump, or what open_dump gives")
    return dump


def _path(argument: str, value: Any) -> Path:
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str):
        raise UsageError(f"{argument}={value!r:.80}): it takes a path")
    return Path(value)


def _check_amounts(function: str, **given: object) -> None:
    for name, value in given.items():
        if value is not None and not (isinstance(value, int | float) and not isinstance(value, bool) and value > 0):
            raise UsageError(f"{function}({name}={value!r}): it takes a number above 0")


def _check_number(function: str, noun: str, **given: object) -> None:
    for name, value in given.items():
        if value is not None and not (type(value) is int and value >= 1):
            raise UsageError(f"{function}({name}={value!r}): it takes a number of {noun} from 1, or None")


def _check_search(hints: object, fail_regex: str | None, max_calls: object) -> None:
    _check_number("reduce", "candidates", max_calls=max_calls)
    if isinstance(hints, str):
        raise UsageError(f"reduce(hints={hints!r}): it takes a list of names", hint=f"hints=[{hints!r}]")
    try:
        re.compile(fail_regex or "")
    except (re.error, TypeError) as error:
        raise UsageError(f"reduce(fail_regex={fail_regex!r}): it is no regular expression: {error}") from error


def _numbers(name: str, values: Any) -> frozenset[int] | None:
    if values is None:
        return None
    found = list(values) if isinstance(values, Iterable) and not isinstance(values, str) else []
    if not found or not all(type(value) is int and value >= 0 for value in found):
        raise UsageError(f"compare({name}={values!r:.80}): it takes numbers from 0 on, such as [0, 3]")
    return frozenset(found)
