"""Writes the long `repro.py`, which compares all there is to see: of a graph with recorded values, or of a program."""

from __future__ import annotations

import inspect
import json
import math
import pprint
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

from graphprobe.diagnose.case import Case
from graphprobe.diagnose.dossier import seen
from graphprobe.diagnose.dossier.own_backend import OwnBackend, merged_text, own_backend, own_hook
from graphprobe.diagnose.dossier.report import title_of
from graphprobe.diagnose.dossier.template import Repro, long_script
from graphprobe.diagnose.program import Program
from graphprobe.diagnose.settings import Compilation
from graphprobe.engine.naming import op_of
from graphprobe.engine.subgraph import CALLS
from graphprobe.engine.values import one_file_bytes, safetensors_bytes, to_bytes
from graphprobe.findings import Finding
from graphprobe.internals.operators.operators import operator_of
from graphprobe.probe.formats.fx_py import GraphSource
from graphprobe.program_text.objects import INSTANCE, INSTANCE_CALL, INSTANCE_TEXT, STORED
from graphprobe.program_text.plain_values import Unwritable, joined
from graphprobe.program_text.text import ProgramText, program_text
from graphprobe.store.schema import is_json

CONSTANTS, ALLOWED, TENSORS = "constants.safetensors", "allowed.safetensors", "tensors.safetensors"
CHANGES = re.compile(r"[^_]_$|\bsetitem$")
"""A function that changes a tensor in place."""
MOST_REPEATS = 100
MISS = 1e-3
"""Chance that a flaky fault does not show in any of the repeats, where their number is not bounded."""

_STORED = f'''def {STORED}(name, dtype, shape):
    """A tensor of {TENSORS}."""
    data = Path(__file__).with_name("{TENSORS}").read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    first, end = json.loads(data[8:start])[name]["data_offsets"]
    flat = torch.frombuffer(bytearray(data[start + first : start + end]), dtype=torch.uint8)
    return flat.view(dtype).reshape(shape)'''

_USER_FILE = '''def user_file(path):
    """The program's own file, loaded."""
    spec = importlib.util.spec_from_file_location("user_file", path)
    module = sys.modules["user_file"] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(Path(path).parent))
    spec.loader.exec_module(module)
    return module'''

_RESERVED = {**vars(seen), **dict.fromkeys(("CHECK", "COMPILE", STORED, INSTANCE, "user_file"))}
"""Names of the file's own, with what they mean where a program may mean the same by them."""


def long_repro(case: Case, finding: Finding) -> Repro:
    """A script that runs the recorded graph on the recorded bits.

    It exits 1 while the fault is there, 0 when it is gone, 125 when it cannot tell, and needs torch alone. A flaky
    fault is tried several times.
    """
    graph = GraphSource(case.graph)
    problems = [*graph.problems, *_problems(case)]
    settings = pprint.pformat(_settings(case, finding.flaky_rate), width=110, sort_dicts=False)
    own = [_own(key, own) for key, own in owns_of(case).items()]
    source = long_script(
        [title_of(finding), *problems, *dict.fromkeys(graph.literals.notes), ""],
        {*(f"import {module}" for module in graph.literals.imports | {"torch.fx"}), "from pathlib import Path"},
        [
            f"SETTINGS = {settings}\nPROBLEMS = {tuple(problems)!r}\nHERE = Path(__file__).resolve().parent",
            *(["# What the program defines itself.\n" + "\n\n".join(own)] if own else []),
            *graph.code(f'HERE / "{CONSTANTS}"'),
        ],
        kind=case.kind,
        look="lambda compiled: seen_of_graph(build, SETTINGS, PROBLEMS, HERE, compiled=compiled)",
        limits="bounds_of(expected, SETTINGS, HERE)",
        recorded=True,
        unsaved="; ".join(case.unsaved_settings),
    )
    files: dict[str, bytes] = {}
    for i, call in enumerate(case.calls):
        files[f"call{i}.inputs.safetensors"], files[f"call{i}.inputs.json"] = to_bytes(call)
    if graph.tensors:
        files[CONSTANTS] = one_file_bytes(graph.tensors)
    if case.allowed:
        files[ALLOWED] = one_file_bytes({"allowed": case.allowed})
    return Repro(source, files=files, problems=tuple(problems))


def owns_of(case: Case) -> dict[str, OwnBackend]:
    """What the program has made itself: its `backend`, and its functions by the settings that hold them."""
    backend = {"backend": case.own_backend} if case.own_backend is not None else {}
    return {**backend, **case.hooks}


def _own(key: str, own: OwnBackend) -> str:
    """Texts that run in a namespace each, so that no name means two things."""
    text = own.text.strip().replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    facts = {"name": own.name, "shown": own.shown, "folder": own.folder}
    return f'SETTINGS["own"]["{key}"] = {facts!r}\nSETTINGS["own"]["{key}"]["text"] = """\\\n{text}\n"""'


def _settings(case: Case, flaky_rate: float) -> dict[str, Any]:
    configs = dict(case.configs)
    if case.caches:
        configs["inductor"] = {"fx_graph_cache": True, **configs.get("inductor", {})}
        configs["functorch"] = {"enable_autograd_cache": True, **configs.get("functorch", {})}
    return {
        "kind": case.kind,
        "backend": case.backend if case.own_backend is None else case.own_backend.name,
        "dynamic": case.dynamic,
        "grad": case.grad,
        "loose": case.grad and any(CHANGES.search(op_of(node)) for node in case.graph.graph.nodes if node.op in CALLS),
        "calls": len(case.calls),
        "repeats": repeats_for(flaky_rate),
        "autocast": not is_aten(case.graph),
        "allowed": bool(case.allowed),
        "unsaved": list(case.unsaved_settings),
        "own": {},
        "configs": {name: changes if is_json(changes) else {} for name, changes in configs.items()},
    }


def _problems(case: Case) -> list[str]:
    found = list(case.unsaved)
    found += [f"call {i}: {line}" for i, call in enumerate(case.calls) for line in call.opaque]
    for package, changes in case.configs.items():
        found += [f"{package}: {key} has no JSON value" for key, value in changes.items() if not is_json({key: value})]
    if case.allowed and len(case.allowed) != len(case.calls):
        found.append(f"{len(case.calls)} calls, allowed differences for {len(case.allowed)}")
    return found if case.calls else [*found, "no call was captured"]


def repeats_for(flaky_rate: float) -> int:
    """How often a fault that shows at this rate, 0 to 1, has to be tried."""
    if flaky_rate >= 1:
        return 1
    return min(MOST_REPEATS, math.ceil(math.log(MISS) / math.log1p(-flaky_rate))) if flaky_rate else MOST_REPEATS


def is_aten(graph: fx.GraphModule) -> bool:
    """Whether all calls are operators, which autocast does not see the way it sees functions of torch."""
    calls = [node for node in graph.graph.nodes if node.op.startswith("call_")]
    plain = ("_operator", "math")
    return all(
        n.op == "call_function" and (operator_of(n.target) is not None or getattr(n.target, "__module__", "") in plain)
        for n in calls
    )


def long_program(program: Program, compilation: Compilation, finding: Finding, tolerance: float | None = None) -> Repro:
    """A script that exits 1 while the program, compiled, does something else than uncompiled, else 0 or 125.

    It needs torch, what the program imports, and the files beside it. It holds the program as it is now: nothing that
    a call changes may have been changed yet.

    Args:
        tolerance: relative to each element and to the rms of all; None: the root of the dtype's epsilon.

    Raises:
        Unwritable: it has no text.
    """
    roots = {"fn": program.fn, "calls": [(tuple(a), dict(k)) for a, k in program.calls], "between": program.between}
    options, own, settings = compilation_text(compilation)
    text, notes = _text_of(roots)
    names = sorted(name for name in text.names if name.isidentifier())
    parts = [
        f"fn={text.roots['fn']}",
        f"calls={text.roots['calls']}",
        *([f"between={text.roots['between']}"] if program.between is not None else []),
        *([f"grad={program.grad!r}"] if program.grad not in (None, "own") else []),
        *([joined("names=globals(), watched=[", [repr(name) for name in names], "]")] if names else []),
        *([f"modules={('__main__', *text.modules)!r}"] if text.modules else []),
    ]
    how = joined("COMPILE = dict(", [f"{name}={value}" for name, value in options.items()], ")")
    check = joined("CHECK = dict(", parts, ")")
    body = ["\n".join([*state_lines(program.grad), *settings]), text.text, own, f"{how}\n{check}"]
    limits = "lambda eps: eps**0.5" if tolerance is None else f"lambda eps: {tolerance:g}"
    script = _script([title_of(finding), *notes], text, body, finding.kind, f"within({limits})")
    files = {name: part.encode() for name, part in text.files.items()}
    if text.stored:
        files[TENSORS] = safetensors_bytes(text.stored, {"format": "pt"})
    return Repro(script, files=files)


def compilation_text(compilation: Compilation) -> tuple[dict[str, str], str, list[str]]:
    """Arguments of `torch.compile`, what defines the program's backend and hooks, and lines that configure torch.

    Raises:
        Unwritable: the backend has no text, or not beside the hooks.
    """
    own, why = own_backend(compilation.backend)
    if why:
        raise Unwritable(why)
    changed = compilation.changed()
    keeps = None if compilation.guard_filter is None else own_hook(compilation.guard_filter)
    text = own_lines(own, changed.hooks, [] if keeps is None else [keeps])
    if text is None:
        raise Unwritable("the backend and the hooks use one name for different things")
    options = {"backend": json.dumps(compilation.backend) if own is None else own.name}
    options |= {} if keeps is None else {"options": f"{{'guard_filter_fn': {keeps.name}}}"}
    options |= {} if compilation.dynamic is None else {"dynamic": repr(compilation.dynamic)}
    options |= {"fullgraph": "True"} if compilation.fullgraph else {}
    packages = [f"import torch._{package}.config" for package, changes in changed.configs.items() if changes]
    return options, text.strip(), [*packages, *assignments(changed.configs)]


def _script(notes: Sequence[str], text: ProgramText, body: Sequence[str], kind: str, limits: str) -> str:
    used, imports, helpers = "\n".join(body), set(text.imports), []
    if INSTANCE_CALL.search(used):
        helpers.append(INSTANCE_TEXT)
    if f"{STORED}(" in used:
        helpers.append(_STORED)
        imports |= {"import json", "from pathlib import Path"}
    if "user_file(" in used:
        helpers.append(_USER_FILE)
        imports |= {"import importlib.util", "import sys", "from pathlib import Path"}
    beside = ["import os, sys", "sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))"] if text.files else []
    look = 'lambda compiled: seen_of(CHECK, torch.compile(CHECK["fn"], **COMPILE) if compiled else CHECK["fn"])'
    return long_script(notes, imports, [*helpers, *body], kind=kind, look=look, limits=limits, first=beside)


def _text_of(roots: Mapping[str, Any]) -> tuple[ProgramText, list[str]]:
    """The program as text or, where that cannot be, from its own file; and what a reader should know."""
    try:
        return program_text(roots, reserved=_RESERVED), []
    except Unwritable as error:
        try:
            found = _imported(roots)
        except Unwritable as second:
            raise Unwritable(f"the program cannot be told as text: {error}; nor be imported: {second}") from second
        return found, [f"It imports the program's own file, because this cannot be told as text: {error}."]


def _imported(roots: Mapping[str, Any]) -> ProgramText:
    """The program from its own file; its calls as text."""
    fn, between = roots["fn"], roots["between"]
    source: Any = None if isinstance(fn, torch.nn.Module) else inspect.unwrap(fn)
    name = getattr(source, "__qualname__", "<none>")
    file = getattr(getattr(source, "__code__", None), "co_filename", "")
    if not name.isidentifier() or not Path(file).is_file() or source.__globals__.get(name) is not fn:
        raise Unwritable("it is no function of a file")
    found = program_text({"calls": roots["calls"]}, reserved=_RESERVED)
    found.text = "\n".join(filter(None, [found.text, f"module = user_file({str(Path(file).resolve())!r})"]))
    found.roots["fn"] = f"module.{name}"
    found.modules.append("user_file")
    found.names.append("module")
    if between is not None:
        if Path(getattr(between, "__code__", _imported.__code__).co_filename) != Path(file):
            raise Unwritable("what runs between the calls lies in another file")
        found.roots["between"] = f"module.{between.__qualname__}"
    return found


def own_lines(own: OwnBackend | None, hooks: Mapping[str, OwnBackend], others: Sequence[OwnBackend] = ()) -> str | None:
    """Text that defines a backend, hooks and others, and puts the hooks where they belong; None where names clash.

    Args:
        hooks: by package and dotted name of the setting, as in `Case.hooks`.
    """
    text = merged_text([*([own] if own is not None else []), *hooks.values(), *others])
    if text is None:
        return None
    places = [(*name.split(".", 1), hook.name) for name, hook in hooks.items()]
    lines = [f"import torch._{package}.config" for package in dict.fromkeys(place[0] for place in places)]
    lines += [f"torch._{package}.config.{name} = {value}" for package, name, value in places]
    return "\n".join(filter(None, (text.strip(), "\n".join(lines))))


def state_lines(grad: bool | str | None) -> list[str]:
    """Lines for what the program has set in torch, where it matters to every call."""
    found = []
    if torch.get_default_dtype() != torch.float32:
        found.append(f"torch.set_default_dtype({torch.get_default_dtype()})")
    if torch.get_float32_matmul_precision() != "highest":
        found.append(f"torch.set_float32_matmul_precision({torch.get_float32_matmul_precision()!r})")
    if torch.are_deterministic_algorithms_enabled():
        found.append("torch.use_deterministic_algorithms(True)")
    if grad is None and not torch.is_grad_enabled():
        found.append("torch.set_grad_enabled(False)")
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            found.append(f"torch.set_autocast_enabled({device!r}, True)")
            found.append(f"torch.set_autocast_dtype({device!r}, {torch.get_autocast_dtype(device)})")
    return found


def assignments(settings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The statements that set these: by package and dotted name."""
    return [
        f"torch._{package}.config.{name} = {json.dumps(value) if isinstance(value, str) else repr(value)}"
        for package, changes in settings.items()
        for name, value in changes.items()
    ]
