"""A file that `torch.export.save` wrote: exported against decomposed, and against what AOTInductor makes of it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from graphprobe.diagnose.ways.way_program import Original, Packaged, Raising, WayCall, runnable
from graphprobe.engine.values import tensors_in
from graphprobe.errors import UsageError
from graphprobe.internals.tensors import tree_leaves, tree_map
from graphprobe.internals.way_taps import TracedCall, WayGraph, copied_graph
from graphprobe.probe.formats.fx_text import graph_text

SAVED = "torch.export.save"
NO_PROGRAM = "{path} holds no exported program: {error}"
HINT = "name a file of torch.export.save; of a package that is compiled, diagnose the script that makes it"


def load(path: Path) -> torch.export.ExportedProgram:
    """The program in a file.

    Raises:
        UsageError: there is none.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.load(path)
    except Exception as error:  # whatever torch raises for a file that is none of its own
        line = (str(error).splitlines() or [""])[0]
        raise UsageError(NO_PROGRAM.format(path=path, error=f"{type(error).__name__}: {line}"), hint=HINT) from error


def text_of(path: Path) -> str:
    """The graph in a file, as `show` prints graphs."""
    return graph_text(load(path).graph_module)


def saved_calls(path: Path, inputs: Path | None) -> Iterator[tuple[str, WayCall]]:
    """What is made of the program in a file, each with its name and a call on the example inputs or on given ones.

    Args:
        inputs: a safetensors file that has a tensor for each input, by name.

    Raises:
        UsageError: the file holds no program, or there are no values for its inputs.
    """
    program = load(path)
    if program.example_inputs is None and inputs is None:
        raise UsageError(f"{path} holds no example inputs", hint="--inputs FILE.safetensors")
    args, kwargs = program.example_inputs or ((), {})
    args, kwargs = (args, kwargs) if inputs is None else _from_file(program, (args, kwargs), inputs)
    first = WayGraph("export", SAVED, TracedCall(program.module(), args, kwargs, False), program=program)
    first.graph = copied_graph(program.graph_module)
    original = Original.of(first.traced)
    second = WayGraph("decompose", "run_decompositions", first.traced, first)
    try:
        second.program = program.run_decompositions()
    except Exception as error:  # a fault of torch's: it is diagnosed as one
        held = replace(WayCall.of(original, (args, kwargs), first, Raising(error)), refused=second)
    else:
        second.graph = copied_graph(second.program.graph_module)
        held = WayCall.of(original, (args, kwargs), second, runnable(second))
    yield f"{path.name}, decomposed", held
    yield f"{path.name}, AOTInductor", WayCall.of(original, (args, kwargs), first, Packaged(program))


def _from_file(program: torch.export.ExportedProgram, examples: Any, path: Path) -> Any:
    try:
        values = tensors_in(path)
    except Exception as error:
        raise UsageError(f"--inputs {path} cannot be read: {error}", hint="a file of safetensors") from error
    names = [str(name) for name in program.graph_signature.user_inputs]
    wanted = [name for name, leaf in zip(names, tree_leaves(examples), strict=False) if isinstance(leaf, torch.Tensor)]
    if missing := [name for name in wanted if name not in values]:
        raise UsageError(f"--inputs {path} has no {', '.join(missing)}", hint=f"it needs {', '.join(wanted)}")
    left = iter(wanted)
    return tree_map(lambda leaf: values[next(left)] if isinstance(leaf, torch.Tensor) else leaf, examples)
