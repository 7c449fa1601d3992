"""Live values as records of what they consist of. Nothing of the program's own code runs for it."""

from __future__ import annotations

import collections
import struct
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch

from graphprobe.engine.values import why_not
from graphprobe.internals.dynamo.frame_failures import uncompiled
from graphprobe.program_text import libraries
from graphprobe.program_text.sources import NotRecordable

MOST_OBJECTS = 200_000
MOST_ITEMS = 100_000
"""Of one container. More is a data set, not an argument."""
MADE_OF = (object, dict, list, set, collections.OrderedDict, collections.defaultdict, collections.deque)
PLAIN = (type(None), bool, int, float, complex, str, bytes)
"""Values that stand for themselves."""
CONTENT = (tuple, str, bytes, int, float, frozenset)
HEAP_TYPE = 1 << 9
"""Flag of classes that are made at run time, as those of Python text are."""

Encoded = Any
"""A plain value, or `{"ref": position}`."""

_ARGS = vars(BaseException)["args"].__get__


class Encoder:
    """Collects objects, each once, so that what is shared stays shared and cycles end.

    Args:
        program: records functions, classes and modules; see `program.Program`.

    Attributes:
        objects: records by position.
        tensors: the tensors that `tensor` and `array` records count.
        placeholders: what could not be recorded.
    """

    def __init__(self, program: Callable[[Encoder], Any]) -> None:
        self.objects: list[dict[str, Any]] = []
        self.tensors: list[torch.Tensor] = []
        self.placeholders: list[dict[str, str]] = []
        self._known: dict[int, int] = {}
        self._alive: list[Any] = []
        self.program = program(self)

    def encode(self, value: Any, path: str) -> Encoded:
        """A plain value, or where its record is; `path` says where it was found, for placeholders."""
        if type(value) in PLAIN and not (type(value) is bytes and len(value) > MOST_ITEMS):
            return value
        value = uncompiled(value)  # what Dynamo goes on with, too
        number = self._known.get(id(value))
        return {"ref": number if number is not None else self._add(value, path)}

    def record(self, value: Any) -> dict[str, Any]:
        """A new record for a value, empty until it is filled: what leads back to the value finds it already."""
        if len(self.objects) >= MOST_OBJECTS:
            raise NotRecordable(f"the frame leads to more than {MOST_OBJECTS} objects")
        entry: dict[str, Any] = {}
        self._known[id(value)] = len(self.objects)
        self._alive.append(value)
        self.objects.append(entry)
        return entry

    def encode_all(self, values: Iterable[Any], path: str) -> list[Encoded]:
        """Each of them; `path` gets their positions."""
        return [self.encode(value, f"{path}[{i}]") for i, value in enumerate(values)]

    def encode_names(self, values: Mapping[str, Any], path: str) -> dict[str, Encoded]:
        """Values by name."""
        return {name: self.encode(value, f"{path}.{name}") for name, value in values.items() if type(name) is str}

    def encode_pairs(self, pairs: Iterable[tuple[Any, Any]], path: str) -> list[list[Encoded]]:
        """Keys with their values."""
        return [[self.encode(k, f"{path}.key"), self.encode(v, f"{path}[{_shown(k)}]")] for k, v in pairs]

    def value_at(self, number: int) -> Any:
        """The live value that object `number` describes."""
        return self._alive[number]

    def _add(self, value: Any, path: str) -> int:
        entry = self.record(value)
        number = self._known[id(value)]
        try:
            entry.update(self._described(value, entry, path))
        except NotRecordable as reason:
            entry.clear()
            entry.update(self._placeholder(value, str(reason), path))
        return number

    def _placeholder(self, value: Any, reason: str, path: str) -> dict[str, Any]:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        self.placeholders.append({"path": path, "type": kind, "reason": reason})
        return {"kind": "placeholder", "type": kind, "reason": reason}

    def _described(self, value: Any, entry: dict[str, Any], path: str) -> dict[str, Any]:
        kind = type(value)
        if kind is libraries.RebuildCall:
            return self.call(value, entry, path)
        if self.program.stated(value, entry, path) is not None:
            return entry
        if issubclass(kind, torch.Tensor):
            return self._tensor(value, entry, path)
        if issubclass(kind, np.ndarray | np.generic):
            return self._array(value)
        if kind in (list, tuple, set, frozenset, dict, bytes):
            return self._container(value, entry, path)
        found = self.program.describe(value, entry, path)
        if found is not None:
            return found  # type: ignore[no-any-return]
        call = libraries.call_of(value)
        return self._instance(value, entry, path) if call is None else self.call(call, entry, path)

    def _tensor(self, value: torch.Tensor, entry: dict[str, Any], path: str) -> dict[str, Any]:
        if value.is_meta and type(value) in (torch.Tensor, torch.nn.Parameter):
            return self.call(libraries.meta_tensor(value), entry, path)
        reason = why_not(value)
        if reason is not None:
            raise NotRecordable(reason)
        self.tensors.append(value)
        entry |= {"kind": "tensor", "tensor": len(self.tensors) - 1}
        base = value._base if value._is_view() else None
        if base is not None and base.dtype == value.dtype and type(value) is torch.Tensor and why_not(base) is None:
            entry |= {"base": self.encode(base, f"{path}._base"), "requires_grad": value.requires_grad}
            entry["offset"] = value.storage_offset() - base.storage_offset()
        if value.is_leaf and value.grad is not None:
            entry["grad"] = self.encode(value.grad, f"{path}.grad")
        state = {k: v for k, v in vars(value).items() if type(k) is str and not k.startswith("_backward_hooks")}
        if state:
            entry["state"] = self.encode_names(state, path)
        return entry

    def _array(self, value: Any) -> dict[str, Any]:
        array = np.asarray(value)
        if array.dtype.hasobject or array.dtype.names is not None or type(value) in (np.ma.MaskedArray, np.matrix):
            raise NotRecordable(f"numpy {type(value).__name__} of {array.dtype}")
        order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
        return {"kind": "array", "order": order, "scalar": isinstance(value, np.generic)}

    def _container(self, value: Any, entry: dict[str, Any], path: str) -> dict[str, Any]:
        if len(value) > MOST_ITEMS:
            raise NotRecordable(f"{len(value)} items; at most {MOST_ITEMS} are recorded")
        entry["kind"] = type(value).__name__
        if type(value) is dict:
            entry["pairs"] = self.encode_pairs(list(value.items()), path)
        else:
            entry["items"] = self.encode_all(list(value), path)
        return entry

    def call(self, call: libraries.RebuildCall, entry: dict[str, Any], path: str) -> dict[str, Any]:
        """The record of a value that a call makes anew."""
        entry |= {"kind": "call", "callable": self.encode(call.function, f"{path}.type"), "args": []}
        entry["args"] = self.encode_all(call.args, path)
        self._check(entry["callable"], "what makes it")
        if entry["args"]:
            self._check(entry["args"][0], "what it is of")
        if call.kwargs:
            entry["kwargs"] = self.encode_names(call.kwargs, path)
        if call.attributes:
            entry["attributes"] = self.encode_names(call.attributes, path)
        if call.state is not None:
            entry["state"] = self.encode(call.state, f"{path}.state")
        if call.items:
            entry["items"] = self.encode_all(call.items, path)
        if call.pairs:
            entry["pairs"] = self.encode_pairs(call.pairs, path)
        return entry

    def _instance(self, value: Any, entry: dict[str, Any], path: str) -> dict[str, Any]:
        kind = type(value)
        base = base_of(kind)
        if issubclass(kind, torch.fx.GraphModule | torch.jit.ScriptModule):
            raise NotRecordable("its class was made at run time")
        if base is None:
            raise NotRecordable("made by C code, which keeps its state to itself")
        entry |= {"kind": "instance", "base": base.__name__}
        entry["class"] = self.encode(kind, f"{path}.class")
        self._check(entry["class"], "its class")
        if base in CONTENT:
            entry["content"] = self.encode(
                base(value) if base is not tuple else tuple.__getitem__(value, slice(None)), path
            )
        elif base is BaseException:
            entry["items"] = self.encode_all(_ARGS(value), f"{path}.args")
        elif base in (list, set, collections.deque):
            entry["items"] = self.encode_all(list(base.__iter__(value)), path)
        if base is collections.deque:
            entry["content"] = value.maxlen
        elif base is collections.defaultdict:
            entry["content"] = self.encode(value.default_factory, f"{path}.default_factory")
        if issubclass(base, dict):
            entry["pairs"] = self.encode_pairs(list(base.items(value)), path)
        self._state(value, entry, path)
        return entry

    def _check(self, part: Encoded, what: str) -> None:
        record = self.objects[part["ref"]] if isinstance(part, dict) else {}
        if record.get("kind") == "placeholder":
            raise NotRecordable(f"{what} is not recorded: {record['reason']}")

    def _state(self, value: Any, entry: dict[str, Any], path: str) -> None:
        try:
            state = object.__getattribute__(value, "__dict__")
        except AttributeError:
            state = {}
        if issubclass(type(value), torch.nn.Module):
            state = {**state, "_compiled_call_impl": None} if "_compiled_call_impl" in state else state
        if type(state) is dict and state:
            entry["state"] = self.encode_names(state, path)
        slots = {}
        for owner in type(value).__mro__:
            for name, member in vars(owner).items():
                if type(member) is types.MemberDescriptorType and owner.__flags__ & HEAP_TYPE:
                    try:
                        slots[name] = member.__get__(value)
                    except AttributeError:  # never set
                        continue
        if slots:
            entry["slots"] = self.encode_names(slots, path)


def base_of(kind: type) -> Any:
    """The builtin class that an object of this class is made of; None where C code adds something of its own."""
    solid = next(owner for owner in kind.__mro__ if not owner.__flags__ & HEAP_TYPE or owner in MADE_OF)
    if issubclass(kind, BaseException):
        return BaseException
    if solid not in (*MADE_OF, *CONTENT):
        return None
    own = [owner for owner in kind.__mro__ if owner.__flags__ & HEAP_TYPE and owner not in MADE_OF]
    return solid if all(_written_in_python(owner) for owner in own) else None


def _written_in_python(kind: type) -> bool:
    """Whether objects hold no more than attributes; classes of C may be made at run time too."""
    slots = sum(type(member) is types.MemberDescriptorType for member in vars(kind).values())
    pointer = struct.calcsize("P")
    parents = max((parent.__basicsize__ for parent in kind.__bases__), default=0)
    extra = kind.__basicsize__ - parents
    return extra <= pointer * (slots + 2) and not hasattr(kind, "__cpp_type__")


def _shown(key: Any) -> str:
    return repr(key) if type(key) in (str, int, bool, float) else type(key).__name__
