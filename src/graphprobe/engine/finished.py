"""The steps of a diagnosis that have ended, on disk as soon as they have, so that a later process need not run them.

What must be as it was for the steps of a process that was ended to count for another: values, sources, versions.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import platform
import random
import re
import shutil
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
import torch

from graphprobe import __version__
from graphprobe.engine.forked_child import Outcome
from graphprobe.errors import UsageError
from graphprobe.findings import Diagnosis, read_document
from graphprobe.store.files import replace_file
from graphprobe.store.layout import STEPS_HEAD, STEPS_NAME

VARIABLES = ("TORCH", "PYTORCH", "OMP_", "MKL_", "TRITON_", "CXX", "GRAPHPROBE_STEP_LIMIT")
"""Beginnings of the names of environment variables that change what is computed."""

CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHELASTIC_RUN_ID")
"""Those of them that do not."""


class Identity(msgspec.Struct, frozen=True):
    """What the outcome of every step depends on.

    Attributes:
        facts: by name, as text: versions, options, digests of values and code.
        sources: digest of each file of the program's own Python, by its path.
    """

    facts: dict[str, str]
    sources: dict[str, str]

    def holds(self, now: Identity) -> bool:
        """Whether a process of this identity, an earlier one, ran what `now` runs; a file loaded since is no change."""
        return self.facts == now.facts and all(digest_of_file(path) == was for path, was in self.sources.items())


class Generators(msgspec.Struct, frozen=True):
    """The states of the random generators of Python, NumPy and torch."""

    python: tuple[int, tuple[int, ...], float | None]
    numpy: tuple[bytes, int, int, float] | None
    torch: bytes

    @classmethod
    def now(cls) -> Generators:
        """Those of this process."""
        version, numbers, following = random.getstate()
        state: Any = np.random.get_state()  # a dict where a program has put another generator in its place
        known = isinstance(state, tuple) and state[0] == "MT19937"
        numpy = (state[1].tobytes(), *state[2:5]) if known else None
        return cls((version, tuple(numbers), following), numpy, torch.get_rng_state().numpy().tobytes())

    def put_in_place(self) -> None:
        """Make them those of this process."""
        random.setstate(self.python)
        if self.numpy is not None:
            words, position, has_gauss, gauss = self.numpy
            np.random.set_state(("MT19937", np.frombuffer(words, np.uint32), position, has_gauss, gauss))
        torch.set_rng_state(torch.frombuffer(bytearray(self.torch), dtype=torch.uint8))


def identity_of(facts: Mapping[str, object], values: Iterable[torch.Tensor], fn: Any) -> Identity | None:
    """The identity of a program that is about to run in this process; None where it could not be told from another.

    Args:
        facts: what the caller was asked to do, each as its `repr` gives it.
        values: plain tensors: arguments, parameters, buffers.
        fn: the function or module.
    """
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if main is None:  # typed in, so that there is no file that would have to be the same
        return None
    try:
        named = {name: repr(value) for name, value in facts.items()}
        return Identity({**_surroundings(), **named, "values": digest_of(values), "code": _code_of(fn)}, _sources())
    except Exception:  # values that nobody can read, objects that do not behave: then nothing is resumed
        return None


def command_identity(facts: Mapping[str, object]) -> Identity:
    """The identity of a command, of whose program nothing is loaded yet."""
    return Identity({**_surroundings(), **{name: repr(value) for name, value in facts.items()}}, {})


def digest_of(values: Iterable[torch.Tensor]) -> str:
    """A digest of the bits, the forms and the gradients' flags of these tensors."""
    made = hashlib.blake2b(digest_size=16)
    for value in values:
        tensor = value.detach().resolve_conj().resolve_neg()
        form = (tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, value.requires_grad)
        made.update(repr(form).encode())
        made.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return made.hexdigest()


def _surroundings() -> dict[str, str]:
    changed = {k: v for k, v in os.environ.items() if k.startswith(VARIABLES) and k not in CACHES}
    return {
        "graphprobe": __version__,
        "torch": f"{torch.__version__} {torch.version.git_version}",
        "python": sys.version,
        "machine": platform.node(),
        "folder": os.getcwd(),
        "variables": repr(sorted(changed.items())),
        "threads": str(torch.get_num_threads()),
        "gradients": str(torch.is_grad_enabled()),
        "dtype": str(torch.get_default_dtype()),
    }


def _code_of(fn: Any) -> str:
    """A digest of the bytecode of a function, of a module's class: of what was made without a file, too.

    Of what has none, a function of torch's own, it is one of the name.
    """
    made = hashlib.blake2b(digest_size=16)
    while isinstance(fn, functools.partial):
        made.update(repr([x for x in (*fn.args, *fn.keywords, *fn.keywords.values()) if _is_plain(x)]).encode())
        fn = fn.func
    called = type(fn).__call__ if callable(fn) else None
    places = getattr(fn, "__func__", fn), getattr(type(fn), "forward", None), called
    waiting: list[Any] = [getattr(place, "__code__", None) for place in places]
    if not any(isinstance(code, types.CodeType) for code in waiting):
        named = fn if hasattr(fn, "__qualname__") else type(fn)
        made.update(f"{getattr(named, '__module__', '')}.{named.__qualname__}".encode())
    while waiting:
        code = waiting.pop()
        if isinstance(code, types.CodeType):
            plain = [c for c in code.co_consts if _is_plain(c)]
            made.update(code.co_code + repr((code.co_names, code.co_varnames, plain)).encode())
            waiting += code.co_consts
    return made.hexdigest()


def _is_plain(value: object) -> bool:
    return isinstance(value, (int, float, complex, str, bytes, bool, type(None)))


def _sources() -> dict[str, str]:
    """The files that the program has loaded so far, but for those of Python, of installed packages and of this one."""
    paths = sysconfig.get_paths()
    foreign: Sequence[str] = [
        *{str(Path(paths[name]).resolve()) for name in ("stdlib", "platstdlib", "purelib", "platlib")},
        str(Path(__file__).resolve().parent.parent),
    ]
    found: dict[str, str] = {}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py"):
            path = str(Path(file).resolve())
            if not any(path.startswith(folder + os.sep) for folder in foreign) and path not in found:
                found[path] = digest_of_file(path)
    return found


def digest_of_file(path: str) -> str:
    """A digest of what a file holds, or that it cannot be read."""
    try:
        return hashlib.blake2b(Path(path).read_bytes(), digest_size=16).hexdigest()
    except OSError:
        return "cannot be read"


log = logging.getLogger(__name__)

SCHEMA = 1

KEPT_BYTES = 4 << 30
"""Of all steps of one diagnosis, less what lies in the file of values; a step that would go beyond is run again."""

LARGE = 1 << 12
"""Bytes from which on a value is written as it is, behind the rest."""

SIGNS, HALF = ("finding.json", "repro.py", "exact"), re.compile(r"\..+\.\d+-\d+")
"""What a folder has that a step makes for a finding, and how one is called that was to become one; or it is empty."""


class StepsHead(msgspec.Struct, frozen=True):
    """The first file: whose steps these are.

    Attributes:
        schema: version of the format.
        identity: of the program and of what was asked.
        generators: where the random generators stood; every step begins from there.
        made: the folder was not there before.
    """

    schema: int
    identity: Identity
    generators: Generators
    made: bool


class Kept(msgspec.Struct):
    """One step: what became of it, and which folders there were when it had ended.

    Attributes:
        label: what was run.
        outcome: with numbers in the place of large values, which follow behind in that order.
        sizes: of these values, in bytes.
        values_size: of the file of values when the step had ended, in bytes: the outcome may name any place in it.
    """

    label: str
    outcome: Outcome
    sizes: list[int]
    entries: list[str]
    values_size: int = 0


class FinishedSteps:
    """The steps of one diagnosis, by their numbers. Where nothing can be written they are not kept, and that is all.

    Attributes:
        resumed: an earlier process has left some.
    """

    def __init__(self, folder: Path, identity: Identity | None) -> None:
        """Take up what lies in `folder`, if it is of this identity; else begin anew. None: nothing is kept.

        Raises:
            UsageError: another process is at work there.
        """
        self.folder, self._steps = folder, folder / STEPS_NAME
        self._values = self._steps / "values"
        self._number, self._bytes = 0, 0
        self._entries: list[str] = []
        self._lock: IO[bytes] | None = None
        self.resumed = False
        self.generators: Generators | None = None
        if identity is None:
            return
        try:
            head = _head_of(folder)
            self._lock = _locked(self._steps) if head is not None else None
            if head is not None and head.identity.holds(identity):
                self._take_up(head)
                return
            if head is not None:
                log.info("%s belongs to another program, or to other options: begun anew", self._steps)
                clear(folder)
            self._begin(identity, made=not folder.exists() or (head is not None and head.made))
        except OSError as error:
            log.info("steps are not kept: %s", error)
            self._close()

    def _begin(self, identity: Identity, *, made: bool) -> None:
        self._steps.mkdir(parents=True)
        self._lock = _locked(self._steps)
        self._head = StepsHead(SCHEMA, identity, Generators.now(), made)
        self._values.touch()
        replace_file(self._steps / STEPS_HEAD, msgspec.msgpack.encode(self._head))
        self.generators = self._head.generators

    def _take_up(self, head: StepsHead) -> None:
        self._head, self.generators, self.resumed = head, head.generators, True
        self._values.touch()
        files = sorted(self._steps.glob("*.step"))
        self._bytes = sum(file.stat().st_size for file in files)
        for file in files:
            kept = _read(file)
            self._entries = kept[0].entries if kept is not None else self._entries
        self.sweep()

    @property
    def active(self) -> bool:
        """Whether steps are kept."""
        return self._lock is not None

    @property
    def values_file(self) -> Path | None:
        """Where large values of the steps go, see `engine.value_file`; None where no steps are kept."""
        return self._values if self.active else None

    @property
    def _values_size(self) -> int:
        try:
            return self._values.stat().st_size
        except OSError:
            return 0

    # -- steps -------------------------------------------------------------------------------------------------------

    def outcome(self, label: str) -> Outcome | None:
        """What became of the next step, if an earlier process has run it; `keep` is due otherwise."""
        if self._lock is None:
            return None
        self._number += 1
        kept = _read(self._file)
        if kept is None or kept[0].label != label or self._values_size < kept[0].values_size:
            return None
        return kept[1]

    def keep(self, label: str, outcome: Outcome) -> None:
        """Write down the step that `outcome` did not know."""
        if self._lock is None:
            return
        values: list[Any] = []
        plain = msgspec.structs.replace(outcome, value=_without(outcome.value, values))
        with contextlib.suppress(OSError):
            self._entries = sorted(os.listdir(self.folder))
        head = msgspec.msgpack.encode(Kept(label, plain, [len(v) for v in values], self._entries, self._values_size))
        size = len(head) + sum(len(v) for v in values)
        temporary = self._file.with_suffix(".new")
        try:
            if self._bytes + size > KEPT_BYTES or 2 * size > shutil.disk_usage(self._steps).free:
                return
            with temporary.open("wb") as file:
                for part in (len(head).to_bytes(8, "little"), head, *values):
                    file.write(part)
            os.replace(temporary, self._file)
            self._bytes += size
        except OSError as error:
            log.info("a step is not kept: %s", error)
            with contextlib.suppress(OSError):
                temporary.unlink()

    @property
    def _file(self) -> Path:
        return self._steps / f"{self._number:04}.step"

    def sweep(self) -> None:
        """Take away the folders of findings that a step has begun and did not come to tell of."""
        if self._lock is None:
            return
        for entry in sorted(set(os.listdir(self.folder)) - {STEPS_NAME, *self._entries}):
            if _is_of_a_finding(self.folder / entry):
                shutil.rmtree(self.folder / entry, ignore_errors=True)

    # -- the end -----------------------------------------------------------------------------------------------------

    def diagnosis(self) -> Diagnosis | None:
        """What the steps came to, where an earlier process has got that far."""
        try:
            return read_document(json.loads((self._steps / "diagnosis.json").read_bytes()), Diagnosis)
        except (OSError, ValueError, msgspec.MsgspecError):
            return None

    def done(self, diagnosis: Diagnosis | None = None) -> None:
        """All steps have been made. What they came to stays if it is given, and nothing of them otherwise."""
        if self._lock is None:
            return
        with contextlib.suppress(OSError):
            if diagnosis is not None:
                text = json.dumps(diagnosis.to_json(), ensure_ascii=False, allow_nan=False)
                replace_file(self._steps / "diagnosis.json", text.encode())
                for file in (*self._steps.glob("*.step"), self._values):
                    file.unlink()
            else:
                for part in [entry for entry in self.folder.iterdir() if is_unfinished(entry)]:
                    shutil.rmtree(part / STEPS_NAME, ignore_errors=True)
                    if not any(part.iterdir()):
                        part.rmdir()
                shutil.rmtree(self._steps, ignore_errors=True)
                if self._head.made:
                    for folder in (self.folder, self.folder.parent if self.folder.parent.name == PARENT else None):
                        if folder is not None:
                            folder.rmdir()  # one that holds something stays
        self._close()

    def _close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def leave(self) -> None:
        """Let another process go on from here."""
        self._close()

    @contextlib.contextmanager
    def as_begun(self) -> Iterator[None]:
        """The random generators as they stood when the first process began; afterwards, as they stand now."""
        now = Generators.now()
        if self.resumed and self.generators is not None:
            self.generators.put_in_place()
        try:
            yield
        finally:
            if self.resumed:
                now.put_in_place()


PARENT = "graphprobe-diagnosis"
"""The folder that gets the folders of diagnoses for which nobody has named one."""


def begun_in(parent: Path, identity: Identity | None) -> Path | None:
    """The newest folder in `parent` with unfinished steps of this identity that no other process is at work on."""
    if identity is None or not parent.is_dir():
        return None
    for folder in sorted((f for f in parent.iterdir() if f.is_dir()), reverse=True):
        head = _head_of(folder)
        if head is not None and head.identity.holds(identity):
            try:
                _locked(folder / STEPS_NAME).close()
            except (OSError, UsageError):
                continue
            return folder
    return None


def is_unfinished(folder: Path) -> bool:
    """Whether a folder is that of a diagnosis, or of a script's, that has been begun and not ended."""
    return _head_of(folder) is not None


def clear(folder: Path) -> None:
    """Take away what an unfinished diagnosis has written into a folder, and nothing else."""
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() and is_unfinished(entry):
            clear(entry)
            with contextlib.suppress(OSError):
                entry.rmdir()
        elif _is_of_a_finding(entry):
            shutil.rmtree(entry, ignore_errors=True)
    shutil.rmtree(folder / STEPS_NAME, ignore_errors=True)


def _is_of_a_finding(entry: Path) -> bool:
    if not entry.is_dir() or entry.is_symlink():
        return False
    return (
        any((entry / sign).exists() for sign in SIGNS)
        or HALF.fullmatch(entry.name) is not None
        or not any(entry.iterdir())
    )


def _head_of(folder: Path) -> StepsHead | None:
    try:
        head = msgspec.msgpack.decode((folder / STEPS_NAME / STEPS_HEAD).read_bytes(), type=StepsHead)
    except (OSError, msgspec.MsgspecError, ValueError):
        return None
    return head if head.schema == SCHEMA else None


def _locked(steps: Path) -> IO[bytes]:
    """The file that one process at a time has; its children do not, and it is free once the process is gone."""
    file = (steps / "lock").open("ab")
    try:
        import fcntl

        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:  # not Unix
        return file
    except OSError as error:
        file.close()
        raise UsageError(
            f"another process diagnoses into {steps.parent}", hint="wait for it, or name another folder"
        ) from error
    return file


def _without(value: Any, values: list[Any]) -> Any:
    """The value with a number in the place of each large piece of bytes, which goes to `values`."""
    if isinstance(value, bytes) and len(value) >= LARGE:
        values.append(value)
        return msgspec.msgpack.Ext(1, (len(values) - 1).to_bytes(8, "little"))
    if isinstance(value, dict):
        return {key: _without(item, values) for key, item in value.items()}
    return [_without(item, values) for item in value] if isinstance(value, list | tuple) else value


def _with(value: Any, values: list[bytes]) -> Any:
    if isinstance(value, msgspec.msgpack.Ext):
        return values[int.from_bytes(value.data, "little")]
    if isinstance(value, dict):
        return {key: _with(item, values) for key, item in value.items()}
    return [_with(item, values) for item in value] if isinstance(value, list) else value


def _read(path: Path) -> tuple[Kept, Outcome] | None:
    """A step with its outcome whole; None where there is none that can be read."""
    try:
        data = memoryview(path.read_bytes())
        at = 8 + int.from_bytes(data[:8], "little")
        kept = msgspec.msgpack.decode(data[8:at], type=Kept)
    except (OSError, msgspec.MsgspecError, ValueError):
        return None
    if min(kept.sizes, default=0) < 0 or at + sum(kept.sizes) != len(data):
        return None
    ends = list(accumulate(kept.sizes, initial=at))
    values = [bytes(data[begin:end]) for begin, end in pairwise(ends)]
    return kept, msgspec.structs.replace(kept.outcome, value=_with(kept.outcome.value, values))
