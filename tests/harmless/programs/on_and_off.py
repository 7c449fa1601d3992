"""Switches collecting on and off in one process and compares what lies about before and after: `on_and_off.py OUT`."""

import gc
import importlib
import logging
import os
import sys
import threading
import warnings
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.compile_fx
from torch._dynamo.output_graph import OutputGraph
from torch._inductor.output_code import CompiledFxGraph

import graphprobe
from graphprobe.internals import aot_taps as aot
from graphprobe.internals import bus, taps

OUT = sys.argv[1]
CONFIGS = ("torch._dynamo.config", "torch._functorch.config", "torch._inductor.config")


def originals() -> dict[str, Any]:
    """The very objects at every address that is ever patched; the raw ones, `classmethod` objects and all."""
    found = {}
    for patch in taps._all(object()):  # type: ignore[arg-type]
        owner, name, raw = bus.resolve(importlib.import_module(patch.module), patch.attribute)
        found[patch.address] = (raw, name in vars(owner))
    found["logging"] = (logging.Logger.handle, True)
    found["debug_dir"] = (torch._dynamo.utils._get_debug_dir, True)
    assert len(found) > 10
    return found


def snapshot() -> dict[str, Any]:
    loggers = {
        name: (logger.level, tuple(logger.handlers), tuple(logger.filters), logger.propagate, sorted(vars(logger)))
        for name, logger in logging.root.manager.loggerDict.items()
        if isinstance(logger, logging.Logger)
    }
    handlers = {id(h): tuple(h.filters) for logger in [logging.root] for h in logger.handlers}
    configs = {name: importlib.import_module(name).get_config_copy() for name in CONFIGS}
    return {
        "objects": originals(),
        "meta_path": list(sys.meta_path),
        "loggers": loggers,
        "handlers": handlers,
        "configs": configs,
        "environment": dict(os.environ),
        # These others are torch's.
        "threads": [t.name for t in threading.enumerate() if not t.name.startswith(("ThreadPoolExecutor", "tqdm"))],
        "filters": list(warnings.filters),
        "hooks": (sys.excepthook, threading.excepthook, sys.displayhook, warnings.showwarning),
    }


def compare(before: Any, after: Any, what: str) -> None:
    for key, value in before.items():
        if isinstance(value, dict):
            common = {k: v for k, v in after[key].items() if k in value}  # new loggers of modules imported since
            differing = [k for k in value if value[k] != common.get(k)]
            assert not differing, (what, key, [(k, value[k], common.get(k)) for k in differing][:3])
        else:
            assert after[key] == value, (what, key, value, after[key])


def put_back(before: Any, what: str) -> None:
    """Nothing is left of what was switched on, in the process or in compiled graphs."""
    compare(before, snapshot(), what)
    compiled = [o.current_callable for o in gc.get_objects() if type(o) is CompiledFxGraph]
    assert compiled
    for function in compiled:
        assert not str(getattr(function, "__module__", "")).startswith("graphprobe"), (what, function)


def train(function: Any) -> None:
    x = torch.ones(4, requires_grad=True)
    torch.compile(function)(x).sum().backward()


def main() -> None:
    train(lambda x: (x * 2).exp())  # imports what a compile imports
    torch._dynamo.reset()
    before = snapshot()
    folder = graphprobe.enable(OUT)
    assert originals() != before["objects"]
    train(lambda x: (x * 3).sin())
    with pytest.raises(graphprobe.UsageError, match=folder.name):
        graphprobe.enable(OUT)
    with pytest.raises(graphprobe.UsageError, match=folder.name), graphprobe.trace(OUT):
        raise AssertionError("a trace() inside must be an error")
    assert graphprobe.disable() == folder
    put_back(before, "enable, disable")
    assert graphprobe.disable() is None

    torch._dynamo.reset()

    def train_and_raise() -> None:
        raise KeyError("the program's own", train(lambda x: (x * 4).tan()))

    with pytest.raises(KeyError, match="the program's own"), graphprobe.trace(OUT, save_inputs=True, graph_dump="py"):
        train_and_raise()
    put_back(before, "trace that raises")

    # Compiled while collecting, first called and differentiated afterwards: nothing is recorded, nothing stays.
    torch._dynamo.reset()
    with graphprobe.trace(OUT, save_inputs=True) as folder:
        x = torch.ones(4, requires_grad=True)
        loss = torch.compile(lambda x: (x * 5).cos().sum())(x)
    events = folder / "graphprobe" / "events.jsonl"
    recorded = events.read_bytes()
    bypassed, aot.bypassed = aot.bypassed, None  # type: ignore[assignment]  # the caches are not touched any more
    loss.backward()
    aot.bypassed = bypassed
    assert torch.allclose(x.grad, -5 * torch.sin(torch.full((4,), 5.0)))
    assert events.read_bytes() == recorded
    put_back(before, "late backward")

    # With the filter at "error", the warning about code compiled before is an error, and leaves nothing switched on.
    with warnings.catch_warnings():
        warnings.simplefilter("error", graphprobe.GraphprobeWarning)
        with pytest.raises(graphprobe.GraphprobeWarning, match="compiled before"):
            graphprobe.enable(OUT)
    assert graphprobe.disable() is None, "enable() raised and stays on"
    put_back(before, "enable that raises")

    # A level that the program sets while collecting is its own.
    torch._dynamo.reset()
    logger = logging.getLogger("torch._inductor")
    with graphprobe.trace(OUT):
        train(lambda x: (x * 6).cos())
        logger.setLevel(logging.INFO)
    assert logger.level == logging.INFO
    logger.setLevel(before["loggers"]["torch._inductor"][0])

    # Somebody else patches on top: theirs stays, and ours below it does nothing any more.
    with graphprobe.trace(OUT) as folder:
        inner = OutputGraph.call_user_compiler
        calls = []

        def theirs(self: Any, *args: Any) -> Any:
            calls.append(self)
            return inner(self, *args)

        OutputGraph.call_user_compiler = theirs
    assert OutputGraph.call_user_compiler is theirs
    assert "call_user_compiler was replaced" in (folder / "graphprobe" / "manifest.json").read_text()
    torch._dynamo.reset()
    events = folder / "graphprobe" / "events.jsonl"
    recorded = events.read_bytes()
    train(lambda x: (x * 7).cos())
    assert len(calls) == 1
    assert events.read_bytes() == recorded
    print("OFF IS OFF")


main()
