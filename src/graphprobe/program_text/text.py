"""Writes a program as Python that a person can read: definitions as in their files, nested ones too, and values.

What the program needs is found as for the record of a frame (`program`, `values`); here it becomes text instead of
JSON.
"""

from __future__ import annotations

import ast
import dis
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

import torch

from graphprobe.internals.quiet import quiet
from graphprobe.program_text.encoding import Encoded, Encoder
from graphprobe.program_text.loading import HELPERS, ROOTS, VALUES
from graphprobe.program_text.objects import MUTABLE, LeadsBack, ObjectTexts, Statements, references
from graphprobe.program_text.plain_values import Unwritable, joined
from graphprobe.program_text.program import TextProgram, plain_function
from graphprobe.program_text.sources import (
    Definition,
    NotRecordable,
    _Module,
    defining_names,
    definitions_of,
    functions_of,
    global_names,
    imported_as,
    literals_of,
    read_when_defined,
)

LOCALS = "<locals>."

INDENT = "    "

FUTURE = "from __future__ import annotations"


@dataclass
class Member:
    """One of them: its number among the objects, its name and text, what it takes by name."""

    number: int
    name: str
    node: ast.stmt | ast.Lambda
    takes: dict[str, Encoded]


@dataclass
class FunctionGroup:
    """Those that one call of a function made: a name means the same in all of them."""

    module: str  # name of their module
    maker: str  # name of the function around them
    members: list[Member] = field(default_factory=list)  # in the order of the text
    given: dict[str, Encoded] = field(default_factory=dict)  # what they take and is none of them, by name

    def fits(self, member: Member) -> bool:
        """Whether the member's names mean here what they mean to it."""
        means: dict[str, Any] = {}
        for other in self.members:
            means |= other.takes | {other.name: {"ref": other.number}}
        mine = member.takes | {member.name: {"ref": member.number}}
        return all(means.get(name, value) == value for name, value in mine.items())

    def close(self) -> None:
        """All members are there."""
        self.members.sort(key=lambda member: (member.node.lineno, member.node.col_offset))
        names = {member.name: member.number for member in self.members}
        for member in self.members:
            self.given |= {name: value for name, value in member.takes.items() if name not in names}


def is_local(record: Mapping[str, Any]) -> bool:
    """Whether it is a function or class that stands directly in a function."""
    name = record.get("qualname", "")
    return record.get("kind") in ("function", "class") and LOCALS in name and "." not in name.rpartition(LOCALS)[2]


def closure_groups(
    objects: Sequence[Mapping[str, Any]],
    node_of: Callable[[Mapping[str, Any]], ast.stmt | ast.Lambda],
    live: Callable[[int], Any],
) -> dict[int, FunctionGroup]:
    """The group of each, by its number.

    Raises:
        Unwritable: two groups would have to share a variable that one of them sets.
    """
    found: dict[int, FunctionGroup] = {}
    groups: list[FunctionGroup] = []
    users: dict[int, set[int]] = {}
    for number, record in enumerate(objects):
        if not is_local(record):
            continue
        name, takes = record["qualname"].rpartition(LOCALS)[2], _takes(objects, record)
        name = f"function_{number}" if name == "<lambda>" else name
        member = Member(number, name, node_of(record), takes)
        prefix = record["qualname"].rpartition(f".{LOCALS}")[0]
        alike = [g for g in groups if (g.module, g.maker) == (record["module"], prefix)]
        group = next((g for g in alike if g.fits(member)), None)
        if group is None:
            group = FunctionGroup(record["module"], prefix)
            groups.append(group)
        group.members.append(member)
        found[number] = group
        for cell in record["closure"] if record["kind"] == "function" else ():
            users.setdefault(cell["ref"], set()).add(number)
    for group in groups:  # those that are split off come last
        first = _made_before(objects, group)
        if 0 < len(first) < len(group.members):
            groups.append(FunctionGroup(group.module, group.maker, first))
            group.members = [member for member in group.members if member not in first]
            found |= {member.number: groups[-1] for member in first}
    for cell, numbers in users.items():
        if len({id(found[n]) for n in numbers}) > 1 and any(_sets(live(n), live(cell)) for n in numbers):
            raise Unwritable("a function sets a variable that others made elsewhere share")
    for group in groups:
        group.close()
    return found


def _made_before(objects: Sequence[Mapping[str, Any]], group: FunctionGroup) -> list[Member]:
    """The members that a value needs which the group takes: the class of an object that a function beside it uses."""
    numbers = {member.number for member in group.members}
    left = [n for member in group.members for n in references(list(member.takes.values())) if n not in numbers]
    reached: set[int] = set()
    while left:
        number = left.pop()
        if number not in reached:
            reached.add(number)
            left += references(objects[number])
    return [member for member in group.members if member.number in reached]


def _takes(objects: Sequence[Mapping[str, Any]], record: Mapping[str, Any]) -> dict[str, Encoded]:
    if record["kind"] == "class":
        return dict(record["closure"])
    found = {}
    for name, cell in zip(record["free"], record["closure"], strict=True):
        held = objects[cell["ref"]]
        if "value" not in held:
            raise Unwritable(f"{record['qualname']} takes {name} from the function around it, where it has no value")
        found[name] = held["value"]
    return found


def _sets(function: FunctionType, cell: Any) -> bool:
    """Whether a function gives the variable in a cell another value."""
    names = {n for n, c in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True) if c is cell}
    return any(i.opname == "STORE_DEREF" and i.argval in names for i in dis.get_instructions(function.__code__))


@dataclass
class ProgramText:
    """A program as Python.

    Attributes:
        folders: of modules that are imported and not installed, by name; they are to be put on Python's path.
    """

    imports: list[str] = field(default_factory=list)  # import statements
    text: str = ""  # definitions and values, to be put into one file after those
    roots: dict[str, str] = field(default_factory=dict)  # an expression for each of what was asked for
    names: list[str] = field(default_factory=list)  # globals of the program in this file
    files: dict[str, str] = field(default_factory=dict)  # texts of the program's other modules, by path
    modules: list[str] = field(default_factory=list)  # the names of those
    stored: dict[str, torch.Tensor] = field(default_factory=dict)  # what `STORED` fetches, as flat bytes
    folders: dict[str, str] = field(default_factory=dict)
    lost: list[dict[str, str]] = field(default_factory=list)  # what is a placeholder: `path`, `type`, `reason`
    drawn: bool = False  # whether values are random


def program_text(
    roots: Mapping[str, Any],
    *,
    reserved: Mapping[str, Any],
    program: Callable[[Encoder], TextProgram] = TextProgram,
    draws: bool = False,
) -> ProgramText:
    """The program that values lead to.

    Args:
        reserved: names that the file defines for itself, with their values; a program may have the same ones.
        program: finds what it consists of.
        draws: tensors of more than a few values are drawn anew, and modules of torch made by their classes.

    Raises:
        Unwritable: something of it cannot be told as text.
    """
    try:
        with quiet():
            encoder = Encoder(program)
            encoded = {name: encoder.encode(value, name) for name, value in roots.items()}
            encoder.program.complete()
            lost, filled = list(encoder.placeholders), set[int]()
            if lost and not encoder.program.in_place:
                raise Unwritable("; ".join("{path}: {reason}".format(**entry) for entry in lost[:3]))
            while True:
                encoder.placeholders[:] = lost
                try:
                    return _Writer(encoder, encoder.program, encoded, reserved, filled, draws=draws).write()
                except LeadsBack as found:
                    filled.add(found.args[0])
    except NotRecordable as error:
        raise Unwritable(str(error)) from error
    except RecursionError as error:
        raise Unwritable("its values are nested too deeply") from error


def placed_text(roots: Mapping[str, Any]) -> ProgramText:
    """The program that values lead to as one text, which `loading.Program` runs: modules keep names and lines.

    Raises:
        Unwritable: it leads to too much.
    """
    return program_text(roots, reserved=dict.fromkeys((*HELPERS, ROOTS)), program=_InPlace)


class _InPlace(TextProgram):
    in_place = True


class _Writer(ObjectTexts):
    """Writes statements in the order in which they need each other."""

    def __init__(
        self,
        encoder: Encoder,
        program: TextProgram,
        roots: Mapping[str, Encoded],
        reserved: Mapping[str, Any],
        filled: Collection[int],
        *,
        draws: bool,
    ) -> None:
        super().__init__(encoder, program, reserved, filled, draws=draws)
        self.own, self.roots, self.reserved = program.modules, roots, reserved
        self.count += references([[module.values for module in self.own], dict(roots)])
        self.count_in_shared()
        self.alias: dict[str, str] = {}
        """What modules are called here that lie in files of their own."""
        self.done: set[tuple[str, str]] = set()
        self._at = ""
        self.decorated: dict[tuple[str, str], bool] = {}
        self.result = ProgramText()
        self.groups = closure_groups(encoder.objects, program.node_of, encoder.value_at)

    def write(self) -> ProgramText:
        """The whole."""
        self._merge()
        for module in self.own:
            nodes = definitions_of(module)
            for name in sorted(set(module.values) & set(nodes), key=lambda name: nodes[name].lineno):
                self.global_value(module, name)
        for module in self.own:
            for name in module.values:
                self.global_value(module, name)
        self.result.roots = {root: self.text(value, root) for root, value in self.roots.items()}
        while self.later:
            self.later.pop(0)()
        self.result.imports, self.result.text = sorted(self.imports[""]), str(self.texts_of[""])
        self.result.lost = self.encoder.placeholders
        if self.program.in_place:
            heads = [f"{self.headers[home]}\n" + "\n".join(sorted(self.imports[home])) for home in [*self.alias, ""]]
            pairs = [f"{name!r}: {text}" for name, text in self.result.roots.items()]
            self.put("", joined(f"{ROOTS} = {{", pairs, "}"))
            self.result.text = "\n\n".join([*heads, str(self.texts_of[""])]) + "\n"  # as `loading` runs it
        for name, alias in self.alias.items():
            parts = [FUTURE, "\n".join(sorted(self.imports[name])), str(self.texts_of[name])]
            self.result.files[name.replace(".", "/") + ".py"] = "\n\n".join(filter(None, parts)) + "\n"
            self.result.modules.append(name)
            self.result.names.append(alias)
        self.result.stored, self.result.folders, self.result.drawn = self.stored, self.program.folders, self.drawn
        return self.result

    def put(self, home: str, text: str, *, definition: bool = False) -> None:
        """Add to the text of a file; to that of all modules, where it is one."""
        if not self.program.in_place:
            self.texts_of[home].add(text, definition=definition)
            return
        if home != self._at:
            self._at = home
            self.texts_of[""].add(self.headers[home], definition=True)
        self.texts_of[""].add(text, definition=definition)

    def statement(self, text: str) -> None:
        """Put a statement here."""
        self.put("", text)

    # -- modules ------------------------------------------------------------------------------------------------------

    def _merge(self) -> None:
        """Decide which modules go into the one file: those whose names mean there what they mean to themselves."""
        meaning: dict[str, Any] = {}
        defined: dict[str, dict[str, Any]] = {}
        for number, record in enumerate(self.objects):
            if record.get("kind") in ("function", "class", "stated") and "<locals>" not in record["qualname"]:
                name, _, inner = record["qualname"].partition(".")
                here = defined.setdefault(record["module"], {})
                here[name] = here.get(name) if inner else {"ref": number}
        for module in self.own:
            means = defined.get(module.name, {}) | module.values
            lasting = self.program.told_alone  # nobody gives a number another value
            both = {n: v for n, v in means.items() if n in meaning}
            clash = any(meaning[n] != v or not (lasting or isinstance(v, dict)) for n, v in both.items())
            own = {n for n in means if n in self.reserved and module.namespace.get(n) is not self.reserved[n]}
            apart = self.program.in_place or module.whole or clash or bool(own)
            if apart:
                self.texts_of[module.name], self.imports[module.name] = Statements(), set()
                self.alias[module.name] = module.name.rpartition(".")[2]
            else:
                meaning |= means
                self.names.taken |= set(means)
        self.headers = {name: _header(self.program.module_named(name)) for name in self.alias}
        self.headers[""] = f"# ---- {VALUES}:"
        for name, short in self.alias.items():
            known = meaning.get(short)  # the program may call it so itself
            same = isinstance(known, dict) and self.encoder.value_at(known["ref"]) is sys.modules.get(name)
            alias = self.alias[name] = short if same else self.names.free(short)
            self.imports[""].add(f"import {name}" if name == alias else f"import {name} as {alias}")

    def prefix(self, module: _Module) -> str:
        """What stands before the name of a global."""
        return f"{self.alias[module.name]}." if module.name in self.alias else ""

    def home(self, module: _Module) -> str:
        """The file that holds its definitions."""
        return module.name if module.name in self.alias else ""

    def global_value(self, module: _Module, name: str) -> None:
        """Have a global of the program in place, once."""
        if name not in module.values:
            return
        value, home = module.values[name], self.home(module)
        number = value["ref"] if isinstance(value, dict) else -1
        if (module.name, name) in self.done:
            if self.program.in_place and number in self._open and number not in self.made:
                self.lead_back(number)
            return
        self.done.add((module.name, name))
        record = self.objects[number] if number >= 0 else {"kind": "plain"}
        kind = record["kind"]
        if kind == "module" and record["name"] not in self.alias:
            self.imports[home].add(_import(record["name"], name))
        elif kind == "import" and "." not in record["qualname"]:
            if (record["module"], record["qualname"]) != ("builtins", name):
                line = imported_as(module, name) or _import_from(record, self.encoder.value_at(number), name)
                self.imports[home].add(line)
        else:
            here = f"{self.prefix(module)}{name}"
            text = self.text(value, name, keeps=True)
            if text != here:
                self.statement(f"{here} = {text}")
            if kind in MUTABLE and number not in self.made:
                self.made[number] = here
            if not self.prefix(module):
                self.result.names.append(name)

    def _module(self, record: Any, number: int, hint: str) -> str:
        return self.alias.get(record["name"]) or self.imported(record["name"])

    # -- definitions --------------------------------------------------------------------------------------------------

    def _stated(self, record: Any, number: int, hint: str) -> str:
        module, name = self.program.module_named(record["module"]), record["qualname"]
        assert module.source is not None
        self.made[number] = f"{self.prefix(module)}{name}"
        for statement in self.program.statements[module.name, name]:
            key = (module.name, f"{statement.lineno}:{statement.col_offset}")
            if key in self.done:
                continue
            self.done.add(key)
            self._values_called(module, defining_names(statement), set())
            if isinstance(statement, Definition) and statement.name == name:
                self.define(module, statement, decorated=True)
                continue
            self._values_for(module, statement, decorated=True)
            text = module.source.plain_text(statement, placed=self.program.in_place)
            self.put(self.home(module), text, definition=isinstance(statement, Definition))
        return self.made[number]

    def _values_called(self, module: _Module, names: set[str], seen: set[tuple[str, str]]) -> None:
        """Have in place what functions and classes of these names read when a statement calls them."""
        for name in sorted(names & set(module.values)):
            if (module.name, name) in seen:
                continue
            seen.add((module.name, name))
            for function in functions_of(module.namespace[name]):
                other = next((m for m in self.own if m.namespace is function.__globals__), None)
                if other is not None:
                    self._values_called(other, global_names(function.__code__), seen)
            self.global_value(module, name)

    def _function(self, record: Any, number: int, hint: str) -> str:
        module, name = self.program.module_named(record["module"]), record["qualname"]
        self.later.append(lambda: self._attributes_of_function(record, number))
        if is_local(record):
            return self._local(module, self.groups[number], number)
        if "<locals>" in name:
            return self._of_class(record, number)
        node = self.program.node_of(record)
        if isinstance(node, ast.Lambda):
            self._values_for(module, node)
            if self.program.in_place:
                return self._lambda(module, node, number, hint)
            text = f"({ast.unparse(node)})"
            return self.named(number, text, hint) if self.count[number] > 1 else text
        if "." in name:
            return self._of_class(record, number)
        if module.values.get(name, {"ref": number}) != {"ref": number}:
            raise Unwritable(f"{name} is another value by now")
        assert isinstance(node, Definition)
        return self.define(module, node, decorated=False)

    def _of_class(self, record: Mapping[str, Any], number: int) -> str:
        """A function in a class, by its name there."""
        owner, _, name = record["qualname"].rpartition(".")
        code = self.encoder.value_at(number).__code__
        for other, kind in enumerate(self.objects):
            here = kind.get("kind") == "class" and (kind["module"], kind["qualname"]) == (record["module"], owner)
            held = vars(self.encoder.value_at(other)).get(name) if here else None
            function = plain_function(held)
            if function is not None and function.__code__ is code:
                how = ".fget" if isinstance(held, property) else ".__func__" if isinstance(held, classmethod) else ""
                return f"{self.text({'ref': other}, owner, needed=True)}.{name}{how}"
        raise Unwritable(f"{record['qualname']} is a function of a class that is not at hand")

    def _class(self, record: Any, number: int, hint: str) -> str:
        module, name = self.program.module_named(record["module"]), record["qualname"]
        self.later.append(lambda: self._attributes_of_class(record, number))
        if is_local(record):
            return self._local(module, self.groups[number], number)
        outer, _, rest = name.partition(".")
        if "<locals>" in rest or outer not in definitions_of(module):
            raise Unwritable(f"{name} is a class inside of one that is not at hand")
        return ".".join(filter(None, [self.define(module, definitions_of(module)[outer], decorated=True), rest]))

    def define(self, module: _Module, node: Definition, *, decorated: bool) -> str:
        """Have a top-level function or class in place; its name here."""
        key = (module.name, node.name)
        decorated = decorated or isinstance(node, ast.ClassDef)
        if self.decorated.setdefault(key, decorated) != decorated:
            raise Unwritable(f"{node.name} is needed with what decorates it, and without")
        if (module.name, f"def {node.name}") not in self.done:
            self.done.add((module.name, f"def {node.name}"))
            self._values_for(module, node, decorated=decorated)
            if isinstance(node, ast.ClassDef):
                called = {name for part in node.decorator_list for name in defining_names(part)}
                self._values_called(module, called, set())
            assert module.source is not None
            text = module.source.plain_text(node, decorated=decorated, placed=self.program.in_place)
            self.put(self.home(module), text, definition=True)
        return f"{self.prefix(module)}{node.name}"

    def _values_for(self, module: _Module, node: ast.AST, *, decorated: bool = False) -> None:
        """Have in place what a definition reads when it is executed."""
        before = str(self.texts_of[""])
        for name in sorted(defining_names(node, decorated=decorated) - {getattr(node, "name", "")}):
            self.global_value(module, name)
        for part in read_when_defined(node, decorated=decorated, annotations=False):
            value = part.value if isinstance(part, ast.Attribute) else None
            held = module.namespace.get(value.id) if isinstance(value, ast.Name) else None
            other = next((m for m in self.own if isinstance(held, ModuleType) and m.namespace is vars(held)), None)
            if other is not None and isinstance(part, ast.Attribute):
                self.global_value(other, part.attr)
        if module.name in self.alias and str(self.texts_of[""]) != before and not self.program.in_place:
            raise Unwritable(f"{module.name} needs values where it is loaded")

    def _local(self, module: _Module, group: FunctionGroup, number: int) -> str:
        """Have functions and classes in place that were made inside of a function; the name of one of them."""
        assert module.source is not None
        for member in group.members:
            if member.number != number and member.number in self._open:
                raise Unwritable(f"{member.name} and what it takes from {group.maker} lead to each other")
            self._values_for(module, member.node)
        given = [f"{name}={self.text(value, name)}" for name, value in group.given.items()]
        if number in self.made:
            return self.made[number]
        first = group.members[0]
        alone = len(group.members) == 1 and not group.given and first.name not in first.takes
        if alone and isinstance(first.node, ast.Lambda):
            return self._lambda(module, first.node, number, first.name)
        here = self.program.in_place or not self.home(module)
        if alone and isinstance(first.node, Definition) and first.name not in self.names.taken and here:
            self.names.taken.add(first.name)
            text = self._definition(module, first.node, first.name, "")
            self.put("", self._within(module, text), definition=True)
            return first.name
        maker = self.names.free(group.maker.rpartition(".")[2])
        lines = [self._definition(module, member.node, member.name, INDENT) for member in group.members]
        lines.append(f"{INDENT}return {', '.join(member.name for member in group.members)}")
        text = f"def {maker}({', '.join(group.given)}):\n" + "\n\n".join(lines)
        prefix = "" if self.program.in_place else self.prefix(module)
        self.put("" if self.program.in_place else self.home(module), self._within(module, text), definition=True)
        names = [self.names.free(member.name) for member in group.members]
        self.made |= {member.number: name for member, name in zip(group.members, names, strict=True)}
        self.statement(f"{', '.join(names)} = {joined(f'{prefix}{maker}(', given, ')')}")
        self.result.names += names
        return self.made[number]

    def _lambda(self, module: _Module, node: ast.Lambda, number: int, hint: str) -> str:
        name = self.made[number] = self.names.free(hint)
        self.put("", self._within(module, self._definition(module, node, name, "")))
        return name

    def _within(self, module: _Module, text: str) -> str:
        """A definition among the values whose globals are a module's."""
        return f"#@ in {module.name}\n{text}" if self.program.in_place else text

    def _definition(self, module: _Module, node: ast.stmt | ast.Lambda, name: str, indent: str) -> str:
        """A definition inside of a function of this file."""
        assert module.source is not None
        placed = self.program.in_place
        if isinstance(node, ast.Lambda):
            place = f"{indent}#@ {module.source.file}:{node.lineno}\n" if placed else ""
            return f"{place}{indent}{name} = {ast.unparse(node)}"
        return module.source.plain_text(node, decorated=isinstance(node, ast.ClassDef), indent=indent, placed=placed)

    # -- what has been changed since ----------------------------------------------------------------------------------

    def _attributes_of_function(self, record: Mapping[str, Any], number: int) -> None:
        name, node = self.made[number], self.program.node_of(record)
        function: FunctionType = self.encoder.value_at(number)
        for key, value in record.get("state", {}).items():
            self.statement(f"{name}.{key} = {self.text(value, key)}")
        literals, arguments = literals_of(node), function.__code__.co_varnames
        places = arguments[function.__code__.co_argcount - len(function.__defaults__ or ()) :]
        defaults = dict(zip(places, function.__defaults__ or (), strict=False))
        if any(key in literals and not _same(literals[key], value) for key, value in defaults.items()):
            self.statement(f"{name}.__defaults__ = {joined('(', [*self.texts(record['defaults'], name), ''], ')')}")
        for key, value in (function.__kwdefaults__ or {}).items():
            if key in literals and not _same(literals[key], value):
                self.statement(f"{name}.__kwdefaults__[{key!r}] = {self.text(record['kwdefaults'][key], key)}")

    def _attributes_of_class(self, record: Mapping[str, Any], number: int) -> None:
        kind, literals = self.encoder.value_at(number), literals_of(self.program.node_of(record))
        for key, value in record["attributes"].items():
            known = key in literals and _same(literals[key], vars(kind)[key])
            if not known and key not in ("_fields", "_field_defaults"):
                self.statement(f"{self.made[number]}.{key} = {self.text(value, key)}")


def _header(module: _Module) -> str:
    """The line above a module's statements."""
    return f"# ---- {module.name}: {module.namespace.get('__file__') or ''}".rstrip()


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and (a is b or bool(a == b))


def _import(module: str, name: str) -> str:
    if module == name:
        return f"import {module}"
    holder, _, leaf = module.rpartition(".")
    if holder and leaf == name and vars(sys.modules[holder]).get(leaf) is sys.modules[module]:
        return f"from {holder} import {leaf}"
    return f"import {module} as {name}"


def _import_from(record: Mapping[str, Any], value: Any, name: str) -> str:
    module, leaf = record["module"], record["qualname"]
    usual = ("torch", "torch.nn") if module.startswith("torch") else ()
    short = next((m for m in usual if vars(sys.modules[m]).get(leaf) is value), module)
    return f"from {short} import {leaf}" if leaf == name else f"from {short} import {leaf} as {name}"
