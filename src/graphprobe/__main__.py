"""`python -m graphprobe` is the `graphprobe` command."""

from graphprobe.cli.main import main

main(prog_name="graphprobe")
