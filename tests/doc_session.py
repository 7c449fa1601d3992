"""Executes a page of the documentation as a reader would: files are written, programs and commands run, in order.

- A ```python block whose first line is `# name.py` is a file; any other is a program, and is run.
- A ```console block has commands behind `$ `, and below each what it prints, on both of its streams. Nothing below a
  command promises nothing.
- A ```text block right behind a program, with at most a paragraph between them, is what that program prints.
- A ```json block right behind "`name.json`:" is a file; any other is for the test of its page.

`…` stands for anything within a line, a line of `…` or `...` for any lines. Times and sizes may differ; so may every
number with a torch that is not the one of `constraints.txt`, with which the pages were written.
"""

import importlib.metadata
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from conftest import ROOT

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
PINNED = re.search(r"^torch==([\d.]+)", (ROOT / "constraints.txt").read_text("utf-8"), re.M)
OTHER_TORCH = PINNED is None or importlib.metadata.version("torch").partition("+")[0] != PINNED[1]
MEASURED = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?= (?:s|ms|KiB|MiB|GiB|B|files)\b)")
NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?!\w)")
BELOW = re.compile(r"^ +\S*\bserver\.py:\d+ in .*\n", re.M)
"""Frames below those of a program that a warm process runs; no reader has them."""
STAMP = re.compile(r"(?<!\d)(?:\d{14,20}|\d{8}-\d{6}-\d{6}|\d{4}(?:_\d\d){5}_\d{6}-pid_\d+)(?!\d)")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, its line in the page, and the text between it and the block before."""

    language: str
    text: str
    line: int
    before: str


@dataclass(frozen=True)
class Step:
    """One thing to do: a file to write, or a command with what it prints; `shown` None where nothing is promised."""

    line: int
    file: str | None = None
    command: str | None = None
    program: str | None = None
    shown: str | None = None


def blocks_of(text: str) -> list[Block]:
    """The fenced blocks with a language, in order."""
    found, end = [], 0
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(match.group(1), match.group(2), line, text[end : match.start()]))
        end = match.end()
    return found


def steps_of(text: str) -> Iterator[Step]:
    """What a reader of the page would do."""
    blocks = blocks_of(text)
    for number, block in enumerate(blocks):
        after = blocks[number + 1] if number + 1 < len(blocks) else None
        if block.language == "python":
            named = re.match(r"# ([\w/]+\.py)\n", block.text)
            if named:
                yield Step(block.line, file=named.group(1), program=block.text)
            else:
                belongs = after is not None and after.language == "text" and after.before.strip().count("\n\n") == 0
                yield Step(block.line, program=block.text, shown=after.text if after and belongs else None)
        elif block.language == "json":
            named = re.search(r"`([\w/]+\.json)`:$", block.before.rstrip())
            if named:
                yield Step(block.line, file=named.group(1), program=block.text)
        elif block.language == "console":
            # A line that ends in a backslash goes on in the next.
            for piece in re.split(r"^\$ ", block.text, flags=re.M)[1:]:
                command, _, shown = piece.replace("\\\n", "").partition("\n")
                yield Step(block.line, command=command.partition("  # ")[0], shown=shown or None)


def matches(shown: str, said: str, *, other_torch: bool = OTHER_TORCH) -> bool:
    """Whether what was said is what is shown, up to `…`, times, sizes and stamps, and numbers with another torch."""
    numbers = NUMBER if other_torch else MEASURED
    pattern = "".join(_pattern(line, numbers) for line in shown.rstrip().splitlines())
    text = "".join(f"{line.rstrip()}\n" for line in said.rstrip().splitlines())
    return re.fullmatch(pattern, text) is not None


def _pattern(line: str, numbers: re.Pattern[str]) -> str:
    if line.strip() in ("…", "..."):
        return r"(?:.*\n)*"
    parts = re.split(f"({STAMP.pattern}|{numbers.pattern}|…)", line.rstrip())
    for index, part in enumerate(parts):
        if index % 2 == 0:
            parts[index] = re.escape(part)
        else:
            parts[index] = ".*" if part == "…" else r"[\d_pid-]+" if STAMP.fullmatch(part) else r"\d+(?:\.\d+)?"
    return "".join(parts) + r"\n"


def _commands(folder: Path, python: str) -> Path:
    """A folder with `python` and `graphprobe` as they are here, whatever is installed."""
    made = folder.with_name(f"{folder.name}-commands")
    if not made.is_dir():
        made.mkdir()
        for name, module in (("python", ""), ("graphprobe", " -m graphprobe")):
            (made / name).write_text(f'#!/bin/sh\nexec {shlex.quote(python)}{module} "$@"\n')
            (made / name).chmod(0o755)
    return made


def run_step(
    step: Step, folder: Path, *, prelude: str = "", env: Mapping[str, str] | None = None, python: str = sys.executable
) -> str:
    """Do it in `folder`, and give what it said, on both streams in the order of a terminal.

    Args:
        prelude: what a program that is run stands on, such as a model.
        python: what runs programs and graphprobe.
    """
    if step.file is not None:
        path = folder / step.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(step.program or "", encoding="utf-8")
        return ""
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    variables = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **(env or {})}
    if step.program is not None:
        (folder / "page.py").write_text(f"{prelude}\n{step.program}", encoding="utf-8")
        words = [python, "page.py"]
    else:
        assert step.command is not None
        variables["PATH"] = os.pathsep.join([str(_commands(folder, python)), variables["PATH"]])
        # What make would do is asked of make: the tests are not to start the tests.
        dry = f"make -n -C {shlex.quote(str(ROOT))} "
        words = ["bash", "-c", re.sub(r"^make ", dry, step.command)]
    done = subprocess.run(
        words, cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=550
    )
    if step.program is not None:
        (folder / "page.py").unlink()
        assert done.returncode == 0, f"the program at line {step.line}: {done.stdout}"
    assert step.shown or "Traceback" not in done.stdout, f"line {step.line}: {done.stdout}"
    return BELOW.sub("", done.stdout)
