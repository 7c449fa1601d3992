"""Takes apart what a break says: torch's text into its parts, and the line of the program into the names on it."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator

import msgspec

ANOTHER = re.compile(r"\n*\*\*\* While handling this graph break, another graph break occurred: \*\*\*\n*")
LINK = re.compile(r"please visit: (\S+)")
GB_ID = re.compile(r"/gb(\d+)\.html")
RESUMED = re.compile(r"^torch_dynamo_resume_in_(.+)_at_(\d+)$")

MODULES = frozenset({"torch", "copy", "np", "numpy", "math", "operator"})
"""What stands in front of a function, and is not what it is called on."""

MATH = "sqrt exp log log2 log10 log1p expm1 sin cos tan asin acos atan sinh cosh tanh erf floor ceil trunc".split()
CONVERSIONS = frozenset({"int", "float", "bool", "complex", *(f"math.{name}" for name in MATH)})
"""Functions of one number for which there is something that does the same to a tensor."""

ASK_FOR_BOOLS = re.compile(r"any|all|allclose|equal|is\w+|logical_\w+|eq|ne|lt|le|gt|ge")
"""Functions and methods of torch whose results are bools."""

SIZED = re.compile(
    r"zeros|ones|empty|full|rand|randn|randint|randperm|arange|linspace|eye|view|reshape|expand|repeat|tile|narrow|split|"
    r"chunk|unflatten|broadcast_to|roll|new_\w+|topk|tril|triu"
)
"""Functions and methods of torch whose numbers become sizes or positions, where no tensor can stand."""


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
    told = text[: link.start()].rpartition("\n For more details")[0] if link else text
    body, _, context = told.partition("Developer debug context:")
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


class BreakLine:
    """The names of the code at which tracing stopped. Everything is empty where it is not found there.

    Attributes:
        source: the line.
        target, assigned: what the line assigns to, and what a plain `=` assigns.
        manager: what is behind `with`.
        defined: the class or function that the line defines.
    """

    def __init__(self, source: str, statement: str = "", code: str = "") -> None:
        """`source` is the whole line; `statement` and `code` as in `UserFrame`, empty where they are not known."""
        self.source = source.strip()
        self._statement = _parsed(statement or self.source)
        self._code: ast.expr | None = None
        self._parents = {child: node for node in self._nodes() for child in ast.iter_child_nodes(node)}
        named = (node for node in self._nodes() if isinstance(node, ast.expr) and not isinstance(node, ast.Constant))
        self._code = next((node for node in named if code and ast.unparse(node) == code), None)
        self.target = self.assigned = self.manager = self.defined = ""
        match self._statement:
            case ast.Assign(targets=[target, *_], value=value):
                self.target, self.assigned = ast.unparse(target), ast.unparse(value)
            case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
                self.target = ast.unparse(target)
            case ast.With(items=[item, *_]) | ast.AsyncWith(items=[item, *_]):
                self.manager = ast.unparse(item.context_expr)
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                self.defined = name

    @property
    def code(self) -> str:
        """The expression, or the line where it is not known."""
        return ast.unparse(self._code) if self._code is not None else self.source

    @property
    def named(self) -> str:
        """What to call the place: the call, or the statement where it is a simple one."""
        if isinstance(self._code, ast.Call) or self._statement is None or hasattr(self._statement, "body"):
            return self.code
        return ast.unparse(self._statement) if self._code is not None else self.source

    @property
    def form(self) -> str:
        """`If`, `While`, `Assert`, `For`, `With`, `ClassDef` …: the class of `ast` of the statement."""
        return type(self._statement).__name__ if self._statement is not None else ""

    @property
    def use(self) -> str:
        """What the value is for; empty where it is nothing of these.

        `test` or `loop`: a condition; `count`: of a `for` or `range`; `size`: also in a slice; `index`;
        `stored-index` of what is assigned to.
        """
        uses = (use for node, above in self._upwards() if (use := _use(node, above)) is not None)
        return next(uses, "" if self._code is not None or self.form != "For" else "count")

    @property
    def condition(self) -> str:
        """What an `if`, `while`, `assert` or conditional expression asks."""
        return "" if self._test is None else ast.unparse(_without_none_checks(self._test))

    @property
    def choice(self) -> str:
        """The same as a tensor of bools, for `torch.where` and its like."""
        return "" if self._test is None else ast.unparse(as_mask(_without_none_checks(self._test)))

    @property
    def _test(self) -> ast.expr | None:
        for node, above in self._upwards():
            if isinstance(node, ast.expr) and _use(node, above) in ("test", "loop"):
                return node
            if isinstance(above, ast.ListComp | ast.SetComp | ast.GeneratorExp) and node is above.elt is self._code:
                # Since Python 3.12 the jump of an `if` has the place of the element.
                return next((test for generator in above.generators for test in generator.ifs), node)
        for inner in self._nodes():
            if isinstance(inner, ast.If | ast.While | ast.Assert | ast.IfExp):
                return inner.test
            if isinstance(inner, ast.comprehension) and inner.ifs:
                return inner.ifs[0]
        return self._code

    @property
    def number(self) -> tuple[str, str]:
        """What makes a number of a tensor, as in `int(x.item())`, and the tensor that takes its place."""
        found: ast.AST | None = self._code
        for _, above in self._upwards():
            if not (isinstance(above, ast.Call) and _is_conversion(above)):
                break
            found = above
        if not isinstance(found, ast.Call):
            return "", ""
        write = _operand if "index" in self.use else ast.unparse
        return ast.unparse(found), write(as_tensor(found))

    @property
    def indexed(self) -> tuple[str, str]:
        """`x` and `x[i]`, of which the code is the index."""
        for node, above in self._upwards():
            if isinstance(above, ast.Subscript) and node is above.slice:
                return ast.unparse(above.value), ast.unparse(above)
        return "", ""

    @property
    def statement(self) -> str:
        """All of it."""
        return ast.unparse(self._statement) if self._statement is not None else self.source

    def call(self, name: str) -> str:
        """The call at which tracing stopped; where that is not known, the one of what ends in `name`."""
        found = self._call(name)
        return ast.unparse(found) if found is not None else ""

    def owner(self, name: str, *, operand: bool = True) -> str:
        """`y` of `y.item()`; the first argument where `name` is a function, `y` of `float(y)`.

        As an operand it has the brackets that it needs in front of a dot or an index.
        """
        found = self._call(name)
        if found is None:
            return ""
        write = _operand if operand else ast.unparse
        if isinstance(found.func, ast.Attribute) and ast.unparse(found.func.value) not in MODULES:
            return write(found.func.value)
        return write(found.args[0]) if found.args else ""

    def mask(self) -> tuple[str, str]:
        """`x` and `x > 0` of `x[x > 0]`; empty where no index on the line looks like a mask."""
        for node in self._nodes():
            if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Constant | ast.Slice | ast.Tuple):
                return ast.unparse(node.value), ast.unparse(node.slice)
        return "", ""

    def _call(self, name: str) -> ast.Call | None:
        if self._code is not None:
            above = self._parents.get(self._code)
            called = above if isinstance(above, ast.Call) and above.func is self._code else self._code
            if isinstance(called, ast.Call):
                return called
        last = name.rpartition(".")[2]
        return next((node for node in self._nodes() if isinstance(node, ast.Call) and _name(node) == last != ""), None)

    def _nodes(self) -> Iterator[ast.AST]:
        """Of the expression, or of the statement where it is not known."""
        inside = self._code or self._statement
        return iter(()) if inside is None else ast.walk(inside)

    def _upwards(self) -> Iterator[tuple[ast.AST, ast.AST]]:
        """The expression and what is around it, each with what it is in."""
        node: ast.AST | None = self._code
        while node is not None and (above := self._parents.get(node)) is not None:
            yield node, above
            node = above


def as_tensor(node: ast.expr) -> ast.expr:
    """The expression with the tensors themselves in the place of `x.item()`, `float(x)` and their like."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "item":
        return as_tensor(node.func.value)
    if isinstance(node, ast.Call) and _is_conversion(node):
        tensor, name = as_tensor(node.args[0]), ast.unparse(node.func)
        if name == "bool":
            return as_mask(tensor)
        if name.startswith("math."):
            return ast.Call(ast.Name(name.replace("math", "torch")), [tensor], [])
        return ast.Call(ast.Attribute(tensor, "long"), [], []) if name == "int" else tensor
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.allclose":
        return ast.Call(ast.Attribute(ast.Call(ast.Name("torch.isclose"), node.args, node.keywords), "all"), [], [])
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.equal" and len(node.args) == 2:
        return ast.Call(ast.Attribute(ast.Compare(node.args[0], [ast.Eq()], node.args[1:]), "all"), [], [])
    if isinstance(node, ast.BinOp):
        return ast.BinOp(as_tensor(node.left), node.op, as_tensor(node.right))
    if isinstance(node, ast.UnaryOp):
        return ast.UnaryOp(node.op, as_tensor(node.operand))
    return node


def as_mask(test: ast.expr) -> ast.expr:
    """`(x > 0) & ~x.any()` of `x > 0 and not x.any()`: what `if` asks, as one tensor of bools."""
    asked: list[ast.expr]
    if isinstance(test, ast.BoolOp):
        asked = [as_mask(value) for value in test.values]
        joining: ast.operator = ast.BitAnd() if isinstance(test.op, ast.And) else ast.BitOr()
        return functools.reduce(lambda left, right: ast.BinOp(left, joining, right), asked)
    if isinstance(test, ast.Compare):
        sides = [as_tensor(side) for side in (test.left, *test.comparators)]
        pairs = zip(sides, test.ops, sides[1:], strict=False)
        asked = [ast.Compare(left, [op], [right]) for left, op, right in pairs]
        return functools.reduce(lambda left, right: ast.BinOp(left, ast.BitAnd(), right), asked)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        if _is_bool(test.operand):
            return ast.UnaryOp(ast.Invert(), as_mask(test.operand))
        return ast.Compare(as_tensor(test.operand), [ast.Eq()], [ast.Constant(0)])
    if isinstance(test, ast.Call) and _is_conversion(test) and ast.unparse(test.func) == "bool":
        return as_mask(test.args[0])
    if isinstance(test, ast.Call) and getattr(test.func, "attr", "") == "item":
        return as_mask(as_tensor(test))
    return as_tensor(test) if _is_bool(test) else ast.Compare(as_tensor(test), [ast.NotEq()], [ast.Constant(0)])


def _is_bool(test: ast.expr) -> bool:
    """Whether a tensor of bools comes of it."""
    if isinstance(test, ast.Call):
        name = _name(test)
        return bool(ASK_FOR_BOOLS.fullmatch(name)) or name == "bool" or (name == "item" and _is_bool(as_tensor(test)))
    return isinstance(test, ast.Compare | ast.BoolOp) or (
        isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not | ast.Invert)
    )


def _use(node: ast.AST, above: ast.AST) -> str | None:
    """What `above` needs `node` for, as `BreakLine.use` says; None for nothing of these."""
    if getattr(above, "test", None) is node:
        return "loop" if isinstance(above, ast.While) else "test"
    if isinstance(above, ast.comprehension) and node in above.ifs:
        return "test"
    called = _name(above) if isinstance(above, ast.Call) else ""
    if isinstance(above, ast.For) or called == "range":
        return "count"
    if isinstance(above, ast.Subscript) and node is above.slice:
        return "index" if isinstance(above.ctx, ast.Load) else "stored-index"
    if isinstance(above, ast.Slice) or SIZED.fullmatch(called):
        return "size" if node is not getattr(above, "func", None) else ""
    return None


def _name(call: ast.Call) -> str:
    name: str = getattr(call.func, "attr", getattr(call.func, "id", ""))
    return name


def _is_conversion(call: ast.Call) -> bool:
    return ast.unparse(call.func) in CONVERSIONS and len(call.args) == 1


def _operand(node: ast.expr) -> str:
    """As it must be written in front of a dot or an index."""
    return ast.unparse(ast.Attribute(node, "_")).removesuffix("._")


def _without_none_checks(test: ast.expr) -> ast.expr:
    """`x.any()` of `x is not None and x.any()`: what asks for an object is not what asks a tensor."""
    if not isinstance(test, ast.BoolOp):
        return test
    left = [value for value in test.values if not _is_identity(value)]
    return test if not left else left[0] if len(left) == 1 else ast.BoolOp(test.op, left)


def _is_identity(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and all(isinstance(operator, ast.Is | ast.IsNot) for operator in test.ops)


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
