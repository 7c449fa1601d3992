"""What every reading command shows on a terminal of 80 and of 120 columns, of data that the demo's program makes.

`python tests/cli/captures.py FOLDER` makes the data in FOLDER, unless it is there, and writes the files of `captured/`.
"""

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CAPTURES = Path(__file__).parent / "captured"
WIDTHS = (80, 120)

TRAIN = '''"""Steps of the demo's transformer: `compiled`, with a graph break and two lengths, or `eager`."""

import sys

import torch
from transformer import BATCH, SEQUENCE, WIDTH, Transformer


def step(model, x, factor):
    hidden = model(x)
    if float(hidden.sum()) > 1e9:
        print("large")
    return (torch.relu(hidden) * factor).square().mean()


def main(kind, factor):
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(kind == "eager")  # what `empty` returns is the same in each process
    model = Transformer()
    run = torch.compile(step) if kind == "compiled" else step
    for length in (SEQUENCE, SEQUENCE - 2) if kind == "compiled" else (SEQUENCE, SEQUENCE):
        run(model, torch.randn(BATCH, length, WIDTH), factor).backward()


main(sys.argv[1], float(sys.argv[2]))
'''

MADE = (
    "diagnose --no-grad --json result.json -o proofs transformer.py:faulty",
    "run -q -o runs train.py compiled 1",
    "run -q -o eager_new --dump stats --dump-to new train.py eager 1.01",
    "run -q -o eager_old --dump stats --dump-to old train.py eager 1",
    "profile -q -o cold.json train.py compiled 1",
    "profile -q -o warm.json train.py compiled 1",
)
"""Commands that make the data; each ends with 0 or 1."""

SHOWN = {
    "ls": "ls runs",
    "ls_all": "ls runs --all",
    "show_ops": "show runs model__0/forward/ops",
    "diff": "diff runs --model 0 --direction joint --pass remove_noop_ops",
    "logs": "logs runs",
    "explain": "explain runs",
    "recompiles": "recompiles runs",
    "profile": "profile cold.json",
    "profile_two": "profile cold.json warm.json",
    "compare": "compare new old",
    "compare_same": "compare new new",
    "parse": "parse new nn.functional.linear.0.forward --step 0",
    "merge": "merge new old -o merged --force",
    "export": "export runs --to chrome-trace -o trace.json --force",
    "report": "report result.json -o report.html --force",
    "report_run": "report runs -o report.html --force",
    "wrong_command": "diagnos train.py",
    "wrong_option": "ls --jsn",
    "wrong_address": "show runs model__0/forwrd/graph",
    "no_run": "ls nowhere",
    "help": "--help",
    **{f"help_{name}": f"help {name}" for name in ("diagnose", "run", "compare", "reduce", "explain", "show")},
}
"""Commands that read it, by the name of their file."""


def make_data(folder: Path, *, python: str = sys.executable) -> None:
    """The demo's program, and what graphprobe makes of it; nothing where it is there already."""
    if (folder / "warm.json").is_file():
        return
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "src" / "graphprobe" / "diagnose" / "demo_transformer.py", folder / "transformer.py")
    (folder / "train.py").write_text(TRAIN, encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")}
    for command in MADE:
        done = subprocess.run(
            [python, "-m", "graphprobe", *command.split()], cwd=folder, env=env, capture_output=True, text=True
        )
        if done.returncode not in (0, 1) or "Traceback" in done.stderr:
            raise RuntimeError(f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@contextlib.contextmanager
def terminal(width: int) -> Iterator[Terminal]:
    """Both streams as one terminal of this width, without colours."""
    shown = Terminal()
    before = {name: os.environ.get(name) for name in ("COLUMNS", "TERM", "NO_COLOR", "LINES")}
    os.environ |= {"COLUMNS": str(width), "TERM": "xterm", "NO_COLOR": "1", "LINES": "50"}
    try:
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
            yield shown
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def capture(command: str, folder: Path, width: int) -> str:
    """What the command shows there, started in `folder`, without styles and progress."""
    from graphprobe.cli.main import main

    with contextlib.chdir(folder), terminal(width) as shown, contextlib.suppress(SystemExit):
        main.main(args=command.split(), prog_name="graphprobe")
    text = re.sub(r"\x1b\[2K", "\x00", shown.getvalue())
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    lines = [line.rpartition("\x00")[2].rpartition("\r")[2].rstrip() for line in text.split("\n")]
    return "\n".join(line for line in lines if not PROGRESS.match(line)).strip("\n") + "\n"


PROGRESS = re.compile(r"graphprobe: .* … \d+ s$")
PLACE = re.compile(r"/[\w./+-]*/(?=[\w-]+\.py\b|site-packages/)")
MEASURED = (
    re.compile(r"\d{4}(?:_\d\d){5}_\d{6}-pid_\d+|\d{8}-\d{6}-\d{6}"),
    re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?= ?(?:s|ms|KiB|MiB|GiB|B|%|steps|events|files)(?!\w))"),
    re.compile(r"(?m)(?<=torch )\d\S+|(?<=Python )\d[\d.]+|^ *\d+ +\d+(?=  [a-z])"),
    re.compile(r"-?\d(?:\.\d+)?e-(?:0[89]|[1-9]\d)\b"),  # zero, but for the roundings of a processor
)
TIMED = ("profile", "profile_two")
"""Whose rows stand in the order of their times."""


def without_places(text: str) -> str:
    return PLACE.sub("…/", text)


def masked(text: str) -> str:
    """Without what is measured or of one machine; words with one space between, for numbers move lines and columns."""
    text = without_places(text)
    for pattern in MEASURED:
        text = pattern.sub("~", text)
    text = " ".join(text.replace("│", " ").split())  # a number and its unit may stand on two lines of a tree
    return MEASURED[1].sub("~", text)


def too_wide(text: str, width: int) -> list[str]:
    """Lines that a terminal would break inside a word; a path, a name or a command that is copied whole may be one."""
    lines = [line for line in text.split("\n") if len(line) > width]
    return [line for line in lines if len(max(line.split(), key=len)) < width // 2]


def main() -> None:
    folder = Path(sys.argv[1]).absolute()
    sys.path.insert(0, str(ROOT / "src"))
    make_data(folder)
    for width in WIDTHS:
        (CAPTURES / str(width)).mkdir(parents=True, exist_ok=True)
        for name, command in SHOWN.items():
            shown = without_places(capture(command, folder, width))
            (CAPTURES / str(width) / f"{name}.txt").write_text(f"$ graphprobe {command}\n{shown}", encoding="utf-8")


if __name__ == "__main__":
    main()
