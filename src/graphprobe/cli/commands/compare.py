"""`graphprobe compare`: two dumps of one program against each other."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click
import msgspec

from graphprobe.cli.shared_options import JSON_METAVAR, STDOUT, JsonCommand, JsonTo
from graphprobe.errors import EXIT_FOUND, EXIT_OK, EXIT_UNDECIDED, UsageError
from graphprobe.report.comparison import document_from, print_comparison, print_end, write_csv
from graphprobe.report.terminal import ProgressLine
from graphprobe.report.visible import echo
from graphprobe.store.files import check_replaced

if TYPE_CHECKING:
    from graphprobe.compare.result import CallResult, Summary
    from graphprobe.compare.run import Comparison

MARKS = {"json": b'"outcome"', "rows": b'{"number":', "csv": b"NPU Name,", "html": b"<title>graphprobe"}
"""What is in the files that are written."""
FAIL_ON = ("difference", "candidate_worse", "undecided", "nothing")


@click.command(cls=JsonCommand)
@click.argument("candidate", metavar="CANDIDATE")
@click.argument("reference", metavar="REFERENCE")
@click.option(
    "--json",
    "json_file",
    metavar=JSON_METAVAR,
    help="Print JSON instead; or write it to FILE, whose name ends in .json.",
)
@click.option("--csv", "csv_file", metavar="FILE", help="Write one line a tensor, with the columns of ptdbg and ours.")
@click.option("--stack", is_flag=True, help="With --csv: a column with the program's frames.")
@click.option("-o", "--out", metavar="DIR", help="Write comparison.json, rows.jsonl, comparison.csv and report.html.")
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
@click.option("--no-replay", is_flag=True, help="Do not run operations again in float64.")
@click.option("--exact", is_flag=True, help="Take other last bits for a difference, too, and name the first call.")
@click.option("--jobs", type=click.IntRange(min=1), help="Threads that judge values.  [default: one a processor]")
@click.option("--scheduler", metavar="ADDRESS", default="", help="Judge on the workers of this Dask scheduler.")
@click.option("--ranks", metavar="LIST", help="Only these ranks, such as 0,3-5.")
@click.option("--steps", metavar="LIST", help="Only these steps.")
@click.option("--candidate-data", metavar="DIR", help="Folder with the values of a ptdbg text.")
@click.option("--reference-data", metavar="DIR", help="The same for the reference.")
@click.option(
    "--fail-on",
    type=click.Choice(FAIL_ON),
    default="difference",
    show_default=True,
    help="What ends with exit code 1. `undecided`: also a comparison that could not decide.",
)
def command(
    candidate: str,
    reference: str,
    stack: bool,
    no_replay: bool,
    exact: bool,
    jobs: int | None,
    scheduler: str,
    ranks: str | None,
    steps: str | None,
    candidate_data: str | None,
    reference_data: str | None,
    fail_on: str,
    **files: Any,  # where to write
) -> int:
    """Compare the dump CANDIDATE with the dump REFERENCE, and name the first call that goes wrong.

    A dump is a folder that `graphprobe run --dump` or `graphprobe run --dump-graph` wrote, or an index of `graphprobe
    merge`. Folders and dump.json of msprobe and the .pkl text of ptdbg are dumps, too. The two may differ in format,
    device and dtype. Calls are paired by what they are and where they stand. Values are judged in units of rounding
    noise. If a dump has values, operations run again in float64 on their recorded inputs. That needs torch: see
    --no-replay.

    Exit codes: 0 no difference beyond noise, 1 a difference, 2 wrong usage, 125 undecided.

    \b
    Examples:
      graphprobe compare dump_bf16 dump_fp32
      graphprobe compare npu_dump.pkl gpu_dump.pkl --csv result.csv --stack
      graphprobe compare new old --json result.json --fail-on candidate_worse
    """
    from graphprobe.api import compare
    from graphprobe.compare.open import open_dump

    wanted_steps, wanted_ranks = _numbers(steps, "--steps"), _numbers(ranks, "--ranks")
    if stack and files["csv_file"] is None and files["out"] is None:
        raise UsageError("--stack: no CSV is written, so this has no effect", hint="add --csv FILE or --out DIR")
    mine = open_dump(candidate, data_dir=candidate_data)
    theirs = open_dump(reference, data_dir=reference_data)
    targets = _targets(**files)
    with ProgressLine() as progress:
        compared = compare(
            candidate=mine,
            reference=theirs,
            replay=not no_replay,
            jobs=jobs,
            scheduler=scheduler,
            steps=wanted_steps,
            ranks=wanted_ranks,
            exact=exact,
            on_progress=progress.tell,
        )
    with compared as comparison:
        _write(comparison, targets, stack)
        _tell(comparison, targets, (candidate, reference, files["out"]), as_json=files["json_file"] == STDOUT)
        return exit_code(comparison.summary, fail_on)


def _tell(
    comparison: Comparison, targets: dict[str, Any], named: tuple[str, str, str | None], *, as_json: bool
) -> None:
    """`named`: candidate, reference and the folder to write to, as they were typed."""
    if not JsonTo(STDOUT if as_json else None).replaces_text(lambda: _document(comparison)):
        print_comparison(comparison.summary, _unpaired(comparison))
    for name in targets:
        echo(f"Wrote {name}", err=as_json)
    if not as_json:
        echo()
        candidate, reference, out = named
        print_end(comparison.summary, candidate, reference, out=out)


def exit_code(summary: Summary, fail_on: str) -> int:
    """0, 1 or 125, as `--fail-on` asks."""
    if fail_on == "nothing" or summary.outcome == "same":
        return EXIT_OK
    if summary.outcome == "undecided":
        return EXIT_FOUND if fail_on == "undecided" else EXIT_UNDECIDED
    if fail_on == "candidate_worse" and all(
        f.verdict in ("candidate_better", "inconclusive") for f in summary.findings
    ):
        return EXIT_OK
    return EXIT_FOUND


def _numbers(text: str | None, option: str) -> frozenset[int] | None:
    if text is None:
        return None
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UsageError(f"{option} {text}: {part!r} is no number and no range", hint="such as 0,3-5")
        if dash and int(last) < int(first):
            raise UsageError(f"{option} {text}: {part!r} ends before it begins", hint=f"such as {last}-{first}")
        found.update(range(int(first), int(last if dash else first) + 1))
    return frozenset(found)


def _targets(json_file: str | None, csv_file: str | None, out: str | None, force: bool) -> dict[str, str]:
    """What to write, by path; checked before anything runs."""
    from graphprobe.compare.open import is_remote

    targets: dict[str, str] = {}
    if json_file is not None and json_file != STDOUT:
        targets[json_file] = "json"
    if csv_file is not None:
        targets[csv_file] = "csv"
    if out is not None:
        base = out.rstrip("/")
        names = {"comparison.json": "json", "rows.jsonl": "rows", "comparison.csv": "csv", "report.html": "html"}
        targets |= {f"{base}/{name}": kind for name, kind in names.items()}
    for name in targets:
        if is_remote(name):
            continue
        path = Path(name)
        if not path.absolute().parent.is_dir() and (out is None or path.parent != Path(out)):
            raise UsageError(f"{name}: there is no folder {path.absolute().parent}", hint="make it first")
        if path.exists() and not force:
            raise UsageError(f"{name} exists already", hint="pass --force to overwrite it, or name another file")
        check_replaced(path, name, MARKS[targets[name]])
    if out is not None and not is_remote(out):
        Path(out).mkdir(parents=True, exist_ok=True)
    return targets


def _write(comparison: Comparison, targets: dict[str, str], stack: bool) -> None:
    """Write all files; none takes its place before all are whole."""
    if not targets:
        return
    from graphprobe.compare.open import is_remote, write_text

    writers, staged = _writers(comparison, stack), dict[str, str]()
    with tempfile.TemporaryDirectory(prefix="graphprobe-compare-") as folder:
        try:
            for number, (name, kind) in enumerate(targets.items()):
                path = f"{folder}/{number}" if is_remote(name) else f"{name}.part-{os.getpid()}"
                staged[path] = name
                try:
                    with open(path, "w", encoding="utf-8", newline="") as file:
                        writers[kind](file)
                except OSError as error:
                    raise OSError(error.errno, error.strerror, name) from error
            for path, name in staged.items():
                if is_remote(name):
                    write_text(name, Path(path).read_bytes().decode())
                else:
                    os.replace(path, name)
        finally:
            for path in staged:
                with contextlib.suppress(OSError):
                    os.unlink(path)


def _writers(comparison: Comparison, stack: bool) -> dict[str, Callable[[IO[str]], object]]:
    from graphprobe.report.html.page import write_page
    from graphprobe.report.html.sections_comparison import report_of

    rows = comparison.rows
    return {
        "json": lambda file: file.write(json.dumps(_document(comparison), indent=2) + "\n"),
        "rows": lambda file: file.writelines(f"{msgspec.json.encode(row).decode()}\n" for row in rows()),
        "csv": lambda file: write_csv(rows(), file, stack=stack),
        "html": lambda file: write_page(report_of(comparison.summary, rows()), file),
    }


def _document(comparison: Comparison) -> dict[str, Any]:
    return document_from(comparison.summary, _unpaired(comparison))


def _unpaired(comparison: Comparison) -> Iterator[CallResult]:
    if comparison.summary.counts.candidate_only or comparison.summary.counts.reference_only:
        yield from (row for row in comparison.rows() if row.rule is None)
