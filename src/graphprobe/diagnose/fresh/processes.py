"""Runs a step of a diagnosis in a fresh Python process, where a fork is impossible: the program is saved and made anew.

The saved program is its text, and values beside it: no pickle, and none of its code runs for that.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, get_type_hints

import msgspec
import numpy as np
import torch

from graphprobe.diagnose.exceptions import origin_of_stack
from graphprobe.diagnose.program import Program
from graphprobe.diagnose.settings import PACKAGES, Compilation, changed_settings
from graphprobe.engine.forked_child import Board, Outcome, answer, end_with_parent, outcome_of, told_on
from graphprobe.engine.replay import set_state
from graphprobe.engine.value_file import ValueFile
from graphprobe.engine.values import capture, safetensors_bytes
from graphprobe.internals.aot_backends import registered
from graphprobe.internals.names import require
from graphprobe.probe.frames.recorder import torch_state
from graphprobe.probe.frames.replaying import configured, values_of
from graphprobe.program_text import loading
from graphprobe.program_text.plain_values import Unwritable
from graphprobe.program_text.text import placed_text
from graphprobe.store.frame_record import PROGRAM, RECORD, VALUES
from graphprobe.store.schema import is_json

START_S = 600.0
"""What a process may take until it has the program, which does not count as time of the step."""

REQUEST = "step"
PLAIN = ("dynamic", "align_random", "timeout_s", "fullgraph", "first", "entries")
"""Fields of `Compilation` that are numbers, texts and the like."""

HERE = (
    "this process cannot be forked, and a fresh one cannot have the program ({reason}): the steps ran in this process, "
    "where a crash ends the diagnosis"
)
START = "import sys; sys.path[:] = {path!r}; from {module} import main; main()"


class NotSaved(Exception):
    """Why a fresh process cannot have the program."""


class Generators(msgspec.Struct, frozen=True):
    """The states of the random generators of Python and NumPy."""

    python: tuple[int, tuple[int, ...], float | None]
    numpy: tuple[bytes, int, int, float] | None

    @classmethod
    def now(cls) -> Generators:
        """Those of this process."""
        version, numbers, following = random.getstate()
        state: Any = np.random.get_state()  # a dict where a program has put another generator in its place
        known = isinstance(state, tuple) and state[0] == "MT19937"
        numpy = (state[1].tobytes(), *state[2:5]) if known else None
        return cls((version, tuple(numbers), following), numpy)

    def put_in_place(self) -> None:
        """Make them those of this process."""
        random.setstate(self.python)
        if self.numpy is not None:
            words, position, has_gauss, gauss = self.numpy
            np.random.set_state(("MT19937", np.frombuffer(words, np.uint32), position, has_gauss, gauss))


class SavedProgram(msgspec.Struct, frozen=True):
    """What is not in the text of a program: torch's state around it, as the file `RECORD` has it."""

    settings: dict[str, Any]  # as in the record of a frame
    state: dict[str, Any]  # random generators of torch, and settings, as `engine.values` has them
    plain: dict[str, Any]  # other fields of the program
    config: dict[str, dict[str, Any]]  # changed settings of torch that are plain values, by package and dotted name
    generators: Generators


class StepRequest(msgspec.Struct, frozen=True):
    """A step to run.

    Attributes:
        module, name: of its function.
        board, values: descriptors of what both processes share.
    """

    module: str
    name: str
    arguments: dict[str, Any]  # by name, but for the program and how it is compiled
    given: dict[str, str]  # the names of those two among the arguments
    compilation: dict[str, Any]  # fields of `Compilation` that are plain values
    timeout_s: float  # what the step may take
    until: float  # the monotonic clock at which it must have ended in any case; 0 for never
    board: int
    values: int
    key: str  # of the file of values


class FreshProcesses:
    """Runs the steps of one program, each in a process of its own that begins with the program as it is now.

    Args:
        note: takes why that is impossible, once; the steps are then left to the caller.
    """

    def __init__(self, program: Program, compilation: Compilation, note: Callable[[str], None]) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None
        self._folder, self._program, self._note = tempfile.TemporaryDirectory(ignore_cleanup_errors=True), program, note
        try:
            save(program, compilation, self.folder)
        except (Unwritable, OSError) as error:
            self._give_up(str(error))

    @property
    def folder(self) -> Path:
        """Where the program is saved."""
        assert self._folder is not None
        return Path(self._folder.name)

    def close(self) -> None:
        """Remove the folder."""
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _give_up(self, reason: str) -> None:
        self.close()
        self._note(HERE.format(reason=reason))

    def outcome(
        self, step: Callable[[], Any], limit_s: float, left_s: float, board: Board, wait: Callable[[], None]
    ) -> Outcome | None:
        """What became of a step; None of one that is not of the program, or if no process can have the program.

        Args:
            limit_s: what the step may take, its process started.
            left_s: what is left for it, the start of its process included.
        """
        until = time.monotonic() + left_s if left_s <= limit_s else 0.0
        known = self._folder is not None
        request = requested(step, self._program, min(limit_s, left_s), until, board) if known else None
        if request is None:
            return None
        (self.folder / REQUEST).write_bytes(msgspec.msgpack.encode(request))

        def start(reader: int, writer: int, output: int) -> int:
            command = [sys.executable, "-c", START.format(path=sys.path, module=__name__)]
            process = subprocess.Popen(
                [*command, str(self.folder), str(writer), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(writer, request.board, request.values),
                start_new_session=True,
            )
            process.returncode = 0  # nobody but `outcome_of` waits for it
            return process.pid

        outcome = outcome_of(start, timeout_s=request.timeout_s + (0.0 if until else START_S), wait=wait)
        if outcome.raised is not None and outcome.raised.type == f"{__name__}.{NotSaved.__qualname__}":
            self._give_up(outcome.raised.message)
            return None
        return msgspec.structs.replace(outcome, seconds=min(outcome.seconds, request.timeout_s))


def requested(
    step: Callable[[], Any], program: Program, timeout_s: float, until: float, board: Board
) -> StepRequest | None:
    """A step as data: a function of a module that is given the program, and plain values; None for another one."""
    if not isinstance(step, partial) or "<" in step.func.__qualname__:
        return None
    arguments = dict(inspect.signature(step.func).bind(*step.args, **step.keywords).arguments)
    if program.file is None or not any(value is program for value in arguments.values()):
        return None
    given = {type(v).__name__: n for n, v in arguments.items() if isinstance(v, Program | Compilation)}
    compilation: dict[str, Any] = {}
    if Compilation.__name__ in given:
        made = arguments[given[Compilation.__name__]]
        compilation = {name: getattr(made, name) for name in PLAIN}
        settings = {name: value for name, value in made.inductor_settings.items() if is_json(value)}
        compilation |= {"folder": str(made.folder), "inductor_settings": settings}
    return StepRequest(
        module=step.func.__module__,
        name=step.func.__qualname__,
        arguments={name: value for name, value in arguments.items() if name not in given.values()},
        given=given,
        compilation=compilation,
        timeout_s=timeout_s,
        until=until,
        board=board.descriptor,
        values=program.file.descriptor,
        key=program.file.key,
    )


def save(program: Program, compilation: Compilation, folder: Path) -> None:
    """Write the program, and what torch was told, into a folder.

    Raises:
        Unwritable: something of it cannot be saved; the message says what.
        OSError: as the operating system gives it.
    """
    changed = changed_settings()
    state, lost = torch_state(changed.configs["dynamo"])
    if lost or changed.unsaved:
        raise Unwritable("; ".join([*lost, *changed.unsaved]))
    backend = compilation.backend
    roots = {
        "fn": program.fn,
        "calls": [(tuple(args), dict(kwargs)) for args, kwargs in program.calls],
        "between": program.between,
        "backend": (registered(backend) or backend) if isinstance(backend, str) else backend,
        "inductor_settings": dict(compilation.inductor_settings),
        "guard_filter": compilation.guard_filter,
        "hooks": {name: hook.live for name, hook in changed.hooks.items()},
    }
    text = placed_text(roots)
    if text.lost:
        raise Unwritable("; ".join("{path}: {reason}".format(**entry) for entry in text.lost[:3]))
    used = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    captured = capture([torch.empty(1, device=f"cuda:{i}") for i in used if torch.cuda.memory_reserved(i)])
    saved = SavedProgram(
        settings=state,
        state=captured.doc,
        plain={"grad": program.grad, "seed": program.seed, "effects": program.effects},
        config={package: changed.configs[package] for package in ("inductor", "functorch")},
        generators=Generators.now(),
    )
    kept = {name: value for name, value in captured.tensors.items() if name.startswith("rng.")}
    (folder / PROGRAM).write_text(text.text, "utf-8", "backslashreplace")
    (folder / VALUES).write_bytes(safetensors_bytes(text.stored | kept, {}))
    (folder / RECORD).write_bytes(msgspec.json.encode(saved))


def _made(request: StepRequest, folder: Path, stack: contextlib.ExitStack) -> Callable[[], Any]:
    """The step, with its program made anew; what torch was told is so as long as `stack` is open."""
    saved = msgspec.json.decode((folder / RECORD).read_bytes(), type=SavedProgram)
    text = loading.ProgramFile(folder / PROGRAM, folder / VALUES)
    stack.enter_context(configured(saved.settings, None))
    roots = values_of(text, in_place=True)
    for package in PACKAGES:
        hooks = {k.partition(".")[2]: hook for k, hook in roots["hooks"].items() if k.startswith(f"{package}.")}
        if changes := saved.config.get(package, {}) | hooks:
            stack.enter_context(require(f"torch._{package}", "config", purpose="settings of a program").patch(changes))
    set_state(text.values, saved.state)
    values = ValueFile(descriptor=request.values, key=request.key)
    program = Program(roots["fn"], roots["calls"], roots["between"], file=values, **saved.plain)
    given = dict(request.compilation)
    settings = roots["inductor_settings"] | given.pop("inductor_settings", {})
    function: Any = importlib.import_module(request.module)
    for part in request.name.split("."):
        function = getattr(function, part)
    kinds = get_type_hints(function)
    arguments = {name: msgspec.convert(value, kinds[name]) for name, value in request.arguments.items()}
    arguments[request.given[Program.__name__]] = program
    if given:
        given["folder"] = Path(given["folder"])
        more = {"inductor_settings": settings, "guard_filter": roots["guard_filter"]}
        made = Compilation(roots["backend"], **more, **given)
        arguments[request.given[Compilation.__name__]] = made
    saved.generators.put_in_place()
    return partial(function, **arguments)


def main() -> NoReturn:
    """Run the step that lies in the folder of the first argument; the answer goes to the descriptor of the second."""
    folder, writer = Path(sys.argv[1]), int(sys.argv[2])
    end_with_parent(int(sys.argv[3]))
    request = msgspec.msgpack.decode((folder / REQUEST).read_bytes(), type=StepRequest)
    with contextlib.ExitStack() as stack:
        stack.enter_context(told_on(Board(request.board)))
        try:
            step = _made(request, folder, stack)
        except Exception as error:
            step = partial(_refuse, f"{type(error).__name__}: {error}")
        left_s = request.until - time.monotonic() if request.until else request.timeout_s
        answer(step, writer, max(0.0, min(left_s, request.timeout_s)), origin_of_stack, fresh=True)


def _refuse(reason: str) -> NoReturn:
    raise NotSaved(reason)
