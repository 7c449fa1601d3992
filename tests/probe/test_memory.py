"""A run may last for days: what was compiled is let go of as the program itself lets go of it."""

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd

import graphprobe


def graphs_alive(backend: str) -> int:
    """Compiles a function for several constants, forward and backward, drops it, and counts the graphs still held."""
    seen: list[weakref.ref[Any]] = []

    def watched(gm: Any, example_inputs: Any) -> Any:
        seen.append(weakref.ref(gm))
        if backend == "inductor":
            from torch._inductor.compile_fx import compile_fx

            return compile_fx(gm, example_inputs)
        if backend == "eager":
            return gm.forward

        def compiler(graph: Any, _: Any) -> Any:
            seen.append(weakref.ref(graph))
            return graph.forward

        return aot_autograd(fw_compiler=compiler)(gm, example_inputs)

    def run() -> None:
        for i in range(5):
            x = torch.ones(3, requires_grad=True)
            torch.compile(lambda t, i=i: (t * i).sin().sum(), backend=watched)(x).backward()

    run()
    torch._dynamo.reset()
    gc.collect()
    assert len(seen) >= 2
    return sum(reference() is not None for reference in seen)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot", "inductor"])
def test_no_more_graphs_are_kept_than_without(backend: str, tmp_path: Path) -> None:
    plain = graphs_alive(backend)
    folder = graphprobe.enable(tmp_path)
    try:
        watched = graphs_alive(backend)
    finally:
        graphprobe.disable()
    assert graphprobe.Run.open(folder).manifest.models >= 2
    assert watched <= plain
