"""`graphprobe doctor`: versions, devices, and what can be collected with the torch that is installed."""

from __future__ import annotations

import platform
import shutil
import sys
from typing import Any

import click

import graphprobe
from graphprobe.cli.output import JsonCommand, JsonTo, json_option
from graphprobe.report.visible import echo


@click.command(cls=JsonCommand)
@json_option
def command(json_to: JsonTo) -> None:
    """Check the installation and what can be collected with it.

    Exit codes: 0 torch has every private name that graphprobe uses, 1 some are missing (and what is lost is named),
    125 there is no torch.
    """
    facts = _facts()
    if not json_to.replaces_text(lambda: facts):
        _show(facts)
    if facts["torch"] is None:
        sys.exit(125)
    sys.exit(1 if any(found["status"] != "ok" for found in (*facts["taps"], *facts["dump"])) else 0)


def _facts() -> dict[str, Any]:
    facts: dict[str, Any] = {
        "graphprobe": graphprobe.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "native": _native(),
        "cxx": shutil.which("g++") or shutil.which("clang++"),
        "torch": None,
        "devices": [],
        "taps": [],
        "dump": [],
    }
    from graphprobe.probe import active

    active.disable()  # asking what could be collected collects nothing, whatever TORCH_COMPILE_DEBUG says
    try:
        import torch
    except ImportError as error:
        facts["torch_error"] = str(error)
        return facts
    from graphprobe.internals import names

    facts["torch"] = torch.__version__
    facts["devices"] = ["cpu"]
    if torch.cuda.is_available():
        facts["devices"] += [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
    found = names.status()
    told = {
        name: {"status": status, "lost": None if status == "ok" else names.LOSES[name]}
        for name, status in found.items()
    }
    facts["taps"] = [{"tap": name, **told[name]} for name in names.RUN_LOSES]
    facts["dump"] = [{"capability": name, **told[name]} for name in told if name not in names.RUN_LOSES]
    return facts


def _native() -> dict[str, Any]:
    """The C++ core: nothing is lost without it but time, so it does not change the exit code."""
    from graphprobe.numerics import native

    core = native.core
    return {
        "available": core is not None,
        "instruction_set": core.instruction_set() if core else None,
        "detail": native.description(),
    }


def _show(facts: dict[str, Any]) -> None:
    echo(f"graphprobe {facts['graphprobe']}, Python {facts['python']}, {facts['platform']}")
    echo(f"native core: {facts['native']['detail']}")
    if facts["torch"] is None:
        echo(f"torch: cannot be imported ({facts['torch_error']})")
        return
    echo(f"torch {facts['torch']} on {', '.join(facts['devices'])}")
    echo(f"C++ compiler: {facts['cxx'] or 'none found: Inductor cannot compile for the CPU'}")
    rows = [(tap["tap"], tap) for tap in facts["taps"]] + [(found["capability"], found) for found in facts["dump"]]
    width = max(len(name) for name, _ in rows)
    for name, row in rows:
        lost = f"  -> {row['lost']}" if row["lost"] else ""
        echo(f"  {name:<{width}}  {row['status']}{lost}")
