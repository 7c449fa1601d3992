"""The cases that `diagnose` is judged by: `planted` faults, bugs of stock torch from the `tracker`, healthy `controls`,
and the faults that torch itself injects (`injected`, made by `injections.py`).

A case is a file with `make() -> (fn_or_module, args, kwargs)`, which draws from the seed 0, and `EXPECT`; optional are
`GRAD` (run a backward), `COMPILE` (arguments of `torch.compile`), `BACKEND`, `extra_calls() -> [(args, kwargs), ...]`,
`between(fn, i)` (runs before extra call i, eager and compiled) and `PLANT` or `plant()` (context in which the compiler
is faulty).

`EXPECT` has `kind`, `stage` and `ops`; a healthy case has none. Where several answers are right, these
are several words. `lines`, where it is there, is how long the repro may be.
"""

import importlib.util
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
FOLDERS = ("planted", "tracker", "controls", "injected")
CONTROL = {"kind": "control", "stage": "none", "ops": ""}


def load(path):
    """The module of a case: a path, `folder/name`, or a name that occurs in one folder only."""
    path = Path(path)
    if path.parent.name == "injected":
        import injections

        return injections.case(path.stem)
    if path.suffix != ".py":
        found = [p for f in FOLDERS for p in [FOLDER / f / f"{path.name}.py"] if p.exists()]
        path = next((p for p in found if len(path.parts) == 1 or p.parent.name == path.parent.name), None) or path
    if str(FOLDER.parent) not in sys.path:
        sys.path.insert(0, str(FOLDER.parent))
    spec = importlib.util.spec_from_file_location(f"case_{path.resolve().parent.name}_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # Dynamo finds the globals of a traced function by the name of its module
    spec.loader.exec_module(module)
    module.EXPECT, made = getattr(module, "EXPECT", CONTROL), module.make

    def make():
        import torch

        torch.manual_seed(0)
        return made()

    module.make = make
    if hasattr(module, "PLANT"):
        module.plant = lambda: module.PLANT  # to be entered once
    return module


def names(folder):
    if folder == "injected":
        import injections

        return list(injections.NAMES)
    return sorted(p.stem for p in (FOLDER / folder).glob("*.py") if p.stem != "__init__")


def path(folder, name):
    return FOLDER / folder / f"{name}.py"


def accepted(expect, field):
    """What is right for `kind`, `stage` or `ops`."""
    return tuple(expect[field].split())
