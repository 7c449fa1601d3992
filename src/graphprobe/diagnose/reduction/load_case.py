"""A case from disk: a reduction, the dossier of a finding, or a graph of a run that was saved as Python."""

from __future__ import annotations

import re
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule

from graphprobe.diagnose.case import Case
from graphprobe.diagnose.dossier.own_backend import STAND_IN, OwnBackend
from graphprobe.diagnose.dossier.writer import EXACT
from graphprobe.diagnose.reduction.case_folder import ORIGINAL, is_reduction, origins_into
from graphprobe.diagnose.settings import changed_settings
from graphprobe.engine.replay import load
from graphprobe.engine.values import CapturedValues, capture
from graphprobe.errors import UsageError

ACCEPTED = "a folder with repro.py, a folder of a reduction, or a graph of a run that was saved as .py"


def load_case(path: Path) -> Case:
    """The case at `path`.

    Args:
        path: a folder of a reduction, of which the original case is taken; the folder of a dossier, or its `repro.py`;
            or a graph of a run as Python (`graphprobe run --graph-dump py`), with the inputs that lie beside it.

    Raises:
        UsageError: there is nothing of the kind, or it cannot be rebuilt here.
    """
    path = Path(path).absolute()
    if not path.exists():
        raise UsageError(f"there is no {path}", hint=f"Name {ACCEPTED}.")
    if path.is_dir():
        if is_reduction(path):
            case = _of_dossier(path / ORIGINAL)
            origins_into(case.graph, path)  # modules and source lines of the nodes
            return case
        if (path / "repro.py").is_file():
            return _of_dossier(path)
        raise UsageError(f"{path} holds no repro.py", hint=f"Name {ACCEPTED}.")
    if path.name == "repro.py":
        return _of_dossier(path.parent)
    if path.suffix == ".py":
        return case_from_graph(path)
    raise UsageError(f"{path} is no case", hint=f"Name {ACCEPTED}.")


def _of_dossier(folder: Path) -> Case:
    """The case that a `repro.py` shows, from its exact form where that lies in a folder of its own."""
    folder = folder / EXACT if (folder / EXACT / "repro.py").is_file() else folder
    space = _run(folder / "repro.py")
    settings = space.get("SETTINGS")
    if not isinstance(settings, dict) or "build" not in space:
        raise UsageError(f"{folder / 'repro.py'} is no repro of graphprobe", hint="It has SETTINGS and build().")
    graph = _built(space, folder / "repro.py")
    calls = {stem: _values(folder, stem) for stem in (f"call{i}.inputs" for i in range(settings["calls"]))}
    missing = [stem for stem, call in calls.items() if call is None]
    if missing:
        raise UsageError(f"{folder} lacks {', '.join(missing)}", hint="The .safetensors and the .json file of each.")
    owns = {key: OwnBackend(**facts) for key, facts in settings.get("own", {}).items()}
    own = owns.pop("backend", None)
    return Case(
        graph,
        [call for call in calls.values() if call is not None],
        settings["kind"],
        backend=settings["backend"] if own is None else STAND_IN,
        own_backend=own,
        dynamic=settings["dynamic"],
        grad=settings["grad"],
        configs=settings["configs"],
        hooks=owns,
        unsaved_settings=tuple(settings.get("unsaved", ())),
    )


def case_from_graph(file: Path) -> Case:
    """A graph of a run, compiled by Inductor with the settings of this process, on the inputs that were saved."""
    space = _run(file)
    if "build" not in space:
        raise UsageError(f"{file} defines no build()", hint=f"Name {ACCEPTED}.")
    text = file.read_text("utf-8")
    inputs = next((v for stem in (f"{file.stem}.inputs", "inputs") if (v := _values(file.parent, stem))), None)
    inputs = inputs or _made_up(space, file)
    eager = bool(re.search(r"\beager=True\)", text))
    wants = any(record.get("requires_grad") for record in inputs.doc["values"])
    return Case(_built(space, file), [inputs], "wrong_value", grad=eager and wants, **changed_settings().of_case())


def _values(folder: Path, stem: str) -> CapturedValues | None:
    found = load(folder, stem)
    return None if found is None else CapturedValues(found[1], found[0])


def _made_up(space: Mapping[str, Any], file: Path) -> CapturedValues:
    """Inputs of the recorded shapes."""
    if "METAS" not in space or "synthetic" not in space:
        raise UsageError(f"no inputs lie beside {file}", hint="Collect with `graphprobe run --save-inputs`.")
    torch.manual_seed(0)
    return capture([space["synthetic"](meta) for meta in space["METAS"]], rng=False)


def _built(space: Mapping[str, Any], file: Path) -> GraphModule:
    if problems := space.get("PROBLEMS", ()):
        raise UsageError(f"{file} cannot be rebuilt: {'; '.join(problems)}")
    try:
        found: GraphModule = space["build"]()
    except Exception as error:
        raise UsageError(
            f"{file} cannot be rebuilt: {type(error).__name__}: {error}",
            hint="Operators and functions of a program are found once its module is imported: --import MODULE.",
        ) from error
    return found


def _run(file: Path) -> dict[str, Any]:
    """What a file defines, which is loaded and not run as a program."""
    if not file.is_file():
        raise UsageError(f"{file} is no Python file", hint=f"Name {ACCEPTED}.")
    try:
        return runpy.run_path(str(file))
    except Exception as error:
        raise UsageError(f"{file} cannot be imported: {type(error).__name__}: {error}") from error
