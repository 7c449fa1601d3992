"""Draws docs/pictures/reports: each kind of report on a desktop, in the dark, on a phone and as it is printed.

python scripts/report_pictures.py [DATA]

DATA is a folder for the data that the reports are made of; what an earlier run left there is used again.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from cli.captures import make_data  # noqa: E402
from report.browser import chromium, draw_everything  # noqa: E402
from report.looks import LOOKS, PICTURES, REPORTS, Look  # noqa: E402


def made(data: Path, into: Path) -> None:
    """The reports, one a kind, of what the demo's program gives."""
    make_data(data)
    for kind, commands in REPORTS.items():
        for command in commands:
            words = command.format(out=into / f"{kind}.html", folder=into).split()
            done = subprocess.run(
                [sys.executable, "-m", "graphprobe", *words], cwd=data, capture_output=True, text=True
            )
            if done.returncode not in (0, 1):
                raise RuntimeError(f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def drawn(file: Path, look: Look) -> bytes:
    """The first screen, or page, of a report."""
    with chromium() as browser:
        context = browser.new_context(
            color_scheme="dark" if look.dark else "light",
            viewport={"width": look.width, "height": look.height},
            offline=True,
        )
        page = context.new_page()
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-ready]")
        if look.printed:
            page.emulate_media(media="print")
            draw_everything(page)
        return page.screenshot()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(sys.argv[1]).absolute() if len(sys.argv) > 1 else Path(folder, "data")
        made(data, Path(folder))
        PICTURES.mkdir(parents=True, exist_ok=True)
        for kind in REPORTS:
            for name, look in LOOKS.items():
                (PICTURES / f"{kind}_{name}.png").write_bytes(drawn(Path(folder, f"{kind}.html"), look))


if __name__ == "__main__":
    main()
