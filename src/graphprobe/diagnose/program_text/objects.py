"""Objects of a record as Python expressions."""

from __future__ import annotations

import collections
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from graphprobe.diagnose.program_text.parts import TextProgram
from graphprobe.diagnose.program_text.plain_values import (
    FEW,
    MOST_INLINE,
    FreeNames,
    Unwritable,
    constructor_text,
    contiguous_of,
    dense_text,
    drawn_text,
    joined,
    list_text,
    number_text,
)
from graphprobe.engine.values import capture
from graphprobe.probe.frames.encoding import Encoded, Encoder
from graphprobe.probe.frames.libraries import vars_of

STORED = "stored"
"""Function of the script that fetches a tensor from the file: name, dtype, shape."""
INSTANCE = "instance"
"""Function of the script that makes an object without its constructor: class, attributes by name."""
INSTANCE_TEXT = f'''def {INSTANCE}(kind, **attributes):
    """An object with these attributes, without its constructor."""
    made = kind.__new__(kind)
    if isinstance(made, torch.nn.Module):
        torch.nn.Module.__init__(made)
    for name, value in attributes.items():
        if name in ("_parameters", "_buffers", "_modules"):
            getattr(made, name).update(value)
        else:
            object.__setattr__(made, name, value)
    return made'''
LONG = 12
"""Lines of an expression beyond which it gets a name."""
MUTABLE = frozenset({"list", "set", "dict", "tensor", "array", "instance", "call"})
WRITTEN_OUT = frozenset({"tuple", "frozenset", "cell"})
NAMED = frozenset({"function", "class", "stated", "module", "import"})
PLAIN = ("tuple", "str", "bytes", "int", "float", "frozenset")
PLACES = ("torch", "torch.nn", "torch.nn.functional", "torch.optim")
CONTAINERS = ("_parameters", "_buffers", "_modules")
OF_EVERY_MODULE = vars(torch.nn.Module())


class Statements:
    """Statements, with lines between definitions."""

    def __init__(self) -> None:
        self._text = ""
        self._was_definition = False

    def add(self, statement: str, *, definition: bool = False) -> None:
        between = "\n\n\n" if definition or self._was_definition else "\n"
        self._text += (between if self._text else "") + statement
        self._was_definition = definition

    def __str__(self) -> str:
        return self._text


class ObjectTexts:
    """Expressions for values, which `encoder` has recorded; statements that they need first go to `statement`."""

    def __init__(
        self, encoder: Encoder, program: TextProgram, reserved: Collection[str], *, draws: bool = False
    ) -> None:
        self.draws, self.drawn = draws, False
        self.encoder, self.objects, self.program = encoder, encoder.objects, program
        self.captured = capture(encoder.tensors, rng=False)
        self.made: dict[int, str] = {}
        self.names = FreeNames(reserved)
        self.texts_of: dict[str, Statements] = {"": Statements()}
        self.imports: dict[str, set[str]] = {"": {"import torch"}}
        self.count: collections.Counter[int] = references(encoder.objects)
        self.stored: dict[str, torch.Tensor] = {}
        self._open: set[int] = set()
        views = {id(record) for record in encoder.objects if "base" in record and record.get("kind") == "tensor"}
        owners = [r["tensor"] for r in encoder.objects if r.get("kind") == "tensor" and id(r) not in views]
        self._sharing = collections.Counter(self._record(i).get("storage") for i in owners)
        self._memory: dict[str, str] = {}

    def count_in_shared(self) -> None:
        """Count what a tuple or a cell holds as often as that: it is written out wherever it is used."""
        shared = [n for n, count in self.count.items() if count > 1 and self.objects[n].get("kind") in WRITTEN_OUT]
        while shared:
            for inner in _references(self.objects[shared.pop()]):
                self.count[inner] += 1
                if self.count[inner] == 2 and self.objects[inner].get("kind") in WRITTEN_OUT:
                    shared.append(inner)

    # -- statements and names ----------------------------------------------------------------------------------------

    def statement(self, text: str) -> None:
        """Put a statement here."""
        self.texts_of[""].add(text)

    def imported(self, module: str) -> str:
        """Have a module imported; what it is called."""
        self.imports[""].add(f"import {module}")
        return module

    def imported_from(self, module: str, name: str) -> str:
        """Have one thing of a module imported; what it is called."""
        alias = self.names.free(name.partition(".")[0])
        self.imports[""].add(f"from {module} import {name.partition('.')[0]} as {alias}")
        return alias + name[len(name.partition(".")[0]) :]

    # -- expressions --------------------------------------------------------------------------------------------------

    def text(self, value: Encoded, hint: str, *, keeps: bool = False) -> str:
        """An expression. What is used more than once gets a name before, unless it `keeps` the one it is given."""
        if not isinstance(value, dict):
            return repr(value)
        number = value["ref"]
        if number in self.made:
            return self.made[number]
        if number in self._open:
            raise Unwritable(f"{hint} leads back to itself")
        record = self.objects[number]
        self._open.add(number)
        text: str = getattr(self, f"_{record['kind']}")(record, number, hint)
        self._open.discard(number)
        if number in self.made:
            return self.made[number]
        if record["kind"] in NAMED:
            self.made[number] = text
        elif not keeps and record["kind"] in MUTABLE and (self.count[number] > 1 or text.count("\n") > LONG):
            return self.named(number, text, hint)
        return text

    def named(self, number: int, text: str, hint: str) -> str:
        """Give an object a name here."""
        name = self.made[number] = self.names.free(hint)
        self.statement(f"{name} = {text}")
        return name

    def texts(self, values: list[Encoded], hint: str) -> list[str]:
        """Each of them."""
        return [self.text(value, hint) for value in values]

    def _literal(self, record: Any, number: int, hint: str) -> str:
        return number_text(self.encoder.value_at(number))

    def _list(self, record: Any, number: int, hint: str) -> str:
        return joined("[", self.texts(record["items"], hint), "]")

    def _tuple(self, record: Any, number: int, hint: str) -> str:
        parts = self.texts(record["items"], hint)
        return f"({parts[0]},)" if len(parts) == 1 else joined("(", parts, ")")

    def _set(self, record: Any, number: int, hint: str) -> str:
        return joined("{", self.texts(record["items"], hint), "}") if record["items"] else "set()"

    def _frozenset(self, record: Any, number: int, hint: str) -> str:
        return f"frozenset({self._list(record, number, hint)})"

    def _dict(self, record: Any, number: int, hint: str) -> str:
        return joined("{", self._pairs(record, hint), "}")

    def _pairs(self, record: Any, hint: str) -> list[str]:
        found = []
        for key, value in record.get("pairs", ()):
            name = f"{hint}_{key}" if isinstance(key, str) else hint
            found.append(f"{self.text(key, hint)}: {self.text(value, name)}")
        return found

    # -- tensors and arrays -------------------------------------------------------------------------------------------

    def _record(self, position: int) -> dict[str, Any]:
        found: dict[str, Any] = self.captured.doc["values"][position]
        if found["kind"] != "tensor":
            raise Unwritable(f"a tensor cannot be read: {found['reason']}")
        return found

    def _tensor(self, record: Any, number: int, hint: str) -> str:
        tensor = self.encoder.tensors[record["tensor"]]
        known = self._record(record["tensor"])
        if known["conj"] or known["neg"]:
            raise Unwritable(f"{hint} is a conjugate or negative view")
        size = f"{tuple(tensor.shape)}, {tensor.stride()}"
        shared = False
        if "base" in record:
            base = self.encoder.value_at(record["base"]["ref"])
            text = self.text(record["base"], f"{hint}_base")
            text += ".detach()" if base.requires_grad and not tensor.requires_grad else ""
            text += f".as_strided({size}, {record['offset']})"
            shared = bool(base.requires_grad)
        elif self._sharing[known["storage"]] > 1:
            text = f"{self._memory_of(known, tensor)}.as_strided({size}, {known['storage_offset']})"
        else:
            base, shaped = contiguous_of(tensor.detach())
            text = self._dense(base, hint) + shaped
        if tensor.device.type != "cpu":
            text += f".to({str(tensor.device)!r})"
        if known["is_parameter"]:
            text = f"torch.nn.Parameter({text}{'' if tensor.requires_grad else ', requires_grad=False'})"
        elif tensor.requires_grad and not shared:
            text += ".requires_grad_()" if tensor.is_leaf else ".requires_grad_().clone()"
        extra = {**record.get("state", {}), **({"grad": record["grad"]} if "grad" in record else {})}
        if extra:
            text = self.named(number, text, hint)
            for name, value in extra.items():
                self.statement(f"{text}.{name} = {self.text(value, f'{hint}_{name}')}")
        return text

    def _dense(self, tensor: torch.Tensor, hint: str) -> str:
        text = dense_text(tensor, most=FEW if self.draws else MOST_INLINE, wide=self.draws)
        if text is None and self.draws:
            self.drawn = True
            return drawn_text(tensor.detach().cpu().contiguous())
        return text or self._from_file(tensor.detach().cpu().contiguous(), hint)

    def _from_file(self, tensor: torch.Tensor, hint: str) -> str:
        name, i = hint, 1
        while name in self.stored:
            i += 1
            name = f"{hint}_{i}"
        self.stored[name] = tensor.reshape(-1).view(torch.uint8) if tensor.numel() else tensor.view(-1).to(torch.uint8)
        return f"{STORED}({name!r}, {tensor.dtype}, {tuple(tensor.shape)})"

    def _memory_of(self, known: Mapping[str, Any], tensor: torch.Tensor) -> str:
        """The name of the flat memory that several tensors share, none of them being a view of another."""
        storage = known["storage"]
        if storage not in self._memory:
            users = [v for v in self.captured.doc["values"] if v.get("storage") == storage]
            if len({user["dtype"] for user in users}) > 1:
                raise Unwritable("tensors of several dtypes share memory")
            flat = self.captured.tensors[storage].view(tensor.dtype)
            name = self._memory[storage] = self.names.free("memory")
            self.statement(f"{name} = {self._dense(flat, name)}")
        return self._memory[storage]

    def _array(self, record: Any, number: int, hint: str) -> str:
        value = self.encoder.value_at(number)
        array, numpy = np.asarray(value), self.imported("numpy")
        if array.dtype.kind not in "biufc":
            raise Unwritable(f"{hint} is a numpy array of {array.dtype}")
        order = ', order="F"' if record["order"] == "F" else ""
        if array.size <= MOST_INLINE:
            numbers = list_text(array.tolist(), number_text)
            if record["scalar"]:
                return f"{numpy}.{array.dtype}({numbers})"
            shaped = f".reshape({array.shape})" if array.size == 0 else ""
            return f'{numpy}.array({numbers}, dtype="{array.dtype}"{order}){shaped}'
        flat = torch.frombuffer(bytearray(array.tobytes("A")), dtype=torch.uint8)
        return f'{self._from_file(flat, hint)}.numpy().view("{array.dtype.str}").reshape({array.shape}{order})'

    # -- what a library knows -----------------------------------------------------------------------------------------

    def _import(self, record: Any, number: int, hint: str) -> str:
        module, name = record["module"], record["qualname"]
        if module == "builtins":
            return str(name)
        value = self.encoder.value_at(number)
        module = _place_of(value, module, name)
        if not reached(module):  # torch.optim.adam is a module that torch.optim has no name for
            return self.imported_from(module, name)
        return f"{self.imported(module)}.{name}"

    def _call(self, record: Any, number: int, hint: str) -> str:
        called = self.encoder.value_at(record["callable"]["ref"])
        parts = self.texts(record["args"], hint)
        name = record["args"][1] if called is getattr else ""
        if isinstance(name, str) and name.isidentifier():
            return f"{parts[0]}.{name}"
        parts += [f"{name}={self.text(value, name)}" for name, value in record.get("kwargs", {}).items()]
        text = joined(f"{self.text(record['callable'], hint)}(", parts, ")")
        if any(name in record for name in ("state", "items", "pairs")):
            text = self.named(number, text, hint)
            if "state" in record:
                state = self.text(record["state"], hint)
                live = self.encoder.value_at(number)
                put = f"{text}.__setstate__" if hasattr(live, "__setstate__") else f"vars({text}).update"
                self.statement(f"{put}({state})")
            for item in record.get("items", ()):
                self.statement(f"{text}.append({self.text(item, hint)})")
            if record.get("pairs"):
                self.statement(f"{text}.update({joined('{', self._pairs(record, hint), '}')})")
        return text

    # -- instances ----------------------------------------------------------------------------------------------------

    def _instance(self, record: Any, number: int, hint: str) -> str:
        base, live = record["base"], self.encoder.value_at(number)
        kind = self.text(record["class"], type(live).__name__)
        state = {**record.get("state", {}), **record.get("slots", {})}
        if isinstance(live, torch.nn.Module):
            made = self._constructed(number) if self.draws else None
            return made or self._module_instance(kind, state, live, hint)
        content: str | None = None
        if base in PLAIN:
            text = f"{base}.__new__({kind}, {self.text(record['content'], hint)})"
        elif base == "BaseException":
            text = joined(f"{kind}.__new__(", [kind, *self.texts(record["items"], hint)], ")")
        elif base == "object" and self.program.told_alone:
            text = f"object.__new__({kind})"
        elif base == "object":
            text = joined(f"{INSTANCE}(", [kind, *self._arguments(state, hint)], ")")
            state = {}
        else:
            content = (
                joined("{", self._pairs(record, hint), "}") if "pairs" in record else self._list(record, number, hint)
            )
            plain = type(live) in (collections.OrderedDict, collections.defaultdict, collections.deque)
            given = [self.text(record["content"], hint)] if base == "defaultdict" else []
            if plain and base == "deque":
                text, content = f"{kind}({content}, {record['content']!r})", None
            elif plain:
                text, content = joined(f"{kind}(", [*given, *([content] if record["pairs"] else [])], ")"), None
            else:
                text = f"{kind}.__new__({kind})"
                if base in ("deque", "defaultdict"):
                    raise Unwritable(f"{hint} is of a class made from {base}")
        if content is not None or state:
            text = self.named(number, text, hint)
        if content is not None:
            put = {"list": "list.extend", "set": "set.update"}.get(base, "dict.update")
            if base == "OrderedDict":
                put = f"{self.imported('collections')}.OrderedDict.update"
            self.statement(f"{put}({text}, {content})")
        plainly = vars_of(type(live))["__setattr__"] is vars(object)["__setattr__"]
        for name, value in state.items():
            usual, attribute = plainly and name.isidentifier(), self.text(value, name)
            put = f"{text}.{name} = {attribute}" if usual else f"object.__setattr__({text}, {name!r}, {attribute})"
            self.statement(put)
        return text

    def _arguments(self, state: Mapping[str, Encoded], hint: str) -> list[str]:
        if not all(name.isidentifier() and name != "kind" for name in state):
            raise Unwritable(f"{hint} has attributes whose names are none in Python")
        return [f"{name}={self.text(value, f'{hint}_{name}')}" for name, value in state.items()]

    def _module_instance(self, kind: str, state: Mapping[str, Encoded], live: torch.nn.Module, hint: str) -> str:
        """A module: parameters, buffers, modules in it, and what differs from any module's attributes."""
        attributes, parts = dict(state), [kind]
        for name in CONTAINERS:
            held = attributes.pop(name, None)
            pairs = self.objects[held["ref"]]["pairs"] if isinstance(held, dict) else []
            inner = [f"{key!r}: {self.text(value, f'{hint}_{key}')}" for key, value in pairs]
            parts += [f"{name}={joined('{', inner, '}')}"] if inner else []
        own = vars(live)
        for name, usual in OF_EVERY_MODULE.items():
            if name in attributes and type(own.get(name)) is type(usual) and own[name] == usual:
                del attributes[name]
        return joined(f"{INSTANCE}(", [*parts, *self._arguments(attributes, hint)], ")")

    def _constructed(self, number: int) -> str | None:
        """A module of torch by a call, with new parameters; None where others hold parts of it, or none is found."""
        inner, left = collections.Counter[int](), [number]
        while left:
            found = {n: count for n, count in references(self.objects[left.pop()]).items() if n != number}
            left += [n for n in found if n not in inner]
            inner.update(found)
        parts = [n for n in inner if self.objects[n].get("kind") in ("tensor", "instance")]
        if any(inner[n] != self.count[n] for n in parts):
            return None
        text = constructor_text(self.encoder.value_at(number), self._named_class)
        self.drawn = self.drawn or text is not None
        return text

    def _named_class(self, kind: type) -> str:
        return f"{self.imported(_place_of(kind, kind.__module__, kind.__name__))}.{kind.__name__}"

    def _placeholder(self, record: Any, number: int, hint: str) -> str:
        raise Unwritable(f"{hint}: {record['reason']}")


def _place_of(value: Any, module: str, name: str) -> str:
    """The module that people take something of torch from."""
    short = (short for short in PLACES if getattr(sys.modules[short], name, None) is value)
    return next(short, module) if module.startswith("torch") else module


def reached(module: str) -> bool:
    """Whether a module is found by its dotted name, too."""
    found: Any = sys.modules.get(module.partition(".")[0])
    for part in module.split(".")[1:]:
        found = getattr(found, part, None)
    return found is sys.modules.get(module)


def _references(tree: Any) -> Iterator[int]:
    """Every reference to an object in JSON."""
    if isinstance(tree, dict):
        if len(tree) == 1 and isinstance(tree.get("ref"), int):
            yield tree["ref"]
        for value in tree.values():
            yield from _references(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _references(value)


def references(tree: Any) -> collections.Counter[int]:
    """How often each object is referred to in JSON."""
    return collections.Counter(_references(tree))
