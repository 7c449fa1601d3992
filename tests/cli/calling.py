"""Calls a command in this process, and makes up the run that commands read."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner, Result

from conftest import Finished
from graphprobe.cli.main import LazyGroup, main
from graphprobe.records import Manifest, Where
from graphprobe.store import RunWriter, layout
from report.printed_graphs import written

Python = Callable[..., Finished]

GRAPH = 'class G(torch.nn.Module):\n    def forward(self, a: "f32[2]"):\n        # File: x.py:3 in f, code: y = a + 1\n'
START = GRAPH + '        add: "f32[2]" = f(a)\n        return add\n'
FUSED = GRAPH + '        fused: "f32[2]" = g(a)\n        return fused\n'


def call(*words: object, code: int | None = None, **options: Any) -> Result:
    """The command as it ends, with that exit code where one is given; what it raises besides is raised here."""
    done = CliRunner().invoke(main, [str(word) for word in words], **options)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert code in (None, done.exit_code), f"exit code {done.exit_code}: {done.output}"
    return done


def record(root: Path, after: str = FUSED) -> RunWriter:
    """A run with one graph, one pass that changed it and one that did not."""
    facts = {"graphprobe": "0.1", "python": "3.11", "platform": "linux", "cwd": "/", "parent_pid": 1}
    manifest = Manifest(**facts, argv=["x.py"], pid=os.getpid(), started_ns=time.time_ns())
    writer = RunWriter.create(root, manifest=manifest, rank=None, max_bytes=None)
    file = written(writer, layout.graph_file(Where(model=0, direction="forward"), number=0), START)
    writer.event(where=Where(model=0, direction="forward"), kind="graph", name="aot_forward_graph", file=file)
    for name, fused in (
        ("fuse", written(writer, layout.pass_file(Where(model=0, direction="forward"), "fuse", number=1), after)),
        ("idle", None),
    ):
        where = Where(model=0, direction="forward", pass_name=name)
        writer.event(where=where, kind="pass", name=name, file=fused, changed=fused is not None)
    writer.close("finished")
    return writer


def with_variables(env: dict[str, str], *words: str) -> tuple[str, str]:
    """What a warm process runs in the place of `ENV graphprobe WORDS`: variables that torch reads as it is loaded."""
    code = f"import os, sys; os.environ |= {env!r}; sys.argv = ['graphprobe', *{words!r}]"
    return "-c", f"{code}\nfrom graphprobe.cli.main import main; main()"


def command_of(name: str) -> click.Command:
    assert isinstance(main, LazyGroup)
    command = main.get_command(click.Context(main), name)
    assert command is not None, name
    return command
