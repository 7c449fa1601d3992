"""Edits of a program at its graph breaks, as Python's syntax trees: what a remedy says, and what lets tracing go on."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from types import CodeType
from typing import Literal

import msgspec

from graphprobe.analysis.breaks_text import as_mask

Action = Literal["setting", "enable", "value", "flip", "replace", "guard", "drop", "plain", "choose", "loop"]

VALUES, KEEP, NOTHING = "__graphprobe_values__", "__graphprobe_keep__", "__graphprobe_nothing__"
"""Names that an edited program reads: values by number, the function that keeps them, a context that does nothing."""

OUTSIDE = re.compile(
    r"\boutside\b|\bpass that number in\b|\bbefore or after\b|out of the compiled function|^define `"
    r"|^put `with|before the compiled function"
)
"""Of a remedy that takes the place out of the compiled function."""


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class Edit(msgspec.Struct, frozen=True):
    """One change of a program.

    Attributes:
        action: `setting` of torch; `enable` what `torch.compiler.disable` leaves out; `value`: the place is out of the
            compiled function, which takes the value that it has in the run, and of a statement nothing; `flip`: the
            same, and the condition goes the other way; `replace` old by new; `guard` by `is_compiling`; `drop` the
            statement; the message of an assertion `plain`; `choose` with `torch.where`; `loop` with `torch.while_loop`.
        file, line, code: the place, as a `UserFrame` has it.
        old, new: of `replace`; of `setting` its name and what is added to it, or empty for True; of `enable` the name.
    """

    action: Action
    file: str = ""
    line: int = 0
    code: str = ""
    old: str = ""
    new: str = ""

    @property
    def place(self) -> tuple[str, int, str]:
        """What a break has to be at to be this one."""
        return self.file, self.line, self.code


def clauses(remedy: str) -> list[str]:
    """A remedy's parts, each of which is enough."""
    return re.split(r"; (?:or )?", remedy)


def edit_of(clause: str, place: Edit) -> Edit | None:
    """What a part of a remedy says, as an edit at a place; None where it is nothing that could be tried."""
    if found := re.search(r"`torch\._dynamo\.config\.(\w+)(?: = True|\.add\(([\w.]+)\))`", clause):
        return Edit("setting", *place.place, old=found.group(1), new=found.group(2) or "")
    if found := re.search(r"`([^`]+)` in the place of `([^`]+)`", clause):
        return Edit("replace", *place.place, old=found.group(2), new=found.group(1))
    if found := re.search(r"remove `torch\.compiler\.disable` from `([^`]+)`", clause):
        return Edit("enable", *place.place, new=found.group(1))
    words: dict[str, Action] = {
        "is_compiling()": "guard",
        "remove the call": "drop",
        "leave out `if": "drop",
        "message a plain string": "plain",
        "torch.where(": "choose",
        "torch.while_loop(": "loop",
    }
    action = next((action for word, action in words.items() if word in clause), None)
    if action is None and OUTSIDE.search(clause):
        action = "value"
    return None if action is None else Edit(action, *place.place)


class EditedSource:
    """A file of the program, as a tree that edits change.

    Attributes:
        classes: definitions of classes that `value` took out of functions, by number.
    """

    def __init__(self, text: str, values: Collection[int] | None = None) -> None:
        """`values`: the places of which they are known. None: they are to be kept, in a run uncompiled."""
        self.tree = ast.parse(text)
        self.classes: dict[int, ast.ClassDef] = {}
        self._keep, self._known = values is None, values or ()
        self._parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def apply(self, edits: Sequence[tuple[int, Edit]]) -> None:
        """Apply numbered edits, the innermost first; what cannot be applied is left out."""
        found = [(number, edit, *self._located(edit)) for number, edit in edits]
        for number, edit, node, statement in sorted(found, key=lambda row: -len([*self._above(row[2] or row[3])])):
            change: Callable[..., bool] = getattr(self, f"_{edit.action}")
            if statement is not None:
                change(number, edit, node, statement)

    def codes(self, file: str) -> dict[tuple[str, int], CodeType]:
        """The code of each function, by its name and first line."""
        whole = compile(ast.fix_missing_locations(self.tree), file, "exec", dont_inherit=True)
        return {(code.co_qualname, code.co_firstlineno): code for code in codes_in(whole)}

    def movable(self, edit: Edit) -> bool:
        """Whether a place can be moved in front of its function: it runs once, and reads what is there before."""
        node, statement = self._located(edit)
        function = next((above for above in self._above(statement) if isinstance(above, FUNCTIONS)), None)
        if statement is None or function is None or self._looped(node or statement):
            return False
        given = {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}
        inside, place = list(ast.walk(function)), ast.walk(node or statement)
        read = {ast.unparse(n) for n in place if isinstance(n, ast.Name | ast.Attribute | ast.Subscript)}
        own = set(ast.walk(statement))
        parts = [n for n in inside if isinstance(n, ast.Attribute | ast.Subscript) and n not in own and _writes(n)]
        changed = any(read & set(map(ast.unparse, (part, part.value))) - {"self"} for part in parts)
        return not changed and self._is_given(node or statement, given, inside, ())

    def _is_given(self, node: ast.AST, given: set[str], inside: list[ast.AST], seen: tuple[str, ...]) -> bool:
        """Whether all names that are read are globals, arguments, or made of such, once and in no loop."""
        for name in {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}:
            stores = [n for n in inside if isinstance(n, ast.Name) and n.id == name and not isinstance(n.ctx, ast.Load)]
            looped = self._looped(node)
            if not stores or (name in given and not looped and min(map(_line, stores)) > _line(node)):
                continue  # a global name, or an argument that still is what it was
            made = self._parents.get(stores[0])
            once = len(stores) == 1 and name not in given and made is not None and not self._looped(made)
            if not once or not isinstance(made, ast.Assign) or name in seen:
                return False
            if not self._is_given(made.value, given, inside, (*seen, name)):
                return False
        return True

    def _looped(self, node: ast.AST) -> bool:
        """Whether it runs several times in a call."""
        for above in self._above(node):
            if isinstance(above, ast.While) or (isinstance(above, ast.For) and node is not above.iter):
                return True
            node = above
        return False

    def _located(self, edit: Edit) -> tuple[ast.expr | None, ast.stmt | None]:
        """The expression and the statement of a place."""
        lines = [n for n in ast.walk(self.tree) if 0 < _line(n) <= edit.line <= getattr(n, "end_lineno", 0)]
        text = edit.old if edit.action == "replace" else edit.code
        same = [node for node in lines if isinstance(node, ast.expr | ast.stmt) and text and ast.unparse(node) == text]
        expressions = [node for node in reversed(same) if isinstance(node, ast.expr)]
        stored = (node for node in expressions if not isinstance(getattr(node, "ctx", ast.Load()), ast.Load))
        expression = next(stored, next(iter(expressions), None))
        if isinstance(expression, ast.IfExp) and edit.action != "replace":
            expression = expression.test
        if isinstance(above := self._parents.get(expression or self.tree), ast.Call) and above.func is expression:
            expression = above  # `x.copy` of `x.copy()`
        statements = [node for node in lines if isinstance(node, ast.stmt)]
        inner = next((node for node in self._above(expression) if isinstance(node, ast.stmt)), None)
        return expression, inner or next((n for n in reversed(statements) if not text or n in same), None)

    def _above(self, node: ast.AST | None) -> Iterator[ast.AST]:
        while node is not None:
            node = self._parents.get(node)
            if node is not None:
                yield node

    def _put(self, old: ast.AST, *new: ast.AST) -> bool:
        above = self._parents[old]
        for name, value in ast.iter_fields(above):
            if value is old:
                setattr(above, name, new[0])
            elif isinstance(value, list) and old in value:
                at = value.index(old)
                value[at : at + 1] = new
        for node in new:
            for inner in ast.walk(node):
                if inner not in self._parents:
                    ast.copy_location(inner, old)
            self._parents |= {child: inner for inner in ast.walk(node) for child in ast.iter_child_nodes(inner)}
            self._parents[node] = above
        return True

    def _value(self, number: int, edit: Edit, node: ast.expr | None, statement: ast.stmt) -> bool:
        if node is not None and not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            node = None  # what is assigned to
        above = self._parents.get(node) if node is not None else None
        if isinstance(statement, ast.With) and node is None:
            for item in [] if self._keep else statement.items:
                self._put(item.context_expr, _either(_expression(f"{NOTHING}()"), item.context_expr))
            return True
        if isinstance(statement, ast.ClassDef):
            self.classes[number] = statement
            return self._keep or self._put(statement, *_parsed(f"{statement.name} = {VALUES}[{number}][0]"))
        if node is None or (isinstance(statement, ast.Expr) and above is statement):
            simple = isinstance(statement, ast.Expr | ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete)
            return self._keep or (simple and self._put(statement, _never(statement)))
        if isinstance(above, ast.withitem):
            return self._keep or self._put(node, _either(_expression(f"{NOTHING}()"), node))
        if self._keep:
            flipped = ast.Constant(edit.action == "flip")
            return self._put(node, ast.Call(ast.Name(KEEP, ast.Load()), [ast.Constant(number), node, flipped], []))
        if number not in self._known:
            return False
        values = f"{VALUES}[{number}]"
        taken = _expression(f"{values}.pop(0) if len({values}) > 1 else {values}[0]")
        return self._put(node, _either(taken, node))

    _flip = _value

    def _replace(self, number: int, edit: Edit, node: ast.expr | None, statement: ast.stmt) -> bool:
        new = _parsed(edit.new)
        if node is None:
            return self._put(statement, *new, _never(statement))
        return isinstance(new[0], ast.Expr) and self._put(node, _either(new[0].value, node))

    def _drop(self, number: int, edit: Edit, node: ast.expr | None, statement: ast.stmt) -> bool:
        """Of an `if` that asks whether there is anything, what it guards stays."""
        if not isinstance(statement, ast.If):
            return self._put(statement, _never(statement))
        if statement.orelse or isinstance(statement.body[-1], ast.Return | ast.Raise | ast.Break):
            return False
        left = [] if isinstance(statement.body[-1], ast.Continue) else statement.body
        return self._put(statement, *left, _never(statement))

    def _plain(self, number: int, edit: Edit, node: ast.expr | None, statement: ast.stmt) -> bool:
        return isinstance(statement, ast.Assert) and self._put(statement, ast.Assert(statement.test, ast.Constant("…")))

    def _guard(self, number: int, edit: Edit, node: ast.expr | None, statement: ast.stmt) -> bool:
        test = _expression("not torch.compiler.is_compiling()")
        return isinstance(statement, ast.Expr) and self._put(statement, ast.If(test, [statement], []))

    def _choose(self, number: int, edit: Edit, node: ast.expr | None, statement: ast.stmt) -> bool:
        test = next((a for a in self._above(node) if isinstance(a, ast.IfExp)), None)
        if test is not None and node is not None and node in ast.walk(test.test):
            return self._put(test, _either(_where(test.test, test.body, test.orelse), test))
        if not isinstance(statement, ast.If) or node is None or node not in ast.walk(statement.test):
            return False
        first = _only(statement.body)
        rest = self._behind(statement)
        other = _only(statement.orelse) if statement.orelse else rest
        if isinstance(first, ast.Return) and isinstance(other, ast.Return) and first.value and other.value:
            where = ast.Return(_where(statement.test, first.value, other.value))
            return self._put(statement, where, _never(statement))
        if not isinstance(first, ast.Assign) or not isinstance(first.targets[0], ast.Name):
            return False
        target = ast.unparse(first.targets[0])
        default: ast.expr | None = ast.Name(target, ast.Load()) if not statement.orelse else None
        if isinstance(other, ast.Assign) and statement.orelse and ast.unparse(other.targets[0]) == target:
            default = other.value
        if default is None:
            return False
        return self._put(statement, ast.Assign(first.targets, _where(statement.test, first.value, default)))

    def _behind(self, statement: ast.stmt) -> ast.stmt | None:
        """The next statement, also that behind the `if` which it ends."""
        above = self._parents[statement]
        for _, value in ast.iter_fields(above):
            if isinstance(value, list) and statement in value[:-1]:
                found: ast.stmt = value[value.index(statement) + 1]
                return found
        return self._behind(above) if isinstance(above, ast.If) else None

    def _loop(self, number: int, edit: Edit, node: ast.expr | None, statement: ast.stmt) -> bool:
        if not isinstance(statement, ast.While) or statement.orelse:
            return False
        stored = {n.id: 0 for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        names = ", ".join(stored) + ","
        test, body = ast.unparse(as_mask(statement.test)), "\n    ".join(map(ast.unparse, statement.body))
        text = f"def __test({names}):\n    return {test}\ndef __body({names}):\n    {body}\n    return {names}\n"
        if not stored or ("\n    " in body and any(hasattr(inner, "body") for inner in statement.body)):
            return False
        return self._put(statement, *_parsed(f"{text}({names}) = torch.while_loop(__test, __body, ({names}))"))


def _writes(part: ast.Attribute | ast.Subscript) -> bool:
    """Whether something is assigned to it, or it is a method that changes its tensor, such as `add_`."""
    method = isinstance(part, ast.Attribute) and part.attr.endswith("_") and not part.attr.endswith("__")
    return method or not isinstance(part.ctx, ast.Load)


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


def _parsed(text: str) -> list[ast.stmt]:
    return ast.parse(text).body


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _either(new: ast.expr, old: ast.expr) -> ast.expr:
    """The new one; the old one keeps the function's names what they were."""
    return ast.IfExp(ast.Constant(True), new, old)


def _never(statement: ast.stmt) -> ast.stmt:
    return ast.If(ast.Constant(False), [statement], [])


def _only(body: Sequence[ast.stmt]) -> ast.stmt | None:
    return body[0] if len(body) == 1 else None


def _where(test: ast.expr, first: ast.expr, other: ast.expr) -> ast.expr:
    return ast.Call(_expression("torch.where"), [_expression(ast.unparse(as_mask(test))), first, other], [])


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """The code of the functions inside of a function, the outer ones first."""
    inner = [part for part in code.co_consts if isinstance(part, CodeType)]
    yield from inner
    for part in inner:
        yield from codes_in(part)
