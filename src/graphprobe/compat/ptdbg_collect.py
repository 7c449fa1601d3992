"""ptdbg's switch and `parse`: checks their arguments, collects with `graphprobe.dump`, writes ptdbg's layout."""

from __future__ import annotations

import logging
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from graphprobe.errors import GraphprobeWarning, UsageError
from graphprobe.settings import Option
from graphprobe.store.calls import Call, CallSlot
from graphprobe.store.foreign.names import PtdbgName, ptdbg_name

if TYPE_CHECKING:
    from graphprobe.store.foreign.ptdbg import WrittenName


MODES = {1: "all", 2: "list", 3: "range", 4: "stack"}
"""Of `set_dump_switch`."""

SEED = Option("seed", "number", most=2**32 - 1)
HOOKS = {
    "acc_cmp_dump": (
        Option("dump_step", "number", 1, least=1, most=100),
        "1 keeps every element, 2 every second of the middle, and so on",
    ),
    "overflow_check": (Option("overflow_nums", "number", 1, least=1), "3 stops the training at the third overflow"),
}
"""The option of each hook of `register_hook`, and a hint."""

COMPARE_KEYS = ("npu_pkl_path", "bench_pkl_path", "npu_dump_data_dir", "bench_dump_data_dir")
_EXAMPLE = '"1478_Tensor_permute" or "1484_Tensor_transpose_forward"'

logger = logging.getLogger("graphprobe")

_FIELDS = ("max", "min", "mean", "l2")


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


def checked_option(hook: str, options: Mapping[str, Any]) -> int:
    """The option of `register_hook(model, hook, ...)`: `dump_step` of `acc_cmp_dump`, else `overflow_nums`."""
    row, hint = HOOKS[hook]
    for name, value in options.items():
        if name != row.name:
            raise UsageError(
                f"{name}={value!r}: register_hook(model, {hook}) takes {row.name}",
                hint=f"register_hook(model, {hook}, {row.name}=1)",
            )
    return _checked_number(row, options.get(row.name, row.default), hint)


def _checked_number(row: Option, value: Any, hint: str) -> int:
    number = row.converted(value)
    if number is None:
        raise UsageError(f"{row.name}={value!r}: expected {row.accepted()}", hint=hint)
    return int(number)


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


class Selected:
    """Which calls a scope takes, asked in the order of execution; remembers which of its names were met."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._met: set[str] = set()
        self._others: dict[int, str] = {}

    def __call__(self, call: WrittenName) -> bool:
        scope = self._scope
        for name, text in zip(scope.names, scope.texts, strict=True):
            if _is(name, text, call):
                self._met.add(text)
            elif not name.counted and name.number == call.number:
                self._others[call.number] = call.text
        if scope.mode == 2:
            return any(_is(name, text, call) for name, text in zip(scope.names, scope.texts, strict=True))
        if scope.mode in (3, 4):
            first, last = sorted(name.number for name in scope.names)
            directions = {_direction(text) for text in scope.texts}
            wanted = len(directions) > 1 or None in directions or call.direction in directions
            return wanted and first <= call.number <= last
        return True

    def unmet(self) -> list[str]:
        """Names of the scope that no call had, in words."""
        found = []
        for name, text in zip(self._scope.names, self._scope.texts, strict=True):
            if text not in self._met:
                other = self._others.get(name.number)
                found.append(f"no call was {text}" + (f"; call {name.number} was {other}" if other else ""))
        return found


def _direction(text: str) -> str | None:
    return next((word for word in ("forward", "backward") if text.endswith(f"_{word}")), None)


def _is(name: PtdbgName, text: str, call: WrittenName) -> bool:
    number = call.api_index if name.counted else call.number
    same = (name.kind, name.name, name.number) == (call.kind, call.name, number)
    return same and _direction(text) in (None, call.direction)


def file_of_rank(pkl: Path) -> Path:
    """The text of this rank: in a folder `rank<N>` beside `pkl` where there are several, so that none is replaced."""
    import torch

    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return pkl
    if torch.distributed.get_world_size() == 1:
        return pkl
    folder = pkl.parent / f"rank{torch.distributed.get_rank()}"
    folder.mkdir(exist_ok=True)
    return folder / pkl.name


class Collecting:
    """One ON. What is collected lies beside the text until OFF, in a folder that any graphprobe command can read."""

    def __init__(self, pkl: Path, scope: Scope, dump_step: int) -> None:
        """Begin. Raises UsageError while another dump runs."""
        from graphprobe.probe.api.dump import dump
        from graphprobe.store.foreign.ptdbg import timestamped

        pkl = file_of_rank(pkl)
        self._pkl, self._scope, self._dump_step = pkl, scope, dump_step
        self.folder = timestamped(pkl.with_name(f"{pkl.stem}_collected"))
        try:
            if scope.mode == 4:
                self._dumper = dump(self.folder, mode="stack", optimizer="off", step_at="hand")
            else:
                sample = dump_step if dump_step > 1 else None
                stack = scope.mode != 1
                self._dumper = dump(
                    self.folder, data="tensor", sample=sample, stack=stack, optimizer="off", step_at="hand"
                )
            self._dumper.start()
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def finish(self) -> Path:
        """End, and write the files. Returns the folder of the values. Raises OSError; what was collected stays then."""
        from graphprobe.store.api_reader import open_api_dump
        from graphprobe.store.foreign.ptdbg import write_ptdbg

        self._dumper.close()
        found = open_api_dump(self.folder)
        selected = Selected(self._scope)
        folder = write_ptdbg(
            found,
            self._pkl,
            dump_step=self._dump_step,
            stacks=self._scope.mode != 1,
            values=self._scope.mode != 4,
            select=selected,
        )
        for text in (*selected.unmet(), *found.problems()):
            warnings.warn(text, GraphprobeWarning, stacklevel=4)
        shutil.rmtree(self.folder)
        logger.info("ptdbg: wrote %s and %s", self._pkl, folder)
        return folder


def lines_of_call(pkl: Any, text: Any) -> Iterator[str]:
    """The lines to print of each call that `text` names.

    Raises:
        UsageError: there is no such file or no such call in it, or the file is a pickle.
    """
    if not isinstance(pkl, str | os.PathLike) or not Path(pkl).is_file():
        raise UsageError(f"pkl={pkl!r}: there is no such file", hint='parse("./npu_dump.pkl", "21_Torch_norm")')
    wanted = ptdbg_name(text) if isinstance(text, str) else None
    if wanted is None or wanted.side or wanted.is_stack:
        raise UsageError(
            f"module_name={text!r}: expected the name of a call", hint='e.g. "21_Torch_norm" or "21_Torch_norm_forward"'
        )
    from graphprobe.store.foreign.ptdbg import PtdbgDump

    dump = PtdbgDump(Path(pkl))
    found, near = False, ""
    for call in dump.calls(dump.ranks()[0], 0):
        name = ptdbg_name(call.label)
        if name is None:
            continue
        if _is_wanted(name, wanted, text):
            found = True
            yield from _lines(call)
        elif not near and name.number == wanted.number and name.counted == wanted.counted:
            near = call.label
    if not found:
        raise UsageError(
            f"{pkl} has no call {text}" + (f"; call {wanted.number} is {near}" if near else ""),
            hint="the names are the first items of its lines",
        )


def _is_wanted(name: PtdbgName, wanted: PtdbgName, text: str) -> bool:
    same = (name.kind, name.name, name.number, name.counted) == wanted[1:5]
    either = not text.endswith(("_forward", "_backward"))
    return same and (either or name.direction == wanted.direction)


def _lines(call: Call) -> Iterator[str]:
    yield call.label
    if call.stack:
        yield "  stack, innermost first:"
        yield from (f"    {frame}" for frame in call.stack)
    for slot in call.slots:
        yield f"  {slot.name}: {_described(slot)}"


def _described(slot: CallSlot) -> str:
    if slot.meta is None:
        return "" if slot.scalar is None else f"{slot.scalar.type} {slot.scalar.text}"
    text = f"{slot.meta.dtype} {list(slot.meta.shape)}"
    for name in _FIELDS:
        if name in slot.known and slot.stats is not None:
            text += f" {name} {getattr(slot.stats, name):.6g}"
    return text
