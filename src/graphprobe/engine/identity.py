"""What must be as it was for the steps of a process that was ended to count for another: values, sources, versions."""

from __future__ import annotations

import hashlib
import os
import platform
import random
import sys
import sysconfig
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from graphprobe import __version__

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
    except (RuntimeError, TypeError, ValueError, NotImplementedError, OSError):  # values that nobody can read
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
    """A digest of the bytecode of a function, of a module's class: of what was made without a file, too."""
    made = hashlib.blake2b(digest_size=16)
    owner = getattr(fn, "__func__", fn)
    waiting: list[Any] = [getattr(owner, "__code__", None) or getattr(type(fn).forward, "__code__", None)]
    while waiting:
        code = waiting.pop()
        if isinstance(code, types.CodeType):
            plain = [c for c in code.co_consts if isinstance(c, (int, float, complex, str, bytes, bool, type(None)))]
            made.update(code.co_code + repr((code.co_names, code.co_varnames, plain)).encode())
            waiting += code.co_consts
    return made.hexdigest()


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
