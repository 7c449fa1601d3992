"""The engine between launches: the program computes the same bits, and what is recorded is what the nodes compute."""

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import compile_fx
from torch._inductor.codecache import PyCodeCache
from torch.fx import GraphModule, Interpreter

import graphprobe
import graphprobe.probe.dump.kernel as engine
import models
from graphprobe.engine.subgraph import showable
from graphprobe.internals.caches import bypassed
from graphprobe.internals.inductor.lowered_graph import Lowered, lower
from graphprobe.probe.dump.backend import DumpBackend
from graphprobe.store import DumpedOp, Run
from probe.dump.conftest import Dumped

SLOW = pytest.mark.heavy
TENSOR = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def bits(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()


def trained(make: Callable[..., Any], dtype: torch.dtype, backend: Any, *, steps: int = 2) -> list[bytes]:
    """Losses, gradients, buffers and the generator's state after some steps, as bits."""
    torch.compiler.reset()
    model, loss = make(dtype)
    compiled = torch.compile(model, backend=backend)
    torch.manual_seed(1)
    losses = []
    for _ in range(steps):
        found = loss(compiled)
        found.backward()
        losses.append(found)
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    assert grads
    return [bits(t) for t in (*losses, *grads, *model.buffers(), torch.get_rng_state())]


MODELS = [
    pytest.param(models.convnet_step, "float32"),
    pytest.param(functools.partial(models.convnet_step, dropout=0.3), "bfloat16", marks=SLOW),
    *(pytest.param(models.gpt2_step, dtype, marks=SLOW) for dtype in TENSOR),
    *(pytest.param(models.bert_step, dtype, marks=SLOW) for dtype in TENSOR),
]


@pytest.mark.slow
@pytest.mark.parametrize(("make", "dtype"), MODELS)
def test_the_program_computes_the_same_bits(make: Any, dtype: str, dumping: Any) -> None:
    plain = trained(make, TENSOR[dtype], "inductor")
    watched = trained(make, TENSOR[dtype], dumping.backend(dump_step="1"))
    assert watched == plain
    found = dumping.end()
    assert found.manifest.missing == []
    assert {op.record.op.direction for op in found.ops()} == {"forward", "backward"}
    assert all(op.record.op.engine == "kernel" and not op.record.op.perturbs for op in found.ops())
    # In another mode than the default, and statistics, at the steps that were not dumped before.
    assert trained(make, TENSOR[dtype], dumping.backend(dump_step="0", dump_data="stats")) == plain


def values_of_nodes(lowered: Lowered, dumped: list[DumpedOp]) -> dict[str, torch.Tensor]:
    """What an interpreter computes for each node, from the inputs that were dumped."""
    inputs = {op.record.op.op_name: op for op in dumped if op.record.op.op_type == "Data"}
    graph = next(iter(lowered.fx.values())).graph
    gm = GraphModule(graph.owning_module, graph)
    values: dict[str, torch.Tensor] = {}

    class Keeping(Interpreter):
        def run_node(self, n: Any) -> Any:
            values[n.name] = super().run_node(n)
            return values[n.name]

    args = [tensor_of(inputs[n.name], "output.0") for n in graph.nodes if n.op == "placeholder"]
    with torch.no_grad():
        Keeping(gm, garbage_collect_values=False).run(*args)
    return values


def tensor_of(op: DumpedOp, slot: str) -> torch.Tensor:
    value = op.values()[slot]
    dtype = getattr(torch, value.meta.dtype)
    raw = torch.frombuffer(bytearray(value.raw().tobytes()), dtype=torch.uint8)
    return raw.view(dtype).reshape(value.meta.shape)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "dtype"),
    [
        pytest.param(models.convnet_step, "float32"),
        pytest.param(models.convnet_step, "bfloat16", marks=SLOW),
        pytest.param(lambda dtype: without_dropout(models.gpt2_step(dtype)), "float32", marks=SLOW),
        pytest.param(lambda dtype: without_dropout(models.bert_step(dtype)), "bfloat16", marks=SLOW),
    ],
)
def test_a_buffer_holds_what_its_node_computes(
    make: Any, dtype: str, dumping: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[tuple[int, str], Lowered] = {}
    plain = engine._watched

    def watched(model: Any, direction: Any, lowered: Lowered, *args: Any) -> Any:
        seen[model.number, direction] = lowered
        return plain(model, direction, lowered, *args)

    monkeypatch.setattr(engine, "_watched", watched)
    trained(make, TENSOR[dtype], dumping.backend(), steps=1)
    found = dumping.end()
    assert {direction for _, direction in seen} == {"forward", "backward"}
    compared = 0
    for (model, direction), lowered in seen.items():
        dumped = [op for op in found.ops(direction=direction) if op.record.place.model_id == model]
        nodes = values_of_nodes(lowered, dumped)
        for op in dumped:
            read = [
                tensor_of(op, slot.name) for slot in op.record.slots if slot.role == "input" and slot.meta is not None
            ]
            for note in op.record.notes:
                match = re.fullmatch(r"((?:in|out)put\.\d+) is (a view of )?\S+, the value of (\w+)", note)
                if match is None or match[2]:
                    continue
                actual, expected = tensor_of(op, match[1]), nodes[match[3]]
                assert actual.numel() == expected.numel(), (note, op.record.op)
                # A buffer in the memory of another may have another shape; the values come in the same order.
                close(actual, expected.reshape(actual.shape), TENSOR[dtype], read, (note, op.record.op))
                compared += 1
    assert compared >= 20


def without_dropout(made: Any) -> Any:
    for module in made[0].modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return made


def close(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype, read: Any, what: object) -> None:
    if not actual.is_floating_point():
        assert torch.equal(actual, expected), what
        return
    # A value that is stored between kernels may have been computed in a wider dtype than the node's.
    noise = {torch.float32: 30, torch.bfloat16: 8}[dtype] * torch.finfo(dtype).eps
    finite = expected.isfinite()
    assert torch.equal(actual[~finite], expected[~finite]), what
    actual, expected = actual[finite].float(), expected[finite].float()
    # A mean near zero has the noise of what it is the mean of.
    near = [t[t.isfinite()].float() for t in (*read, expected) if t.is_floating_point()]
    scale = max(t.abs().amax().item() for t in near if t.numel()) if dtype == torch.bfloat16 else 0.0
    scale = max(scale, expected.abs().amax().item() if expected.numel() else 0.0, 1e-6)
    assert not expected.numel() or (actual - expected).abs().amax() <= noise * scale, what


def test_a_call_that_is_not_due_runs_the_module_as_it_is(dumping: Any) -> None:
    before = set(map(id, PyCodeCache.modules))
    compiled = dumping.compile(lambda x: (x @ x).relu(), dump_step="1")
    inside: list[set[str]] = []
    x = torch.randn(4, 4)
    for step in range(3):
        compiled(x)
        (module,) = [m for m in PyCodeCache.modules if id(m) not in before]
        assert "graphprobe" not in {type(v).__module__.partition(".")[0] for v in vars(module).values()}, step
        inside.append(set(vars(module)))
    found = dumping.end()
    assert {op.record.place.step for op in found.ops()} == {1}
    assert found.names() == ["mm.0", *[n for n in found.names() if n.startswith("cpp_fused_relu")]]


def test_launches_are_selected_by_node_line_and_buffer(dumping: Any) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = (x @ x).relu()
        return (y @ y).sin()

    line = program.__code__.co_firstlineno + 2
    for layer, expected in (
        ("sin", ["cpp_fused_sin"]),
        (f"test_kernel.py:{line}", ["mm", "cpp_fused_sin"]),
        ("aten.relu", ["cpp_fused_relu"]),
        ("buf0", ["mm"]),
        ("mm.2", ["mm"]),
    ):
        torch.compiler.reset()
        path = dumping.path / layer.replace(":", "_")
        path.mkdir()
        dumping.compile(program, dump_layer=layer, dump_path=str(path))(torch.randn(4, 4))
        dumping.end()
        found = Dumped(path)
        assert [re.sub(r"[_.\d]+$", "", name) for name in found.names()] == expected, layer
        read = {"input.0 is arg0_1"} & {note for op in found.ops() for note in op.record.notes}
        assert bool(read) == bool(found.inputs()), layer


def test_an_input_that_a_kernel_overwrites_is_shown_as_it_was(dumping: Any) -> None:
    x = torch.zeros(5)
    dumping.compile(lambda x: x.add_(1) * 2)(x)
    assert torch.equal(x, torch.ones(5))
    found = dumping.end()
    (op,) = found.ran()
    assert tensor_of(op, "input.0").tolist() == [0.0] * 5
    outputs = [slot.name for slot in op.record.slots if slot.role == "output"]
    assert sorted(tensor_of(op, slot).tolist()[0] for slot in outputs) == [1.0, 2.0]
    (data,) = found.ops(op_type="Data")
    assert tensor_of(data, "output.0").tolist() == [0.0] * 5


def test_an_exception_and_the_generator_are_as_without(dumping: Any) -> None:
    def outcome(compiled: Any, index: int) -> tuple[Any, ...]:
        torch.manual_seed(3)
        try:
            result = bits(compiled(torch.ones(3), torch.full((3,), index)))
        except Exception as error:
            result = (type(error), str(error))
        return result, bits(torch.get_rng_state())

    program = lambda x, index: torch.rand_like(x)[index] + x  # noqa: E731
    plain = [outcome(torch.compile(program), index) for index in (1, 7)]
    torch.compiler.reset()
    compiled = dumping.compile(program)
    assert [outcome(compiled, index) for index in (1, 7)] == plain
    assert plain[1][0][0] is not None and isinstance(plain[1][0], tuple)
    found = dumping.end()
    assert {op.record.place.step for op in found.ops()} == {0, 1}


def test_cpp_wrapper_says_that_there_is_nothing_to_watch(dumping: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "lower", lambda *args: (lower(*args)[0], Lowered()))
    x = torch.randn(3)
    assert torch.equal(dumping.compile(lambda x: x.abs() + 1)(x), x.abs() + 1)
    found = dumping.end()
    assert any("no Python wrapper to watch" in line for line in found.manifest.missing)


@pytest.mark.slow
def test_the_artifact_tree_has_the_launches_of_a_dumped_model(dumping: Any) -> None:
    """Both stand between the same launches: the tree's list has each of them, and the dump as well."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())
    with graphprobe.trace() as folder:
        dumping.compile(model)(torch.randn(2, 4)).sum().backward()
    found = dumping.end()
    run = Run.open(folder)
    assert run.manifest.missing == []
    for direction in ("forward", "backward"):
        trace = json.loads(run.text(run.find(f"model__0/{direction}/captured_ops")))
        listed = [event["name"] for event in trace["traceEvents"] if event.get("ph") == "X"]
        dumped = found.names(direction=direction)
        assert listed and [name.removeprefix("extern_kernels.") for name in listed] == [
            name.rpartition(".")[0] for name in dumped
        ]


def test_no_file_is_named_for_a_node_that_it_does_not_hold(dumping: Any) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = (x @ x).relu()
        return x

    dumping.compile(program, dump_layer="mm mm_1 mm_2")(torch.randn(4, 4))
    found = dumping.end().ops(op_type="mm")
    assert [op.record.op.fx_nodes for op in found] == [("mm",), ("mm_1",), ("mm_2",)]
    nodes = {name for op in found for name in op.record.op.fx_nodes}
    for op in found:
        kind, name, *_ = op.path.name.split(".")
        assert name not in nodes - set(op.record.op.fx_nodes), op.path.name
        assert (kind, name) == ("mm", op.record.op.op_name.replace(".", "-"))


def backend_at(path: Path, **options: Any) -> DumpBackend:
    """Dumps, and collects nothing beside that."""
    config = graphprobe.CompilerConfig().dump_config
    given = {"enable_dump": True, "dump_path": str(path), "engine": "interpreter", **options}
    for name, value in given.items():
        setattr(config, name, value)
    return DumpBackend(config.plan(environ={}))


def run(dumping: Any, model: Any, *args: torch.Tensor, **options: Any) -> Dumped:
    """The dump of one call, with its backward if there is one."""
    path = dumping.path / "dump"
    path.mkdir()
    torch.compiler.reset()
    backend = backend_at(path, **options)
    out = torch.compile(model, backend=backend, fullgraph=True)(*(a.clone() for a in args))
    if out.requires_grad:
        out.square().mean().backward()
    dumping.end()
    return Dumped(path)


def tensor(op: DumpedOp, slot: str) -> torch.Tensor:
    return torch.from_numpy(op.values()[slot].array())


def test_an_op_in_place_shows_its_input_as_before(dumping: Any) -> None:
    x = torch.randn(4, 3)
    found = run(dumping, lambda x: x.add_(1).sin(), x)
    (copy,) = [op for op in found.ops() if op.record.op.op_name.startswith("copy_")]
    torch.testing.assert_close(tensor(copy, "input.0"), x)
    torch.testing.assert_close(tensor(copy, "output.0"), x + 1)


def test_selection_by_name_and_scope(dumping: Any) -> None:
    x = torch.randn(4)

    def f(x: torch.Tensor) -> torch.Tensor:
        with graphprobe.scope.data_dump():
            y = x - 1
        return (y.cos() - 2).sin()

    found = run(dumping, f, x, dump_layer="sin")
    assert sorted(found.names()) == ["sin", "sub"]
    assert found.inputs() == ["arg0_1"]  # feeds the subtraction


def test_the_programs_own_pass_comes_before_and_stays_in_place(dumping: Any) -> None:
    def swap(graph: torch.fx.Graph) -> None:
        for node in graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default):
            node.target = torch.ops.aten.cos.default

    before = compile_fx._recursive_post_grad_passes
    with torch._inductor.config.patch(post_grad_custom_post_pass=swap):
        found = run(dumping, lambda x: x.sin() * 2, torch.ones(3))
        assert torch._inductor.config.post_grad_custom_post_pass is swap
    assert compile_fx._recursive_post_grad_passes is before
    torch.testing.assert_close(tensor(found.op("sin"), "output.0"), torch.ones(3).cos())


def test_sizes_that_change(dumping: Any) -> None:
    function = lambda x: x.split(2, 1)[0].reshape(-1, x.shape[0]) * x.shape[1]  # noqa: E731
    compiled = torch.compile(function, backend=backend_at(dumping.path), dynamic=True)
    for size in (4, 6):
        compiled(torch.ones(size, size))
    products = dumping.end().ops(op_type="mul")
    assert [op.values()["output.0"].array().shape for op in products] == [(2, 4), (2, 6)]
    assert [next(s.scalar.text for s in op.record.slots if s.scalar) for op in products] == ["4", "6"]


@torch.library.custom_op("interpreted::add_one_", mutates_args=("x",))
def add_one_(x: torch.Tensor) -> None:
    x.add_(1)


@add_one_.register_fake
def _(x: torch.Tensor) -> None:
    return None


@pytest.mark.parametrize(
    ("function", "seen"),
    [
        (lambda x: torch.linalg.inv(x) + 1, "with_effects"),
        (lambda x: torch.linalg.cholesky(x) * 2, "with_effects"),
        (lambda x: (add_one_(y := x * 2), y + 1)[1], "add_one_"),
    ],
)
def test_ops_that_give_nothing_are_recorded_and_break_no_compile(dumping: Any, function: Any, seen: str) -> None:
    if seen == "with_effects" and torch.__version__ < (2, 13):
        pytest.skip("this torch makes no effect of a check for errors")
    found = run(dumping, function, torch.eye(3) + 1)
    ops = {op.record.op.op_type: op for op in found.ops()}
    op = ops[seen]
    (slot, *_) = (name for name in op.values() if name.startswith("input"))
    assert op.values()[slot].array().shape in ((0,), (3, 3)), "a token, or the values"
    if seen == "add_one_":
        assert not any(name.startswith("output") for name in op.values())
        expected = (torch.eye(3) + 1) * 2
        assert torch.equal(tensor(op, slot), expected), "its input as it was before"
        (after,) = (name for name in ops["add"].values() if name.startswith("input"))
        assert torch.equal(tensor(ops["add"], after), expected + 1)
    assert found.ops()[-1].record.op.op_type in ("add", "mul")


@pytest.mark.skipif(torch.__version__ < (2, 13), reason="this torch makes no effect of a check for errors")
def test_values_that_no_code_has_are_not_shown() -> None:
    shown: list[str] = []

    def look(graph: torch.fx.Graph) -> None:
        shown.extend(node.name for node in showable(graph.owning_module))

    with bypassed(), torch._inductor.config.patch(post_grad_custom_post_pass=look):
        torch.compile(lambda x: torch.linalg.inv(x) + 1)(torch.eye(3))
    assert "getitem_1" in shown, "the numbers that are checked for errors"
    assert not {"_make_token_default", "with_effects", "getitem_2", "_sink_tokens_default"} & set(shown)
