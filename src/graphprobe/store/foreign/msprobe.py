"""Reader of msprobe's dumps (`mindstudio-probe`): `dump.json`, `stack.json`, `construct.json`, `dump_tensor_data/`."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from graphprobe.errors import ArtifactNotFoundError, SchemaError, UsageError
from graphprobe.records import TensorMeta
from graphprobe.store.calls import Call, CallDirection, CallKind, CallSlot, Scalar, SlotRole
from graphprobe.store.dump_dtypes import Array, bits_from_values
from graphprobe.store.files import read_file
from graphprobe.store.foreign.checked import decoded, float_of, mapped_npy, read_tensor, shape_of, stats_from_known
from graphprobe.store.foreign.names import Counter, MsprobeName, api_from_foreign, msprobe_name, source_of
from graphprobe.store.schema import UNREADABLE

DUMP, STACK, CONSTRUCT, TENSORS = "dump.json", "stack.json", "construct.json", "dump_tensor_data"
_STEP = re.compile(r"step(\d{1,18})")
_RANK = re.compile(r"rank(\d{0,18})")
_PROC = re.compile(r"proc(\d{1,18})")
_FRAME = re.compile(r"File (?P<file>.*), line (?P<line>\d+), in (?P<function>[^,]*), *\n *(?P<code>.*)", re.DOTALL)

EDGE_NOTE = (
    "msprobe has the gradients that leave the last autograd node of an API, in the node's order: they are those of the"
    " arguments only where the API is one node",
)
"""`linear` on 3-D input ends in a view, so that only the view's gradient is there."""

NameOf = Callable[[str], str]
"""For the name of a tensor's file, why it is missing; empty when it is there."""

_FIELDS = {"Max": "max", "Min": "min", "Mean": "mean", "Norm": "l2"}
_TENSOR_WORDS = ("shape", "dtype")
_TEXT_OF = {
    "dtype": "{}", "ReduceOp": "{}", "memory_format": "torch.{}", "Size": "torch.Size({})", "ellipsis": "Ellipsis",
}  # fmt: skip
"""How an argument is written, by the name of its type."""
_GROUPS: dict[tuple[str, CallDirection], tuple[SlotRole, str]] = {
    ("input_args", "forward"): ("input", "input"),
    ("args", "forward"): ("input", "input"),
    ("input", "forward"): ("input", "input"),
    ("input_kwargs", "forward"): ("input", "kwarg"),
    ("kwargs", "forward"): ("input", "kwarg"),
    ("output", "forward"): ("output", "output"),
    ("parameters", "forward"): ("parameter", "parameter"),
    ("input", "backward"): ("grad_output", "grad_output"),
    ("output", "backward"): ("grad_input", "grad_input"),
    ("parameters_grad", "backward"): ("grad_parameter", "grad_parameter"),
}


class _Head(msgspec.Struct):
    """`dump.json`, with each record left as text until it is asked for."""

    data: dict[str, msgspec.Raw]
    task: str | None = None
    level: str | None = None
    framework: str | None = None


_TEXTS = tuple(name for name in _Head.__struct_fields__ if name != "data")


class _Place(NamedTuple):
    rank: int
    step: int
    folder: Path


class MsprobeDump:
    """An msprobe dump as `CallDump`.

    A module's `parameters_grad` are slots of its backward. An operator such as `__add__` has the name of the method
    that torch runs for it. Statistics are as msprobe wrote them: of all elements, in the tensor's own dtype, so `max`
    may be NaN or infinite.
    """

    format = "msprobe"

    def __init__(self, path: Path) -> None:
        """Open a dump.

        Args:
            path: `dump_path` of the run, a folder `stepN` or `rankN` of it, or a `dump.json`.

        Raises:
            UsageError: there is no `dump.json`.
        """
        self.title = str(path)
        self._problems: dict[str, None] = {}
        self._places = {(place.rank, place.step): place.folder for place in self._found(path)}
        if not self._places:
            raise UsageError(
                f"no msprobe dump at {path}: no {DUMP} in it, in step*/, in rank*/ or in step*/rank*/",
                hint="pass the dump_path of its config, or a folder that has dump.json",
            )
        self.facts: dict[str, str] = {"statistics": "computed in the dtype of the tensor"}
        self._index: dict[Path, dict[str, Path]] = {}
        head = self._head(next(iter(self._places.values())))
        for name in ("task", "level", "framework"):
            if value := getattr(head, name):
                self.facts[name] = value

    def ranks(self) -> tuple[int, ...]:
        """The ranks, ascending; 0 for a folder without a number."""
        return tuple(sorted({rank for rank, _ in self._places}))

    def steps(self, rank: int) -> tuple[int, ...]:
        """The steps of a rank, ascending; 0 for a dump without folders of steps."""
        return tuple(sorted(step for other, step in self._places if other == rank))

    def problems(self) -> tuple[str, ...]:
        return tuple(self._problems)

    def calls(self, rank: int, step: int) -> Iterator[Call]:
        """The calls in the order of `dump.json`, which is that in which they ended."""
        folder = self._places.get((rank, step))
        if folder is None:
            return
        data = self._head(folder).data
        parents, stacks = self._parents(folder), self._stacks(folder)
        used: set[str] = set()
        counter, position = Counter(), 0
        for label, raw in data.items():
            name = msprobe_name(label)
            if name is None:
                self._problem(f"{folder.name}/{DUMP}: {label} is no name of a call")
                continue
            if label in used:
                continue
            record = self._record(label, raw)
            grads = {}
            if name.part == "backward" and name.kind == "Module":
                grads = {g: data[g] for g in _grads_of(name) if g in data}
            elif name.part == "parameters_grad":
                if f"Module.{name.module}.{name.name}.backward.{name.number}" in data:
                    continue  # it belongs to that record, before or after this one
                grads, record = {label: raw}, {}
            used |= grads.keys()
            extra = {key: self._record(key, value) for key, value in grads.items()}
            yield self._call(label, name, record, extra, position, (rank, step), counter, parents, stacks)
            position += 1

    def values(self, call: Call, slot: CallSlot) -> Array:
        folder = self._places.get((call.rank, call.step))
        if folder is None or not slot.value or slot.meta is None:
            raise ArtifactNotFoundError(f"{call.label} {slot.name} has no values in {self.title}")
        path = folder / TENSORS / slot.value
        if path.suffix == ".npy":
            return bits_from_values(mapped_npy(path), slot.meta.dtype)
        bits, dtype = read_tensor(path)
        if dtype != slot.meta.dtype or bits.shape != slot.meta.shape:
            raise ArtifactNotFoundError(
                f"{path} holds {dtype}{list(bits.shape)}, dump.json says {slot.meta.dtype}{list(slot.meta.shape)}"
            )
        return bits

    def _found(self, path: Path) -> Iterator[_Place]:
        if path.is_file():
            path = path.parent
        steps = [(int(m[1]), p) for p in _folders(path) if (m := _STEP.fullmatch(p.name))]
        own = _STEP.fullmatch(path.name) or _STEP.fullmatch(path.parent.name)
        for step, folder in sorted(steps) or [(int(own[1]) if own else 0, path)]:
            yield from (_Place(rank, step, place) for rank, place in self._ranks_below(folder))

    def _ranks_below(self, folder: Path) -> Iterator[tuple[int, Path]]:
        if (folder / DUMP).is_file():
            own = _RANK.fullmatch(folder.name)
            yield int(own[1] or 0) if own else 0, folder
            return
        found = [p for p in _folders(folder) if (p / DUMP).is_file()]
        yield from sorted((int(m[1] or 0), p) for p in found if (m := _RANK.fullmatch(p.name)))
        processes = sorted((int(m[1]), p) for p in found if (m := _PROC.fullmatch(p.name)))
        if len(processes) > 1:
            self._problem(f"{folder.name} has folders of {len(processes)} processes without rank, numbered by their id")
        yield from ((number, p) for number, (_, p) in enumerate(processes))

    def _head(self, folder: Path) -> _Head:
        path = folder / DUMP
        data = read_file(path)
        if not data.strip():
            raise SchemaError(f"{path} is empty", hint="msprobe was ended before it wrote its records; run it again")
        try:
            return msgspec.json.decode(data, type=_Head)
        except UNREADABLE:
            pass
        try:  # Python writes NaN and Infinity, which JSON has not
            whole = json.loads(data)
            texts = {name: value for name in _TEXTS if isinstance(value := whole.get(name), str)}
            return _Head(
                {key: msgspec.Raw(json.dumps(value).encode()) for key, value in whole["data"].items()}, **texts
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise SchemaError(f"{path} is no dump of msprobe: {error}", hint="it may be cut off; dump again") from error

    def _record(self, label: str, raw: msgspec.Raw) -> dict[str, Any]:
        found = decoded(bytes(raw))
        if isinstance(found, dict):
            return found
        self._problem(f"{DUMP}: {label} has no record")
        return {}

    def _parents(self, folder: Path) -> dict[str, str]:
        """Path of the module around each call."""
        found = self._json(folder / CONSTRUCT)
        result = {}
        for name, parent in found.items() if isinstance(found, dict) else ():
            parent = parent[0] if isinstance(parent, list) and parent else parent
            module = msprobe_name(parent) if isinstance(parent, str) else None
            if module is not None and module.kind == "Module":
                result[name] = module.module
        return result

    def _stacks(self, folder: Path) -> dict[str, tuple[str, ...]]:
        found = self._json(folder / STACK)
        result = {}
        for key, entry in found.items() if isinstance(found, dict) else ():
            if isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], list):
                stack = tuple(map(_frame, entry[1])) if isinstance(entry[1], list) else ()
                result.update(dict.fromkeys([name for name in entry[0] if isinstance(name, str)], stack))
            elif isinstance(entry, list):  # before release 2.0: the call's name, and its frames
                result[key] = tuple(map(_frame, entry))
        return result

    def _json(self, path: Path) -> Any:
        try:
            data = read_file(path)
            return msgspec.json.decode(data) if data.strip() else {}
        except FileNotFoundError:
            return {}
        except (OSError, *UNREADABLE) as error:
            self._problem(f"{path.name} cannot be read: {error}")
            return {}

    def _call(
        self,
        label: str,
        name: MsprobeName,
        record: dict[str, Any],
        grads: dict[str, dict[str, Any]],
        position: int,
        place: tuple[int, int],
        counter: Counter,
        parents: dict[str, str],
        stacks: dict[str, tuple[str, ...]],
    ) -> Call:
        is_module = name.kind == "Module"
        direction: CallDirection = "forward" if name.part == "forward" else "backward"
        api = api_from_foreign(name.kind, name.name)
        slots: list[CallSlot] = []
        there = self._files(self._places[place])
        for group, value in record.items():
            slots += slots_of_group(group, value, direction, there, of_node=not is_module)
        for values in grads.values():
            slots += slots_of_group("parameters_grad", values, direction, there)
        forward = label.replace(f".{name.part}", ".forward")
        stack = stacks.get(label) or stacks.get(forward, ())
        kind: CallKind = "module" if is_module else "api"
        return Call(
            position=position,
            kind=kind,
            api=api,
            label=label,
            direction=direction,
            index=counter.number(kind, api, name.pair, direction),
            step=place[1],
            rank=place[0],
            module=name.module if is_module else parents.get(label, ""),
            source=source_of(stack),
            stack=stack,
            slots=tuple(slots),
            notes=EDGE_NOTE if direction == "backward" and not is_module else (),
        )

    def _files(self, folder: Path) -> NameOf:
        """Tells why a file is missing, or an empty text when it is there."""
        if folder not in self._index:
            tensors = folder / TENSORS
            self._index = {folder: {p.name: p for p in tensors.iterdir()} if tensors.is_dir() else {}}
        names = self._index[folder]
        return lambda file: "" if file in names else f"{file} is not in {TENSORS}"

    def _problem(self, text: str) -> None:
        self._problems[text] = None


def _folders(path: Path) -> list[Path]:
    try:
        return [p for p in path.iterdir() if p.is_dir()]
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error}", hint="pass the folder of an msprobe dump") from error


def _grads_of(name: MsprobeName) -> tuple[str, ...]:
    core = f"Module.{name.module}.{name.name}.parameters_grad"
    return (f"{core}.{name.number}", core) if name.number == 0 else (f"{core}.{name.number}",)


def _frame(frame: Any) -> str:
    found = _FRAME.fullmatch(str(frame).strip())
    if found is None:
        return " ".join(str(frame).split())
    return f"{found['file']}:{found['line']} in {found['function']}: {found['code'].strip()}"


def slots_of_group(
    group: str, value: Any, direction: CallDirection, missing: NameOf, *, of_node: bool = False
) -> Iterator[CallSlot]:
    """The slots of a group of a record, `input_args`, `output` and so on; of a group that is not known, none.

    The inputs of a backward are gradients with respect to the outputs; `of_node`: its outputs are those of an autograd
    node, as they are for an API.
    """
    found = _GROUPS.get((group, direction))
    if found is None:
        return
    role, head = found
    if of_node and role == "grad_input":
        head = "grad_input.node"
    if group == "parameters_grad" and isinstance(value, dict):
        # each parameter has a list of one, which is no sequence of the program
        value = {name: item[0] if isinstance(item, list) and len(item) == 1 else item for name, item in value.items()}
    elif isinstance(value, dict) and _is_leaf(value):  # an output that was no tuple, in older releases
        value = [value]
    yield from _slots(value, role, head, missing)


def _slots(value: Any, role: SlotRole, name: str, missing: NameOf) -> Iterator[CallSlot]:
    if value is None:
        if role == "input":  # None, or an object that msprobe does not describe
            yield CallSlot(name=name, role=role, scalar=Scalar("NoneType", "None"))
        return
    if isinstance(value, list) and value and not _has_tensor(value):
        yield CallSlot(name=name, role=role, scalar=Scalar("list", _plain_text(value)))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _slots(item, role, f"{name}.{index}", missing)
    elif isinstance(value, dict) and _is_leaf(value):
        yield _slot(value, role, name, missing)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _slots(item, role, f"{name}.{key}", missing)


def _has_tensor(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_has_tensor, value))
    if isinstance(value, dict):
        return "dtype" in value if _is_leaf(value) else any(map(_has_tensor, value.values()))
    return False


def _plain_text(value: Any) -> str:
    """A sequence of plain arguments as one text, in square brackets whatever it was: the format tells no tuples."""
    if isinstance(value, list):
        return f"[{', '.join(map(_plain_text, value))}]"
    if isinstance(value, dict) and _is_leaf(value):
        return _scalar(value).text
    return repr(value)


def _is_leaf(value: dict[str, Any]) -> bool:
    return isinstance(value.get("type"), str) and ("value" in value or "shape" in value or len(value) <= 4)


def _slot(item: dict[str, Any], role: SlotRole, name: str, missing: NameOf) -> CallSlot:
    if not all(word in item for word in _TENSOR_WORDS):
        return CallSlot(name=name, role=role, scalar=_scalar(item))
    shape = shape_of(item["shape"] or [])
    if shape is None:
        return CallSlot(name=name, role=role, missing=f"its shape is {str(item['shape'])[:80]}")
    meta = _meta(str(item["dtype"]), shape)
    known = {field: number for key, field in _FIELDS.items() if (number := _number(item.get(key))) is not None}
    digest = item.get("md5")
    file = item.get("data_name")
    file = file if isinstance(file, str) and file not in ("-1", "") and "/" not in file else ""
    why = missing(file) if file else ""
    return CallSlot(
        name=name,
        role=role,
        meta=meta,
        stats=stats_from_known(math.prod(shape), known),
        known=tuple(known),
        digest="" if digest is None else str(digest),
        digest_kind=_kind_of(digest),
        value="" if why else file,
        missing=why,
        requires_grad=grad if isinstance(grad := item.get("requires_grad"), bool) else None,
    )


@functools.lru_cache(maxsize=4096)
def _meta(dtype: str, shape: tuple[int, ...]) -> TensorMeta:
    return TensorMeta(dtype.removeprefix("torch."), shape)


def _kind_of(digest: Any) -> str:
    """msprobe calls any of its checksums `md5`; since release 26 it is a CRC-32, or an exclusive or of words."""
    if digest is None:
        return ""
    text = str(digest)
    return {8: "crc32", 32: "md5"}.get(len(text), "xor") if isinstance(digest, str) else "xor"


def _number(value: Any) -> float | None:
    if type(value) is float:
        return value
    if isinstance(value, str):
        return float(value) if value in ("NaN", "Infinity", "-Infinity", "nan", "inf", "-inf") else None
    return float_of(value) if isinstance(value, (int, float)) else None


def _scalar(item: dict[str, Any]) -> Scalar:
    """As our own dumps tell it: the name of the type without its module, and its `repr` in Python."""
    kind = str(item["type"]).rpartition(".")[2]
    value = item.get("value", item.get("format", item.get("group_ranks")))
    if kind in _TEXT_OF:
        return Scalar(kind, _TEXT_OF[kind].format(value))
    if kind == "device":
        name, _, index = str(value).partition(":")
        where = f", index={index}" if index.isdigit() else ""
        return Scalar(kind, f"device(type={name!r}{where})")
    if kind == "slice" and isinstance(value, list) and len(value) == 3:
        return Scalar(kind, f"slice({value[0]}, {value[1]}, {value[2]})")
    return Scalar(kind, value if isinstance(value, str) and kind != "str" else repr(value))
