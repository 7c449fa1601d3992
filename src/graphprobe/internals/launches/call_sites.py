"""Which buffers each launch of a generated wrapper names, by line: read from the module's text."""

from __future__ import annotations

import ast

ALLOCATIONS = ("empty_strided", "reinterpret_tensor", "alloc_from_pool", "assert_size_stride", "assert_alignment")
"""Names that make or check a view of memory, and launch nothing."""


def buffers_by_line(code: str) -> dict[int, tuple[str, ...]]:
    """Line of every call statement -> the names it takes and the names its result is bound to, without repeats."""
    found: dict[int, tuple[str, ...]] = {}
    for statement in ast.walk(ast.parse(code)):
        if not isinstance(statement, ast.Expr | ast.Assign) or not isinstance(statement.value, ast.Call):
            continue
        call = statement.value
        if isinstance(call.func, ast.Name) and call.func.id.startswith(ALLOCATIONS):
            continue
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        names = [node.id for value in given for node in ast.walk(value) if isinstance(node, ast.Name)]
        names = [name for name in names if not name.startswith(ALLOCATIONS)]
        if isinstance(statement, ast.Assign):
            names += [
                node.id for target in statement.targets for node in ast.walk(target) if isinstance(node, ast.Name)
            ]
        found[call.lineno] = tuple(dict.fromkeys(names))
    return found
