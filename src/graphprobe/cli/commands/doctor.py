"""`graphprobe doctor`: versions, devices, and which features work with the torch that is installed."""

from __future__ import annotations

import platform
import shutil
from typing import Any

import click

import graphprobe
from graphprobe.cli.shared_options import JsonCommand, JsonTo, json_option
from graphprobe.errors import EXIT_FOUND, EXIT_OK, EXIT_UNDECIDED
from graphprobe.report.terminal import print_closing
from graphprobe.report.visible import echo

NO_COMPILER = "there is no C++ compiler"


@click.command(cls=JsonCommand)
@click.option("--names", "only_names", is_flag=True, help="Only look for torch's private names; call nothing.")
@json_option
def command(json_to: JsonTo, only_names: bool) -> int:
    """Look for the names of torch that each feature needs, and call each public function on a small program.

    Exit codes: 0 everything works, as far as it could be tried, 1 something is lost (the output says what),
    125 there is no torch.
    """
    facts = _facts(only_names)
    if not json_to.replaces_text(lambda: facts):
        _show(facts)
    if facts["torch"] is None:
        return EXIT_UNDECIDED
    return EXIT_FOUND if any(row["status"] == "lost" for row in facts["features"]) else EXIT_OK


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
    missing, tried = names.missing(), dict[str, str | None]()
    if not only_names:
        try:
            from graphprobe.diagnose.self_test import try_functions

            tried = try_functions(kernels=facts["cxx"] is not None)
        except Exception as error:  # a name without which it cannot even be imported
            tried = {"graphprobe": f"{type(error).__name__}: {error}"}
    told = {name: f"missing: {missing[name]}; without it: {names.LOSES[name]}" for name in missing}
    facts["features"] = [_row(name, told.get(name, ""), tried=False) for name in names.LOSES]
    facts["features"] += [_row(f"{verb}()", wrong, tried=True) for verb, wrong in tried.items()]
    return facts


def _row(feature: str, wrong: str | None, *, tried: bool) -> dict[str, Any]:
    status = "not tested" if wrong is None else "lost" if wrong else "works"
    return {"feature": feature, "status": status, "tried": tried, "detail": NO_COMPILER if wrong is None else wrong}


def _show(facts: dict[str, Any]) -> None:
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
        status = "its names are there" if row["status"] == "works" and not row["tried"] else row["status"]
        detail = f": {row['detail']}" if row["detail"] else ""
        echo(f"  {row['feature']:<{width}}  {status}{detail}")
    lost = [row["feature"] for row in facts["features"] if row["status"] == "lost"]
    if lost:
        verdict = f"LOST: {len(lost)} of {len(facts['features'])}: {', '.join(lost)}"
        print_closing(verdict, follow=["graphprobe", "doctor", "--json"], style="bold red")
        return
    tried = sum(row["tried"] for row in facts["features"])
    verdict = f"WORKS: the names of {len(facts['features']) - tried} features are there, {tried} functions were called"
    print_closing(verdict, follow=["graphprobe", "demo" if tried else "doctor"], style="bold green")
