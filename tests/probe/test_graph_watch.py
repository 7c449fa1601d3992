"""A look by identity and the fingerprint see every kind of change, and none where there is none."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from graphprobe.probe.formats.fx_text import fingerprint
from graphprobe.probe.pass_snapshots import GraphWatch


def graph() -> fx.GraphModule:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.clamp(torch.relu(x + 1), min=0.5) * y

    gm = fx.symbolic_trace(f)
    inner = fx.symbolic_trace(lambda z: torch.sin(z) + torch.cos(z))
    gm.register_module("inner", inner)
    gm.register_buffer("table", torch.ones(2))
    add = next(n for n in gm.graph.nodes if n.op == "call_function")
    nodes(gm)["relu"].meta["val"] = torch.empty(2, 3, device="meta")
    with gm.graph.inserting_after(add):
        gm.graph.call_module("inner", (add,))
        gm.graph.get_attr("table")
    return gm


def nodes(gm: fx.GraphModule) -> dict[str, fx.Node]:
    return {n.name: n for n in gm.graph.nodes}


def set_attribute(
    name: str, attribute: str, value: Callable[[fx.GraphModule], Any]
) -> Callable[[fx.GraphModule], None]:
    return lambda gm: setattr(nodes(gm)[name], attribute, value(gm))


def replace_uses(gm: fx.GraphModule) -> None:
    nodes(gm)["relu"].replace_all_uses_with(nodes(gm)["add"])


def erase(gm: fx.GraphModule) -> None:
    replace_uses(gm)
    gm.graph.erase_node(nodes(gm)["relu"])


def add_dead_node(gm: fx.GraphModule) -> None:
    with gm.graph.inserting_after(nodes(gm)["add"]):
        gm.graph.call_function(torch.neg, (nodes(gm)["add"],))


def change_nested(gm: fx.GraphModule) -> None:
    inner = gm.get_submodule("inner")
    next(n for n in inner.graph.nodes if n.target is torch.sin).target = torch.tan


set_args = set_attribute("add", "args", lambda gm: (nodes(gm)["x"], 2))
CHANGES: dict[str, Callable[[fx.GraphModule], Any]] = {
    "args": set_args,
    "kwargs": set_attribute("clamp", "kwargs", lambda gm: {"min": 0.25}),
    "target": set_attribute("relu", "target", lambda gm: torch.sigmoid),
    "name": set_attribute("relu", "name", lambda gm: "renamed"),
    "output": lambda gm: setattr(gm.graph.output_node(), "args", (nodes(gm)["add"],)),
    "order": lambda gm: nodes(gm)["x"].prepend(nodes(gm)["y"]),
    "shape": lambda gm: nodes(gm)["add"].meta.update(val=torch.empty(3, device="meta")),
    "strides": lambda gm: nodes(gm)["relu"].meta.update(val=torch.empty(3, 2, device="meta").t()),
    "constant": lambda gm: setattr(gm, "table", torch.zeros(2)),
    **{change.__name__: change for change in (replace_uses, erase, add_dead_node, change_nested)},
}


@pytest.mark.parametrize("change", CHANGES)
def test_sees_the_change_once(change: str) -> None:
    gm = graph()
    watch = GraphWatch()
    assert watch.look(gm), "the first look cannot know"
    assert not watch.look(gm)
    before = fingerprint(gm)
    assert fingerprint(gm) == before
    CHANGES[change](gm)
    assert watch.look(gm)
    assert fingerprint(gm) != before, "what the watch sees, the fingerprint must be able to confirm"
    assert not watch.look(gm)


def test_change_and_change_back_is_for_the_fingerprint_to_tell() -> None:
    gm = graph()
    watch = GraphWatch()
    watch.look(gm)
    before = fingerprint(gm)
    set_args(gm)
    nodes(gm)["add"].args = (nodes(gm)["x"], 1)
    assert watch.look(gm), "other objects: it cannot rule a change out"
    assert fingerprint(gm) == before
