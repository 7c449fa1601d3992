"""Time, memory and size of the HTML report of a comparison, and how soon a person can use it.

    python bench/report.py [--rows 1000 10000 100000] [--no-browser]

The baseline is reading the same records from disk, in the same run. In Chromium, where there is one: from navigating
until the table answers, the best of three, and then until a search has been shown. Run it alone on the machine.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import report_cases

from graphprobe.compare.result import CallResult
from graphprobe.report.html.page import write_page
from graphprobe.report.html.sections_comparison import report_from

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
REPEATS = 3

SEARCH = """() => new Promise((done) => {
  const output = document.querySelector("#calls output"), box = document.querySelector("#calls input");
  const begin = performance.now();
  new MutationObserver(() => done(performance.now() - begin)).observe(output, { childList: true });
  box.value = "gelu blocks.13";
  box.dispatchEvent(new Event("input"));
})"""


def read_s(folder: Path) -> float:
    """Seconds to read and decode every record."""
    decoder = msgspec.json.Decoder(CallResult)
    begin = time.perf_counter()
    with open(folder / "rows.jsonl", "rb") as file:
        for line in file:
            decoder.decode(line)
    return time.perf_counter() - begin


def write_s(folder: Path, out: Path) -> float:
    """Seconds from the records to the finished file."""
    begin = time.perf_counter()
    with out.open("w", encoding="utf-8") as file:
        write_page(report_from(folder), file)
    return time.perf_counter() - begin


def peak_mb(folder: Path, out: Path) -> float:
    """Most memory of Python's that writing takes."""
    tracemalloc.start()
    write_s(folder, out)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1e6


def in_browser(file: Path) -> dict[str, float]:
    """Milliseconds in Chromium; nothing where there is none."""
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        return {}
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page()
        tables, searches = [], []
        for _ in range(REPEATS):
            page.goto("about:blank")
            page.goto(f"{file.resolve().as_uri()}#calls")
            page.wait_for_selector("#calls .view[data-interactive]")
            tables.append(page.evaluate("performance.getEntriesByName('interactive:calls')[0].startTime"))
            searches.append(page.evaluate(SEARCH))
        browser.close()
    return {"table_ms": round(min(tables)), "search_ms": round(min(searches))}


def measured(rows: int, *, browser: bool) -> dict[str, Any]:
    """One row of figures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        report_cases.write_comparison(folder, rows)
        out = folder / "report.html"
        read, write = (
            min(step() for _ in range(REPEATS)) for step in (lambda: read_s(folder), lambda: write_s(folder, out))
        )
        return {
            "rows": rows,
            "records_mb": round((folder / "rows.jsonl").stat().st_size / 1e6, 1),
            "report_mb": round(out.stat().st_size / 1e6, 2),
            "read_s": round(read, 2),
            "write_s": round(write, 2),
            "write_over_read": round(write / read, 2),
            "peak_mb": round(peak_mb(folder, out)),
            **(in_browser(out) if browser else {}),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--no-browser", action="store_true")
    given = parser.parse_args()
    for rows in given.rows:
        print(json.dumps(measured(rows, browser=not given.no_browser)))


if __name__ == "__main__":
    main()
