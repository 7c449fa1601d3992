"""`graphprobe doctor`: versions, devices, and which features work with the torch that is installed."""

from __future__ import annotations

import platform
import shutil
import sys
from typing import Any

import click

import graphprobe
from graphprobe.cli.output import JsonCommand, JsonTo, json_option
from graphprobe.report.visible import echo

NO_COMPILER = "there is no C++ compiler"
LOST = ("lost", "works in part")


@click.command(cls=JsonCommand)
@click.option("--names", "only_names", is_flag=True, help="Only look for torch's private names; try no feature.")
@json_option
def command(json_to: JsonTo, only_names: bool) -> None:
    """Try each feature with the installed torch, on a program of three operations.

    Exit codes: 0 everything works, as far as it could be tried, 1 something is lost (the output says what),
    125 there is no torch.
    """
    facts = _facts(only_names)
    if not json_to.replaces_text(lambda: facts):
        _show(facts)
    if facts["torch"] is None:
        sys.exit(125)
    sys.exit(1 if any(row["status"] in LOST for row in facts["features"]) else 0)


def _facts(only_names: bool) -> dict[str, Any]:
    from graphprobe.numerics import native

    core = native.core  # nothing is lost without it but time, so it does not change the exit code
    facts: dict[str, Any] = {
        "graphprobe": graphprobe.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "native": {
            "available": core is not None,
            "instruction_set": core.instruction_set() if core else None,
            "detail": native.description(),
        },
        "cxx": shutil.which("g++") or shutil.which("clang++"),
        "torch": None,
        "devices": [],
        "warnings": [],
        "features": [],
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
    facts["warnings"] = names.misleading()
    missing, tried = names.missing(), dict[str, dict[str, str | None]]()
    if not only_names:
        try:
            from graphprobe.diagnose.installation.self_test import try_features

            tried = try_features(kernels=facts["cxx"] is not None)
        except Exception as error:  # a name without which it cannot even be imported
            facts["warnings"].append(f"no feature could be tried: {type(error).__name__}: {error}")
            missing = dict.fromkeys(names.LOSES, f"nothing runs ({error})") | missing
    facts["features"] = [_row(name, missing.get(name), tried.get(name, {})) for name in names.LOSES]
    return facts


def _row(feature: str, missing: str | None, tried: dict[str, str | None]) -> dict[str, Any]:
    """What the trials of a feature, and a name that it lacks, make of it."""
    from graphprobe.internals.names import LOSES

    wrong = {part: why for part, why in tried.items() if why}
    right = [part for part, why in tried.items() if why == ""]
    said = [f"missing: {missing}"] if missing else []
    said += [f"{part}: {why}" if part else why for part, why in wrong.items()]
    status = "works"
    if said:
        status = "works in part" if right else "lost"
        said.append(f"without it: {LOSES[feature]}")
    elif None in tried.values():
        untested = ", ".join(part for part, why in tried.items() if why is None and part)
        status, said = ("works", [f"not tested: {untested}"]) if right else ("not tested", [NO_COMPILER])
    return {"feature": feature, "status": status, "tried": bool(right or wrong), "detail": "; ".join(said)}


def _show(facts: dict[str, Any]) -> None:
    from graphprobe.report.terminal import print_closing

    echo(f"graphprobe {facts['graphprobe']}, Python {facts['python']}, {facts['platform']}")
    echo(f"native core: {facts['native']['detail']}")
    if facts["torch"] is None:
        echo(f"torch: cannot be imported ({facts['torch_error']})")
        print_closing("LOST: there is no torch", follow=["pip", "install", "torch"], style="bold red")
        return
    echo(f"torch {facts['torch']} on {', '.join(facts['devices'])}")
    echo(f"C++ compiler: {facts['cxx'] or 'none found: Inductor cannot compile for the CPU'}")
    for text in facts["warnings"]:
        echo(f"warning: {text}")
    width = max(len(row["feature"]) for row in facts["features"])
    for row in facts["features"]:
        untried = " (its names are there; it was not tried)" if row["status"] == "works" and not row["tried"] else ""
        detail = f": {row['detail']}" if row["detail"] else ""
        echo(f"  {row['feature']:<{width}}  {row['status']}{untried}{detail}")
    lost = [row["feature"] for row in facts["features"] if row["status"] in LOST]
    if lost:
        verdict = f"LOST: {len(lost)} of {len(facts['features'])} features: {', '.join(lost)}"
        print_closing(verdict, follow=["graphprobe", "doctor", "--json"], style="bold red")
        return
    tried = sum(row["tried"] for row in facts["features"])
    verdict = f"WORKS: {len(facts['features'])} features, {tried} of them tried"
    print_closing(verdict, follow=["graphprobe", "demo" if tried else "doctor"], style="bold green")
