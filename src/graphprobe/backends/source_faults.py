"""The faulty backends that torch has for its own tests, under their names; they match `relu` however it is called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from graphprobe.backends.calling import debug_backend
from graphprobe.backends.eager import eager
from graphprobe.backends.faulty import Faulty

Compiled = Callable[..., Any]


class ReluCompileError(Exception):
    """What `relu_compile_error_TESTING_ONLY` raises."""


class TestingOnlyCompileError(Exception):
    """What `non_leaf_compile_error_TESTING_ONLY` raises."""

    __test__ = False


@debug_backend
def relu_compile_error_TESTING_ONLY(gm: GraphModule, example_inputs: Sequence[Any]) -> Compiled:  # noqa: N802
    """Raises ReluCompileError for a graph that calls relu; any other runs as it is."""
    return Faulty(op="relu", kind="compile", inner=eager, error=ReluCompileError)(gm, example_inputs)


@debug_backend
def relu_runtime_error_TESTING_ONLY(gm: GraphModule, example_inputs: Sequence[Any]) -> Compiled:  # noqa: N802
    """Raises PlantedFault when a relu of the graph runs."""
    return Faulty(op="relu", kind="runtime", nth=None, inner=eager)(gm, example_inputs)


@debug_backend
def relu_accuracy_error_TESTING_ONLY(gm: GraphModule, example_inputs: Sequence[Any]) -> Compiled:  # noqa: N802
    """Adds one to the result of every relu."""
    return Faulty(op="relu", kind="accuracy", nth=None, inner=eager)(gm, example_inputs)


@debug_backend
def non_leaf_compile_error_TESTING_ONLY(gm: GraphModule, example_inputs: Sequence[Any]) -> Compiled:  # noqa: N802
    """Raises TestingOnlyCompileError for a graph that calls a function and has an input that is no leaf of autograd."""
    calls = any(node.op == "call_function" for node in gm.graph.nodes)
    if calls and any(isinstance(value, torch.Tensor) and not value.is_leaf for value in example_inputs):
        raise TestingOnlyCompileError("the graph has an input that another computation has made")
    return gm.forward
