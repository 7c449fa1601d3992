"""Draws docs/pictures/diagnose.svg: what `graphprobe diagnose` prints of the demo's planted fault, on a real terminal.

python scripts/picture.py [FILE]
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 80
COMMAND = "graphprobe diagnose --no-grad transformer.py:faulty"
THEME = TerminalTheme(
    (250, 250, 250),
    (36, 41, 47),
    [
        (36, 41, 47),
        (207, 34, 46),
        (17, 99, 41),
        (149, 97, 0),
        (9, 105, 218),
        (130, 80, 223),
        (27, 124, 131),
        (87, 96, 106),
    ],
    [
        (87, 96, 106),
        (164, 14, 38),
        (26, 127, 55),
        (149, 97, 0),
        (33, 139, 255),
        (164, 117, 249),
        (49, 146, 170),
        (36, 41, 47),
    ],
)
FORMAT = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, monospace; font-size: {char_height}px; \
line-height: {line_height}px; font-variant-east-asian: full-width; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""rich's own, without the fonts that it would load from elsewhere."""


def on_terminal(words: list[str], folder: Path, *, width: int = WIDTH) -> str:
    """What a command prints on its standard output where that is a terminal of this width, escape sequences and all."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    env = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT / "src")}
    for name in ("NO_COLOR", "COLUMNS", "LINES", "CI"):
        env.pop(name, None)
    said = io.BytesIO()
    with subprocess.Popen(
        words, cwd=folder, env=env, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL
    ) as process:
        os.close(theirs)
        try:
            while piece := os.read(ours, 65536):
                said.write(piece)
        except OSError:  # it has ended, and the terminal with it
            pass
        os.close(ours)
    if process.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(words)} ended with {process.returncode}")
    return said.getvalue().decode().replace("\r\n", "\n")


def svg_from(lines: str, title: str, *, width: int = WIDTH) -> str:
    """The picture of a terminal that shows these lines, which have escape sequences for colours."""
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(lines), no_wrap=True, overflow="ignore", crop=False)
    svg = console.export_svg(title=title, theme=THEME, code_format=FORMAT, unique_id="graphprobe")
    return re.sub(r"[ \t]+$", "", svg, flags=re.M)


def shortened(said: str) -> str:
    """Without times, and without the details between the facts of the fault and the last lines."""
    said = re.sub(r"\d{8}-\d{6}-\d{6}", "…", said.strip("\n"))  # the folder has the time in its name
    said = re.sub(r"\(\d+ s,", "(… s,", said)
    facts, _, _ = said.partition("observed:")
    end = said[said.rindex("FAULT: ") :]
    return "\n".join([*facts.split("\n")[:-1], "   …", "", "\x1b[1;31m" + end])


def main() -> None:
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "pictures" / "diagnose.svg"
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        shutil.copy(ROOT / "src" / "graphprobe" / "diagnose" / "demo_transformer.py", folder / "transformer.py")
        said = on_terminal([sys.executable, "-m", *COMMAND.split()], folder)
    lines = [f"\x1b[1m$ {COMMAND}\x1b[0m", "", *shortened(said).split("\n")]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(svg_from("\n".join(lines), "graphprobe"), encoding="utf-8")


if __name__ == "__main__":
    main()
