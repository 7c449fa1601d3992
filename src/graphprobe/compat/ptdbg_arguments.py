"""Arguments of the functions in `compat.ptdbg`, checked before anything runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from graphprobe.errors import UsageError
from graphprobe.settings import Option
from graphprobe.store.foreign.names import PtdbgName, ptdbg_name

MODES = {1: "all", 2: "list", 3: "range", 4: "stack"}
"""Of `set_dump_switch`."""

SEED = Option("seed", "number", most=2**32 - 1)
DUMP_STEP = Option("dump_step", "number", 1, least=1, most=100)
OVERFLOW_NUMS = Option("overflow_nums", "number", 1, least=1)
COMPARE_KEYS = ("npu_pkl_path", "bench_pkl_path", "npu_dump_data_dir", "bench_dump_data_dir")
_EXAMPLE = '"1478_Tensor_permute" or "1484_Tensor_transpose_forward"'


class Scope(NamedTuple):
    """Which calls `set_dump_switch` asks for: `names` are taken apart, as they were written in `texts`."""

    mode: int
    names: tuple[PtdbgName, ...] = ()
    texts: tuple[str, ...] = ()


def checked_seed(seed: Any) -> int:
    """A seed that python, numpy and torch take."""
    return _checked_number(SEED, seed, "seed_all(1234)")


def checked_dump_path(path: Any) -> Path:
    """The file that a dump is to be written to: its folder is there and can be written to."""
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise UsageError(f"path={path!r}: expected a file name", hint='set_dump_path("./npu_dump.pkl")')
    file = Path(path)
    if file.is_dir() or str(path).endswith(("/", os.sep)):
        raise UsageError(
            f"path={str(path)!r} is a folder: expected the name of a file in it",
            hint=f"set_dump_path({str(file / 'npu_dump.pkl')!r})",
        )
    parent = file.absolute().parent
    if not parent.is_dir():
        raise UsageError(f"path={str(path)!r}: there is no folder {parent}", hint="make it first, or pass another path")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UsageError(f"path={str(path)!r}: {parent} cannot be written to", hint="pass a path in another folder")
    return file.absolute()


def checked_switch(switch: Any, mode: Any, scope: Any) -> tuple[bool, Scope]:
    """Whether to begin, and what to take."""
    if switch not in ("ON", "OFF"):
        raise UsageError(f"switch={switch!r}: expected 'ON' or 'OFF'", hint='set_dump_switch("ON")')
    if not isinstance(mode, int) or isinstance(mode, bool) or mode not in MODES:
        told = ", ".join(f"{number} ({name})" for number, name in MODES.items())
        raise UsageError(f"mode={mode!r}: expected one of {told}", hint='set_dump_switch("ON", mode=1)')
    if isinstance(scope, str) or not isinstance(scope, Sequence) or not all(isinstance(one, str) for one in scope):
        raise UsageError(f"scope={scope!r}: expected a list of names of calls", hint=f"a name is {_EXAMPLE}")
    texts = tuple(scope)
    if mode == 1 and texts:
        raise UsageError(
            f"scope={list(texts)!r} with mode=1, which dumps every call",
            hint="mode=2 dumps just these calls, mode=3 those from the first to the second",
        )
    if mode == 2 and not texts:
        raise UsageError("scope=[] with mode=2: expected the names of the calls to dump", hint=f"a name is {_EXAMPLE}")
    if mode in (3, 4) and len(texts) != 2:
        raise UsageError(
            f"scope={list(texts)!r} with mode={mode}: expected two names, the first call and the last",
            hint=f"a name is {_EXAMPLE}",
        )
    names = tuple(map(_checked_name, texts))
    if mode in (3, 4):
        _check_order(names, texts)
    return switch == "ON", Scope(mode, names, texts)


def _checked_name(text: str) -> PtdbgName:
    name = ptdbg_name(text)
    if name is None or name.side or name.is_stack:
        raise UsageError(
            f"scope has {text!r}: expected a number, a kind and an API, with or without a direction",
            hint=f"e.g. {_EXAMPLE}; the first dump has the names",
        )
    return name


def _check_order(names: tuple[PtdbgName, ...], texts: tuple[str, ...]) -> None:
    first, last = names
    if first.counted or last.counted:
        odd = texts[0] if first.counted else texts[1]
        raise UsageError(
            f"scope has {odd!r}, whose number counts the calls of one API: expected the number of the call in front",
            hint=f"a range goes by the number of the call among all: {_EXAMPLE}",
        )
    backwards = all(text.endswith("_backward") for text in texts)
    if first.number > last.number and not backwards:
        raise UsageError(
            f"scope={list(texts)!r} is reversed: call {first.number} comes after call {last.number}",
            hint="name the earlier call first",
        )


def checked_dump_step(options: Mapping[str, Any]) -> int:
    """`dump_step` of `register_hook(model, acc_cmp_dump, ...)`."""
    _check_known(options, DUMP_STEP, "acc_cmp_dump")
    hint = "1 keeps every element, 2 every second of the middle, and so on"
    return _checked_number(DUMP_STEP, options.get("dump_step", DUMP_STEP.default), hint)


def checked_overflow_nums(options: Mapping[str, Any]) -> int:
    """`overflow_nums` of `register_hook(model, overflow_check, ...)`."""
    _check_known(options, OVERFLOW_NUMS, "overflow_check")
    hint = "3 stops the training at the third overflow"
    return _checked_number(OVERFLOW_NUMS, options.get("overflow_nums", OVERFLOW_NUMS.default), hint)


def _checked_number(row: Option, value: Any, hint: str) -> int:
    number = row.converted(value)
    if number is None:
        raise UsageError(f"{row.name}={value!r}: expected {row.accepted()}", hint=hint)
    return int(number)


def _check_known(options: Mapping[str, Any], row: Option, hook: str) -> None:
    for name, value in options.items():
        if name != row.name:
            raise UsageError(
                f"{name}={value!r}: register_hook(model, {hook}) takes {row.name}",
                hint=f"register_hook(model, {hook}, {row.name}=1)",
            )


def checked_pair(param: Any) -> dict[str, Path]:
    """The four paths of `compare`."""
    if not isinstance(param, Mapping):
        raise UsageError(
            f"input_param={param!r}: expected a dictionary", hint=f"with the keys {', '.join(COMPARE_KEYS)}"
        )
    if odd := sorted(set(map(str, param)) ^ set(COMPARE_KEYS)):
        missing = [key for key in COMPARE_KEYS if key not in param]
        what = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(odd)}, which nobody reads"
        raise UsageError(f"input_param {what}", hint=f"it has the keys {', '.join(COMPARE_KEYS)}")
    found = {}
    for key in COMPARE_KEYS:
        value = param[key]
        if not isinstance(value, str | os.PathLike) or not str(value):
            raise UsageError(f"{key}={value!r}: expected a path", hint="pass what a dump has written")
        path = Path(value)
        if not (path.is_file() if key.endswith("pkl_path") else path.is_dir()):
            kind = "file" if key.endswith("pkl_path") else "folder"
            raise UsageError(f"{key}={str(value)!r}: there is no such {kind}", hint="pass what a dump has written")
        found[key] = path
    return found


def checked_output(path: Any) -> Path:
    """The folder that a result is to be written to."""
    if not isinstance(path, str | os.PathLike) or not str(path) or not Path(path).is_dir():
        raise UsageError(f"output_path={path!r}: there is no such folder", hint="make it first, or pass another one")
    if not os.access(path, os.W_OK | os.X_OK):
        raise UsageError(f"output_path={str(path)!r} cannot be written to", hint="pass another folder")
    return Path(path)
