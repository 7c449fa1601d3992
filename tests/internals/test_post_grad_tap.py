"""The place after Inductor's last FX pass: each graph once, on the thread that asked, and nothing stays behind."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch._inductor import compile_fx
from torch.fx import GraphModule

from graphprobe.errors import UnsupportedTorchError
from graphprobe.internals.inductor import dump_taps
from graphprobe.internals.inductor.dump_taps import after_post_grad


def passes(gm: GraphModule) -> None:
    compile_fx._recursive_post_grad_passes(gm, is_inference=True)


@pytest.fixture(autouse=True)
def no_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_fx, "post_grad_passes", lambda gm, is_inference: None)


@pytest.fixture
def graph() -> GraphModule:
    return torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.ReLU()))


def test_a_graph_is_handed_in_once_and_the_tap_is_gone_after(graph: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = torch.fx.symbolic_trace(lambda x: x.sin())
    graph.add_module("nested", inner)
    monkeypatch.setattr(compile_fx, "_get_subgraph_names", lambda gm: ["nested"] if gm is graph else [])
    original, seen = compile_fx._recursive_post_grad_passes, []
    with after_post_grad(seen.append):
        passes(graph)
        with after_post_grad(lambda gm: seen.append("inner")):
            passes(graph)
        assert compile_fx._recursive_post_grad_passes is not original
    passes(graph)
    assert seen == [graph, "inner"]
    assert compile_fx._recursive_post_grad_passes is original


def test_another_thread_is_left_alone_and_a_pass_that_raises_leaves_nothing(
    graph: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, seen = compile_fx._recursive_post_grad_passes, list[Any]()
    with after_post_grad(seen.append):
        other = threading.Thread(target=passes, args=(graph,))
        other.start()
        other.join()
    with monkeypatch.context() as patch:
        patch.setattr(compile_fx, "post_grad_passes", lambda gm, is_inference: 1 / 0)
        with pytest.raises(ZeroDivisionError), after_post_grad(seen.append):
            passes(graph)
    assert seen == [] and compile_fx._recursive_post_grad_passes is original
    with after_post_grad(seen.append):
        passes(graph)
    assert seen == [graph]


def test_a_torch_without_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dump_taps, "NAME", "_no_such_passes")
    with pytest.raises(UnsupportedTorchError, match="_no_such_passes"):
        with after_post_grad(lambda gm: None):
            pass
