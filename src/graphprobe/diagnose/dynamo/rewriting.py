"""Rewrites the user's functions, so that chosen pieces of their code run uncompiled."""

from __future__ import annotations

import ast
import contextlib
import copy
import operator
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any, Literal

import msgspec
import torch

from graphprobe.analysis.breaks_edits import codes_in
from graphprobe.diagnose.dynamo.python_source import (
    COMPREHENSIONS,
    OPERATORS,
    SCOPES,
    ParsedFile,
    function_node,
    last_of,
    own_nodes,
    source_at,
)

How = Literal["", "apart", "break"]
"""What becomes of a piece: it stays; it runs uncompiled; the graph breaks before it, and it is compiled."""

APART, KEPT, TORCH = "_graphprobe_apart", "_graphprobe_kept", "_graphprobe_torch"
"""Globals of a rewritten function. Dynamo compiles only frames that name torch."""

UNTOUCHED = frozenset("breakpoint eval exec globals graph_break locals super".split())
"""Functions that look at the frame that calls them, and breaks."""

OF_FRAMES = ("dir", "vars")
"""Functions that do so where they have no argument."""

PAUSES = (ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith)
LOOPS = (ast.For, ast.While)
WHOLE = (*COMPREHENSIONS, *LOOPS, ast.Try, ast.JoinedStr)
"""Where Dynamo cannot break inside: a break leaves out the whole frame."""

UNARY: dict[type[ast.AST], str] = {ast.Not: "not_", ast.USub: "neg", ast.UAdd: "pos", ast.Invert: "invert"}
SIGNS = {"add": "+=", "sub": "-=", "mul": "*=", "truediv": "/="}
FUTURES = 0x1FF0000
"""Flags of code that `from __future__` sets."""


class SourcePiece(msgspec.Struct):
    """A piece of the user's code that can run uncompiled.

    Attributes:
        names: what it calls, reads or does.
        kind: how it runs, see `run_piece`.
        whole: Dynamo cannot break inside.
        owner: the class derived from `torch.autograd.Function` that it is in.
        inside: pieces that were running when it did.
        ops: what it called of torch.
        function: qualified name and first line of the function that has it.
        begin, end: line, and column in bytes, in the file.
    """

    names: list[str]
    source: str
    kind: str
    whole: bool = False
    owner: str = ""
    inside: list[int] = []
    ops: list[str] = []
    function: tuple[str, int] = ("", 0)
    begin: tuple[int, int] = (0, 0)
    end: tuple[int, int] = (0, 0)


def run_piece(kind: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Do what a piece does, with its arguments computed."""
    if kind == "method":
        return getattr(args[0], args[1])(*args[2:], **kwargs)
    if kind == "op":
        return args[2] in args[1] if args[0] == "in" else getattr(operator, args[0])(*args[1:])
    return getattr(args[0], args[1]) if kind == "attribute" else args[0](*args[1:], **kwargs)


def _apart(_: int, kind: str, *args: Any, **kwargs: Any) -> Any:
    """Run a piece uncompiled."""
    return run_piece(kind, args, kwargs)


apart: Any = torch.compiler.disable(_apart)  # type: ignore[no-untyped-call]


def alone(_: int, kind: str, *args: Any, **kwargs: Any) -> Any:
    """Run a piece compiled, in a program that is not."""

    def run(*args: Any, **kwargs: Any) -> Any:
        torch.ones(())
        return run_piece(kind, args, kwargs)

    return torch.compile(run, backend="eager")(*args, **kwargs)


def kept(value: Any, _: Any) -> Any:
    """Add an op behind a break: Dynamo leaves out what has none."""
    torch.ones(())
    return value


def rewrite(
    functions: Sequence[types.FunctionType],
    chosen: Callable[[int], How],
    helper: Callable[..., Any] = apart,
    after: Callable[[Any, Any], Any] = kept,
) -> list[SourcePiece]:
    """Rewrite functions in this process, and return their pieces; `chosen` maps the number of a piece."""
    pieces: list[SourcePiece] = []
    done: dict[CodeType, CodeType] = {}
    for function in functions:
        code = function.__code__
        source = source_at(code.co_filename)
        node = function_node(source, code) if source is not None else None
        if source is not None and node is not None and code not in done:
            writer = _Rewriter(source, node, len(pieces), chosen, (code.co_qualname, code.co_firstlineno))
            with contextlib.suppress(SyntaxError, ValueError):  # what cannot stand in a function of its own
                made = _compiled(source, node, writer.rewritten(), code)
                done[code] = made if made is not None and writer.changes else code
            pieces += writer.pieces
        if done.get(code, code) is not code:
            with contextlib.suppress(ValueError):
                function.__code__ = done[code]
                function.__globals__.update({APART: helper, KEPT: after, TORCH: torch})
    return pieces


class _Rewriter(ast.NodeTransformer):
    """Numbers the pieces of a function, the inner ones first, and puts calls in place of the chosen ones."""

    def __init__(
        self, source: ParsedFile, scope: Any, first: int, chosen: Callable[[int], How], function: tuple[str, int]
    ) -> None:
        self.source, self.first, self.chosen, self.function = source, first, chosen, function
        self.scope = copy.deepcopy(scope)
        self.pieces: list[SourcePiece] = []
        self.changes = False
        owner = source.class_of(scope)
        bases = [source.dotted(base) for base in owner.bases] if owner is not None else []
        self._owner = owner.name if owner is not None and any(b.endswith("Function") for b in bases) else ""
        self._outer: list[set[str]] = []
        self._moved: list[dict[str, None]] = []  # variables that statements of a function set, and are to be its own

    def rewritten(self) -> Any:
        if isinstance(self.scope, ast.Lambda):
            self.scope.body = self.visit(self.scope.body)
        else:
            self.scope.decorator_list = []
            self.visit(self.scope)
        return ast.fix_missing_locations(self.scope)

    def visit_FunctionDef(self, node: Any) -> Any:
        declared = [n for n in node.body if isinstance(n, (ast.Global, ast.Nonlocal))]
        self._outer.append(
            {name for n in own_nodes(node) if isinstance(n, (ast.Global, ast.Nonlocal)) for name in n.names}
        )
        self._moved.append({})
        body = self._statements([n for n in node.body if n not in declared])
        if names := self._moved.pop():
            targets: list[ast.expr] = [ast.Name(name, ast.Store()) for name in names]
            body.insert(0, ast.If(ast.Constant(False), [ast.Assign(targets, ast.Constant(None))], []))
        self._outer.pop()
        node.body = declared + body
        return node

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def generic_visit(self, node: ast.AST) -> Any:
        for field, value in ast.iter_fields(node):
            if isinstance(value, ast.AST):
                setattr(node, field, self.visit(value))
            elif isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                setattr(node, field, self._statements(value))
            elif isinstance(value, list):
                setattr(node, field, [self.visit(v) if isinstance(v, ast.AST) else v for v in value])
        return node

    def _statements(self, body: Sequence[ast.stmt]) -> list[Any]:
        found: list[Any] = []
        for statement in body:
            made = self.visit(statement)
            found += made if isinstance(made, list) else [made]
        return found

    def _piece(self, node: Any, kind: str, names: Sequence[str]) -> tuple[int, How]:
        number = self.first + len(self.pieces)
        source = f"{self.source.file}:{node.lineno}"
        piece = SourcePiece([*names], source, kind, isinstance(node, WHOLE), self._owner, function=self.function)
        piece.begin, piece.end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
        self.pieces.append(piece)
        how = self.chosen(number)
        self.changes |= bool(how)
        return number, how

    def _call(self, number: int, kind: str, args: Sequence[Any], keywords: Sequence[Any] = ()) -> Any:
        given: list[Any] = [ast.Constant(number), ast.Constant(kind), *args]
        made = ast.Call(ast.Name(APART, ast.Load()), given, list(keywords))
        return ast.Call(ast.Name(KEPT, ast.Load()), [made, ast.Name(TORCH, ast.Load())], [])

    def _broken(self, number: int) -> Any:
        return self._call(number, "call", [ast.Name("bool", ast.Load())])

    def _expression(self, node: Any, names: Sequence[str], kind: str, args: Sequence[Any], keywords: Any = ()) -> Any:
        number, how = self._piece(node, kind, names)
        if how == "apart":
            return ast.copy_location(self._call(number, kind, args, keywords), node)
        if how == "break":
            both = ast.Tuple([self._broken(number), node], ast.Load())
            return ast.copy_location(ast.Subscript(both, ast.Constant(1), ast.Load()), node)
        return node

    def visit_Call(self, node: ast.Call) -> Any:
        func: Any = node.func
        name = self.source.dotted(func.func if isinstance(func, ast.Call) else func)
        method = isinstance(func, ast.Attribute) and not self.source.is_imported(func.value) and not _mangled(func.attr)
        if method:
            func.value = self.visit(func.value)
        elif not isinstance(func, (ast.Name, ast.Attribute)):
            node.func = self.visit(func)
        node.args = [self.visit(a) for a in node.args]
        for keyword in node.keywords:
            keyword.value = self.visit(keyword.value)
        if last_of(func) in (UNTOUCHED if node.args else {*UNTOUCHED, *OF_FRAMES}):
            return node
        names = ["format"] if method and func.attr == "format" else [name or "call"]
        called = [func.value, ast.Constant(func.attr)] if method else [node.func]
        return self._expression(node, names, "method" if method else "call", [*called, *node.args], node.keywords)

    def _operator(self, node: Any, name: str, *operands: Any, shown: str = "") -> Any:
        return self._expression(node, [shown or f"operator.{name}"], "op", [ast.Constant(name), *operands])

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        text = isinstance(node.op, ast.Mod) and self.source.dotted(node.left) == "str"
        self.generic_visit(node)
        return self._operator(node, OPERATORS[type(node.op)], node.left, node.right, shown="format" if text else "")

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        self.generic_visit(node)
        plain = isinstance(node.operand, ast.Constant)
        return node if plain else self._operator(node, UNARY[type(node.op)], node.operand)

    def visit_Compare(self, node: ast.Compare) -> Any:
        self.generic_visit(node)
        op, left, right = node.ops[0], node.left, node.comparators[0]
        if len(node.ops) > 1 or isinstance(op, ast.NotIn):
            return node
        if isinstance(op, ast.In):
            return self._operator(node, "in", right, left, shown="operator.contains")
        shown = "is" if isinstance(op, (ast.Is, ast.IsNot)) else ""
        return self._operator(node, OPERATORS[type(op)], left, right, shown=shown)

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        shown = ast.unparse(node)
        if isinstance(node.ctx, ast.Load) and any(isinstance(part, ast.Slice) for part in ast.walk(node.slice)):
            return self._later(node, shown)  # what makes the slice runs uncompiled, too
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load):
            return node
        return self._operator(node, "getitem", node.value, node.slice, shown=shown)

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        if self.source.is_imported(node.value):
            return node
        shown = self.source.dotted(node)
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load) or _mangled(node.attr):
            return node
        return self._expression(node, [shown], "attribute", [node.value, ast.Constant(node.attr)])

    def visit_JoinedStr(self, node: ast.JoinedStr) -> Any:
        formats = any(isinstance(part, ast.FormattedValue) for part in node.values)
        return self._later(node, "format") if formats else node

    def visit_ListComp(self, node: Any) -> Any:
        return self._later(node, self.source.dotted(node) or "generator")

    visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_ListComp  # noqa: N815

    def _later(self, node: Any, name: str) -> Any:
        self.generic_visit(node)
        if _holds(node, (*PAUSES, ast.NamedExpr)) or _needs_class(node):
            return node
        return self._expression(node, [name], "call", [ast.Lambda(_no_arguments(), node)])

    def _test(self, test: Any) -> Any:
        made = self.visit(test)
        plain = isinstance(test, (ast.Name, ast.Attribute, ast.Subscript, ast.BinOp))
        return self._operator(made, "truth", made, shown="bool") if plain else made

    def visit_If(self, node: Any) -> Any:
        node.test = self._test(node.test)
        node.body, node.orelse = self._statements(node.body), self._statements(node.orelse)
        return node

    def visit_IfExp(self, node: Any) -> Any:
        node.test = self._test(node.test)
        node.body, node.orelse = self.visit(node.body), self.visit(node.orelse)
        return node

    def visit_While(self, node: Any) -> Any:
        self.visit_If(node)
        return self._statement(node, ["while"])

    def visit_For(self, node: Any) -> Any:
        node.iter = self.visit(node.iter)
        node.body, node.orelse = self._statements(node.body), self._statements(node.orelse)
        return self._statement(node, ["iter"])

    def visit_Try(self, node: Any) -> Any:
        kinds = [k for h in node.handlers for k in (h.type.elts if isinstance(h.type, ast.Tuple) else [h.type]) if k]
        names = [self.source.dotted(kind) for kind in kinds]
        self.generic_visit(node)
        return self._statement(node, names or ["try"])

    visit_TryStar = visit_Try  # noqa: N815

    def visit_With(self, node: Any) -> Any:
        calls = [i.context_expr for i in node.items if isinstance(i.context_expr, ast.Call)]
        names = [self.source.dotted(part) for call in calls for part in (call.func, *call.args)]
        self.generic_visit(node)
        return self._statement(node, [*filter(None, names)] or ["with"])

    def visit_Match(self, node: Any) -> Any:
        node.subject = self.visit(node.subject)
        for case in node.cases:
            case.body = self._statements(case.body)
        return self._statement(node, ["match"])

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        node.value = self.visit(node.value)
        name = OPERATORS[type(node.op)]
        if not isinstance(node.target, ast.Name) or self._is_outer(node.target):
            return self._statement(node, [_stored(node.target, SIGNS.get(name, f"{name}="))])
        number, how = self._piece(node, "op", [f"operator.{name}"])
        read = ast.Name(node.target.id, ast.Load())
        if how == "apart":
            made = self._call(number, "op", [ast.Constant(f"i{name.strip('_')}"), read, node.value])
            return ast.copy_location(ast.Assign([node.target], made), node)
        return [ast.copy_location(ast.Expr(self._broken(number)), node), node] if how else node

    def visit_Assign(self, node: ast.Assign) -> Any:
        node.value = self.visit(node.value)
        parts = [part for target in node.targets for part in _flat(target)]
        stored = next((p for p in parts if not isinstance(p, ast.Name) or self._is_outer(p)), None)
        return node if stored is None else self._statement(node, [_stored(stored, "=")])

    def visit_Delete(self, node: ast.Delete) -> Any:
        target = next((t for t in node.targets if not isinstance(t, ast.Name)), None)
        shown = f"{ast.unparse(target.value)}.__delitem__" if isinstance(target, ast.Subscript) else ast.unparse(node)
        return node if target is None else self._statement(node, [shown])

    def _is_outer(self, node: Any) -> bool:
        return isinstance(node, ast.Name) and bool(self._outer) and node.id in self._outer[-1]

    def _statement(self, node: Any, names: Sequence[str]) -> Any:
        """A statement runs uncompiled as a function inside of its own."""
        if not self._moved or _holds(node, PAUSES) or _needs_class(node) or _jumps_out(node):
            return node
        number, how = self._piece(node, "statement", names)
        if how == "break":
            return [ast.copy_location(ast.Expr(self._broken(number)), node), node]
        if not how:
            return node
        bound = [*dict.fromkeys(_bound(node))]
        given = [name for name in bound if name not in self._outer[-1]]
        self._moved[-1].update(dict.fromkeys(given))
        declared: list[Any] = [ast.Nonlocal(given)] if given else []
        for name in (n for n in bound if n not in given):
            all_global = any(isinstance(n, ast.Global) and name in n.names for n in ast.walk(self.source.tree))
            declared.append(ast.Global([name]) if all_global else ast.Nonlocal([name]))
        part, back = f"_part{number}", f"_back{number}"
        ends = _holds(node, (ast.Return,))
        body = [*declared, _Returns().visit(node)]
        result: list[Any] = [ast.FunctionDef(part, _no_arguments(), body, [])]
        call = self._call(number, "call", [ast.Name(part, ast.Load())])
        result.append(ast.Assign([ast.Name(back, ast.Store())], call))
        if ends:
            read = ast.Name(back, ast.Load())
            test = ast.Compare(read, [ast.IsNot()], [ast.Constant(None)])
            result.append(ast.If(test, [ast.Return(ast.Subscript(read, ast.Constant(0), ast.Load()))], []))
        return [ast.fix_missing_locations(ast.copy_location(r, node)) for r in result]


class _Returns(ast.NodeTransformer):
    """What a moved statement returns becomes a tuple; None says that it went on."""

    def visit_Return(self, node: ast.Return) -> Any:
        return ast.copy_location(ast.Return(ast.Tuple([node.value or ast.Constant(None)], ast.Load())), node)

    def visit_FunctionDef(self, node: Any) -> Any:
        return node

    visit_AsyncFunctionDef = visit_Lambda = visit_ClassDef = visit_FunctionDef  # noqa: N815


def _no_arguments() -> ast.arguments:
    return ast.arguments([], [], None, [], [], None, [])


def _mangled(name: str) -> bool:
    return name.startswith("__") and not name.endswith("__")


def _holds(node: ast.AST, kinds: tuple[type[ast.AST], ...]) -> bool:
    return any(isinstance(n, kinds) for n in (node, *own_nodes(node)))


def _needs_class(node: ast.AST) -> bool:
    return any(isinstance(n, ast.Name) and n.id in ("super", "__class__") for n in ast.walk(node))


def _jumps_out(node: ast.AST, inside: bool = False) -> bool:
    """Whether a `break` or `continue` leads out of a statement."""
    if isinstance(node, (ast.Break, ast.Continue)):
        return not inside
    inside = inside or isinstance(node, LOOPS)
    return not isinstance(node, SCOPES) and any(_jumps_out(child, inside) for child in ast.iter_child_nodes(node))


def _bound(node: ast.AST) -> Iterator[str]:
    """The variables that a statement sets."""
    for n in (node, *own_nodes(node)):
        if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load):
            yield n.id
        elif isinstance(n, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar, ast.FunctionDef, ast.ClassDef)) and n.name:
            yield n.name
        elif isinstance(n, ast.alias):
            yield n.asname or n.name.partition(".")[0]


def _flat(target: ast.AST) -> Iterator[ast.AST]:
    if isinstance(target, (ast.Tuple, ast.List)):
        for part in target.elts:
            yield from _flat(part)
    elif isinstance(target, ast.Starred):
        yield from _flat(target.value)
    else:
        yield target


def _stored(target: Any, sign: str) -> str:
    entry = isinstance(target, ast.Subscript)
    return f"{ast.unparse(target.value)}.__setitem__" if entry else f"{ast.unparse(target)} {sign}"


def _compiled(source: ParsedFile, node: Any, scope: Any, code: CodeType) -> CodeType | None:
    """The code of a rewritten function, with the same variables from outside."""
    inner: Any = ast.Expr(scope) if isinstance(scope, ast.Lambda) else scope
    owner = source.class_of(node)
    if owner is not None and source.function_of(node) is owner:
        inner = ast.ClassDef(owner.name, [], [], [inner], [])  # for names with two underscores, and `super`
    names: list[Any] = [ast.Name(name, ast.Store()) for name in code.co_freevars if name != "__class__"]
    body = [*([ast.Assign(names, ast.Constant(None))] if names else []), inner]
    maker = ast.copy_location(ast.FunctionDef("_maker", _no_arguments(), body, []), node)
    tree = ast.fix_missing_locations(ast.Module([maker], []))
    made = compile(tree, code.co_filename, "exec", flags=code.co_flags & FUTURES, dont_inherit=True)
    return next((inside for inside in codes_in(made) if inside.co_name == code.co_name), None)
