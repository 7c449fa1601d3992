"""The user's source, parsed: what functions and names in it are."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator
from types import CodeType
from typing import Any, NamedTuple

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
LITERALS: dict[type[ast.AST], str] = {
    **dict.fromkeys((ast.Dict, ast.DictComp), "dict"),
    **dict.fromkeys((ast.List, ast.ListComp), "list"),
    **dict.fromkeys((ast.Set, ast.SetComp), "set"),
    **{ast.Tuple: "tuple", ast.JoinedStr: "str"},
}

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_OPERATORS = """
    Add add, Sub sub, Mult mul, Div truediv, FloorDiv floordiv, Mod mod, Pow pow, MatMult matmul, LShift lshift,
    RShift rshift, BitAnd and_, BitOr or_, BitXor xor, Eq eq, NotEq ne, Lt lt, LtE le, Gt gt, GtE ge, Is is_,
    IsNot is_not, In contains, NotIn contains
"""

OPERATORS: dict[type[ast.AST], str] = {getattr(ast, k): name for k, name in map(str.split, _OPERATORS.split(","))}


class Named(NamedTuple):
    """Something that the source calls, reads or does."""

    name: str
    source: str


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


def own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function's code, those of functions inside of it left out, in the order of the text."""
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, SCOPES):
            yield from own_nodes(child)


def function_node(source: ParsedFile, code: CodeType) -> Any:
    """The definition that a code object was made from; None if it is not found."""
    for node in ast.walk(source.tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == code.co_name:
            if min([node.lineno, *(d.lineno for d in node.decorator_list)]) == code.co_firstlineno:
                return node
        elif isinstance(node, ast.Lambda) and code.co_name == "<lambda>" and node.lineno == code.co_firstlineno:
            return node
    return None
