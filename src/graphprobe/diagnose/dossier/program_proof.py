"""A repro made of the program itself, for a fault that no piece of it shows alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from graphprobe.diagnose.dossier import program_check
from graphprobe.diagnose.dossier.own_backend import OwnBackend, merged_text, own_backend, why_no_text
from graphprobe.diagnose.program_text.objects import INSTANCE, INSTANCE_TEXT, STORED
from graphprobe.diagnose.program_text.plain_values import Unwritable, joined
from graphprobe.diagnose.program_text.text import FUTURE, ProgramText, program_text
from graphprobe.engine import replay
from graphprobe.engine.values import safetensors_bytes
from graphprobe.probe.formats import GUARD
from graphprobe.store.files import write_new_file

TENSORS = "tensors.safetensors"

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

_USAGE = """# Run it with `python repro.py`; it needs torch, what is imported below, and the files beside it.
# It exits 1 while the fault is there, 0 when it is gone, 125 when it cannot tell."""
_RULE = "# " + "-" * 100
_BELOW = "# What follows runs the program above uncompiled and compiled, and compares; it is the same in every repro."
_RESERVED = {**vars(program_check), **dict.fromkeys(("CHECK", STORED, INSTANCE, "importlib", "user_file"))}
"""Names of the file's own, with what they mean where a program may mean the same by them."""


@dataclass(frozen=True)
class Factory:
    """Where the program comes from, for one that cannot be told as text.

    Attributes:
        file: a Python file.
        name: of a function in it that takes nothing and gives `(fn, args)` or `(fn, args, kwargs)`, or of `fn` itself
            with `makes=False`.
        makes: whether it is called.
    """

    file: Path
    name: str
    makes: bool = True


@dataclass(frozen=True)
class ProgramProof:
    """A repro made of the program.

    Attributes:
        files: by path in the folder, `repro.py` among them.
        problems: why it cannot be run, one line each.
        notes: what a reader should know.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def write_program_proof(
    folder: Path, fn: Any, calls: Sequence[tuple[Sequence[Any], Mapping[str, Any]]], **how: Any
) -> list[str]:
    """Write what `program_proof` makes into a folder; its problems.

    Raises:
        OSError: as the operating system gives it.
    """
    proof = program_proof(fn, calls, **how)
    for name, data in proof.files.items():
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_new_file(path, data)
    return proof.problems


def program_proof(
    fn: Any,
    calls: Sequence[tuple[Sequence[Any], Mapping[str, Any]]],
    *,
    between: Callable[[Any, int], Any] | None = None,
    grad: bool | None = None,
    seed: int | None = None,
    backend: str | Callable[..., Any] = "inductor",
    dynamic: bool | None = None,
    options: Mapping[str, Any] | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    hooks: Mapping[str, OwnBackend] | None = None,
    what: str = "torch.compile changes what this program does",
    kind: str = "",
    tolerance: float | None = None,
    factory: Factory | None = None,
) -> ProgramProof:
    """A Python file that exits 1 while the program, compiled, does something else than uncompiled, else 0 or 125.

    It needs torch, what the program imports, and the files beside it. It holds the program as it is now: nothing that
    a call changes may have been changed yet.

    Args:
        fn, calls, between, grad, seed: as in `Program`.
        backend, dynamic: as `torch.compile` takes them.
        options: further arguments of `torch.compile`: `mode`, `options`, `fullgraph`.
        settings: changed ones by package (`inductor`, `functorch`, `dynamo`) and dotted name.
        hooks: what the program has put into settings, see `Case.hooks`.
        what: first lines of the file, as a comment.
        kind: of the fault; `hang` makes a process that does not end one.
        tolerance: relative to each element and to the rms of all; None: the root of the dtype's epsilon.
        factory: where to get the program from where it cannot be told as text.
    """
    given: dict[str, Any] = {"backend": backend, "dynamic": dynamic, **(options or {})}
    if reason := why_no_text(backend):
        return ProgramProof(problems=[reason])
    own = own_backend(backend)
    if own is not None:
        given["backend"] = _Name(own.name)
    own_text = own_lines(own, hooks or {})
    if own_text is None:
        return ProgramProof(problems=["the backend and the hooks use one name for different things"])
    roots = {"fn": fn, "calls": [(tuple(a), dict(k)) for a, k in calls], "between": between}
    notes: list[str] = []
    try:
        text = program_text(roots, reserved=_RESERVED)
    except Unwritable as error:
        try:
            text = _imported(roots, factory)
        except Unwritable as second:
            return ProgramProof(problems=[f"the program cannot be told as text: {error}; nor be imported: {second}"])
        notes.append(f"It imports the program's own file, because this cannot be told as text: {error}.")
    more = {"grad": grad, "seed": seed, "tolerance": tolerance, "hang": kind == "hang" or None}
    check = joined("CHECK = dict(", _check_arguments(text, given, more, between=between is not None), ")")
    body = [*state_lines(grad), *setting_lines(settings or {})], text.text, own_text
    script = _script([what, *notes], text, ["\n".join(body[0]), *body[1:]], check)
    files = {"repro.py": script.encode(), **{name: part.encode() for name, part in text.files.items()}}
    if text.stored:
        files[TENSORS] = safetensors_bytes(text.stored, {"format": "pt"})
    return ProgramProof(files, [], notes)


def _check_arguments(
    text: ProgramText, given: Mapping[str, Any], more: Mapping[str, Any], *, between: bool
) -> list[str]:
    """What the script checks with: the program by its names in the script, how it is compiled, and the rest."""
    names = sorted(name for name in text.names if name.isidentifier())
    return [
        f"fn={text.roots['fn']}",
        f"calls={text.roots['calls']}",
        joined("compiled=dict(", [f"{name}={value!r}" for name, value in given.items() if value is not None], ")"),
        *([f"between={text.roots['between']}"] if between else []),
        *(f"{name}={value!r}" for name, value in more.items() if value is not None),
        *([joined("names=globals(), watched=[", [repr(name) for name in names], "]")] if names else []),
        *([f"modules={('__main__', *text.modules)!r}"] if text.modules else []),
    ]


class _Name(str):
    """Stands in the script as it is, not in quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def _script(head: Sequence[str], text: ProgramText, body: Sequence[str], check: str) -> str:
    used = "\n".join([*body, check])
    imports = set(text.imports)
    helpers = []
    if f"{INSTANCE}(" in used:
        helpers.append(INSTANCE_TEXT)
    if f"{STORED}(" in used:
        helpers.append(_STORED)
        imports |= {"import json", "from pathlib import Path"}
    if "user_file(" in used:
        helpers.append(_USER_FILE)
        imports |= {"import importlib.util", "import sys", "from pathlib import Path"}
    ordered = sorted(imports, key=lambda line: (not line.startswith("import"), line))
    beside = ""
    if text.files:
        beside = "import os\nimport sys\n\nsys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))\n"
    parts = [
        "".join(f"# {line}".rstrip() + "\n" for entry in head for line in entry.splitlines())
        + f"{_USAGE}\n\n{FUTURE}\n\n{GUARD}\n{beside}\n"
        + "\n".join(ordered),
        *helpers,
        *filter(None, body),
        check,
        f"{_RULE}\n{_BELOW}\n\n{replay.embedded(file=program_check.__file__, mark='check')}",
        'if __name__ == "__main__":\n    sys.exit(main(Check(**CHECK)))',
    ]
    return "\n\n\n".join(part.strip() for part in parts) + "\n"


def _imported(roots: Mapping[str, Any], factory: Factory | None) -> ProgramText:
    """The program from its own file; its calls as text, where they can be."""
    fn, between = roots["fn"], roots["between"]
    source: Any = None if isinstance(fn, torch.nn.Module) else inspect.unwrap(fn)
    if factory is None:
        name = getattr(source, "__qualname__", "<none>")
        file = getattr(getattr(source, "__code__", None), "co_filename", "")
        if not name.isidentifier() or not Path(file).is_file() or source.__globals__.get(name) is not fn:
            raise Unwritable("it is no function of a file")
        factory = Factory(Path(file), name, makes=False)
    elif not Path(factory.file).is_file():
        raise Unwritable(f"{factory.file} is not there")
    try:
        found = program_text({"calls": roots["calls"]}, reserved=_RESERVED)
    except Unwritable:
        if not factory.makes or len(roots["calls"]) > 1:
            raise
        found = ProgramText(roots={"calls": "[(made[1], made[2] if len(made) > 2 else {})]"})
    lines = [f"module = user_file({str(Path(factory.file).resolve())!r})"]
    lines.append(f"made = module.{factory.name}{'()' if factory.makes else ''}")
    found.text = "\n".join(filter(None, [found.text, *lines]))
    found.roots["fn"] = "made[0] if isinstance(made, tuple) else made"
    found.modules.append("user_file")
    found.names.append("module")
    if between is not None:
        name = getattr(between, "__qualname__", "<none>")
        if Path(getattr(between, "__code__", _imported.__code__).co_filename) != Path(factory.file):
            raise Unwritable("what runs between the calls lies in another file")
        found.roots["between"] = f"module.{name}"
    return found


def own_lines(own: OwnBackend | None, hooks: Mapping[str, OwnBackend]) -> str | None:
    """Text that defines a backend and hooks, and puts the hooks where they belong; None where names clash.

    Args:
        hooks: by package and dotted name of the setting, as in `Case.hooks`.
    """
    text = merged_text([*([own] if own is not None else []), *hooks.values()])
    if text is None:
        return None
    places = [(*name.split(".", 1), hook.name) for name, hook in hooks.items()]
    lines = [f"import torch._{package}.config" for package in dict.fromkeys(place[0] for place in places)]
    lines += [f"torch._{package}.config.{name} = {value}" for package, name, value in places]
    return "\n".join(filter(None, (text.strip(), "\n".join(lines))))


def state_lines(grad: bool | None) -> list[str]:
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


def setting_lines(settings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Lines that configure torch: settings by package and dotted name."""
    found = []
    for package, changes in settings.items():
        found += [f"import torch._{package}.config"] if changes else []
        found += [f"torch._{package}.config.{name} = {value!r}" for name, value in changes.items()]
    return found
