"""What Python code computed a value, or chose a branch: the calls in the user's source, by name and line."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterable, Iterator, Sequence
from types import CodeType
from typing import Any, NamedTuple

from graphprobe.diagnose.dynamo.frame_places import FramePlace

CALL, READ, OPERATOR = range(3)
"""How much a name tells: a call, a conversion or an exception; an attribute or an entry; an operator."""

DEPTH = 6
"""Names that are followed, one out of the other."""

FORM = frozenset(
    "data_ptr dim element_size get_device is_conj is_contiguous is_inference is_neg is_pinned is_set_to is_shared "
    "nelement ndimension numel size storage_offset stride".split()
)
"""Methods of a tensor that tell how it lies in memory or what kind it is, and give no tensor."""
IN_PLACE = frozenset(
    "as_strided_ detach_ requires_grad_ resize_ resize_as_ set_ squeeze_ swapaxes_ swapdims_ t_ transpose_ "
    "unsqueeze_".split()
)
"""Methods that change what those tell."""

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
LITERALS: dict[type[ast.AST], str] = {
    ast.Dict: "dict",
    ast.DictComp: "dict",
    ast.List: "list",
    ast.ListComp: "list",
    ast.Set: "set",
    ast.SetComp: "set",
    ast.Tuple: "tuple",
    ast.JoinedStr: "str",
}

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "truediv",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.Pow: "pow",
    ast.MatMult: "matmul",
    ast.LShift: "lshift",
    ast.RShift: "rshift",
    ast.BitAnd: "and_",
    ast.BitOr: "or_",
    ast.BitXor: "xor",
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
    ast.Is: "is_",
    ast.IsNot: "is_not",
    ast.In: "contains",
    ast.NotIn: "contains",
}


class Named(NamedTuple):
    """Something that the source calls, reads or does; `weight` as `CALL`, `READ`, `OPERATOR`."""

    name: str
    source: str
    weight: int


class ParsedFile:
    """A file of the user's, parsed."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.tree = ast.parse(text)
        self.parents: dict[ast.AST, ast.AST] = {
            child: parent for parent in ast.walk(self.tree) for child in ast.iter_child_nodes(parent)
        }
        self.imports: dict[str, str] = {}
        self.aliases: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    first = alias.name.partition(".")[0]
                    self.imports[alias.asname or first] = alias.name if alias.asname else first
            elif isinstance(node, ast.ImportFrom) and not node.level:
                for alias in node.names:
                    self.imports[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        self.aliases = dict(self._aliases())

    def _aliases(self) -> Iterator[tuple[str, str]]:
        """Other names that the file gives to what it has imported: `cond = torch.cond`."""
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute) and self.is_imported(node.value):
                for target in node.targets:
                    yield last_of(target), self.dotted(node.value)

    def is_imported(self, node: ast.AST) -> bool:
        """Whether an expression is something that the file imports, or an attribute of that."""
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id in self.imports

    def outwards(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Each node around this one, the nearest first, with the part of it that this one is in."""
        while node in self.parents:
            yield self.parents[node], node
            node = self.parents[node]

    def function_of(self, node: ast.AST) -> ast.AST:
        """The function whose code the node is, or the module; a comprehension belongs to the function around it."""
        around = (parent for parent, _ in self.outwards(node) if isinstance(parent, SCOPES))
        return next(around, self.tree)

    def class_of(self, node: ast.AST) -> ast.ClassDef | None:
        """The class around a node, if any."""
        return next((parent for parent, _ in self.outwards(node) if isinstance(parent, ast.ClassDef)), None)

    def at(self, place: FramePlace, like: str | None = None) -> ast.AST | None:
        """The expression at a place; where only its line is known, a call `like` this on it, else the statement."""
        if place.column >= 0:
            wanted = (place.line, place.column, place.end_line, place.end_column)
            found = [node for node in ast.walk(self.tree) if _span(node) == wanted]
            if found:
                return found[-1]
        on_line = [node for node in ast.walk(self.tree) if _covers(node, place.line)]
        if not on_line:
            return None
        if like is not None:
            calls = (node for node in on_line if isinstance(node, ast.Call) and last_of(node.func) == like)
            call = next(calls, None)
            if call is not None:
                return call
        return next((node for node in reversed(on_line) if isinstance(node, ast.stmt)), None)

    def dotted(self, node: ast.AST) -> str:
        """What an expression that is called is named: `numpy.round` for `np.round`."""
        if isinstance(node, ast.Name):
            return self.imports.get(node.id) or self.aliases.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            head = self.dotted(node.value)
            return f"{head}.{node.attr}" if head else node.attr
        kind = LITERALS.get(type(node))
        if kind is None and isinstance(node, ast.Constant):
            kind = type(node.value).__name__
        return kind or ""


@functools.lru_cache(maxsize=64)
def source_at(file: str) -> ParsedFile | None:
    """The file, parsed; None where it cannot be."""
    try:
        text = "".join(linecache.getlines(file))
        return ParsedFile(file, text) if text else None
    except (SyntaxError, ValueError, RecursionError):
        return None


def last_of(node: ast.AST) -> str:
    """`append` of `hits.append`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _span(node: ast.AST) -> tuple[int, int, int, int] | None:
    if not isinstance(node, (ast.expr, ast.stmt)):
        return None
    return node.lineno, node.col_offset, node.end_lineno or -1, node.end_col_offset or -1


def _covers(node: ast.AST, line: int) -> bool:
    return isinstance(node, (ast.expr, ast.stmt)) and node.lineno <= line <= (node.end_lineno or node.lineno)


def starts(node: Any) -> tuple[int, int]:
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


class Binding(NamedTuple):
    """A statement or expression that gives a name, an attribute or an entry its value."""

    node: ast.AST
    values: tuple[ast.AST, ...]
    more: bool = False


def _bindings(scope: ast.AST, key: str) -> Iterator[Binding]:
    """Whatever binds `key` in the code of a function, in the order of the text."""
    for node in own_nodes(scope):
        if isinstance(node, (ast.Assign, ast.Delete)):
            hit, values = any(_binds(t, key) for t in node.targets), _assigned(node, key)
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.NamedExpr)):
            hit, values = _binds(node.target, key), [node.value] if node.value is not None else []
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            hit, values = _binds(node.target, key), [node.iter]
        elif isinstance(node, ast.withitem):
            hit, values = node.optional_vars is not None and _binds(node.optional_vars, key), [node.context_expr]
        elif isinstance(node, ast.ExceptHandler):
            hit, values = node.name == key, [node]
        else:
            continue
        if hit and values:
            yield Binding(node, tuple(values), isinstance(node, ast.AugAssign))


def _assigned(node: ast.Assign | ast.Delete, key: str) -> list[Any]:
    """The value of an assignment; of one of tuples, the part that goes to the name."""
    if isinstance(node, ast.Delete):
        return []
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = zip(target.elts, node.value.elts, strict=False)
            found = [v for t, v in pairs if _binds(t, key) and len(target.elts) == len(node.value.elts)]
            if found:
                return list(found)
    return [node.value]


def _binds(target: ast.AST, key: str) -> bool:
    if isinstance(target, (ast.Tuple, ast.List)):
        return any(_binds(part, key) for part in target.elts)
    if isinstance(target, ast.Starred):
        return _binds(target.value, key)
    return ast.unparse(target) == key


def own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function's code, those of functions inside of it left out, in the order of the text."""
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, SCOPES):
            yield from own_nodes(child)


class Names(ast.NodeVisitor):
    """Finds what an expression calls, reads and does, the innermost first; names are followed to their assignments.

    Attributes:
        found: what there is.
    """

    def __init__(
        self, source: ParsedFile, frames: Sequence[FramePlace], seen: set[tuple[ast.AST, str]] | None = None
    ) -> None:
        """`frames`: where the expression runs, and its callers."""
        self.source, self.frames = source, frames
        self.found: list[Named] = []
        self._seen = set() if seen is None else seen
        self._depth = 0

    def add(self, name: str, node: Any, weight: int = CALL) -> None:
        """Note a name."""
        if name:
            self.found.append(Named(name, f"{self.source.file}:{node.lineno}", weight))

    def visit(self, node: ast.AST) -> None:
        """Go into a node, but not deeper and deeper."""
        if self._depth < 10 * DEPTH:
            self._depth += 1
            super().visit(node)
            self._depth -= 1

    def visit_Call(self, node: ast.Call) -> None:
        """The function is named after what its arguments are made of; what tells of a tensor's form, before these."""
        func = node.func
        if isinstance(func, ast.Attribute) and func.attr in FORM and not self.source.is_imported(func.value):
            self.add(f"Tensor.{func.attr}", node)
            self._reshaped(func.value, node)
            self.visit(func.value)
            return
        made_by = self._maker(func.value) if isinstance(func, ast.Attribute) else None
        if isinstance(func, ast.Attribute) and made_by is None and not self.source.is_imported(func.value):
            self.visit(func.value)
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            self.visit(argument)
        self._returns(func, node)
        name = self.source.dotted(func)
        if isinstance(func, ast.Attribute) and func.attr == "format":
            name = "format"
        elif made_by is not None:
            name = f"{made_by}.{last_of(func)}"
        self.add(name, node)
        if made_by is not None:
            self.add(made_by, node)

    def _reshaped(self, tensor: ast.expr, use: ast.Call) -> None:
        """Methods that changed the form of a variable in place before it is looked at."""
        if isinstance(tensor, ast.Name):
            for node in own_nodes(self.source.function_of(use)):
                func = node.func if isinstance(node, ast.Call) and starts(node) < starts(use) else None
                if isinstance(func, ast.Attribute) and func.attr in IN_PLACE and ast.unparse(func.value) == tensor.id:
                    self.add(f"Tensor.{func.attr}", node)

    def _given_away(self, use: ast.Attribute) -> None:
        """Functions that were given an object before an attribute of it is read: they may have changed it."""
        owner = ast.unparse(use.value)
        for node in own_nodes(self.source.function_of(use)):
            if isinstance(node, ast.Call) and starts(node) < starts(use) and not self.source.is_imported(use.value):
                given = [*node.args, *(keyword.value for keyword in node.keywords)]
                if any(ast.unparse(argument) == owner for argument in given):
                    self.add(self.source.dotted(node.func), node, READ)

    def visit_Name(self, node: ast.Name) -> None:
        """A name is what it was last given."""
        if isinstance(node.ctx, ast.Load):
            self._variable(node.id, node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """An attribute is what it was given in this function, or what is read from the object."""
        if not self._variable(ast.unparse(node), node):
            if not self.source.is_imported(node.value):
                self.visit(node.value)
            self.add(self.source.dotted(node), node, READ)
            self._given_away(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        """An entry, as an attribute."""
        if not self._variable(ast.unparse(node), node):
            self.visit(node.value)
            self.visit(node.slice)
            self.add(ast.unparse(node), node, READ)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """An f-string that shows a value formats it."""
        self.generic_visit(node)
        if any(isinstance(part, ast.FormattedValue) for part in node.values):
            self.add("format", node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """`%` of a text formats, too."""
        self.visit(node.left)
        self.visit(node.right)
        if isinstance(node.op, ast.Mod) and self.source.dotted(node.left) == "str":
            self.add("format", node)
        else:
            self.add(f"operator.{OPERATORS.get(type(node.op), 'add')}", node, OPERATOR)

    def visit_Compare(self, node: ast.Compare) -> None:
        """Comparisons tell little: they come last. But that two objects are one, nobody may have guarded."""
        for part in (node.left, *node.comparators):
            self.visit(part)
        for op, other in zip(node.ops, node.comparators, strict=True):
            if isinstance(op, (ast.Is, ast.IsNot)) and not isinstance(other, ast.Constant):
                self.add("is", node)
            else:
                self.add(f"operator.{OPERATORS[type(op)]}", node, OPERATOR)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        """The values first, and then how one was chosen."""
        for part in (node.body, node.orelse, node.test):
            self.visit(part)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        """The exception that was caught."""
        kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type] if node.type else []
        for kind in kinds:
            self.add(self.source.dotted(kind), node)

    def visit_Match(self, node: ast.Match) -> None:
        """What is matched, and that it is."""
        self.visit(node.subject)
        self.add("match", node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """What it computes."""
        self.visit(node.body)

    def conditions(self, node: ast.AST, part: ast.AST) -> None:
        """What decided that `part` of a compound statement or expression runs."""
        if isinstance(node, (ast.If, ast.While, ast.IfExp)):
            self.visit(node.test)
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            self.visit(node.iter)
        elif isinstance(node, ast.Try):
            for handler in node.handlers:
                self.visit_ExceptHandler(handler)
            for statement in node.body:
                self.visit(statement)
        elif isinstance(node, ast.Match):
            self.visit(node.subject)
        elif isinstance(node, ast.BoolOp):
            for value in node.values[: node.values.index(part)]:  # type: ignore[arg-type]
                self.visit(value)
        elif isinstance(node, ast.With):
            for item in node.items:
                self._suppressed(item.context_expr)
        elif isinstance(node, COMPREHENSIONS):
            for generator in node.generators:
                for condition in (generator.iter, *generator.ifs):
                    self.visit(condition)

    def _suppressed(self, node: ast.expr) -> None:
        if isinstance(node, ast.Call):
            for kind in node.args:
                self.add(self.source.dotted(kind), kind)
        self.visit(node)

    def _maker(self, node: ast.AST) -> str | None:
        """The class whose object a variable of this function is, if it was made there: `random.Random`."""
        if not isinstance(node, ast.Name):
            return None
        made = [*_bindings(self.source.function_of(node), node.id)]
        calls = [v for binding in made for v in binding.values if isinstance(v, ast.Call)]
        names = [self.source.dotted(call.func) for call in calls]
        return next((name for name in names if name.rpartition(".")[2][:1].isupper()), None)

    def _variable(self, key: str, use: ast.expr) -> bool:
        """Go on with what a name was given before it is used, or with what the caller passed."""
        for parent, _ in self.source.outwards(use):
            if isinstance(parent, COMPREHENSIONS):
                for generator in parent.generators:
                    if _binds(generator.target, key):
                        self.visit(generator.iter)
                        return True
        scope = self.source.function_of(use)
        if isinstance(scope, ast.Lambda) or (isinstance(scope, ast.Module) and not self._runs_module()):
            return isinstance(use, ast.Name)
        known = [b for b in _bindings(scope, key) if use not in _inside(b)]
        before = [b for b in known if starts(_last(b)) < starts(use)] or known
        if not before:
            return self._parameter(key, use, scope)
        if (scope, key) in self._seen or len(self._seen) > DEPTH * 8:
            return True
        self._seen.add((scope, key))
        shared = arms_of(self.source, use)
        chosen: list[tuple[ast.AST, ast.AST]] = []
        for binding in reversed(before):
            for value in binding.values:
                self.visit(value)
            own = [arm for arm in arms_of(self.source, binding.node) if arm not in shared]
            chosen += [arm for arm in own if arm not in chosen and not isinstance(arm[0], ast.For)]
            if not own and not binding.more:
                break
        for node, part in chosen:
            self.conditions(node, part)
        self._seen.discard((scope, key))
        return True

    def _runs_module(self) -> bool:
        return bool(self.frames) and self.frames[0].function == "<module>"

    def _parameter(self, key: str, use: ast.AST, scope: ast.AST) -> bool:
        """Go on in the caller with the argument that became this parameter."""
        if not isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)) or len(self.frames) < 2:
            return False
        names = [a.arg for a in (*scope.args.posonlyargs, *scope.args.args)]
        if key not in names and key not in [a.arg for a in scope.args.kwonlyargs]:
            return False
        caller = source_at(self.frames[1].file)
        call = caller.at(self.frames[1]) if caller is not None else None
        if caller is None or not isinstance(call, ast.Call):
            return False
        argument: ast.AST | None = next((k.value for k in call.keywords if k.arg == key), None)
        if argument is None and key in names:
            position = names.index(key) - (names[0] in ("self", "cls", "ctx"))
            argument = call.args[position] if 0 <= position < len(call.args) else None
        if argument is None:
            return False
        outer = Names(caller, self.frames[1:], self._seen)
        outer.visit(argument)
        self.found += outer.found
        return True

    def _returns(self, func: ast.AST, call: ast.Call) -> None:
        """What a function of the same file returns."""
        defined = self._definition(func)
        if defined is None or (defined, "return") in self._seen:
            return
        self._seen.add((defined, "return"))
        caller = FramePlace(self.source.file, *_place(call))
        inner = Names(self.source, [FramePlace(self.source.file, defined.lineno), caller, *self.frames[1:]], self._seen)
        for node in own_nodes(defined):
            if isinstance(node, ast.Return) and node.value is not None:
                inner.visit(node.value)
        self.found += inner.found
        self._seen.discard((defined, "return"))

    def decorators(self, func: ast.AST) -> list[str]:
        """What is wrapped around a function of the same file."""
        defined = self._definition(func)
        nodes = defined.decorator_list if defined is not None else []
        return [self.source.dotted(n.func if isinstance(n, ast.Call) else n) for n in nodes]

    def _definition(self, func: ast.AST) -> ast.FunctionDef | None:
        name = last_of(func)
        if not name or not (isinstance(func, ast.Name) or self._is_self(func)):
            return None
        same = (n for n in ast.walk(self.source.tree) if isinstance(n, ast.FunctionDef) and n.name == name)
        return next((n for n in same if (self.source.class_of(n) is None) == isinstance(func, ast.Name)), None)

    def _is_self(self, func: ast.AST) -> bool:
        return isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id in ("self", "cls")


def _place(node: ast.expr) -> tuple[int, int, int, int]:
    return node.lineno, node.end_lineno or -1, node.col_offset, node.end_col_offset or -1


def _inside(binding: Binding) -> set[ast.AST]:
    """The nodes of the values of a binding: a name in them is what it was before."""
    return {node for value in binding.values for node in _below(value)}


def _below(value: ast.AST) -> Iterable[ast.AST]:
    return () if isinstance(value, ast.ExceptHandler) else ast.walk(value)


def _last(binding: Binding) -> ast.AST:
    return binding.values[0]


def arms_of(source: ParsedFile, node: ast.AST) -> list[tuple[ast.AST, ast.AST]]:
    """What makes a node run or not, the nearest first: compound statements and expressions, and which part of each.

    The part is the first statement of a block, so that statements of one block have the same.
    """
    found: list[tuple[ast.AST, ast.AST]] = []
    for parent, part in source.outwards(node):
        if isinstance(parent, SCOPES):
            break
        arm = _arm(parent, part)
        if arm is not None:
            found.append((parent, arm))
    return found


def _arm(parent: ast.AST, part: ast.AST) -> ast.AST | None:
    """The arm of `parent` that `part` belongs to; None where it always runs."""
    if isinstance(parent, ast.IfExp):
        return None if part is parent.test else part
    if isinstance(parent, ast.BoolOp):
        return None if part is parent.values[0] else part
    if isinstance(parent, COMPREHENSIONS):
        return None if isinstance(part, ast.comprehension) else part
    if isinstance(parent, ast.With):
        names = [last_of(item.context_expr.func) for item in parent.items if isinstance(item.context_expr, ast.Call)]
        return parent.body[0] if "suppress" in names and part in parent.body else None
    if isinstance(parent, (ast.Try, ast.Match)) and part in (
        *getattr(parent, "handlers", ()),
        *getattr(parent, "cases", ()),
    ):
        return part
    if isinstance(parent, (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try)):
        blocks: tuple[list[Any], ...] = (parent.body, parent.orelse)
        return next((block[0] for block in blocks if part in block), None)
    return None


def ranked(found: Iterable[Named]) -> list[Named]:
    """Each name once, those that tell most first."""
    once: dict[str, Named] = {}
    for named in found:
        once.setdefault(named.name, named)
    return sorted(once.values(), key=lambda named: named.weight)


def function_node(source: ParsedFile, code: CodeType) -> Any:
    """The definition that a code object was made from; None if it is not found."""
    for node in ast.walk(source.tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == code.co_name:
            if min([node.lineno, *(d.lineno for d in node.decorator_list)]) == code.co_firstlineno:
                return node
        elif isinstance(node, ast.Lambda) and code.co_name == "<lambda>" and node.lineno == code.co_firstlineno:
            return node
    return None
