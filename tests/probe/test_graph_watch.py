"""A look by identity sees every kind of change, and none where there is none."""

from __future__ import annotations

from collections.abc import Callable

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
    with gm.graph.inserting_after(add):
        gm.graph.call_module("inner", (add,))
        gm.graph.get_attr("table")
    return gm


def nodes(gm: fx.GraphModule) -> dict[str, fx.Node]:
    return {n.name: n for n in gm.graph.nodes}


def set_args(gm: fx.GraphModule) -> None:
    nodes(gm)["add"].args = (nodes(gm)["x"], 2)


def set_kwarg(gm: fx.GraphModule) -> None:
    nodes(gm)["clamp"].kwargs = {"min": 0.25}


def set_target(gm: fx.GraphModule) -> None:
    nodes(gm)["relu"].target = torch.sigmoid


def rename(gm: fx.GraphModule) -> None:
    nodes(gm)["relu"].name = "renamed"


def replace_uses(gm: fx.GraphModule) -> None:
    nodes(gm)["relu"].replace_all_uses_with(nodes(gm)["add"])


def erase(gm: fx.GraphModule) -> None:
    replace_uses(gm)
    gm.graph.erase_node(nodes(gm)["relu"])


def move(gm: fx.GraphModule) -> None:
    nodes(gm)["x"].prepend(nodes(gm)["y"])


def retype(gm: fx.GraphModule) -> None:
    nodes(gm)["add"].meta["val"] = torch.empty(3, device="meta")


def change_nested(gm: fx.GraphModule) -> None:
    inner = gm.get_submodule("inner")
    next(n for n in inner.graph.nodes if n.target is torch.sin).target = torch.tan


def change_constant(gm: fx.GraphModule) -> None:
    gm.table = torch.zeros(2)


CHANGES = [set_args, set_kwarg, set_target, rename, replace_uses, erase, move, retype, change_nested, change_constant]


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_sees_the_change_once(change: Callable[[fx.GraphModule], None]) -> None:
    gm = graph()
    watch = GraphWatch()
    assert watch.look(gm), "the first look cannot know"
    assert not watch.look(gm)
    before = fingerprint(gm)
    change(gm)
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
