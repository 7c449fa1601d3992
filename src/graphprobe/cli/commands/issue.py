"""`graphprobe issue`: the report of a dossier, as title and body of an issue."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from graphprobe.report.issue import folder_of, private, read_issue
from graphprobe.report.terminal import print_closing
from graphprobe.report.visible import echo

MOST_CHARACTERS = 65_536
"""Characters that GitHub takes as a body."""


@click.command()
@click.argument("dossier", type=click.Path(path_type=Path))
@click.option("--title", "title_only", is_flag=True, help="Print the title only.")
@click.option("--body", "body_only", is_flag=True, help="Print the body only.")
@click.option("--private", "hide", is_flag=True, help="Replace names and values of the program by neutral ones.")
def command(dossier: Path, title_only: bool, body_only: bool, hide: bool) -> None:
    """Print the report of DOSSIER for the clipboard, or for `gh issue create`.

    DOSSIER is a folder that `graphprobe diagnose` or `graphprobe reduce` has written for a fault.

    With --private, files, modules, functions and variables of the program get neutral names. Comments go, and values
    become 1 or are left out. Read the text, and run its script, before you post it.

    \b
    Examples:
      graphprobe issue graphprobe-diagnosis/codegen-aten.relu.default
      graphprobe issue DOSSIER --body | gh issue create --title "$(graphprobe issue DOSSIER --title)" --body-file -
    """
    issue, finding = read_issue(dossier)
    if hide:
        issue = private(issue, finding)
        echo("names and values are replaced: read the text and run its script before you post it", err=True)
    if len(issue.body) > MOST_CHARACTERS:
        echo(f"the body has {len(issue.body)} characters, and GitHub takes {MOST_CHARACTERS}: shorten it", err=True)
    parts = [issue.title] if title_only or not body_only else []
    parts += [issue.body.rstrip("\n")] if body_only or not title_only else []
    echo("\n\n".join(parts))
    if not (title_only or body_only):  # on stderr, for the output is what is posted
        sys.stdout.flush()
        verdict = "READY: run the proof once more, and read the text, before you post it"
        print_closing(verdict, follow=["python", str(folder_of(dossier) / "repro.py")], file=sys.stderr)
