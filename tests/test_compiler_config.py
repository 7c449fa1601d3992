"""The configuration object: assigned to directly or through `.value`, and refused at once where it is wrong."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch.fx import GraphModule

import graphprobe
from conftest import Finished
from graphprobe.compat import torchair
from graphprobe.compiler_config import CompilerConfig
from graphprobe.dump_plan.options import OPTIONS
from graphprobe.errors import SettingError
from graphprobe.internals.inductor.stages import stop_after
from graphprobe.probe.dump.facts import is_scoped


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "c.json").write_text('{"dump": {"dump_path": "out"}}')


VALUES: dict[str, tuple[Any, Any]] = {
    "enable_dump": (True, "True"),
    "dump_mode": ("input", "inputs"),
    "dump_path": ("out", "gone"),
    "quant_dumpable": (True, "on"),
    "dump_step": ("0|3-5|10", "0|5-3"),
    "dump_layer": (" Add blocks.*.mlp ", ""),
    "dump_data": ("stats", "stat"),
    "dump_debug": ("off", "ON"),
    "dump_config_path": ("c.json", "gone.json"),
    "engine": ("interpreter", "eager"),
    "max_bytes": (1 << 20, -1),
    "write_through": (True, "yes"),
}
"""By option: a value that it takes, and one that it does not."""


def test_every_option_is_tried_here() -> None:
    assert [row.name for row in OPTIONS] == list(VALUES)


@pytest.mark.parametrize("make", [CompilerConfig, torchair.CompilerConfig])
@pytest.mark.parametrize("by_value", [False, True])
@pytest.mark.parametrize("name", VALUES)
def test_options_of_a_dump(make: type[CompilerConfig], by_value: bool, name: str) -> None:
    dump = make().dump_config
    option = getattr(dump, name)
    default = next(row.default for row in OPTIONS if row.name == name)
    good, bad = VALUES[name]
    assert option.value == default and option.given is None

    def assign(value: Any) -> None:
        if by_value:
            option.value = value
        else:
            setattr(dump, name, value)

    assign(good)
    assert option.value == good == option.given
    with pytest.raises(SettingError) as caught:
        assign(bad)
    assert str(caught.value).startswith(f"CompilerConfig().dump_config.{name} = {bad!r}")
    assert caught.value.hint
    assert option.value == good
    assign(None)
    assert option.value == default and option.given is None


def test_the_plan_has_what_was_set(tmp_path: Path) -> None:
    config = CompilerConfig()
    for name, (value, _) in VALUES.items():
        setattr(config.dump_config, name, value)
    plan = config.dump_config.plan(environ={"GRAPHPROBE_DUMP_MODE": "output"})
    assert (plan.enabled, plan.mode, plan.data, plan.engine) == (True, "input", "stats", "interpreter")
    assert (plan.path, plan.quant_dumpable, plan.max_bytes) == (str(tmp_path / "out"), True, 1 << 20)
    assert str(plan.steps) == "0|3-5|10"
    assert str(plan.models[0].layers) == "Add blocks.*.mlp"
    assert plan.config_path == str(tmp_path / "c.json")
    assert {plan.sources[name] for name in VALUES} == {"argument"}
    assert plan.warnings == ()


def test_what_nobody_set_comes_from_elsewhere() -> None:
    config = CompilerConfig()
    plan = config.dump_config.plan(environ={"GRAPHPROBE_ENABLE_DUMP": "1"}, context={"dump_step": "3"})
    assert plan.enabled and str(plan.steps) == "3"
    config.dump_config.enable_dump = False
    assert not config.dump_config.plan(environ={"GRAPHPROBE_ENABLE_DUMP": "1"}).enabled


def test_two_configurations_share_nothing() -> None:
    first, second = CompilerConfig(), CompilerConfig()
    first.dump_config.dump_step = "3"
    assert second.dump_config.dump_step.value is None
    second.dump_config.dump_step = first.dump_config.dump_step
    assert second.dump_config.dump_step == "3"


def test_an_option_is_as_true_as_its_value_and_has_no_other_attributes() -> None:
    config = CompilerConfig()
    with pytest.raises(AttributeError):
        config.dump_config.dump_step.valu = "1"  # type: ignore[attr-defined]
    assert not config.dump_config.enable_dump
    config.dump_config.enable_dump = True
    assert config.dump_config.enable_dump
    assert repr(config.dump_config.enable_dump) == str(config.dump_config.enable_dump) == "True"


def marked(gm: GraphModule) -> list[str]:
    return [node.name for node in gm.graph.nodes if is_scoped(node)]


def unmarked(gm: GraphModule) -> list[str]:
    calls = (node for node in gm.graph.nodes if node.op == "call_function")
    return [node.name for node in calls if not is_scoped(node)]


def graphs_of(function: Callable[..., torch.Tensor], *args: torch.Tensor) -> list[GraphModule]:
    """Forward and backward graph after Inductor's last pass."""
    found: list[GraphModule] = []

    def run(gm: GraphModule, inputs: Any, settings: Any) -> Any:
        found.append(gm)
        return make_boxed_func(gm)

    def backend(gm: GraphModule, inputs: Any) -> Any:
        return stop_after("post_grad", gm, inputs, run)

    torch.compile(function, backend=backend, fullgraph=True)(*args).sum().backward()
    return found


@pytest.fixture
def args() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)


@pytest.mark.parametrize("scope", [graphprobe.scope, torchair.scope], ids=["own", "torchair"])
def test_of_two_subtractions_the_one_in_the_block_and_its_gradient(args: Any, scope: Any) -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        with scope.data_dump():
            inside = a - b
        outside = inside.sin() - b
        return outside * b

    forward, backward = graphs_of(f, *args)
    assert [str(n.target) for n in forward.graph.nodes if is_scoped(n)] == ["aten.sub.Tensor"]
    assert len([n for n in forward.graph.nodes if str(n.target) == "aten.sub.Tensor"]) == 2
    gradients = [n for n in backward.graph.nodes if str(n.target) == "aten.neg.default"]
    assert [is_scoped(n) for n in gradients] == [False, True], backward.code
    inside_again = {"sub"} & set(marked(backward))  # the forward's, computed again
    assert set(marked(backward)) == inside_again | {gradients[1].name}


def test_decomposed_ops_and_equal_ones_stay_marked(args: Any) -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        with graphprobe.scope.data_dump():
            normed = torch.nn.functional.layer_norm(a, (4,))
            again = torch.nn.functional.layer_norm(a, (4,))  # one with the first after CSE
        return torch.nn.functional.gelu(normed + again) * b

    forward, backward = graphs_of(f, *args)
    assert {"var_mean", "rsqrt"} <= set(marked(forward))
    assert "erf" in unmarked(forward) and len(marked(backward)) > 3


def test_in_eager_code_and_without_a_block_it_is_nothing(args: Any) -> None:
    assert isinstance(graphprobe.scope.data_dump(), nullcontext)
    with graphprobe.scope.data_dump():
        assert torch.ones(1).add(1).item() == 2.0
    assert [marked(graph) for graph in graphs_of(lambda a, b: a - b, *args)] == [[], []]


def test_the_first_use_may_be_inside_a_compiled_model(run_warm: Callable[..., Finished], tmp_path: Any) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import torch, graphprobe\n"
        "def f(x):\n"
        "    with graphprobe.scope.data_dump():\n"
        "        y = x - 1\n"
        "    return graphprobe.ops.save(y, 'y') * 2\n"
        "print(torch.compile(f, backend='eager', fullgraph=True)(torch.ones(1)).item())\n"
    )
    done = run_warm(str(program), cwd=tmp_path)
    assert done.out.strip() == "0.0", done.err
    assert len(list(tmp_path.glob("graphprobe-saved/*/*/0/saved/0/0/save.y.0.*"))) == 1
