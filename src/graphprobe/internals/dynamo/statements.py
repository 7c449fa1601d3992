"""Finds the expression and the statement that an instruction stands for, by the columns that CPython keeps of it."""

from __future__ import annotations

import ast
import functools
import linecache

BODIES = ("body", "orelse", "finalbody", "handlers", "cases")
MAX_CHARACTERS = 2000
"""Of a statement or expression; of a longer one nothing is kept."""


def code_at(file: str, line: int | None, column: int | None, end_column: int | None) -> tuple[str, str]:
    """The statement, a compound one without its body, and the expression, as Python writes them; empty if not found.

    Columns are those of `dis.Positions`, in bytes. Which line the expression ends on is not known.
    """
    if line is None or column is None or end_column is None:
        return "", ""
    tree = _parsed("".join(linecache.getlines(file)))
    statement = _statement_at(tree, line, column) if tree is not None else None
    if statement is None:
        return "", ""
    expression = _expression_at(statement, line, column, end_column)
    texts = (ast.unparse(_without_body(statement)), "" if expression is None else ast.unparse(expression))
    return ("", "") if max(map(len, texts)) > MAX_CHARACTERS else texts


@functools.lru_cache(maxsize=16)
def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _statement_at(tree: ast.Module, line: int, column: int) -> ast.stmt | None:
    """The innermost statement that reaches over the position."""
    found: ast.stmt | None = None
    level: list[ast.AST] = [tree]
    while level:
        node = level.pop()
        for child in ast.iter_child_nodes(node):
            if not _covers(child, line, column):
                continue
            found = child if isinstance(child, ast.stmt) else found
            level = [child]
    return found


def _covers(node: ast.AST, line: int, column: int) -> bool:
    if isinstance(node, ast.match_case | ast.withitem | ast.comprehension | ast.arguments):
        return any(_covers(child, line, column) for child in ast.iter_child_nodes(node))
    if not isinstance(node, ast.stmt | ast.expr | ast.excepthandler | ast.keyword | ast.arg | ast.pattern):
        return False
    begins, ends = (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)
    return begins <= (line, column) < ends


def _without_body(statement: ast.stmt) -> ast.stmt:
    """The statement with `...` in the place of what it contains."""
    if not hasattr(statement, "body") and not hasattr(statement, "cases"):
        return statement
    fields = {name: value for name, value in ast.iter_fields(statement) if name not in BODIES}
    fields |= {name: [] for name in BODIES[1:] if hasattr(statement, name)}
    nothing: list[ast.stmt] = [ast.Expr(ast.Constant(...))]
    if isinstance(statement, ast.Match):
        fields["cases"] = [ast.match_case(ast.MatchAs(), body=nothing)]
    else:
        fields["body"] = nothing
    if isinstance(statement, ast.Try | ast.TryStar):
        fields["finalbody"] = nothing
    return ast.copy_location(type(statement)(**fields), statement)


def _expression_at(statement: ast.stmt, line: int, column: int, end_column: int) -> ast.expr | None:
    expressions: list[ast.expr] = []
    level: list[ast.AST] = [statement]
    while level:
        level = [child for node in level for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt)]
        expressions += [node for node in level if isinstance(node, ast.expr)]
    for node in expressions:
        if (node.lineno, node.col_offset, node.end_col_offset) == (line, column, end_column):
            return node
    for node in expressions:  # of a call on several lines CPython keeps where the method's name begins
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.end_col_offset == end_column:
            name = node.func
            if (name.end_lineno, (name.end_col_offset or 0) - len(name.attr.encode())) == (line, column):
                return node
    return None
