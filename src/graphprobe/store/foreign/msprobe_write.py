"""Writer of msprobe's layout, for its own comparison and other tools: `stepN/rankN/dump.json` and what goes with it.

Names and parents of calls as msprobe has them, given out as calls come.
"""

from __future__ import annotations

import ast
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any, TextIO

from graphprobe.errors import ArtifactNotFoundError, UsageError
from graphprobe.records import TensorStats
from graphprobe.store.calls import Call, CallDump, CallSlot, Scalar
from graphprobe.store.foreign.msprobe import CONSTRUCT, DUMP, STACK, TENSORS
from graphprobe.store.foreign.names import OPERATORS, file_stem, foreign_from_api
from graphprobe.store.foreign.pt_file import write_tensor
from graphprobe.store.foreign.summary import summary_from_stats

_OPERATORS = {
    method: operator
    for operator, method in OPERATORS.items()
    if operator not in ("__radd__", "__rmul__", "__div__", "__idiv__")
}
"""By method. torch runs the same for both; the operator is what most programs use."""


class MsprobeNames:
    """`Functional.linear.0.forward`, `Module.layers.0.Linear.forward.0`; numbers count a name's forward calls."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = defaultdict(int)
        self._numbers: dict[tuple[str, str, int], int] = {}
        self._backwards: dict[tuple[str, str, int], int] = {}

    def label(self, call: Call) -> str:
        """The name of the next call."""
        core = self._core(call)
        number = self._number(call, core)
        if call.kind == "module":
            return f"{core}.{call.direction}.{number}"
        return f"{core}.{number}.{call.direction}"

    def grads_label(self, call: Call) -> str:
        """The name of the record with the parameters' gradients of the module's backward that was named last."""
        core = self._core(call)
        return f"{core}.parameters_grad.{self._numbers.get((call.kind, core, call.index), 0)}"

    def _core(self, call: Call) -> str:
        if call.kind == "module":
            return ".".join(filter(None, ("Module", call.module, call.api)))
        kind, name = foreign_from_api(call.api)
        written_out = any(f".{name}(" in frame for frame in call.stack[:1])
        return f"{kind}.{_OPERATORS.get(name, name) if kind == 'Tensor' and not written_out else name}"

    def _number(self, call: Call, core: str) -> int:
        key = (call.kind, core, call.index)
        if call.direction == "backward":
            if call.index >= 0 and key in self._numbers:
                return self._numbers[key]
            key = (call.kind, core, -2 - self._seen[core])
        number = self._seen[core]
        self._seen[core] += 1
        self._numbers[key] = number
        return number


class Tree:
    """Which module's run is around each call, found out at the end: a dump may tell a module before or after it."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], list[str]] = defaultdict(list)
        self._children: list[tuple[str, str, str, int]] = []
        self._inside: set[tuple[str, str]] = set()
        self._module_first = False

    def add(self, call: Call, label: str) -> None:
        """Note a call, in the order of the dump."""
        if call.kind == "module":
            path = call.module.rpartition(".")[0]
            self._runs[call.direction, call.module].append(label)
        else:
            path = call.module
            key = (call.direction, path)
            if call.direction == "forward" and self._runs.get(key) and key not in self._inside:
                self._module_first = True
            self._inside.add(key)
        self._children.append((label, call.direction, path, len(self._runs.get((call.direction, path), ()))))

    def parents(self) -> dict[str, str | None]:
        """By name of a call, the name of the module's run around it; None at the top."""
        result: dict[str, str | None] = {}
        for label, direction, path, before in self._children:
            while path and (direction, path) not in self._runs:
                path = path.rpartition(".")[0]
            runs = self._runs.get((direction, path), [])
            number = before - 1 if self._module_first else before
            result[label] = runs[max(0, min(number, len(runs) - 1))] if path and runs else None
        return result


_GROUPS = {
    "input": "input_args",
    "kwarg": "input_kwargs",
    "output": "output",
    "parameter": "parameters",
    "grad_output": "input",
    "grad_input": "output",
    "grad_kwarg": "output",
}
_FILES = {
    "input": "input",
    "kwarg": "kwargs",
    "output": "output",
    "parameter": "parameters",
    "grad_output": "input",
    "grad_input": "output",
    "grad_kwarg": "output",
}
WRITER = "graphprobe"
"""A key of ours in `dump.json`: arguments and gradients are told as our own dumps tell them."""

_DEVICE = re.compile(r"device\(type='([^']*)'(?:, index=(\d+))?\)")
_TORCH_TYPES = ("dtype", "device", "Size", "memory_format")


def write_msprobe(dump: CallDump, folder: Path, *, values: bool = True, overwrite: bool = False) -> tuple[str, ...]:
    """Write a dump in the layout of `mindstudio-probe` 26.

    Args:
        dump: any dump. Optimizer steps and nodes of compiled graphs have no place in this layout and are left out.
        folder: made if need be; must not hold a dump yet, unless `overwrite`.
        values: whether to write tensors (`task` is `tensor` then), and not statistics alone.
        overwrite: write over a dump of the same ranks and steps; files that are not replaced stay.

    Returns:
        What was left out, in words, each kind of it once.

    Raises:
        UsageError: the folder has a dump already, or to overwrite one of other ranks or steps.
        OSError: as the operating system gives it.
    """
    notes: dict[str, int] = defaultdict(int)
    levels = _levels(dump)
    places = {folder / f"step{step}" / f"rank{rank}" for rank in dump.ranks() for step in dump.steps(rank)}
    for found in sorted(folder.glob(f"step*/*/{DUMP}")):
        if not overwrite or found.parent not in places:
            raise UsageError(f"{found.parent} has a dump already", hint="pass a folder that is new or empty")
    for rank in dump.ranks():
        for step in dump.steps(rank):
            target = folder / f"step{step}" / f"rank{rank}"
            target.mkdir(parents=True, exist_ok=True)
            _StepWriter(dump, target, notes, level=levels, values=values).write(rank, step)
    return tuple(f"{text}: {count}" for text, count in notes.items())


def _levels(dump: CallDump) -> str:
    kinds: set[str] = set()
    for rank in dump.ranks()[:1]:
        for step in dump.steps(rank)[:1]:
            for call in dump.calls(rank, step):
                kinds.add(call.kind)
                if {"api", "module"} <= kinds:
                    return "mix"
    return "L0" if "module" in kinds else "L1"


class _StepWriter:
    """One step of one rank. Records are written as they come; names, stacks and parents are kept until the end."""

    def __init__(self, dump: CallDump, folder: Path, notes: dict[str, int], *, level: str, values: bool) -> None:
        self._dump = dump
        self._folder = folder
        self._notes = notes
        self._level = level
        self._values = values
        self._names = MsprobeNames()
        self._tree = Tree()
        self._stacks: dict[tuple[str, ...], list[str]] = {}

    def write(self, rank: int, step: int) -> None:
        tensors = self._folder / TENSORS
        if self._values:
            tensors.mkdir(exist_ok=True)
        head = {
            "task": "tensor" if self._values else "statistics",
            "level": self._level,
            "framework": "pytorch",
            "writer": self._dump.facts.get("writer") if self._dump.format == "msprobe" else WRITER,
            "dump_data_dir": str(tensors.absolute()) if self._values else None,
        }
        with open(self._folder / DUMP, "w", encoding="utf-8") as file:
            file.write(json.dumps(head, indent=1)[:-2] + ',\n "data": {')
            first = True
            for call in self._dump.calls(rank, step):
                if call.kind not in ("api", "module"):
                    self._notes[f"calls of kind {call.kind} left out"] += 1
                    continue
                first = self._write_call(file, call, first=first)
            file.write("\n }\n}\n")
        self._write_json(STACK, {str(n): [names, list(map(_frame, key))] for n, (key, names) in self._numbered()})
        self._write_json(CONSTRUCT, self._tree.parents())

    def _numbered(self) -> Any:
        return enumerate(self._stacks.items())

    def _write_json(self, name: str, value: Any) -> None:
        (self._folder / name).write_text(json.dumps(value, indent=1), encoding="utf-8")

    def _write_call(self, file: TextIO, call: Call, *, first: bool) -> bool:
        label = self._names.label(call)
        self._tree.add(call, label)
        if call.stack:
            self._stacks.setdefault(call.stack, []).append(label)
        grads = [slot for slot in call.slots if slot.role == "grad_parameter"]
        others = [slot for slot in call.slots if slot.role != "grad_parameter"]
        records = []
        if others or not grads:
            records.append((label, self._record(call, label, others)))
        if grads:
            name = self._names.grads_label(call)
            found = {}
            for slot in grads:
                parameter = slot.name.partition(".")[2]
                found[parameter] = [self._item(call, slot, f"{name}.{parameter}")]
            records.append((name, found))
        for name, record in records:
            file.write(("" if first else ",") + f"\n  {json.dumps(name)}: {json.dumps(record)}")
            first = False
        return first

    def _record(self, call: Call, label: str, slots: list[CallSlot]) -> dict[str, Any]:
        record: dict[str, Any]
        if call.direction == "forward":
            record = {"input_args": [], "input_kwargs": {}, "output": []}
        else:
            record = {"input": [], "output": []}
        for slot in slots:
            head, _, path = slot.name.partition(".")
            group, word = _GROUPS.get(head), _FILES.get(head)
            if group is None or word is None:
                self._notes[f"slots named {head} left out"] += 1
                continue
            path = path.removeprefix("node.")
            item = self._item(call, slot, f"{label}.{word}.{path}")
            if head == "grad_kwarg":  # after those of the arguments: this list has no names
                record[group].append(item)
            else:
                _place(record, [group, *path.split(".")] if group != "parameters" else [group, path], item)
        return record

    def _item(self, call: Call, slot: CallSlot, name: str) -> Any:
        if slot.meta is None:
            return None if slot.scalar is None else item_from_scalar(slot.scalar)
        item: dict[str, Any] = {
            "type": "torch.Tensor",
            "dtype": f"torch.{slot.meta.dtype}",
            "shape": list(slot.meta.shape),
            **_numbers(slot.stats),
        }
        if slot.requires_grad is not None:
            item["requires_grad"] = slot.requires_grad
        if self._values and slot.value:
            if slot.sampled:
                self._notes["sampled values left out, which this layout has not"] += 1
                return item
            try:
                file = f"{file_stem(name)}.pt"
                write_tensor(self._folder / TENSORS / file, self._dump.values(call, slot), slot.meta.dtype)
                item["data_name"] = file
            except (ArtifactNotFoundError, ValueError) as error:
                self._notes[f"values left out ({type(error).__name__})"] += 1
        return item


def item_from_scalar(scalar: Scalar) -> Any:
    """An argument that is no tensor as msprobe tells it; a sequence as a list of such."""
    if scalar.type in ("int", "float", "bool", "str", "list", "tuple", "NoneType"):
        try:
            return _item_from_value(ast.literal_eval(scalar.text))
        except (ValueError, SyntaxError):  # a number that is no literal, such as nan, or a text that was cut
            value = float(scalar.text) if scalar.text in ("nan", "inf", "-inf") else scalar.text
            return {"type": scalar.type, "value": value}
    if scalar.type == "device" and (found := _DEVICE.fullmatch(scalar.text)):
        return {"type": "torch.device", "value": f"{found[1]}:{found[2]}" if found[2] else found[1]}
    if scalar.type == "slice" and scalar.text.startswith("slice("):
        return {"type": "slice", "value": list(ast.literal_eval(scalar.text.removeprefix("slice")))}
    prefix = "torch." if scalar.type in _TORCH_TYPES else ""
    text = scalar.text.removeprefix("torch.") if scalar.type == "memory_format" else scalar.text
    return {"type": f"{prefix}{scalar.type}", "format" if scalar.type == "memory_format" else "value": text}


def _item_from_value(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_item_from_value(item) for item in value]
    return None if value is None else {"type": type(value).__name__, "value": value}


def _place(record: dict[str, Any], path: list[str], item: Any) -> None:
    """Put `item` into nested lists and dictionaries, filling gaps with None."""
    here: Any = record
    for word, after in zip(path, [*path[1:], None], strict=True):
        key: Any = int(word) if isinstance(here, list) and word.isdigit() else word
        if isinstance(here, list) and not isinstance(key, int):  # a dictionary in the place of a list
            key = len(here)
        if isinstance(here, list):
            here += [None] * (key + 1 - len(here))
        known = here[key] if isinstance(here, list) else here.get(key)
        if after is None:
            here[key] = item
            return
        if not isinstance(known, (list, dict)) or "type" in known:
            known = [] if after.isdigit() else {}
            here[key] = known
        here = known


def _numbers(stats: TensorStats | None) -> dict[str, float | None]:
    return dict(zip(("Max", "Min", "Mean", "Norm"), summary_from_stats(stats), strict=True))


def _frame(frame: str) -> str:
    """`file.py:12 in forward: x = 1` as msprobe's `File file.py, line 12, in forward, \\n x = 1`."""
    where, _, rest = frame.partition(" in ")
    file, _, line = where.rpartition(":")
    function, _, code = rest.partition(": ")
    return f"File {file}, line {line}, in {function}, \n {code}"
