"""What is exported or traced is dumped node by node, so that `compare` pairs it with the eager program."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta
from torch.optim import optimizer as optimizer_module
from torch.utils._pytree import tree_flatten, tree_unflatten

import graphprobe
from graphprobe.backends.wrap import DumpedProgram
from graphprobe.dump_plan import plan_from
from graphprobe.engine.naming import module_of
from graphprobe.probe.dump.backend import is_backward
from graphprobe.probe.dump.sessions import close_all

Params = dict[str, torch.Tensor]
Aten = torch.ops.aten


class Attention(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = (q @ k.transpose(-2, -1)) * 0.3
        hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
        return self.out(scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v)


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.attention = torch.nn.LayerNorm(width), Attention(width)
        self.up, self.down = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


class Gpt(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(11, 8)
        self.layers = torch.nn.ModuleList(Block(8) for _ in range(2))
        self.head = torch.nn.Linear(8, 11)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Step:
    """A training step of a small GPT: loss and gradients."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model, self.ids = Gpt(), torch.randint(0, 11, (2, 6))
        self.params: Params = dict(self.model.named_parameters())

    def run(self, params: Params, ids: torch.Tensor) -> tuple[torch.Tensor, Any]:
        logits = functional_call(self.model, params, (ids[:, :-1],))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        return loss, torch.autograd.grad(loss, list(params.values()))

    def eager(self) -> None:
        self.run(self.params, self.ids)

    def traced(self, *passes: Callable[[torch.fx.GraphModule], Any]) -> None:
        graph = make_fx(lambda params, ids: self.run(params, ids))(self.params, self.ids)
        for one in passes:
            one(graph)
        with torch.no_grad():
            graph(self.params, self.ids)


def tanh_gradient(gm: torch.fx.GraphModule) -> None:
    """Wrong: the first gradient of gelu is that of its approximation by tanh."""
    node = next(node for node in gm.graph.nodes if node.target is Aten.gelu_backward.default)
    node.kwargs = {"approximate": "tanh"}
    gm.recompile()


def subtract_negative(gm: torch.fx.GraphModule) -> None:
    """Right: a + b as a - (-b), in each phase."""
    for node in [node for node in gm.graph.nodes if node.target is Aten.add.Tensor]:
        with gm.graph.inserting_before(node):
            minus = gm.graph.call_function(Aten.neg.default, (node.args[1],))
            node.replace_all_uses_with(gm.graph.call_function(Aten.sub.Tensor, (node.args[0], minus)))
        gm.graph.erase_node(node)
    gm.recompile()


def dumped(folder: Path, program: Callable[[], Any], *, ops: bool = True, steps: str | None = None) -> Path:
    """The dump of a program in a run; with `ops` also of what runs outside graphs."""
    folder.mkdir()
    keys = {"dump_path": str(folder), "dump_op_switch": "on" if ops else "off"}
    (folder / "dump.json").write_text(json.dumps({"dump": keys}), "utf-8")
    plan = plan_from(options={"enable_dump": True, "dump_config_path": str(folder / "dump.json"), "dump_step": steps})
    graphprobe.enable(out_dir=folder / "run")
    dumping = DumpedProgram(plan)
    dumping.install()
    try:
        dumping._begin() if ops else None
        program()
    finally:
        dumping.remove()
        close_all()
        graphprobe.disable()
    (found,) = dumping.folders
    return found


def rows_of(candidate: Path, reference: Path) -> tuple[Any, list[Any], list[Any]]:
    """The summary; the pairs, and the calls of either side without a partner."""
    with graphprobe.compare(candidate=candidate, reference=reference) as comparison:
        rows = list(comparison.rows())
        pairs = [row for row in rows if row.candidate and row.reference]
        return comparison.summary, pairs, [row for row in rows if not (row.candidate and row.reference)]


@pytest.fixture(scope="module")
def eager(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dumped(tmp_path_factory.mktemp("eager") / "dump", Step().eager)


def test_each_node_of_a_traced_step_is_paired_by_module_and_line(eager: Path, tmp_path: Path) -> None:
    step = Step()
    summary, pairs, lone = rows_of(dumped(tmp_path / "dump", step.traced), eager)
    assert (summary.outcome, lone) == ("same", [])
    assert {row.rule for row in pairs} == {"exact"} and len(pairs) > 150
    for row in pairs:
        assert (row.candidate.module, row.candidate.source) == (row.reference.module, row.reference.source)
    parts = {row.candidate.module for row in pairs if row.direction == "backward"}
    assert {"layers.0.attention.qkv", "layers.1.attention", "layers.1.norm", "head", "words"} <= parts


def test_a_wrong_pass_is_the_first_cause(eager: Path, tmp_path: Path) -> None:
    step = Step()
    summary, _, lone = rows_of(dumped(tmp_path / "dump", lambda: step.traced(tanh_gradient)), eager)
    assert (summary.outcome, len(summary.findings), lone) == ("different", 1, [])
    first = summary.first
    assert (first.candidate.api, first.direction) == ("aten.gelu_backward.default", "backward")
    assert first.candidate.module == "layers.1"
    assert first.candidate.source.endswith(f":{line_of('self.down(torch.nn.functional.gelu')}")


def test_what_a_pass_puts_in_has_the_phase_of_what_it_reads_and_no_partner(eager: Path, tmp_path: Path) -> None:
    step = Step()
    summary, pairs, lone = rows_of(dumped(tmp_path / "dump", lambda: step.traced(subtract_negative)), eager)
    assert summary.outcome == "same", summary.first
    assert {row.reference.api for row in lone if row.reference} == {"aten.add.Tensor"}
    assert {(row.candidate.api, row.direction) for row in lone if row.candidate} == {
        (api, phase) for api in ("aten.neg.default", "aten.sub.Tensor") for phase in ("forward", "backward")
    }
    assert len(pairs) > 150 and all(row.reason for row in lone)


def test_a_step_traced_under_a_context_of_its_own_is_a_way_too(eager: Path, tmp_path: Path) -> None:
    """As trainers trace: fake values, a tracing context, the program's own annotation of modules."""
    step = Step()

    def program() -> None:
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        flat, spec = tree_flatten((step.params, step.ids))
        with fake, tracing(TracingContext(fake)), preserve_node_meta():
            run = lambda *flat: step.run(*tree_unflatten(list(flat), spec))  # noqa: E731
            graph = make_fx(run, record_stack_traces=True)(*[fake.from_tensor(one) for one in flat])
        with torch.no_grad():
            graph(*flat)

    summary, pairs, lone = rows_of(dumped(tmp_path / "dump", program), eager)
    assert (summary.outcome, lone) == ("same", []) and {row.rule for row in pairs} == {"exact"}


def test_an_exported_program_is_paired_once_it_is_decomposed(tmp_path: Path) -> None:
    x = torch.randn(2, 5, 8)

    def exported() -> None:
        program = torch.export.export(Block(8), (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=2, max=9)},))
        torch.manual_seed(0)
        program.run_decompositions().module()(x)

    def eager() -> None:
        block = Block(8)
        torch.manual_seed(0)
        block(x)

    torch.manual_seed(0)
    candidate = dumped(tmp_path / "exported", exported)
    torch.manual_seed(0)
    summary, pairs, lone = rows_of(candidate, dumped(tmp_path / "eager", eager))
    assert summary.outcome == "same", summary.first
    inside = [row for row in pairs if row.candidate.module]
    assert {row.candidate.module for row in inside} >= {"norm", "attention.qkv", "attention", "up", "down"}
    assert all(row.candidate.source == row.reference.source for row in inside)
    assert all(row.reason for row in lone)


def test_steps_of_an_eager_loop_are_those_of_its_optimizer(tmp_path: Path) -> None:
    def loop(*, traced: bool) -> None:
        step = Step()
        optimizer = torch.optim.SGD(step.model.parameters(), lr=0.1)
        run = make_fx(lambda params, ids: step.run(params, ids))(step.params, step.ids) if traced else step.run
        for _ in range(3):
            with torch.set_grad_enabled(not traced):
                _, gradients = run(step.params, step.ids)
            for parameter, gradient in zip(step.params.values(), gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()

    before = dict(vars(optimizer_module)["_global_optimizer_post_hooks"])
    candidate = dumped(tmp_path / "traced", lambda: loop(traced=True))
    reference = dumped(tmp_path / "eager", lambda: loop(traced=False))
    assert vars(optimizer_module)["_global_optimizer_post_hooks"] == before
    summary, pairs, lone = rows_of(candidate, reference)
    assert {row.step for row in pairs} == {0, 1, 2}
    assert (summary.outcome, lone) == ("same", []), summary.first


@pytest.mark.parametrize(
    ("meta", "module"),
    [
        ({"nn_module_stack": {"a": ("", "Gpt"), "b": ("layers.0", "Block")}}, "layers.0"),
        ({"fwd_nn_module_stack": {"b": ("L['self'].layers[0]", "Block")}}, "layers.0"),
        ({"custom": {"module_fqn": "layers.0"}}, "layers.0"),
        ({"custom": {"other": 1}}, None),
    ],
)
def test_each_of_the_names_of_a_module(meta: dict[str, Any], module: str | None) -> None:
    node = torch.fx.symbolic_trace(lambda x: torch.relu(x)).graph.find_nodes(op="call_function", target=torch.relu)[0]
    node.meta = meta
    assert module_of(node) == module
    assert is_backward(node) == ("fwd_nn_module_stack" in meta)


def line_of(text: str) -> int:
    return next(n for n, line in enumerate(Path(__file__).read_text("utf-8").splitlines(), 1) if text in line)
