"""The functions of a Python module, with the line range that an agent is shown: the code without its docstring."""

from __future__ import annotations

import ast
from dataclasses import dataclass


@dataclass(frozen=True)
class Function:
    """One function or method. Lines count from 1; `first`..`last` is its code (from `def` on, or below the docstring)."""

    name: str
    qualname: str
    start_line: int  # of the first decorator, else of `def`: what code objects call their first line
    def_line: int
    first: int
    last: int

    def holds(self, line: int) -> bool:
        return self.first <= line <= self.last


def find_functions(source: str) -> list[Function]:
    """Every function of `source` in file order, nested ones left to their parents. Raises SyntaxError."""
    found: list[Function] = []

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.append(_function(node, prefix))
            elif isinstance(node, ast.If | ast.Try):
                visit(node.body, prefix)

    visit(ast.parse(source).body, "")
    return found


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef, prefix: str) -> Function:
    first = node.lineno
    head = node.body[0]
    has_docstring = (
        isinstance(head, ast.Expr) and isinstance(head.value, ast.Constant) and isinstance(head.value.value, str)
    )
    if has_docstring and len(node.body) > 1:
        first = node.body[1].lineno
        decorators = getattr(node.body[1], "decorator_list", [])
        first = min([first, *(d.lineno for d in decorators)])
    start = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    return Function(node.name, f"{prefix}{node.name}", start, node.lineno, first, node.end_lineno or node.lineno)
