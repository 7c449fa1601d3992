"""Runs a training step while one method of graphprobe raises: `failing.py OUT MODULE:CLASS.METHOD`; prints evidence."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import evidence
import torch

import graphprobe


class OwnFault(Exception):
    pass


def program() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2))
    x = torch.randn(3, 4, requires_grad=True)
    out: Any = torch.compile(module)(x)
    evidence.step("failing", module, out.square().mean(), out)
    evidence.say("input", evidence.bits(x.grad))
    evidence.settings()
    evidence.surroundings()
    torch._dynamo.reset()


def main(out: str, addresses: list[str]) -> None:
    print("### plain")
    program()
    for address in addresses:
        module_name, _, path = address.partition(":")
        owner: Any = importlib.import_module(module_name)
        *parents, name = path.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        raw = vars(owner)[name]
        calls: list[int] = []

        def fails(*args: Any, calls: list[int] = calls, **kwargs: Any) -> Any:
            calls.append(1)
            raise OwnFault("planted")

        print("###", address)
        setattr(owner, name, fails)
        try:
            with graphprobe.trace(out, save_inputs=True, graph_dump="py") as folder:
                program()
        finally:
            setattr(owner, name, raw)
        manifest = json.loads((Path(folder) / "graphprobe" / "manifest.json").read_text())
        print("### missing", json.dumps([len(calls), manifest["state"], manifest["missing"]]))


main(sys.argv[1], sys.argv[2:])
