"""docs/messages: what each page shows as an example is what is said, and every slug of the sources is in the list."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cli.calling import with_variables
from compare.recording import MemoryDump
from conftest import ROOT, Finished
from doc_session import blocks_of, matches
from graphprobe.cli.main import main
from graphprobe.compare import GRAPH_FORMAT, compare_dumps
from graphprobe.errors import GraphprobeError
from graphprobe.records import Manifest, Where
from graphprobe.store import PtdbgDump, RunWriter, layout
from test_house import all_slugs

MESSAGES = ROOT / "docs" / "messages"
CONFIG = {slug for slug in all_slugs() if slug.startswith("dump-config-")}
"""Their examples are held against what is said in tests/dump_plan/test_document.py."""


def example(slug: str) -> tuple[str, str]:
    """Of the block of a page: its command, if it has one, and what is said."""
    (block,) = (b for b in blocks_of((MESSAGES / f"{slug}.md").read_text("utf-8")) if b.language in ("console", "text"))
    if block.language == "text":
        return "", block.text
    command, _, said = block.text.removeprefix("$ ").partition("\n")
    return command, said


def is_shown(slug: str, said: str) -> None:
    _, shown = example(slug)
    assert matches(shown, said), f"docs/messages/{slug}.md shows\n{shown}\nand it said\n{said}"


@pytest.fixture
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with one graph and one pass in `run`; the working directory is beside it."""
    monkeypatch.chdir(tmp_path)
    facts = {"graphprobe": "0.1", "torch": "2.13.0", "python": "3.11", "platform": "linux", "argv": ["x"], "cwd": "/"}
    manifest = Manifest(**facts, pid=os.getpid(), parent_pid=1, started_ns=time.time_ns())
    writer = RunWriter.create(tmp_path, manifest=manifest, rank=None, max_bytes=None)
    file = writer.write_text(layout.pass_file(Where(model=0, direction="forward"), "remove_noop_ops", number=1), "x")
    where = Where(model=0, direction="forward", pass_name="remove_noop_ops")
    writer.event(where=where, kind="pass", name="remove_noop_ops", file=file, changed=True)
    writer.close("finished")
    writer.run_dir.rename(tmp_path / "run")
    return tmp_path


def invoked(slug: str) -> str:
    words = example(slug)[0].split()
    env = dict(word.split("=") for word in words if "=" in word)
    done = CliRunner().invoke(main, words[len(env) + 1 :], env=env)
    assert done.exit_code == 2 and done.stdout == "", done.output
    return done.stderr


@pytest.mark.slow
def test_every_slug_is_in_the_list_with_its_exit_code() -> None:
    rows = re.findall(
        r"^\| \[`([\w-]+)`\]\((\S+)\) \| .+ \| (\d+) \|$", (MESSAGES / "README.md").read_text("utf-8"), re.M
    )
    assert sorted(slug for slug, _, _ in rows) == sorted(all_slugs())
    for slug, file, code in rows:
        assert file == f"{slug}.md"
        assert f"\nExit code {code}.\n" in (MESSAGES / file).read_text("utf-8"), slug


def test_no_slug_is_computed() -> None:
    """The finder of slugs reads literals: a slug that is put together at run time would have no page."""
    computed = re.compile(r"(?<![\w.])slug=(?![\"']|slug\b)\w+")
    sources = {path.name: path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py")}
    assert {name: computed.findall(text) for name, text in sources.items() if computed.search(text)} == {}


@pytest.mark.parametrize("slug", ["artifact-not-found", "run-not-found", "bad-setting"])
def test_commands(run_folder: Path, slug: str) -> None:
    (run_folder / "train.py").write_text("open('ran', 'w')\n")
    is_shown(slug, invoked(slug))
    assert not (run_folder / "ran").exists()


def test_schema(run_folder: Path) -> None:
    file = run_folder / "run" / "graphprobe" / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"schema": 2}))
    is_shown("schema", CliRunner().invoke(main, ["ls", "run"]).stderr)


def test_usage() -> None:
    done = CliRunner().invoke(main, ["run", "--out", "/proc/runs", "-c", "pass"])
    assert done.exit_code == 2
    is_shown("usage", done.stderr)


def test_not_comparable() -> None:
    graphs, calls = MemoryDump(title="graphs"), MemoryDump(title="calls")
    graphs.format = GRAPH_FORMAT
    with pytest.raises(GraphprobeError) as caught:
        compare_dumps(graphs, calls)
    is_shown("not-comparable", caught.value.render())


def test_foreign_dump(run_folder: Path) -> None:
    (run_folder / "npu_dump.pkl").write_bytes(bytes.fromhex("80049510000000000000008c"))  # a pickle begins so
    with pytest.raises(GraphprobeError) as caught:
        PtdbgDump(Path("npu_dump.pkl"))
    is_shown("foreign-dump", caught.value.render())


OPERATOR = """\
import torch
from graphprobe import backends


@torch.library.custom_op("mylib::{name}", mutates_args=())
def {name}(x: torch.Tensor) -> torch.Tensor:
    {line}
    return x + 0


{name}.register_fake(lambda x: torch.empty_like(x))
def forward(x):
    return torch.ops.mylib.{name}(x)


compiled = torch.compile(forward, backend=backends.get("{backend}"))
"""
RAISES = "if x.sum() < 0:\n        raise ValueError('negative')"

COND = """\
import torch
from graphprobe import backends


def forward(x):
    return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


compiled = torch.compile(forward, backend=backends.get("ts"))
"""


@pytest.mark.parametrize(
    ("slug", "code", "fill"),
    [
        ("graph-raised", OPERATOR.format(name="picky", line=RAISES, backend="eager_noexcept"), -1.0),
        ("operator-schema", OPERATOR.format(name="scale", line="x.mul_(2)", backend="eager_debug"), 1.0),
        ("torchscript", COND, 1.0),
    ],
)
def test_backends(slug: str, code: str, fill: float) -> None:
    import torch

    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, "model.py", "exec"), names)
    with pytest.raises(Exception) as caught:
        names["compiled"](torch.full((3,), fill))
    found: BaseException | None = caught.value
    while found is not None and not isinstance(found, GraphprobeError):
        found = found.__cause__ or found.__context__
    assert found is not None, caught.value
    is_shown(slug, found.render())


OVERFLOW = """\
import torch
from graphprobe.compat.ptdbg import overflow_check, register_hook

model = torch.nn.Linear(8, 100)
register_hook(model, overflow_check, overflow_nums=2)
x = torch.full((8, 100), 1e30)


def step(x):
    y = x * 1
    y = y * 1
    return y * 1e30


step(x)
step(torch.cat([x[:4], torch.zeros(4, 100)]))
"""


@pytest.mark.heavy
def test_overflow_found(run_warm: Callable[..., Finished], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(OVERFLOW)
    done = run_warm("train.py", cwd=tmp_path)
    assert done.code == 1, done.err
    *_, last, hint = done.err.splitlines()
    is_shown("overflow-found", f"error[overflow-found]: {last.partition('OverflowFoundError: ')[2]}\n  {hint}")


DYING = """\
import os, signal, torch

def backend(graph, inputs):
    def run(*args):
        os.kill(os.getpid(), signal.SIGSEGV)
    return run

torch._dynamo.register_backend(backend, name="dying")
torch.compile(lambda x: x + 1, backend="dying")(torch.ones(1))
"""


@pytest.mark.heavy
def test_graph_died(run_warm: Callable[..., Finished], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(DYING)
    env = {"TORCHDYNAMO_REPRO_AFTER": "dynamo", "TORCHDYNAMO_REPRO_LEVEL": "3"}
    done = run_warm(*with_variables(env, "run", "train.py"), cwd=tmp_path)
    assert done.code != 0
    said = re.search(r"a compiled graph was not run here[^\n]*", done.err)
    assert said is not None, done.err
    assert said.group().rstrip() in example("graph-died")[1]


def test_no_output(tmp_path: Path) -> None:
    line = f'cd "{ROOT}/src" && "{sys.executable}" -m graphprobe --help > /dev/full'
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == 125
    is_shown("no-output", done.stderr.rstrip())


@pytest.mark.slow
def test_every_slug_is_held_here_or_there() -> None:
    here = Path(__file__).read_text("utf-8")
    without = {"internal", "unsupported-torch"}  # nothing raises the first as it is; the second needs another torch
    assert [slug for slug in all_slugs() - CONFIG - without if f'"{slug}"' not in here] == []
