"""Record what graphprobe makes of a fixed set of small programs, and hold it against an earlier record.

    python scripts/replay.py record FOLDER [--case NAME]...
    python scripts/replay.py compare FOLDER [--case NAME]...

A record has, for each case, what each command printed with its exit code, the names of the files that are there in the
end, and these files. What differs from run to run (times, process ids, paths, addresses) is masked; values are kept as
digests, by name and not by the file that they were written to. `compare` records again, prints the first differences of
each file, and exits with 1 if there are any. FOLDER/cache keeps compiled kernels, which saves most of the time.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import difflib
import hashlib
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = Path(__file__).resolve().parent / "replay_programs"
BEFORE, AFTER, CACHE = "before", "after", "cache"
"""Folders in FOLDER: the record, the one that `compare` made last, and compiled kernels."""

ORIGIN = "origin.txt"
"""Which commit a record is of; for people, not compared."""

MAX_DIFFERING_LINES = 40
COMMAND_SECONDS = 400


@dataclasses.dataclass(frozen=True)
class Command:
    """One call of graphprobe.

    Attributes:
        args: behind `graphprobe`, separated by spaces.
        unordered: its lines are sorted by times, so that their order is no fact.
        wrapped: times stand in running text, so that where its lines end is no fact.
    """

    args: str
    unordered: bool = False
    wrapped: bool = False


def commands(*lines: str) -> tuple[Command, ...]:
    return tuple(Command(line) for line in lines)


CASES: dict[str, tuple[Command, ...]] = {
    "diagnose_faulty": (
        Command("diagnose --json result.json -o proofs programs/faulty.py:make", wrapped=True),
        *commands("report result.json -o report.html", "issue proofs/codegen-aten.relu.default"),
    ),
    "run_mlp": commands(
        "run -o out --save-inputs programs/mlp_train.py",
        "ls out",
        "ls out --all --json",
        "show out model__0/forward/graph",
        "show out model__0/joint/after:pattern_matcher",
        "show out ops",
        "show out model__0/compile --json",
        "show out no_such_artifact",
        "diff out --pass pattern_matcher --direction joint",
        "diff out model__0/forward/original model__0/forward/optimized --json",
        "logs out",
        "explain out",
        "recompiles out",
        "report out -o report.html",
        "export out --to chrome-trace -o trace.json",
        "export out --to onnx-text -o onnx",
        "export out --to model-explorer -o explorer --json",
    ),
    "run_gpt2": commands("run -o out --graph-dump py programs/gpt2.py", "ls out", "diff out --pass pattern_matcher"),
    "run_breaks": commands(
        "run -o out programs/break_recompile.py",
        "ls out --all",
        "explain out",
        "explain out --json",
        "recompiles out",
        "recompiles out --json",
        "report out -o report.html",
    ),
    "run_branches": commands("run -o out programs/branches.py", "ls out --all", "show out model__0/forward/graph"),
    "scripts": commands(
        "explain programs/break_recompile.py",
        "explain --json programs/branches.py",
        "recompiles programs/break_recompile.py",
        "recompiles --json recompiles.json programs/break_recompile.py",
    ),
    "graph_dump": commands(
        "run -o out --dump-graph tensor --dump-to tensor programs/mlp_train.py",
        "convert tensor --out npy",
        "parse tensor Sequential.0.primals_1.0",
        "report tensor -o report.html",
        "export tensor --to model-explorer -o explorer",
        "compare tensor tensor --out same",
    ),
    "graph_dump_statistics": commands(
        "run -o out --dump-graph stats --dump-to stats programs/mlp_train.py",
        "run -o out2 --dump-graph stats --dump-engine interpreter --dump-to nodes programs/mlp_train.py",
        "compare stats nodes --json -",
        "report stats -o report.html",
    ),
    "api_dump": commands(
        "run -o out --dump tensor --level api --dump-to values programs/mlp_eager.py",
        "run -o out --dump tensor --level mix --dump-to values_mix programs/mlp_eager.py",
        "run -o out --dump stats --level api --dump-to stats programs/mlp_eager.py",
        "run -o out --dump stats --level mix --dump-to stats_mix programs/mlp_eager.py",
        "run -o out --dump tensor --level api --dump-to changed programs/mlp_eager.py 1.01",
        "compare stats stats",
        "compare values values --json -",
        "compare changed values --out different --csv different.csv --stack",
        "compare changed stats --no-replay",
        "report different -o different.html",
        "report values -o values.html",
        "convert values --to ptdbg --out ptdbg.pkl",
        "convert values --out npy --json",
        "export different --to model-explorer -o explorer",
    ),
    "diagnose_healthy": (Command("diagnose --json result.json -o proofs programs/healthy.py:make", wrapped=True),),
    "profile": (
        Command("profile -o profile.json --trace trace.json --top 500 programs/mlp_train.py", unordered=True),
        Command("profile profile.json --json", unordered=True),
        Command("profile profile.json profile.json", unordered=True),
        Command("report profile.json -o report.html", unordered=True),
    ),
    "installation": commands("--version", "doctor", "doctor --json", "no-such-command", "run no_such_program.py"),
    "quick": commands(
        "run -o out --dump stats --level mix --dump-to mix programs/mlp_eager.py",
        "run -o out --dump tensor --level api --dump-to values programs/mlp_eager.py",
        "compare mix mix",
        "compare mix values --no-replay",
    ),
}
"""Independent of each other; the commands of a case run one after the other, in a folder of the case."""

QUICK = ("quick",)
"""Cases that compile nothing, which `make test` records twice; in a full record they would be there a second time."""

MASKED_KEYS = re.compile(
    r"(_ns|_us|_ms|_s|_seconds)$"
    r"|^(ts|dur|ns|at|took|begin|pid|tid|thread|parent_pid|host|platform|seconds|time|timestamp|elapsed)$"
    r"|^(collected_bytes|queue_peak_bytes)$"
)
"""Keys of JSON whose values are times, or hang on times, on the process, or on the machine."""

SIZE_OF_TIMES = ("captured_ops.json",)
"""Files whose size hangs on the times that are written in them."""

SHARD = re.compile(r"^\d{6}\.safetensors$")
"""Files of values that are numbered by when their thread came: they count as one."""

PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.DOTALL), by)
    for pattern, by in (
        (r"\brun_\d{4}(_\d\d){5}_\d{6}-pid_\d+", "run_TIME-pid_PID"),
        (r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d([.,]\d+)?(Z|[+-]\d\d:?\d\d)?", "TIME"),
        (r"(?<!\d)20\d{6}_?\d{6}(?!\d)", "TIME"),
        (r"\b1[7-9]\d{14}(\d{3})?\b", "TIME"),
        (r"\b0x[0-9a-f]{6,}\b", "ADDRESS"),
        (r"(___check_(?:type|obj)_id\([^\n]*?, )\d+", r"\1ID"),
        (r"(?<!\d)(9[34]\d{12}|1[34]\d{13})(?!\d)", "ID"),
        (r"(?<![\w.])\d+(\.\d+)?(e-\d+)?\s?(ns|µs|us|ms|s|min)\b", "TIME"),
        (r"(?<![\w.])\d+(\.\d+)? ?(B|KiB|MiB|GiB|bytes)\b", "SIZE"),
        (r"\bvalues/\d{6}\.safetensors\b", "values/N.safetensors"),
        (r"<tmp>/[\w.-]+", "<tmp>/NAME"),
        (r"<cache>/([a-z0-9]{2}/)?c[a-z2-7]{40,}", "<cache>/KERNEL"),
        (r"\b(pid|thread)[ =]\d+", r"\1 PID"),
        (r'(<section id="slowest".*?</h2>).*?(</section>)', r"\1MASKED\2"),  # the page of a run: sorted by times
        (r"compile C\+\+, \d+\.\d%|\b[\w ]+, \d+\.\d%(?=</span></a></li>)", "SLOWEST"),
        (r"^([\w.<>\[\] :-]+, )\d+\.\d{4}(, \d+\.\d{4})*$", r"\1TIMES"),  # torch's table of compile times
    )
)


class Masking:
    """Takes out of texts what differs from run to run.

    Args:
        places: names for folders, such as `<work>`.
    """

    def __init__(self, places: dict[str, Path]) -> None:
        spelled = {str(form): name for name, path in places.items() for form in (path.resolve(), path.absolute())}
        self._places = sorted(spelled.items(), key=lambda pair: -len(pair[0]))

    def text(self, text: str) -> str:
        """`text` with paths, times, ids and sizes replaced by their names."""
        for path, name in self._places:
            text = text.replace(path, name)
        for pattern, by in PATTERNS:
            text = pattern.sub(by, text) if not pattern.pattern.startswith("^") else _each_line(pattern, by, text)
        return text

    def value(self, value: Any) -> Any:
        """The same for all texts in what was read from JSON; values of MASKED_KEYS become `MASKED`."""
        if isinstance(value, dict):
            value = _without_timed_columns(value)
            unstable = {"digest"} if "path" in value else set()  # of a file, which is compared itself
            if str(value.get("path", "")).endswith(SIZE_OF_TIMES):
                unstable.add("size_bytes")
            return {
                self.text(key): _masked(part) if key in unstable or MASKED_KEYS.search(key) else self.value(part)
                for key, part in value.items()
            }
        if isinstance(value, list):
            parts = [self.value(part) for part in value]
            timed = all(isinstance(part, dict) and "ns" in part for part in parts)
            return sorted(parts, key=_json_line) if timed else parts  # slowest first
        if isinstance(value, str) and value.startswith("{") and not isinstance(nested := _json_or_text(value), str):
            return self.value(nested)
        return self.text(value) if isinstance(value, str) else value


def _without_timed_columns(table: dict[str, Any]) -> dict[str, Any]:
    """A table of a page, whose `values` has one list a column, without the columns of times."""
    columns, data = table.get("columns"), table.get("values")
    if not (isinstance(columns, list) and isinstance(data, list) and len(columns) == len(data)):
        return table
    names = [column.get("name") if isinstance(column, dict) else None for column in columns]
    return {**table, "values": ["MASKED" if name == "µs" else part for name, part in zip(names, data, strict=True)]}


def _masked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _masked(part) for key, part in value.items()}
    return [_masked(part) for part in value] if isinstance(value, list) else "MASKED"


def _each_line(pattern: re.Pattern[str], by: str, text: str) -> str:
    return "\n".join(pattern.sub(by, line) for line in text.split("\n"))


def unordered(text: str) -> str:
    """`text` with its lines sorted, without digits and runs of spaces: a table without its times."""
    return "\n".join(sorted(re.sub(r"[\d.]+%?", "N", re.sub(r"[ \t─━-]+", " ", line)) for line in text.splitlines()))


def unwrapped(text: str) -> str:
    """`text` with each paragraph that tells a time on one line."""
    return "\n\n".join(" ".join(part.split()) if "TIME" in part else part for part in text.split("\n\n"))


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def tensors_in(content: bytes) -> tuple[dict[str, str], list[str]] | None:
    """Metadata, and one line a tensor, of a safetensors file; None if `content` is none."""
    size = int.from_bytes(content[:8], "little")
    if len(content) < 10 or size > len(content) - 8 or content[8:9] != b"{":
        return None
    header = json.loads(content[8 : 8 + size])
    metadata = header.pop("__metadata__", {})
    data = content[8 + size :]
    lines = [
        f"{name} {entry['dtype']} {entry['shape']} {digest(data[slice(*entry['data_offsets'])])}"
        for name, entry in header.items()
    ]
    return metadata, sorted(lines)


def rendered(name: str, content: bytes, masking: Masking) -> str:
    """A file as text that two runs write alike; values become digests."""
    tensors = tensors_in(content)
    if tensors is not None:
        metadata = {key: masking.value(_json_or_text(text)) for key, text in tensors[0].items()}
        return json.dumps(metadata, indent=1, ensure_ascii=False) + "\n" + "\n".join(tensors[1]) + "\n"
    if content.startswith(b"\x93NUMPY"):
        start = 10 + int.from_bytes(content[8:10], "little")
        return f"{content[10:start].decode('latin1').strip()} {digest(content[start:])}\n"
    if content.startswith(b"PK\x03\x04"):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return "".join(f"{entry} {digest(archive.read(entry))}\n" for entry in sorted(archive.namelist()))
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return f"{len(content)} bytes {digest(content)}\n"
    if name.endswith(".jsonl"):
        return "".join(f"{_json_line(masking.value(_json_or_text(line)))}\n" for line in text.splitlines())
    if name.endswith((".json", ".html")):
        return _with_json(text, masking)
    return masking.text(text)


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _json_line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


JSON_IN_PAGE = re.compile(r'(<script type="application/json"[^>]*>)(.*?)(</script>)', re.DOTALL)


def _with_json(text: str, masking: Masking) -> str:
    """A JSON document, spread over lines, or a page with such documents in it."""
    value = _json_or_text(text)
    if not isinstance(value, str):
        return json.dumps(masking.value(value), indent=1, ensure_ascii=False) + "\n"
    parts: list[str] = []
    end = 0
    for match in JSON_IN_PAGE.finditer(text):
        parts += [masking.text(text[end : match.start()]), match[1], "\n", _with_json(match[2], masking), match[3]]
        end = match.end()
    return "".join([*parts, masking.text(text[end:])])


def record_files(folder: Path, to: Path, masking: Masking, *, sort: bool) -> None:
    """Write the names of the files of `folder` to `to`/tree.txt, and each as text below `to`/files.

    Args:
        sort: every file is `unordered`.
    """
    names: list[str] = []
    shards: dict[Path, set[str]] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        relative = path.relative_to(folder)
        content = path.read_bytes()
        if SHARD.match(path.name) and (tensors := tensors_in(content)) is not None:
            shards.setdefault(relative.parent, set()).update(tensors[1])
            continue
        name = masking.text(str(relative))
        names.append(name)
        text = rendered(name, content, masking)
        _write(_free(to / "files" / f"{name}.txt"), unordered(text) if sort else text)
    for parent, lines in shards.items():
        name = masking.text(str(parent / "N.safetensors"))
        names.append(name)
        _write(to / "files" / f"{name}.txt", "\n".join(sorted(lines)) + "\n")
    _write(to / "tree.txt", "\n".join(sorted(names)) + "\n")


def _free(path: Path) -> Path:
    """`path`, or with a number where two names are one once they are masked."""
    free, number = path, 1
    while free.exists():
        free, number = path.with_name(f"{path.name}#{number}"), number + 1
    return free


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@dataclasses.dataclass
class Recorder:
    """Runs the commands of cases.

    Attributes:
        python: what to call as Python; it finds graphprobe.
        to: the new record.
        cache: folder in which compiled kernels stay from one record to the next.
    """

    python: str
    to: Path
    cache: Path

    def record(self, case: str) -> None:
        """Run the commands of `case` in a new folder, and write what came out below `to`/`case`.

        To compile a kernel is one more step of the compiler: the record is made anew where kernels were missing.
        """
        began = time.monotonic()
        cache = self.cache / case
        for _ in range(2):
            kernels = _kernels(cache)
            shutil.rmtree(self.to / case, ignore_errors=True)
            with tempfile.TemporaryDirectory(prefix="replay-") as work:
                self._record(case, Path(work), cache)
            if kernels == _kernels(cache):
                break
        print(f"{case}: {len(CASES[case])} commands, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)

    def _record(self, case: str, here: Path, cache: Path) -> None:
        shutil.copytree(PROGRAMS, here / "programs", ignore=shutil.ignore_patterns("__pycache__"))
        masking = Masking(places(here, cache, Path(self.python).parent))
        for number, command in enumerate(CASES[case]):
            self._run(command, here, cache, masking, self.to / case / f"{number:02}.txt")
        shutil.rmtree(here / "programs")
        record_files(here, self.to / case, masking, sort=any(command.unordered for command in CASES[case]))

    def _run(self, command: Command, here: Path, cache: Path, masking: Masking, to: Path) -> None:
        for graphs in ("fxgraph", "aotautograd"):  # else a graph would be compiled in one run and found in the next
            shutil.rmtree(cache / graphs, ignore_errors=True)
        done = subprocess.run(
            [self.python, "-m", "graphprobe", *command.args.split()],
            cwd=here,
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT / "src")},
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        out, err = _with_json(done.stdout, masking), masking.text(done.stderr)
        if command.unordered:
            out, err = unordered(out), unordered(err)
        if command.wrapped:
            out = unwrapped(out)
        _write(to, f"$ graphprobe {command.args}\nexit code {done.returncode}\n-- out\n{out}\n-- err\n{err}\n")


def _kernels(cache: Path) -> set[str]:
    return {path.name for path in cache.rglob("*.so")}


def places(work: Path, cache: Path, python: Path) -> dict[str, Path]:
    """Folders that have other names on other machines."""
    torch = importlib.util.find_spec("torch")
    assert torch is not None and torch.origin is not None
    return {
        "<work>": work,
        "<cache>": cache,
        "<python>": python,
        "<environment>": Path(sys.prefix),
        "<repository>": ROOT,
        "<site>": Path(torch.origin).parent.parent,
        "<stdlib>": Path(sysconfig.get_path("stdlib")),
        "<tmp>": work.parent,
    }


def record(to: Path, cache: Path, cases: Sequence[str], *, python: str, jobs: int) -> None:
    """Write a record of `cases` to the folder `to`, which must not exist."""
    _write(to / ORIGIN, _origin())
    recorder = Recorder(python, to, cache)
    with ThreadPoolExecutor(jobs) as pool:
        for done in [pool.submit(recorder.record, case) for case in cases]:
            done.result()


def _origin() -> str:
    git = ["git", "-C", str(ROOT)]
    commit = subprocess.run([*git, "log", "-1", "--format=%H %s"], capture_output=True, text=True, check=False).stdout
    changed = subprocess.run([*git, "status", "--short"], capture_output=True, text=True, check=False).stdout
    return commit + changed


def differences(before: Path, after: Path, case: str) -> Iterator[str]:
    """One text for each file that is not the same in both records of `case`, with a unified diff of its beginning."""
    files = [
        {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
        for folder in (before, after)
    ]
    for name in sorted(set().union(*files) - {ORIGIN}):
        if name not in files[1] or name not in files[0]:
            yield f"only {'before' if name in files[0] else 'after'}: {case}/{name}"
            continue
        old, new = (side[name].read_text(encoding="utf-8") for side in files)
        if old != new:
            lines = list(
                difflib.unified_diff(
                    old.splitlines(), new.splitlines(), f"before/{case}/{name}", f"after/{case}/{name}", "", "", 2, ""
                )
            )
            more = [f"… {len(lines) - MAX_DIFFERING_LINES} more lines"] if len(lines) > MAX_DIFFERING_LINES else []
            yield "\n".join([line[:400] for line in lines[:MAX_DIFFERING_LINES]] + more)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--case", action="append", choices=CASES, help="only this one; may be repeated")
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
    options = parser.parse_args(arguments)
    folder: Path = options.folder.resolve()
    cases = options.case or [case for case in CASES if case not in QUICK]
    to = folder / BEFORE if options.action == "record" else folder / AFTER
    missing = [case for case in cases if not (folder / BEFORE / case).is_dir()]
    if options.action == "compare" and missing:
        parser.error(f"{options.folder} has no record of {', '.join(missing)}: run `make replay-record` first")
    for case in cases:
        shutil.rmtree(to / case, ignore_errors=True)
    with warm_python() as python:
        record(to, folder / CACHE, cases, python=python, jobs=options.jobs)
    if options.action == "record":
        return 0
    found = [text for case in cases for text in differences(folder / BEFORE / case, to / case, case)]
    print("\n".join(found) if found else f"no difference in {len(cases)} cases")
    if found:
        print(f"{len(found)} files differ; the records are {folder / BEFORE} and {to}")
    return 1 if found else 0


@contextlib.contextmanager
def warm_python() -> Iterator[str]:
    """What to call as Python, with torch loaded already, and nothing of the caller's environment that would show."""
    sys.path.insert(0, str(ROOT / "tests"))
    from warm.pool import Warm

    for name in list(os.environ):
        if name.startswith(("GRAPHPROBE_", "TORCH", "PYTHON")):
            del os.environ[name]
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "COLUMNS": "100", "NO_COLOR": "1"}
    warm = Warm()
    try:
        yield warm.executable
    finally:
        warm.close()


if __name__ == "__main__":
    sys.exit(main())
