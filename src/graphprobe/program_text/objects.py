"""Objects of a record as Python expressions."""

from __future__ import annotations

import builtins
import collections
import inspect
import keyword
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from graphprobe.engine.values import capture
from graphprobe.program_text.encoding import Encoded, Encoder
from graphprobe.program_text.libraries import vars_of
from graphprobe.program_text.loading import instance
from graphprobe.program_text.plain_values import (
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
from graphprobe.program_text.program import TextProgram

STORED = "stored"
"""Function of the script that fetches a tensor from the file: name, dtype, shape."""
INSTANCE, INSTANCE_CALL = "instance", re.compile(r"\binstance\(")
"""Function of the script that makes an object without its constructor: class, attributes by name."""
INSTANCE_TEXT = re.sub(r": Any| -> Any", "", inspect.getsource(instance).rstrip())
LONG = 12
"""Lines of an expression beyond which it gets a name."""
MUTABLE = frozenset({"list", "set", "dict", "tensor", "array", "instance", "call", "inner"})
FILLED_LATER = frozenset({"list", "set", "dict", "instance"})
"""What can be empty at first, and so ends a cycle."""
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


class LeadsBack(Exception):
    """An object leads back to itself: the number of one on the way that can be filled later."""


class ObjectTexts:
    """Expressions for values, which `encoder` has recorded; statements that they need first go to `statement`.

    Args:
        filled: numbers of objects that get what they hold at the end.
    """

    def __init__(
        self,
        encoder: Encoder,
        program: TextProgram,
        reserved: Collection[str],
        filled: Collection[int] = (),
        *,
        draws: bool = False,
    ) -> None:
        self.draws, self.drawn = draws, False
        self.encoder, self.objects, self.program, self.filled = encoder, encoder.objects, program, filled
        self.flat: list[torch.Tensor] = []

        def keep(flat: torch.Tensor) -> dict[str, int | str]:
            self.flat.append(flat)
            return {}

        self.captured = capture(encoder.tensors, rng=False, put=keep)
        self.later: list[Callable[[], None]] = []
        self.made: dict[int, str] = {}
        self.names = FreeNames(reserved)
        self.texts_of: dict[str, Statements] = {"": Statements()}
        self.imports: dict[str, set[str]] = {"": {"import torch"}}
        self.count: collections.Counter[int] = references(encoder.objects)
        self.stored: dict[str, torch.Tensor] = {}
        self._open: list[int] = []
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

    # -- expressions --------------------------------------------------------------------------------------------------

    def text(self, value: Encoded, hint: str, *, keeps: bool = False, needed: bool = False) -> str:
        """An expression. What is used more than once gets a name before, unless it `keeps` the one it is given.

        Args:
            needed: no placeholder does.
        """
        if not isinstance(value, dict):
            return number_text(value)
        number = value["ref"]
        if number in self.made:
            return self.made[number]
        record = self.objects[number]
        if number in self._open:
            self.lead_back(number)
            raise Unwritable(f"{hint} leads back to itself")
        self._open.append(number)
        try:
            text: str = getattr(self, f"_{record['kind']}")(record, number, hint)
        except Unwritable as reason:
            if needed or not self.program.in_place or record["kind"] == "class":
                raise
            text = self._missing(number, hint, str(reason))
        finally:
            self._open.pop()
        if number in self.made:
            return self.made[number]
        if record["kind"] in NAMED:
            self.made[number] = text
        elif not keeps and record["kind"] in MUTABLE and (self.count[number] > 1 or text.count("\n") > LONG):
            return self.named(number, text, hint)
        return text

    def lead_back(self, number: int) -> None:
        """Begin anew where something on the way to a number that is open can be filled later."""
        for other in self._open[self._open.index(number) :]:
            record = self.objects[other]
            if other not in self.filled and record["kind"] in FILLED_LATER and record.get("base") not in PLAIN:
                raise LeadsBack(other)

    def _missing(self, number: int, hint: str, reason: str) -> str:
        value = self.encoder.value_at(number)
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        self.encoder.placeholders.append({"path": hint, "type": kind, "reason": reason})
        return f"missing({kind!r}, {reason!r})"

    def named(self, number: int, text: str, hint: str) -> str:
        """Give an object a name here."""
        name = self.made[number] = self.names.free(hint)
        self.statement(f"{name} = {text}")
        return name

    def texts(self, values: list[Encoded], hint: str) -> list[str]:
        """Each of them."""
        return [self.text(value, hint) for value in values]

    def _list(self, record: Any, number: int, hint: str) -> str:
        return self._held(number, hint, "[]", "{}[:] = {}", lambda: joined("[", self.texts(record["items"], hint), "]"))

    def _held(self, number: int, hint: str, empty: str, fill: str, text: Callable[[], str]) -> str:
        """What holds others: whole or, where it leads back to itself, empty and filled at the end."""
        if number not in self.filled:
            return text()
        name = self.named(number, empty, hint)
        self.later.append(lambda: self.statement(fill.format(name, text())))
        return name

    def _tuple(self, record: Any, number: int, hint: str) -> str:
        parts = self.texts(record["items"], hint)
        return f"({parts[0]},)" if len(parts) == 1 else joined("(", parts, ")")

    def _set(self, record: Any, number: int, hint: str) -> str:
        if not record["items"]:
            return "set()"
        return self._held(
            number, hint, "set()", "{}.update({})", lambda: joined("{", self.texts(record["items"], hint), "}")
        )

    def _frozenset(self, record: Any, number: int, hint: str) -> str:
        return f"frozenset({joined('[', self.texts(record['items'], hint), ']')})"

    def _dict(self, record: Any, number: int, hint: str) -> str:
        return self._held(number, hint, "{}", "{}.update({})", lambda: joined("{", self._pairs(record, hint), "}"))

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
        known, plain = self._record(record["tensor"]), tensor
        plain = plain.conj() if known["conj"] else plain
        plain = torch.ops.aten._neg_view(plain) if known["neg"] else plain
        size = f"{tuple(tensor.shape)}, {tensor.stride()}"
        several = any(step == 0 and n > 1 for step, n in zip(tensor.stride(), tensor.shape, strict=True))
        shared = False
        if "base" in record and not (known["conj"] or known["neg"]):
            base = self.encoder.value_at(record["base"]["ref"])
            text = self.text(record["base"], f"{hint}_base", needed=True)
            text += ".detach()" if base.requires_grad and not tensor.requires_grad else ""
            text += f".as_strided({size}, {record['offset']})"
            shared = bool(base.requires_grad)
        elif self._sharing[known["storage"]] > 1 or several:
            text = self._of_memory(known, size)
        else:
            base, shaped = contiguous_of(plain.detach())
            text = self._dense(base, hint) + shaped
        text = f"torch.ops.aten._neg_view({text})" if known["neg"] else text
        text += ".conj()" if known["conj"] else ""
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
        if tensor.numel() == 1:  # it counts as contiguous with any stride
            tensor = tensor.clone(memory_format=torch.contiguous_format)
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

    def _of_memory(self, known: Mapping[str, Any], size: str) -> str:
        """A tensor on flat memory, which several share, none of them being a view of another."""
        storage, dtype = known["storage"], getattr(torch, known["dtype"])
        names = list(self.captured.doc["storages"])
        entry, flat = self.captured.doc["storages"][storage], self.flat[names.index(storage)]
        users = {v["dtype"] for v in self.captured.doc["values"] if v.get("storage") == storage}
        whole = len(users) == 1
        if storage not in self._memory:
            name = self._memory[storage] = self.names.free("memory")
            place = "" if entry["device"] == "cpu" else f".to({entry['device']!r})"
            text = self._dense(flat.view(dtype), name) if whole else self._from_file(flat, name)
            self.statement(f"{name} = {text}{place}")
        name = self._memory[storage]
        part = "" if whole else f"[:{len(flat) // dtype.itemsize * dtype.itemsize}].view({dtype})"
        return f"{name}{part}.as_strided({size}, {known['storage_offset'] - entry['first_byte'] // dtype.itemsize})"

    def _array(self, record: Any, number: int, hint: str) -> str:
        value = self.encoder.value_at(number)
        array, numpy = np.asarray(value), self.imported("numpy")
        order = ', order="F"' if record["order"] == "F" else ""
        if array.size <= MOST_INLINE and array.dtype.kind in "biufc":
            numbers = list_text(array.tolist(), number_text)
            if record["scalar"]:
                return f"{numpy}.{array.dtype}({numbers})"
            shaped = f".reshape({array.shape})" if array.size == 0 else ""
            return f'{numpy}.array({numbers}, dtype="{array.dtype}"{order}){shaped}'
        flat = torch.frombuffer(bytearray(array.tobytes("A")) or bytearray(1), dtype=torch.uint8)[: array.nbytes]
        text = f'{self._from_file(flat, hint)}.numpy().view("{array.dtype.str}").reshape({array.shape}{order})'
        return f"{text}[()]" if record["scalar"] else text

    # -- what a library knows -----------------------------------------------------------------------------------------

    def _import(self, record: Any, number: int, hint: str) -> str:
        module, name = record["module"], record["qualname"]
        if module == "builtins":
            return str(name)
        value = self.encoder.value_at(number)
        module = _place_of(value, module, name)
        if not reached(module):  # torch.optim.adam is a module that torch.optim has no name for
            top, dot, rest = name.partition(".")
            alias = self.names.free(top)
            self.imports[""].add(f"from {module} import {top} as {alias}")
            return f"{alias}{dot}{rest}"
        return f"{self.imported(module)}.{name}"

    def _call(self, record: Any, number: int, hint: str) -> str:
        called = self.encoder.value_at(record["callable"]["ref"])
        parts = self.texts(record["args"], hint)
        name = record["args"][1] if called is getattr else ""
        if isinstance(name, str) and name.isidentifier():
            return f"{parts[0]}.{name}"
        parts += [f"{name}={self.text(value, name)}" for name, value in record.get("kwargs", {}).items()]
        text = joined(f"{self.text(record['callable'], hint, needed=True)}(", parts, ")")
        if any(name in record for name in ("attributes", "state", "items", "pairs")):
            text = self.named(number, text, hint)
            for name, value in (record.get("attributes", {}) if self.program.in_place else {}).items():
                self.statement(f"{text}.{name} = {self.text(value, name)}")
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
        kind = self.text(record["class"], type(live).__name__, needed=True)
        state = {**record.get("state", {}), **record.get("slots", {})}
        if number in self.filled:
            return self._filled(record, number, kind, hint)
        if issubclass(type(live), torch.nn.Module):
            made = self._constructed(number) if self.draws else None
            return made or self._module_instance(kind, state, live, hint)
        if base == "object" and not self.program.told_alone:
            return joined(f"{INSTANCE}(", [kind, *self._arguments(state, hint)], ")")
        text = self._new(record, kind, live, hint)
        filled = text.startswith(f"{self._base(base)}.__new__(")
        if state or (filled and base not in (*PLAIN, "object", "BaseException")):
            text = self.named(number, text, hint)
            self._fill(text, record, live, hint, content=filled)
        return text

    def _new(self, record: Any, kind: str, live: Any, hint: str) -> str:
        """An expression for it without attributes; without what it contains, too, where its class is the program's."""
        base = record["base"]
        if base in PLAIN:
            return f"{base}.__new__({kind}, {self.text(record['content'], hint)})"
        if base == "BaseException":
            return joined(f"{base}.__new__(", [kind, *self.texts(record["items"], hint)], ")")
        if type(live) in (collections.OrderedDict, collections.defaultdict, collections.deque):
            given = [self.text(record["content"], hint)] if base == "defaultdict" else []
            if base == "deque":
                items = joined("[", self.texts(record["items"], hint), "]")
                return f"{kind}({items}, {record['content']!r})"
            pairs = [joined("{", self._pairs(record, hint), "}")] if record["pairs"] else []
            return joined(f"{kind}(", [*given, *pairs], ")")
        if base in ("deque", "defaultdict") and not self.program.in_place:
            raise Unwritable(f"{hint} is of a class made from {base}")
        return f"{self._base(base)}.__new__({kind})"

    def _base(self, base: str) -> str:
        return base if hasattr(builtins, base) else f"{self.imported('collections')}.{base}"

    def _filled(self, record: Any, number: int, kind: str, hint: str) -> str:
        """An object without what it holds, which comes at the end."""
        live = self.encoder.value_at(number)
        name = self.named(number, f"{self._base(record['base'])}.__new__({kind})", hint)
        self.later.append(lambda: self._fill(name, record, live, hint, content=True, at_once=True))
        return name

    def _fill(self, name: str, record: Any, live: Any, hint: str, *, content: bool, at_once: bool = False) -> None:
        """Statements that put attributes into an object and, if so asked, what it contains."""
        base, state = record["base"], {**record.get("state", {}), **record.get("slots", {})}
        if content and base in ("deque", "defaultdict"):
            given = "(), " + repr(record["content"]) if base == "deque" else self.text(record["content"], hint)
            self.statement(f"{self._base(base)}.__init__({name}, {given})")
        if content and "pairs" in record:
            put = f"{self._base('OrderedDict')}.update" if base == "OrderedDict" else "dict.update"
            self.statement(f"{put}({name}, {joined('{', self._pairs(record, hint), '}')})")
        elif content and base in ("list", "set", "deque"):
            put = "update" if base == "set" else "extend"
            items = joined("[", self.texts(record["items"], hint), "]")
            self.statement(f"{self._base(base)}.{put}({name}, {items})")
        if at_once and record.get("state"):
            pairs = [f"{key!r}: {self.text(value, key)}" for key, value in record["state"].items()]
            self.statement(joined(f"object.__getattribute__({name}, '__dict__').update({{", pairs, "})"))
            state = record.get("slots", {})
        plainly = vars_of(type(live))["__setattr__"] is vars(object)["__setattr__"]
        for key, value in state.items():
            usual, attribute = plainly and key.isidentifier(), self.text(value, key)
            put = f"{name}.{key} = {attribute}" if usual else f"object.__setattr__({name}, {key!r}, {attribute})"
            self.statement(put)

    def _arguments(self, state: Mapping[str, Encoded], hint: str) -> list[str]:
        usual = {name: value for name, value in state.items() if name.isidentifier() and not keyword.iskeyword(name)}
        found = [f"{name}={self.text(value, f'{hint}_{name}')}" for name, value in usual.items()]
        other = [f"{name!r}: {self.text(state[name], hint)}" for name in state if name not in usual]
        return [*found, *([joined("**{", other, "}")] if other else [])]

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
        if not self.program.in_place:
            raise Unwritable(f"{hint}: {record['reason']}")
        return f"missing({record['type']!r}, {record['reason']!r})"

    def _inner(self, record: Any, number: int, hint: str) -> str:
        """A function that was made inside of one of a library."""
        cells = {name: self.objects[cell["ref"]] for name, cell in zip(record["free"], record["closure"], strict=True)}
        given = [f"{name!r}: {self.text(cell['value'], name)}" for name, cell in cells.items() if "value" in cell]
        place = [repr(record[key]) for key in ("module", "qualname", "line", "at")]
        text = joined("made_in(", [*place, joined("{", given, "}")], ")")
        more = dict(record.get("state", {}))
        if record["defaults"] or record["kwdefaults"] or more:
            text = self.named(number, text, hint)
            if record["defaults"]:
                self.statement(f"{text}.__defaults__ = {joined('(', [*self.texts(record['defaults'], hint), ''], ')')}")
            named = [f"{name!r}: {self.text(value, name)}" for name, value in record["kwdefaults"].items()]
            self.statement(f"{text}.__kwdefaults__ = {joined('{', named, '}') if named else None}")
            for name, value in more.items():
                self.statement(f"{text}.{name} = {self.text(value, name)}")
        return text


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
