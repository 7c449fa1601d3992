"""What is exported, traced or packaged without `torch.compile`: the step that is wrong, and silence where none is."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import graphprobe
from graphprobe.errors import UsageError

Diagnosed = Callable[..., tuple[Any, dict[str, Any]]]

PASSES = """
import copy
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 4)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x, *, scale):
        self.seen += 1
        h = torch.nn.functional.gelu(self.norm(self.a(x)))
        return {"out": self.b(h) * scale, "h": (h, self.seen * 2)}

class Retarget:
    def __init__(self, old, new):
        self.old, self.new = old, new

    def __call__(self, gm):
        for node in gm.graph.nodes:
            if node.target is self.old:
                node.target = self.new

def drop_dead(gm):
    gm.graph.eliminate_dead_code()

def scale_gelu(gm, ratio, *, deep=False):
    for node in list(gm.graph.nodes):
        if node.target is torch.ops.aten.gelu.default:
            with gm.graph.inserting_after(node):
                new = gm.graph.call_function(torch.ops.aten.mul.Tensor, (node, ratio))
            node.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)
    gm.recompile()
    return gm

def twin(gm):
    return copy.deepcopy(gm)

torch.manual_seed(0)
model, x, scale = Net(), torch.randn(5, 6), torch.randn(4)
dynamic = {"x": {0: torch.export.Dim("batch", min=2, max=64)}, "scale": None}
gm = torch.export.export(model, (x,), {"scale": scale}, dynamic_shapes=dynamic).module()
Retarget(torch.ops.aten.sub.Tensor, torch.ops.aten.add.Tensor)(gm)
drop_dead(gm)
gm = scale_gelu(gm, RATIO, deep=True)
gm = twin(gm)
Retarget(torch.ops.aten.div.Tensor, torch.ops.aten.mul.Tensor)(gm)
gm.recompile()
for size in (5, 9, 9):
    gm(torch.randn(size, 6), scale=scale)["out"].sum().backward()
"""
"""Five passes, of which the third may be wrong, on a module in training mode that changes its buffers."""

STEP = """
import torch
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.SiLU(), torch.nn.Linear(10, 5))

def step(params, x, y):
    loss = torch.nn.functional.nll_loss(functional_call(model, params, (x,)).log_softmax(-1), y)
    return loss, torch.autograd.grad(loss, list(params.values()))

def simplify(gm):
    for node in list(gm.graph.nodes):
        if node.target is torch.ops.aten._log_softmax_backward_data.default:
            node.target = torch.ops.aten._TARGET.default
    gm.recompile()
    return gm

params, x, y = dict(model.named_parameters()), torch.randn(7, 6), torch.randint(0, 5, (7,))
graph = simplify(make_fx(step)(params, x, y))
graph(params, x, y)
"""

RULES = """
import torch

class Net(torch.nn.Module):
    def forward(self, x, flag):
        branches = torch.nn.functional.softplus, torch.cos
        return torch.cond(flag.sum() > 0, *branches, (x,)) + torch.nn.functional.silu(x)

def silu(x):
    return x * torch.sigmoid(x) * SCALE

x, flag = torch.linspace(-2, 2, 12).reshape(4, 3), torch.ones(1)
table = torch.export.default_decompositions()
table[torch.ops.aten.silu.default] = silu
exported = torch.export.export(Net(), (x, flag)).run_decompositions(table)
exported.module()(x, flag)
"""
"""A decomposition of the program's own, beside a `cond`."""

UNCALLED = """
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return x.exp() * 2

def spell(gm):
    for node in gm.graph.nodes:
        if node.target is torch.ops.aten.exp.default:
            node.target = torch.ops.aten.TARGET.default
    gm.recompile()

exported = torch.export.export(Net(), (torch.linspace(-1, 1, 4),))
spell(exported.graph_module)
exported.run_decompositions()
"""
"""The pass is run on an exported program, which is saved elsewhere, say, and never called."""

JOINT = """
import contextlib
import torch
from torch._functorch.aot_autograd import aot_compile_joint_with_descriptors, aot_export_joint_with_descriptors

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Sigmoid(), torch.nn.Linear(5, 2))

def spell(gm):
    for node in list(gm.graph.nodes):
        if node.target is torch.ops.aten.sigmoid_backward.default:
            node.target = torch.ops.aten.TARGET.default
            with gm.graph.inserting_after(node):
                new = gm.graph.call_function(torch.ops.aten.clone.default, (node,))
            node.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)
    gm.recompile()

x = torch.randn(3, 4)
with contextlib.ExitStack() as stack:
    joint = aot_export_joint_with_descriptors(stack, model, (x,))
    spell(joint.graph_module)
    fast = aot_compile_joint_with_descriptors(joint)
fast(*model.parameters(), x)
"""

COMPILED = """
import torch

torch.manual_seed(0)
model, x = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh()), torch.randn(3, 4)

def spell(gm):
    for node in list(gm.graph.nodes):
        if node.target is torch.ops.aten.tanh.default:
            node.target = torch.ops.aten.TARGET.default
    gm.recompile()

with torch.no_grad():
    gm = torch.export.export(model, (x,)).module(check_guards=False)
    spell(gm)
    torch._inductor.compile(gm, [x])(x)
"""

PACKAGE = """
import torch
from torch._inductor import decomposition

RULE
torch.manual_seed(0)
model, x = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Softplus(beta=3)).eval(), torch.randn(5, 6)
with torch.no_grad():
    dynamic = ({0: torch.export.Dim("batch", min=2, max=32)},)
    exported = torch.export.export(model, (x,), dynamic_shapes=dynamic)
    package = torch._inductor.aoti_compile_and_package(exported, package_path="model.pt2")
    torch._inductor.aoti_load_package(package)(x)
"""

BRANCHES = """
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: torch.exp(-x) - x, lambda x: x.cos() + 2, (x,)) * 3

def reorder(gm):
    for part in gm.modules():
        for node in part.graph.nodes if isinstance(part, torch.fx.GraphModule) else ():
            if node.target is torch.ops.aten.sub.Tensor:
                node.args = ARGS
        part.recompile() if isinstance(part, torch.fx.GraphModule) else None

x = torch.linspace(0.5, 2, 12).reshape(3, 4)
gm = torch.export.export(Net(), (x,)).module()
reorder(gm)
gm(x)
"""
"""The pass changes what one branch of a `cond` computes."""

MOVED = """
import torch
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.BatchNorm1d(10), torch.nn.Linear(10, 1))
params, buffers = dict(model.named_parameters()), dict(model.named_buffers())

def step(params, buffers, x):
    loss = functional_call(model, {**params, **buffers}, (x,)).square().mean()
    return loss, torch.autograd.grad(loss, list(params.values()))

graph = make_fx(step, tracing_mode="symbolic")(params, buffers, torch.randn(7, 6))
for size in (7, 5):
    graph(params, buffers, torch.randn(size, 6))
"""
"""The step is given the buffers of the module that it closes over, and each call moves them."""

ATTENTION = """
import torch

class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(32, 96), torch.nn.Linear(32, 32)

    def forward(self, x):
        q, k, v = (t.view(*t.shape[:2], 4, 8).transpose(1, 2) for t in self.qkv(x).split(32, 2))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        return self.out(y.contiguous().reshape(*x.shape[:2], -1).SHAPED(-1, 32))

torch.manual_seed(0)
model, x = Attention().eval(), torch.randn(3, 12, 32)
with torch.no_grad():
    dynamic = ({0: torch.export.Dim("batch", min=2, max=16)},)
    torch.export.export(model, (x,), dynamic_shapes=dynamic).run_decompositions().module()(x)
"""
"""Decomposed, attention has other strides, so that its view of a symbolic size is refused."""

AREA = """
import torch

class Halved(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.interpolate(x.relu(), scale_factor=0.5, mode="area") * 2

x = torch.rand(2, 3, 8, 8)
with torch.no_grad():
    sizes = {2: torch.export.Dim.AUTO, 3: torch.export.Dim.AUTO}
    exported = torch.export.export(Halved(), (x,), dynamic_shapes=(sizes,))
    torch._inductor.CALL
"""
"""Inductor cannot lower the pooling of symbolic sizes."""

WRONG_RULE = (
    "decomposition.decompositions[torch.ops.aten.softplus.default] = "
    "lambda x, beta=1, threshold=20: torch.log1p(torch.exp(x))\n"
    "decomposition.fast_random_decomps.cache_clear()"
)


def the_finding(document: dict[str, Any]) -> dict[str, Any]:
    """The only one; its proof has failed by itself."""
    (finding,) = [finding for diagnosis in document["diagnoses"] for finding in diagnosis["findings"]]
    assert finding["proof"], finding
    found: dict[str, Any] = finding
    return found


def line_of(text: str, part: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if part in line)


def is_healthy(done: Any, document: dict[str, Any]) -> bool:
    return done.out.count("HEALTHY") > 1 and {d["verdict"] for d in document["diagnoses"]} == {"healthy"}


@pytest.mark.slow
def test_the_third_of_five_passes_is_named_with_its_line_and_the_node(diagnosed: Diagnosed) -> None:
    _, document = diagnosed("five.py", text=PASSES.replace("RATIO", "1.25"), code=1)
    finding = the_finding(document)
    proof = [sys.executable, "-I", str(Path(finding["dossier"]) / "repro.py")]
    assert subprocess.run(proof, check=False, timeout=300).returncode == 1
    assert (finding["stage"], finding["pass"]) == ("pass", f"scale_gelu (five.py:{line_of(PASSES, 'def scale_')})")
    assert finding["op"] == "aten.gelu.default"
    assert finding["source"].endswith(f"five.py:{line_of(PASSES, 'gelu(self.norm')}")
    rungs = [(rung["name"].partition(" ")[0], rung["state"]) for rung in document["diagnoses"][0]["rungs"]]
    assert rungs[0] == ("torch.export.export", "right")
    assert rungs[-2:] == [("scale_gelu", "wrong"), ("plain", "wrong")]
    assert {state for _, state in rungs[:-2]} == {"right"}


@pytest.mark.slow
def test_the_same_five_passes_without_the_fault_are_right_on_each_call_looked_at(diagnosed: Diagnosed) -> None:
    done, document = diagnosed("five.py", text=PASSES.replace("RATIO", "1.0"), code=0)
    assert is_healthy(done, document)
    assert [(one["calls"], one["looked_at"]) for one in document["calls"]] == [(3, [1, 2])]


@pytest.mark.slow
def test_a_pass_on_a_traced_training_step(diagnosed: Diagnosed) -> None:
    _, document = diagnosed("step.py", text=STEP.replace("_TARGET", "_softmax_backward_data"), code=1)
    finding = the_finding(document)
    assert (finding["stage"], finding["pass"]) == ("pass", f"simplify (step.py:{line_of(STEP, 'def simplify')})")
    assert finding["op"] == "aten._log_softmax_backward_data.default"
    assert finding["source"].endswith(f"step.py:{line_of(STEP, 'log_softmax(-1)')}")
    done, document = diagnosed("step.py", text=STEP.replace("_TARGET", "_log_softmax_backward_data"), code=0)
    assert is_healthy(done, document)


@pytest.mark.slow
def test_a_node_in_a_branch_is_named_and_proven_in_few_lines(diagnosed: Diagnosed) -> None:
    _, document = diagnosed("cond.py", text=BRANCHES.replace("ARGS", "node.args[::-1]"), code=1)
    finding = the_finding(document)
    assert (finding["op"], finding["also"]) == ("aten.sub.Tensor", ["higher_order.cond"])
    assert finding["pass"] == f"reorder (cond.py:{line_of(BRANCHES, 'def reorder')})"
    assert "eval_with_key" not in str(finding["source"])
    assert len((Path(finding["dossier"]) / "repro.py").read_text("utf-8").splitlines()) <= 60
    done, document = diagnosed("right.py", text=BRANCHES.replace("ARGS", "node.args"), code=0)
    assert is_healthy(done, document)


@pytest.mark.slow
def test_buffers_that_a_traced_step_is_given_are_as_the_call_before_left_them(diagnosed: Diagnosed) -> None:
    done, document = diagnosed("moved.py", text=MOVED, code=0)
    assert is_healthy(done, document)
    assert [one["looked_at"] for one in document["calls"]] == [[1, 2]]


@pytest.mark.slow
def test_a_pass_on_a_joint_graph_with_descriptors(diagnosed: Diagnosed) -> None:
    _, document = diagnosed("joint.py", text=JOINT.replace("TARGET", "tanh_backward"), code=1)
    finding = the_finding(document)
    assert (finding["stage"], finding["pass"]) == ("pass", f"spell (joint.py:{line_of(JOINT, 'def spell')})")
    assert finding["op"] == "aten.sigmoid_backward.default"
    done, document = diagnosed("joint.py", text=JOINT.replace("TARGET", "sigmoid_backward"), code=0)
    assert is_healthy(done, document)


@pytest.mark.slow
def test_what_inductor_compiles_of_a_graph_is_held_against_the_original(diagnosed: Diagnosed) -> None:
    _, document = diagnosed("compiled.py", text=COMPILED.replace("TARGET", "sigmoid"), code=1)
    (finding,) = [finding for diagnosis in document["diagnoses"] for finding in diagnosis["findings"]]
    spell = f"spell (compiled.py:{line_of(COMPILED, 'def spell')})"
    assert (finding["stage"], finding["pass"]) == ("pass", spell)
    done, document = diagnosed("compiled.py", text=COMPILED.replace("TARGET", "tanh"), code=0)
    assert is_healthy(done, document)


@pytest.mark.slow
def test_a_decomposition_of_the_program_is_named(diagnosed: Diagnosed) -> None:
    _, document = diagnosed("rules.py", text=RULES.replace("SCALE", "1.25"), code=1)
    finding = the_finding(document)
    assert (finding["stage"], finding["op"]) == ("decomposition", "aten.silu.default")
    assert finding["pass"] == f"silu (rules.py:{line_of(RULES, 'def silu')})"
    assert f"run_decompositions (rules.py:{line_of(RULES, 'exported =')})" in finding["reason"]
    done, document = diagnosed("rules.py", text=RULES.replace("SCALE", "1.0"), code=0)
    assert is_healthy(done, document)


@pytest.mark.slow
def test_what_is_never_called_is_tried_on_the_example_inputs(diagnosed: Diagnosed) -> None:
    _, document = diagnosed("saved.py", text=UNCALLED.replace("TARGET", "expm1"), code=1)
    finding = the_finding(document)
    spell = f"spell (saved.py:{line_of(UNCALLED, 'def spell')})"
    assert (finding["stage"], finding["pass"], finding["op"]) == ("pass", spell, "aten.exp.default")
    done, document = diagnosed("saved.py", text=UNCALLED.replace("TARGET", "exp"), code=0)
    assert is_healthy(done, document)


@pytest.mark.slow
def test_decompositions_that_torch_refuses(diagnosed: Diagnosed) -> None:
    _, document = diagnosed("refused.py", text=ATTENTION.replace("SHAPED", "view"), code=1)
    finding = the_finding(document)
    line = line_of(ATTENTION, "run_decompositions")
    assert (finding["stage"], finding["pass"]) == ("decomposition", f"run_decompositions (refused.py:{line})")
    assert finding["op"] == "aten.scaled_dot_product_attention.default"
    assert finding["source"].endswith(f"refused.py:{line_of(ATTENTION, 'is_causal')}")
    assert "Cannot view a tensor" in finding["reason"]
    done, document = diagnosed("taken.py", text=ATTENTION.replace("SHAPED", "reshape"), code=0)
    assert is_healthy(done, document)


@pytest.mark.heavy
@pytest.mark.parametrize("name", "convnet mobile unet mixer lstm gru encoder gpt bert llama t5 vit".split())
def test_real_models_exported_decomposed_and_packaged(
    name: str, diagnosed: Diagnosed, run_warm: Callable[..., Any], tmp_path: Path
) -> None:
    """HEALTHY, but for GPT-2, whose attention torch cannot decompose; and each graph is in the tree."""
    shutil.copy(Path(__file__).with_name("ways_models.py"), tmp_path)
    done, document = diagnosed("ways_models.py", name)
    ran = run_warm("-m", "graphprobe", "run", "--out", "tree", "ways_models.py", name, cwd=tmp_path)
    texts = [path.name for path in tmp_path.glob("tree/*/graphprobe/model__0/**/*.*")]
    if name == "gpt":
        finding = the_finding(document)
        assert (finding["stage"], finding["op"]) == ("decomposition", "aten.scaled_dot_product_attention.default")
        return
    assert is_healthy(done, document) and len(document["diagnoses"]) == 2
    assert ran.code == 0, ran.err
    for part in ("traced_graph.", "run_decompositions", "module", "original_graph", "optimized_graph", "output_code"):
        assert any(part in text for text in texts), (part, texts)
    assert {"package.txt"} < set(texts) and any(text.endswith("wrapper.cpp") for text in texts)


@pytest.mark.slow
def test_a_saved_program_that_cannot_be_decomposed(diagnosed: Diagnosed, tmp_path: Path) -> None:
    made = ATTENTION.replace("SHAPED", "view").partition(".run_decompositions")[0]
    space: dict[str, Any] = {}
    exec(made.replace("    torch.export.export(", "    program = torch.export.export("), space)
    torch.export.save(space["program"], tmp_path / "attention.pt2")
    done, document = diagnosed("attention.pt2", code=1)
    assert [d["verdict"] for d in document["diagnoses"]] == ["fault", "healthy"]
    finding = the_finding(document)
    assert (finding["stage"], finding["op"]) == ("decomposition", "aten.scaled_dot_product_attention.default")
    assert "WrittenBackend" not in done.out + done.err


@pytest.mark.slow
@pytest.mark.parametrize("call", ["aoti_compile_and_package(exported)", "aot_compile(exported.module(), (x,))"])
def test_what_inductor_cannot_compile_ahead_of_time(call: str, diagnosed: Diagnosed) -> None:
    done, document = diagnosed("area.py", text=AREA.replace("CALL", call), code=1)
    assert "it raises torch._inductor.exc.InductorError" in done.err
    finding = the_finding(document)
    assert (finding["kind"], finding["stage"]) == ("crash_compile", "lowering")
    assert finding["op"] == "aten._adaptive_avg_pool2d.default"
    assert finding["source"].endswith(f"area.py:{line_of(AREA, 'interpolate')}")


@pytest.mark.heavy
def test_below_a_package_the_culprits_are_those_of_inductor(diagnosed: Diagnosed) -> None:
    _, document = diagnosed("package.py", text=PACKAGE.replace("RULE", WRONG_RULE), code=1)
    finding = the_finding(document)
    assert (finding["stage"], finding["op"]) == ("decomposition", "aten.softplus.default")
    assert finding["proof"] == "program"  # what is wrong is in the script alone


@pytest.mark.slow
def test_a_package_that_is_right(diagnosed: Diagnosed) -> None:
    done, document = diagnosed("package.py", text=PACKAGE.replace("RULE", ""), code=0)
    assert is_healthy(done, document)


class Small(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.exp() * 3 + 1


def small() -> torch.fx.GraphModule:
    return torch.export.export(Small(), (torch.linspace(-1, 1, 6),)).module()


def drop_dead(gm: torch.fx.GraphModule) -> None:
    gm.graph.eliminate_dead_code()


def thrice(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Right, in other bits: a / (1 / 3)."""
    for node in list(gm.graph.nodes):
        if node.target is torch.ops.aten.mul.Tensor:
            with gm.graph.inserting_before(node):
                new = gm.graph.call_function(torch.ops.aten.div.Tensor, (node.args[0], 1 / 3))
            node.replace_all_uses_with(new)
            gm.graph.erase_node(node)
    return gm


def to_expm1(gm: torch.fx.GraphModule) -> None:
    for node in gm.graph.nodes:
        if node.target is torch.ops.aten.exp.default:
            node.target = torch.ops.aten.expm1.default


def raises(gm: torch.fx.GraphModule) -> None:
    raise ValueError(f"{len(gm.graph.nodes)} nodes are too many")


@pytest.mark.slow
def test_a_list_of_passes_says_who_keeps_every_bit_and_who_is_wrong(tmp_path: Path) -> None:
    graph, x = small(), torch.linspace(-1, 1, 6)
    text, state = graph.code, torch.get_rng_state()
    healthy = graphprobe.diagnose_passes(graph, [drop_dead, thrice], (x,), out=tmp_path / "healthy")
    assert (healthy.verdict, healthy.findings) == ("healthy", [])
    bits = [told.partition(": ")[2] for told in healthy.ruled_out]
    assert bits == ["it keeps every bit", "it is right, and rounds otherwise"]
    found = graphprobe.diagnose_passes(graph, [drop_dead, to_expm1, thrice], (x,), out=tmp_path / "fault")
    (finding,) = found.findings
    assert (found.verdict, finding.stage, finding.op) == ("fault", "pass", "aten.exp.default")
    assert finding.pass_ is not None and finding.pass_.startswith("to_expm1 (")
    assert finding.proof == "piece"
    assert graph.code == text and torch.equal(state, torch.get_rng_state())


def test_a_pass_that_raises_and_arguments_that_cannot_be_meant() -> None:
    found = graphprobe.diagnose_passes(small(), [drop_dead, raises], (torch.ones(6),))
    (finding,) = found.findings
    assert (finding.kind, finding.stage) == ("crash_compile", "pass")
    assert "nodes are too many" in finding.reason
    for wrong in ((Small(), [drop_dead], ()), (small(), [], ()), (small(), [3], ()), (small(), [drop_dead], 3)):
        with pytest.raises(UsageError, match="diagnose_passes"):
            graphprobe.diagnose_passes(*wrong)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_saved_program_is_shown(run_warm: Callable[..., Any], tmp_path: Path) -> None:
    torch.export.save(torch.export.export(Small(), (torch.ones(6),)), tmp_path / "small.pt2")
    done = run_warm("-m", "graphprobe", "show", "small.pt2", cwd=tmp_path)
    assert done.code == 0 and "torch.ops.aten.exp.default(" in done.out
    (tmp_path / "none.pt2").write_bytes(b"nothing")
    done = run_warm("-m", "graphprobe", "diagnose", "none.pt2", cwd=tmp_path)
    assert done.code == 2 and "none.pt2 holds no exported program" in done.err


@pytest.mark.slow
def test_a_saved_program_is_held_against_itself_in_a_folder_of_its_own(diagnosed: Diagnosed, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    torch.export.save(torch.export.export(Small(), (torch.ones(6),)), tmp_path / "small.pt2")
    save_file({"x": torch.linspace(-2, 2, 6)}, tmp_path / "values.safetensors")
    save_file({"y": torch.ones(6)}, tmp_path / "others.safetensors")
    done, document = diagnosed("small.pt2", "--inputs", "values.safetensors", code=0)
    assert [one["function"] for one in document["diagnoses"]] == ["small.pt2, decomposed", "small.pt2, AOTInductor"]
    assert is_healthy(done, document)
    done, _ = diagnosed("small.pt2", "--inputs", "others.safetensors", code=2)
    assert "has no x" in done.err
