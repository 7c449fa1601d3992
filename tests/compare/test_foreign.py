"""Our own dumps against those that msprobe wrote of the same programs, and what the two tell differently."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import graphprobe
from compare.made import MemoryDump, call, scalar, tensor
from conftest import module_at
from graphprobe.compare import Comparison, compare_dumps, open_dump
from graphprobe.store import CallDump
from msprobe_tool import DATA, dumped, needs_msprobe

KINDS = ["statistics", "tensor", "md5", "modules"]
Change = Callable[[nn.Module], None]


def dumped_by_us(kind: str, path: Path, change: Change | None = None) -> CallDump:
    """Our dump of the program that `make.py` ran for `kind`."""
    made = module_at("tests", "data", "msprobe", "make.py")
    torch.manual_seed(0)
    tokens, labels = torch.randint(0, 7, (2, 3)), torch.randint(0, 7, (2, 3))
    image, classes = torch.randn(2, 1, 4, 4), torch.tensor([0, 2])
    language = kind in ("statistics", "md5")
    model = made.Attention() if language else made.Convolutions()
    if kind == "statistics":
        model = model.bfloat16()
    if change is not None:
        change(model)
    batch, target = (tokens, labels) if language else (image, classes)
    level = {"statistics": "mix", "modules": "module"}.get(kind, "api")
    data = "stats" if kind == "statistics" else "tensor"
    with graphprobe.dump(str(path), data=data, level=level, model=model) as dump:
        for _ in range(2 if kind == "statistics" else 1):
            out = model(batch)
            F.cross_entropy(out.float().flatten(0, out.dim() - 2), target.flatten()).backward()
            dump.step()
            model.zero_grad()
    return open_dump(path)


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def ours(kind: str, tmp_path_factory: pytest.TempPathFactory) -> CallDump:
    return dumped_by_us(kind, tmp_path_factory.mktemp("ours") / kind)


def test_the_same_program_is_the_same(ours: CallDump, kind: str) -> None:
    theirs = open_dump(DATA / kind)
    for pair in ((ours, theirs), (theirs, ours)):
        with compare_dumps(*pair) as found:
            assert found.summary.outcome == "same", found.summary.findings
            assert found.summary.counts.pairs >= 6


def counterpart(name: str) -> tuple[str, str, str]:
    """Of a record of msprobe: how our label begins, its direction, and the slot that a record of its own is with us."""
    parts = name.split(".")
    if parts[0] == "Module":
        direction = parts[-2]
        if direction == "parameters_grad":
            return ".".join(parts[:-2]), "backward", "grad_parameter."
        return ".".join(parts[:-2]), direction, ""
    prefix = {"Functional": "nn.functional", "Tensor": "Tensor"}[parts[0]]
    return f"{prefix}.{parts[1].removeprefix('__').removesuffix('__')}.{parts[2]}", parts[3], ""


def test_all_that_msprobe_records_is_in_our_dump(ours: CallDump, kind: str) -> None:
    calls = list(ours.calls(0, 0))
    file = next((DATA / kind / "step0").rglob("dump.json"))
    names = list(json.loads(file.read_bytes())["data"])
    assert len(names) >= 8
    for name in names:
        label, direction, slot = counterpart(name)
        found = [c for c in calls if c.label.startswith(f"{label}.") and c.direction == direction]
        assert found, name
        assert not slot or any(s.name.startswith(slot) and s.stats is not None for s in found[0].slots), name


def scaled(model: nn.Module) -> None:
    with torch.no_grad():
        model.get_submodule("head" if hasattr(model, "head") else "fc").weight.mul_(1.05)


def test_a_weight_that_differs_is_found(tmp_path: Path, kind: str) -> None:
    with compare_dumps(dumped_by_us(kind, tmp_path / "ours", scaled), open_dump(DATA / kind)) as found:
        first = found.summary.first
        assert first is not None and first.kind == "state", found.summary.findings
        assert first.candidate is not None and ("linear" in first.candidate.api or first.candidate.api == "Linear")


def test_gradients_are_required_where_msprobe_says_so(ours: CallDump, kind: str) -> None:
    asked, told = (
        {
            (c.kind, c.module if c.kind == "module" else c.api, c.index, c.direction, s.name): s.requires_grad
            for c in dump.calls(0, 0)
            for s in c.slots
            if s.meta is not None
        }
        for dump in (open_dump(DATA / kind), ours)
    )
    shared = asked.keys() & told.keys()
    assert len(shared) >= 15 and {asked[key] for key in shared} == {True, False}
    assert {key: told[key] for key in shared} == {key: asked[key] for key in shared}


@contextmanager
def losses(given: dict[str, object], *, other_format: bool) -> Iterator[Comparison]:
    """Two programs that differ in what is given to a loss, compared."""
    x = np.arange(6, dtype=np.float32)
    slots = [tensor("input.0", "input", x), tensor("output.0", "output", x)]
    more = [scalar(f"kwarg.{name}", value) for name, value in given.items()]
    mine, theirs = (
        MemoryDump([call(0, "torch.nn.functional.cross_entropy", slots[0], *extra, slots[1])]) for extra in (more, [])
    )
    if other_format:
        theirs.format = "msprobe"
    with compare_dumps(mine, theirs) as found:
        yield found


@pytest.mark.parametrize(
    ("given", "between_formats", "within"),
    [
        ({"reduction": "mean", "ignore_index": -100, "label_smoothing": 0.0, "weight": None}, "same", "same"),
        ({"reduction": "sum"}, "same", "different"),
        ({"ignore_index": 0}, "same", "different"),
    ],
)
def test_an_argument_of_one_side(given: dict[str, object], between_formats: str, within: str) -> None:
    with losses(given, other_format=True) as found:
        assert found.summary.outcome == between_formats
        row = next(iter(found.rows()))
        odd = [s for s in row.slots if "not compared" in s.reason]
        assert len(odd) == (0 if within == "same" else 1)
    with losses(given, other_format=False) as found:
        assert found.summary.outcome == within


def test_a_folder_of_another_name_is_no_dump_of_msprobe(tmp_path: Path) -> None:
    (tmp_path / "step0" / "processes").mkdir(parents=True)
    (tmp_path / "step0" / "processes" / "dump.json").write_text("{}")
    with pytest.raises(graphprobe.errors.UsageError, match="no dump that can be read"):
        open_dump(tmp_path)


@pytest.mark.heavy
@needs_msprobe
def test_what_msprobe_dumps_now(ours: CallDump, kind: str, tmp_path: Path) -> None:
    """Not the stored dumps, which are of another day and machine."""
    theirs = open_dump(dumped(kind, tmp_path))
    with compare_dumps(ours, theirs) as found:
        assert found.summary.outcome == "same", found.summary.findings
        assert found.summary.counts.pairs >= 6
    with compare_dumps(dumped_by_us(kind, tmp_path / "wrong", scaled), theirs) as found:
        assert found.summary.first is not None and found.summary.first.kind == "state", found.summary.findings
