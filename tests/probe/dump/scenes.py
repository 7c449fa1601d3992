"""Dumps that a JSON file asks for, and what they leave beside the values."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import torch

from probe.dump.conftest import Dumping


def scene_backend(dumping: Dumping, name: str, *, engine: str | None = None, **dump: Any) -> Any:
    """A backend with a JSON file of these keys."""
    path = dumping.path.parent / "dump.json"
    path.write_text(json.dumps({"dump": {"dump_path": str(dumping.path), **dump}}))
    return dumping.backend(name, dump_config_path=str(path), **({"engine": engine} if engine else {}))


def findings(path: Path, kind: str) -> list[dict[str, Any]]:
    """The findings below a dump path, so far."""
    lines = [line for file in path.rglob("findings.jsonl") for line in file.read_text().splitlines()]
    return [found for found in map(json.loads, lines) if found["kind"] == kind]


def documents(path: Path, name: str) -> list[dict[str, Any]]:
    """The documents of that name, in the order of their folders."""
    return [json.loads(file.read_text()) for file in sorted(path.rglob(name))]


@contextlib.contextmanager
def operator(name: str, *, mutates: tuple[str, ...] = ()) -> Any:
    """Decorates a function as the operator `gp_scene::name`, which is gone afterwards; its output is like its input."""
    library = torch.library.Library("gp_scene", "FRAGMENT")

    def define(function: Any) -> Any:
        arguments = "Tensor(a!) x" if mutates else "Tensor x"
        library.define(f"{name}({arguments}) -> Tensor")
        library.impl(name, function, "CompositeExplicitAutograd")
        torch.library.register_fake(f"gp_scene::{name}", torch.empty_like, lib=library)
        return getattr(torch.ops.gp_scene, name)

    try:
        yield define
    finally:
        library._destroy()
