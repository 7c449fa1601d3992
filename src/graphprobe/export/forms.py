"""The forms: what each can be made from, whether it is a file or a folder, and what makes it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

from graphprobe.analysis.timing import read_profile
from graphprobe.compare.open import open_dump
from graphprobe.compare.result_file import check_schema, read_rows
from graphprobe.errors import SchemaError, UsageError
from graphprobe.export import chrome_trace, model_explorer
from graphprobe.export.onnx_text import export_onnx_text
from graphprobe.report.subject import SUBJECTS, Kind, kind_of
from graphprobe.store.calls import WithStatistics
from graphprobe.store.dump_reader import open_dump as open_graphs
from graphprobe.store.files import check_replaced
from graphprobe.store.reader import Run

FILE_MARKS = (b'"format":"graphprobe export"', b'"otherData":{"graphprobe"')
"""What the forms that are one file have near their end; `--force` replaces no other."""

MARK = ".graphprobe-export"
"""Lies in each folder that an export has made; `--force` removes no other."""


class Exported(msgspec.Struct):
    """What an export made.

    Attributes:
        count: how many of `unit` they hold.
        left_out: what could not be exported and why, in words.
    """

    written: list[Path]
    count: int
    unit: str
    left_out: list[str] = []


class Request(msgspec.Struct, frozen=True):
    """What is asked for.

    Attributes:
        path, kind: what is exported.
        out: the new file or folder.
        graph: address of the one graph that is wanted; None for all.
    """

    path: Path
    kind: Kind
    out: Path
    graph: str | None = None


class Form(msgspec.Struct, frozen=True):
    """One form.

    Attributes:
        kinds: what it can be made from.
        folder: whether it is a folder; else a file.
        make: makes it.
    """

    kinds: tuple[Kind, ...]
    folder: bool
    make: Callable[[Request], Exported]


def export(path: str | Path, out: str | Path, form: str, *, force: bool = False, graph: str | None = None) -> Exported:
    """Write what lies at `path` in another tool's form.

    Args:
        path: a run, a dump, a comparison or a profile.
        out: the file, or the folder, see `FORMS`; its parent must exist.
        form: a key of `FORMS`.
        force: replace what is at `out`: a file, or a folder with an earlier export.
        graph: address of one graph of a run, for `onnx-text` and `model-explorer`.

    Raises:
        UsageError: an argument does not go with the others, `out` exists.
        RunNotFoundError, SchemaError: nothing that can be read lies at `path`.
    """
    if form not in FORMS:
        raise UsageError(f"there is no form {form!r}", hint=f"one of {', '.join(FORMS)}")
    kind = kind_of(Path(path))
    if kind not in FORMS[form].kinds:
        raise _cannot(str(path), kind, form)
    if graph is not None and (kind != "run" or form not in ("onnx-text", "model-explorer")):
        raise UsageError(f"--graph {graph}: it picks a graph of a run, for onnx-text and model-explorer")
    target = Path(out)
    _check_new(target, FORMS[form].folder, force)
    request = Request(Path(path), kind, target, graph)
    try:
        return _into_folder(request, FORMS[form].make) if FORMS[form].folder else FORMS[form].make(request)
    except OSError as error:
        raise UsageError(
            f"{error.filename or out}: {error.strerror or error}", hint="--out could not be made"
        ) from error
    except OverflowError as error:
        raise SchemaError(f"{path} holds a number that is larger than any that is measured: {error}") from error


def _cannot(path: str, kind: Kind, form: str) -> UsageError:
    words = [SUBJECTS[one] for one in FORMS[form].kinds]
    possible = " or ".join([part for part in (", ".join(words[:-1]), words[-1]) if part])
    forms = ", ".join(name for name, one in FORMS.items() if kind in one.kinds)
    forms = forms or "no form; graphprobe report makes a page of it"
    return UsageError(
        f"{path} is {SUBJECTS[kind]}; {form} is made from {possible}",
        hint=f"{SUBJECTS[kind]} can be exported to {forms}",
    )


def _check_new(out: Path, folder: bool, force: bool) -> None:
    if not out.absolute().parent.is_dir():
        raise UsageError(f"--out {out}: there is no folder {out.absolute().parent}", hint="make it first")
    if not out.exists():
        return
    if folder and not out.is_dir():
        raise UsageError(f"--out {out}: it is a file, and this form is a folder", hint="name a folder")
    if not folder and out.is_dir():
        raise UsageError(f"--out {out}: it is a folder, and this form is one file", hint="name a file")
    if (not folder or any(out.iterdir())) and not force:
        raise UsageError(f"--out {out}: it exists already", hint="name another one, or replace it with --force")
    if not folder:
        check_replaced(out, f"--out {out}", *FILE_MARKS)
    if folder and any(out.iterdir()) and not (out / MARK).is_file():
        raise UsageError(
            f"--out {out}: it holds something else than an export, which --force does not remove",
            hint="name a folder that is new or empty",
        )


def _into_folder(request: Request, make: Callable[[Request], Exported]) -> Exported:
    new = not request.out.exists()
    if (request.out / MARK).is_file():
        shutil.rmtree(request.out)
    request.out.mkdir(exist_ok=True)
    (request.out / MARK).touch()
    try:
        return make(request)
    except BaseException:
        if new:
            with contextlib.suppress(OSError):
                shutil.rmtree(request.out)
        raise


def _chrome_trace(request: Request) -> Exported:
    left_out: list[str] = []
    if request.kind == "profile":
        count = chrome_trace.export_profile(read_profile(request.path), request.out)
    elif request.kind == "graph-dump":
        dump = open_graphs(request.path)
        count = chrome_trace.export_dump(dump, request.out)
        left_out += [problem for folder in dump.folders for problem in folder.problems]
    else:
        run = Run.open(request.path)
        count = chrome_trace.export_run(run, request.out, left_out)
        left_out += run.problems
    return Exported([request.out], count, "spans" if request.kind == "profile" else "events", left_out)


def _onnx_text(request: Request) -> Exported:
    left_out: list[str] = []
    run = Run.open(request.path)
    written = export_onnx_text(run, request.out, left_out, only=request.graph)
    return Exported(written, len(written), "graphs", [*left_out, *run.problems])


def _model_explorer(request: Request) -> Exported:
    left_out: list[str] = []
    if request.kind == "run":
        run = Run.open(request.path)
        written, count = model_explorer.export_run(run, request.out, left_out, only=request.graph)
        left_out += run.problems
    elif request.kind == "comparison":
        check_schema(request.path)
        written, count = model_explorer.export_comparison(read_rows(request.path), request.path.name, request.out)
    else:
        dump = WithStatistics(open_dump(request.path))
        written, count = model_explorer.export_calls(dump, request.out)
        left_out += dump.problems()
    return Exported(written, count, "graphs", left_out)


FORMS: dict[str, Form] = {
    "chrome-trace": Form(("run", "graph-dump", "profile"), False, _chrome_trace),
    "onnx-text": Form(("run",), True, _onnx_text),
    "model-explorer": Form(("run", "graph-dump", "dump", "comparison"), True, _model_explorer),
}
"""By name."""
