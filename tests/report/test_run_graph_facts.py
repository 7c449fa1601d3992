"""The records of graphs say what the texts beside them say, each node once."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import graphprobe
from graphprobe.probe.graph_facts import graphs_from
from graphprobe.records import Event, GraphsLine
from graphprobe.report.graph_diff import side_of
from graphprobe.report.graph_nodes import Graph, graphs_of, lines_of, shown_source
from graphprobe.store import Run, RunWriter, layout


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = torch.split(self.linear(x), 4, dim=1)
        picked = torch.cond(left.sum() > 0, torch.sin, torch.cos, (left,))
        y = (picked * right + 1.5).view(-1)[1:3] / 2
        return torch.full_like(y, float("inf"), dtype=torch.float64).clamp(max=3) * y


def compiled(folder: Path, backend: str = "inductor") -> Run:
    torch._dynamo.reset()
    with graphprobe.trace(folder):
        torch.compile(Net(), dynamic=True, backend=backend)(torch.randn(5, 4)).sum().backward()
    run = Run.open(folder)
    assert (run.problems, run.manifest.missing) == ([], [])
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return compiled(tmp_path_factory.mktemp("facts"))


def fx_events(run: Run) -> Iterator[Event]:
    yield from (e for e in run.artifacts().values() if e.kind in ("graph", "pass", "failure"))


def told(graphs: tuple[Graph, ...]) -> list[Any]:
    def node(n: Any) -> tuple[Any, ...]:
        return n.name, n.op, n.type if not n.several else "", n.expression(), shown_source(n.source)

    return [(graph.path, [node(n) for n in graph.nodes]) for graph in graphs]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["inductor", "aot_eager", "eager"])
def test_records_say_what_the_texts_say(backend: str, run: Run, tmp_path: Path) -> None:
    run = run if backend == "inductor" else compiled(tmp_path, backend)
    events = [*fx_events(run), *(e for e in run.events() if e.kind == "ir" and backend != "inductor")]
    assert len(events) >= 2
    for event in events:
        assert run.graph_records(event) is not None, event.path
        graphs, text = graphs_of(run, event), run.text(event)
        nodes = [n for graph in graphs for n in graph.nodes]
        lines, numbers = text.splitlines(), lines_of(text, graphs)
        for node in nodes:
            name = {"output": "return ", "placeholder": "def forward("}.get(node.op, node.name)
            line = lines[next(numbers) - 1]
            assert name in line and (node.op in ("output", "placeholder") or node.expression() in line)
            assert node.op in ("output", "placeholder") or node.several or node.type in line


@pytest.mark.slow
def test_records_know_more_than_the_texts(run: Run) -> None:
    joint = graphs_of(run, run.find("model__0/joint/graph"))
    nodes = {node.name: node for node in joint[0].nodes}
    split = nodes["split"]
    assert split.several and [value.shape for value in split.values] == [("s77", 4), ("s77", 4)]
    assert split.target.labels[:2] == ("self", "split_size") and split.args[1] == 4
    assert nodes["addmm"].source is not None and nodes["addmm"].source.module == "linear"
    full = next(node for node in joint[0].nodes if "full" in node.target.name and "inf" in node.expression())
    assert [arg.text for arg in full.args if isinstance(arg, msgspec.Struct)] and "dtype" in full.kwargs
    assert [graph.path for graph in joint[1:]] == [joint[0].inner(n) for n in joint[0].nodes if n.op == "get_attr"]


@pytest.mark.slow
def test_a_node_is_written_once(run: Run) -> None:
    data = (run.tool_dir / layout.graphs_file(0)).read_bytes().splitlines()
    lines = [msgspec.json.decode(line, type=GraphsLine) for line in data]
    assert [line.path for line in lines] == [e.path for e in run.events() if e.kind in ("graph", "pass") and e.path]
    shown = sum(count for line in lines for graph in line.graphs for _, count in graph.nodes)
    written = [node for line in lines for node in line.nodes]
    assert len(written) < shown / 2
    # One more where torch has noted something in between that a record does not show.
    assert len(written) - len(set(map(msgspec.json.encode, written))) <= 2
    for line in lines:
        if "after_view_to_reshape" in line.path:
            assert 0 < len(line.nodes) < sum(count for _, count in line.graphs[0].nodes) / 2


@pytest.mark.slow
def test_a_pass_is_told_by_what_it_changed(run: Run) -> None:
    pair = run.before_and_after("view_to_reshape", direction="forward")
    before, after = side_of(run, pair.before), side_of(run, pair.after)
    changed = [
        (a.expression(), b.expression())
        for a, b in zip(before.graphs[0].nodes, after.graphs[0].nodes, strict=True)
        if a != b
    ]
    assert changed and all("aten.view" in a and "aten.reshape" in b for a, b in changed)


@pytest.mark.slow
def test_records_that_are_cut_off_are_read_as_far_as_they_go(run: Run, tmp_path: Path) -> None:
    copied = Run.open(Path(shutil.copytree(run.tool_dir, tmp_path / "graphprobe")))
    events = list(fx_events(copied))
    expected = [told(graphs_of(run, event)) for event in events]
    file = copied.tool_dir / layout.graphs_file(0)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    left = [told(graphs_of(copied, event)) for event in events]
    assert all(found in (one, []) for found, one in zip(left, expected, strict=True))
    records = [copied.graph_records(event) is not None for event in events]
    assert any(records) and not all(records)
    assert any("cannot be read, nor what follows" in problem for problem in copied.problems)
    first = json.loads(whole.splitlines()[0])
    for damage in (
        {"graphs": [{"path": "G", "nodes": [[0, 10**6]]}]},
        {"graphs": [{"path": "G", "nodes": [[-1, 1]]}]},
        {"targets": []},
    ):
        file.write_text(json.dumps(first | damage) + "\n")
        assert Run.open(copied.tool_dir).graph_records(events[0]) is None
    file.unlink()
    assert not any(graphs_of(Run.open(copied.tool_dir), event) for event in events)


def test_a_line_that_was_not_written_ends_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append = RunWriter.append_text
    calls: list[str] = []

    def refuse_third(writer: RunWriter, path: str, text: str) -> bool:
        if not path.endswith("graphs.jsonl"):
            return append(writer, path, text)
        calls.append(text)
        return append(writer, path, text) if len(calls) < 3 else False

    monkeypatch.setattr(RunWriter, "append_text", refuse_third)
    run = compiled(tmp_path, "aot_eager")
    assert len(calls) == 3
    assert sum(bool(graphs_of(run, event)) for event in fx_events(run)) == 2


def test_arguments_without_a_form_in_json() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    numbers, others = ([1, 2.5], (x,), float("nan"), 2**70), (torch.float16, {"k": None}, "a'b", torch.device("cpu"))
    call = graph.call_function(torch.add, (x, *numbers, slice(None, x), *others), {"key": [x, True]})
    graph.output((call,))
    (made,) = graphs_from(torch.fx.GraphModule(torch.nn.Module(), graph))
    node = msgspec.json.decode(msgspec.json.encode(made.nodes[1]), type=type(made.nodes[1]))
    assert node == made.nodes[1] and node.reads == ("x",) * 4
    assert node.expression() == (
        "torch.add(x, [1, 2.5], (x,), nan, 1180591620717411303424, slice(None, x, None), torch.float16, "
        "{'k': None}, \"a'b\", device(type='cpu'), key = [x, True])"
    )
    assert node.expression({"x": "z"}.get).startswith("torch.add(z, [1, 2.5], (z,)")  # type: ignore[arg-type]
