"""Takes apart what a break says: torch's text into its parts, and the line of the program into the names on it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import msgspec

ANOTHER = re.compile(r"\n*\*\*\* While handling this graph break, another graph break occurred: \*\*\*\n*")
LINK = re.compile(r"please visit: (\S+)")
GB_ID = re.compile(r"/gb(\d+)\.html")
RESUMED = re.compile(r"^torch_dynamo_resume_in_(.+)_at_(\d+)$")

MODULES = frozenset({"torch", "copy", "np", "numpy", "math", "operator"})
"""What stands in front of a function, and is not what it is called on."""


class Part(msgspec.Struct, frozen=True):
    """One break as torch tells it.

    Attributes:
        title: torch's name of the type of break.
        explanation, context: for the user, and for torch's developers.
        hints: what torch would do about it.
        url, gb_id: torch's page on this type, and its id, e.g. `GB0170`.
    """

    title: str
    explanation: str = ""
    context: str = ""
    hints: tuple[str, ...] = ()
    url: str | None = None
    gb_id: str | None = None


def parts_of(reason: str) -> list[Part]:
    """The break first, then those that came while torch was handling it. Never empty."""
    return [_part(text) for text in ANOTHER.split(reason.strip("\n")) if text.strip()] or [Part("")]


def _part(text: str) -> Part:
    link = LINK.search(text)
    body, _, context = (
        text[: link.start()].rpartition("\n For more details")[0].partition("Developer debug context:")
        if link
        else text.partition("Developer debug context:")
    )
    title, _, rest = body.partition("\n  Explanation:")
    explanation, *hints = re.split(r"\n  Hint: ", rest)
    number = GB_ID.search(link.group(1)) if link else None
    return Part(
        title=title.strip(),
        explanation=_flat(explanation),
        context=_flat(context),
        hints=tuple(map(_flat, hints)),
        url=link.group(1) if link else None,
        gb_id=f"GB{number.group(1)}" if number else None,
    )


def _flat(text: str) -> str:
    return " ".join(text.split())


def plain_name(function: str) -> str:
    """A function's name without what Dynamo puts around that of a continuation behind a break."""
    while match := RESUMED.match(function):
        function = match.group(1)
    return function


class Line:
    """The names on a line of the program. Everything is empty where the line is only a piece of a statement."""

    def __init__(self, source: str) -> None:
        self.source = source.strip()
        self._statement = _parsed(self.source)

    @property
    def form(self) -> str:
        """`If`, `While`, `Assert`, `For`, `With`, `ClassDef` …: the class of `ast` of the statement."""
        return type(self._statement).__name__ if self._statement is not None else ""

    @property
    def condition(self) -> str:
        """What an `if`, `while`, `assert` or conditional expression asks."""
        for node in self._nodes():
            if isinstance(node, ast.If | ast.While | ast.Assert | ast.IfExp):
                return ast.unparse(_without_none_checks(node.test))
        return ""

    @property
    def has_conditional_expression(self) -> bool:
        """Whether there is an `a if b else c` on it."""
        return any(isinstance(node, ast.IfExp) for node in self._nodes())

    @property
    def target(self) -> str:
        """What the line assigns to."""
        statement = self._statement
        if isinstance(statement, ast.Assign):
            return ast.unparse(statement.targets[0])
        return ast.unparse(statement.target) if isinstance(statement, ast.AugAssign | ast.AnnAssign) else ""

    @property
    def manager(self) -> str:
        """What stands behind `with`."""
        statement = self._statement
        return ast.unparse(statement.items[0].context_expr) if isinstance(statement, ast.With | ast.AsyncWith) else ""

    @property
    def defined(self) -> str:
        """The class or function that the line defines."""
        statement = self._statement
        return statement.name if isinstance(statement, ast.ClassDef | ast.FunctionDef) else ""

    def call(self, name: str) -> str:
        """The call of what ends in `name`, as it is written; empty where there is none."""
        found = self._call(name)
        return ast.unparse(found) if found is not None else ""

    def owner(self, name: str) -> str:
        """`y` of `y.item()`; the first argument where `name` is a function, `y` of `float(y)`."""
        found = self._call(name)
        if found is None:
            return ""
        if isinstance(found.func, ast.Attribute) and ast.unparse(found.func.value) not in MODULES:
            return ast.unparse(found.func.value)
        return ast.unparse(found.args[0]) if found.args else ""

    def mask(self) -> tuple[str, str]:
        """`x` and `x > 0` of `x[x > 0]`; empty where no index on the line looks like a mask."""
        for node in self._nodes():
            if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Constant | ast.Slice | ast.Tuple):
                return ast.unparse(node.value), ast.unparse(node.slice)
        return "", ""

    def _call(self, name: str) -> ast.Call | None:
        last = name.rpartition(".")[2]
        for node in self._nodes():
            if isinstance(node, ast.Call) and last in (
                getattr(node.func, "attr", None),
                getattr(node.func, "id", None),
            ):
                return node
        return None

    def _nodes(self) -> Iterator[ast.AST]:
        return iter(()) if self._statement is None else ast.walk(self._statement)


def _without_none_checks(test: ast.expr) -> ast.expr:
    """`x.any()` of `x is not None and x.any()`: what asks for an object is not what asks a tensor."""
    if not isinstance(test, ast.BoolOp):
        return test
    left = [value for value in test.values if not (isinstance(value, ast.Compare) and _is_identity(value))]
    if not left:
        return test
    return left[0] if len(left) == 1 else ast.BoolOp(test.op, left)


def _is_identity(compare: ast.Compare) -> bool:
    return all(isinstance(operator, ast.Is | ast.IsNot) for operator in compare.ops)


def _parsed(source: str) -> ast.stmt | None:
    """The statement that begins on the line, its body and its closing brackets made up where they lie further down."""
    if not source or source.startswith("#"):
        return None
    source = re.sub(r"^elif\b", "if", source)
    closing = ")" * max(0, source.count("(") - source.count(")")) + "]" * max(0, source.count("[") - source.count("]"))
    for text in (source, f"{source} pass", f"{source}\n pass", source + closing, f"{source}{closing}: pass"):
        try:
            body = ast.parse(text).body
        except (SyntaxError, ValueError):
            continue
        if body:
            return body[0]
    return None
