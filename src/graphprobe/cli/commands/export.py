"""`graphprobe export`: what lies on disk, in the forms of other tools."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from graphprobe.cli.shared_options import JsonCommand, JsonTo, json_option
from graphprobe.report.terminal import print_closing
from graphprobe.report.visible import echo
from graphprobe.store import layout

FORMS = ("chrome-trace", "onnx-text", "model-explorer")
"""Of `graphprobe.export.forms.FORMS`, which a test holds against this; so that the help needs no import."""


@click.command(cls=JsonCommand)
@click.argument("what", type=click.Path(path_type=Path), default=layout.ROOT)
@click.option("--to", "form", type=click.Choice(FORMS), required=True, help="The form, see above.")
@click.option("-o", "--out", required=True, type=click.Path(path_type=Path), help="The new file or folder.")
@click.option("--graph", metavar="ADDRESS", help="Of a run, one graph only: as `show` takes it.")
@click.option("--force", is_flag=True, help="Replace an earlier export.")
@json_option
def command(what: Path, form: str, out: Path, graph: str | None, force: bool, json_to: JsonTo) -> None:
    """Write WHAT in the form of another tool.

    WHAT is a run, a dump of compiled graphs or of calls (also msprobe's and ptdbg's), the folder of
    `graphprobe compare --out`, or the file of `graphprobe profile`. Default: the newest run in torch_compile_debug.

    \b
    --to            makes     from                            opened with
    chrome-trace    a file    run, dump of graphs, profile    ui.perfetto.dev
    onnx-text       a folder  run                             Netron
    model-explorer  a folder  run, dump, comparison           Model Explorer

    \b
    Examples:
      graphprobe export torch_compile_debug --to chrome-trace -o trace.json
      graphprobe export dump --to model-explorer -o explorer
    """
    from graphprobe.export.forms import export

    done = export(what, out, form, force=force, graph=graph)
    if json_to.replaces_text(lambda: {"to": form, **msgspec.structs.asdict(done)}):
        return
    shown = done.written[0] if len(done.written) == 1 else out
    files = "" if len(done.written) == 1 else f" in {len(done.written)} files"
    unit = done.unit.removesuffix("s") if done.count == 1 else done.unit
    for text in done.left_out:
        echo(f"Left out: {text}", err=True)
    print_closing(f"Wrote {shown}: {done.count} {unit}{files}", follow=["graphprobe", "report", str(what)])
