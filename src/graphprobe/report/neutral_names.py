"""Renames what a script binds, so that it says nothing of the program that it was made from."""

from __future__ import annotations

import ast
import sys

PUBLIC = {*sys.stdlib_module_names, "torch", "torchvision", "numpy", "triton", "safetensors", "transformers"}
"""Modules that everybody knows."""

KEPT = {"self", "cls", "forward", "backward", "setup_context"}
"""Names that torch calls, or that say nothing."""


class NeutralNames(ast.NodeTransformer):
    """Renames what scripts bind: functions, classes, variables, and modules that are not public."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.own_attributes: dict[str, str] = {}
        self.counts: dict[str, int] = {}

    def collect(self, tree: ast.Module) -> None:
        """Find the names of a script."""
        foreign = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and not _of_self(n)}
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                self._add(node.name, "Class")
                methods = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
                for name in methods - foreign - KEPT:
                    self._add(name, "method", self.own_attributes)
            elif isinstance(node, ast.FunctionDef):
                self._add(node.name, "function")
            elif isinstance(node, ast.arg):
                self._add(node.arg, "x")
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self._add(node.id, "v")
            elif isinstance(node, ast.ExceptHandler) and node.name:
                self._add(node.name, "v")
            elif isinstance(node, ast.Attribute) and _of_self(node) and isinstance(node.ctx, ast.Store):
                if node.attr not in foreign:
                    self._add(node.attr, "attribute", self.own_attributes)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                self._imported(node)

    def public_words(self) -> dict[str, str]:
        """The names that may stand in prose, too: not those of variables, which may be any word."""
        return {old: new for old, new in self.names.items() if not new.startswith(("x_", "v_")) and len(old) > 3}

    def _imported(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.ImportFrom):
            if node.module and node.module.split(".")[0] not in PUBLIC:
                self._add(node.module, "module")
                for alias in node.names:
                    self._add(alias.name, "name")
            return
        for alias in node.names:
            if alias.name.split(".")[0] not in PUBLIC:
                self._add(alias.name, "module")

    def _add(self, name: str, kind: str, into: dict[str, str] | None = None) -> None:
        into = self.names if into is None else into
        if name not in into and name not in KEPT and not name.startswith("__") and name != "_":
            self.counts[kind] = self.counts.get(kind, 0) + 1
            into[name] = f"{kind}_{self.counts[kind]}"

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self.names.get(node.id, node.id)
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.arg, node.annotation = self.names.get(node.arg, node.arg), None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        own = self.own_attributes.get(node.name)
        node.name = own or self.names.get(node.name, node.name)
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.name = self.names.get(node.name, node.name)
        return self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if _of_self(node):
            node.attr = self.own_attributes.get(node.attr, node.attr)
        return self.generic_visit(node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        node.name = self.names.get(node.name, node.name) if node.name else None
        return self.generic_visit(node)

    def visit_Global(self, node: ast.Global) -> ast.AST:
        node.names = [self.names.get(name, name) for name in node.names]
        return node

    def visit_alias(self, node: ast.alias) -> ast.alias:
        node.name = self.names.get(node.name, node.name)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Name) and node.func.id in self.names:
            for keyword in node.keywords:
                keyword.arg = self.names.get(keyword.arg, keyword.arg) if keyword.arg else None
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("tensor", "as_tensor") and node.args:
            for inner in ast.walk(node.args[0]):
                if isinstance(inner, ast.Constant) and isinstance(inner.value, int | float) and inner.value:
                    inner.value = inner.value if isinstance(inner.value, bool) else type(inner.value)(1)
        return self.generic_visit(node)


def _of_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "self"
