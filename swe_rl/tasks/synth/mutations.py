"""The kinds of bug: each finds places in a module where one replacement of text plants a plausible mistake.

A mutation is a span of the source and its replacement, so that bug and fix are exact inverses and formatting survives.
The idea (procedural modifiers) is SWE-smith's, arXiv:2504.21798; the kinds here are our own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from swe_rl.tasks.synth.functions import Function, find_functions

COMPARISONS = {"<": ("<=", ">"), "<=": ("<", ">="), ">": (">=", "<"), ">=": (">", "<="), "==": ("!=",), "!=": ("==",)}
MEMBERSHIP = {"in": ("not in",), "not in": ("in",), "is": ("is not",), "is not": ("is",)}
ARITHMETIC = {"+": ("-",), "-": ("+",), "*": ("+", "//"), "/": ("*", "//"), "//": ("*", "/"), "%": ("//",)}
ARITHMETIC |= {"**": ("*",), "<<": (">>",), ">>": ("<<",)}
AUGMENTED = {"+=": ("-=",), "-=": ("+=",), "*=": ("+=",)}
SIBLINGS = [  # names that are easily confused
    *[("min", "max"), ("any", "all"), ("append", "extend"), ("startswith", "endswith"), ("lower", "upper")],
    *[("keys", "values"), ("values", "items"), ("lstrip", "rstrip"), ("strip", "lstrip"), ("find", "rfind")],
    *[("first", "last"), ("start", "end"), ("left", "right"), ("list", "tuple"), ("int", "float"), ("split", "rsplit")],
    *[("add", "discard"), ("union", "intersection"), ("islower", "isupper"), ("ljust", "rjust"), ("ceil", "floor")],
    *[("ValueError", "TypeError"), ("KeyError", "IndexError"), ("isdigit", "isalpha"), ("match", "search")],
    *[("pop", "get"), ("sorted", "reversed"), ("width", "height"), ("key", "value"), ("group", "groups")],
]
SIBLING_OF: dict[str, list[str]] = {}
for _one, _other in SIBLINGS:
    SIBLING_OF.setdefault(_one, []).append(_other)
    SIBLING_OF.setdefault(_other, []).append(_one)


@dataclass(frozen=True)
class Mutation:
    """Replace `source[start:end]` (character offsets; its text is `old`) by `new`; `line` counts from 1."""

    kind: str
    start: int
    end: int
    line: int
    old: str
    new: str
    function: Function

    def apply(self, source: str) -> str:
        """The module with the bug. Raises ValueError if the span does not hold `old` (another version of the file)."""
        if source[self.start : self.end] != self.old:
            raise ValueError(f"line {self.line}: expected {self.old!r}, found {source[self.start : self.end]!r}")
        return source[: self.start] + self.new + source[self.end :]


Proposal = tuple[str, cst.CSTNode, str]  # kind, the node whose text is replaced, the new text


class _Finder(cst.CSTVisitor):
    """Collects proposals; one method a node type. Text comes from `code_of`, positions later."""

    def __init__(self, code_of: Callable[[cst.CSTNode], str]) -> None:
        self.code_of = code_of
        self.proposals: list[Proposal] = []

    def _swap(self, kind: str, node: cst.CSTNode, table: Mapping[str, tuple[str, ...]]) -> None:
        self.proposals += [(kind, node, new) for new in table.get(" ".join(self.code_of(node).split()), ())]

    def visit_ComparisonTarget(self, node: cst.ComparisonTarget) -> None:
        self._swap("comparison", node.operator, COMPARISONS)
        self._swap("membership", node.operator, MEMBERSHIP)

    def visit_BinaryOperation(self, node: cst.BinaryOperation) -> None:
        self._swap("arithmetic", node.operator, ARITHMETIC)

    def visit_BooleanOperation(self, node: cst.BooleanOperation) -> None:
        self._swap("boolean", node.operator, {"and": ("or",), "or": ("and",)})

    def visit_AugAssign(self, node: cst.AugAssign) -> None:
        self._swap("augmented", node.operator, AUGMENTED)

    def visit_Integer(self, node: cst.Integer) -> None:
        if node.value.isdigit() and len(node.value) <= 3:
            value = int(node.value)
            self.proposals += [("constant", node, str(new)) for new in (value + 1, value - 1) if new >= 0]

    def visit_Name(self, node: cst.Name) -> None:
        if node.value in ("True", "False"):
            self.proposals.append(("constant", node, "False" if node.value == "True" else "True"))
        self.proposals += [("name", node, new) for new in SIBLING_OF.get(node.value, ())]

    def visit_UnaryOperation(self, node: cst.UnaryOperation) -> None:
        if isinstance(node.operator, cst.Not):
            self.proposals.append(("negation", node, self.code_of(node.expression)))

    def visit_If(self, node: cst.If) -> None:
        if isinstance(node.test, cst.Name | cst.Attribute | cst.Call):
            self.proposals.append(("negation", node.test, f"not {self.code_of(node.test)}"))

    def visit_IfExp(self, node: cst.IfExp) -> None:
        body, test, orelse = (self.code_of(part) for part in (node.body, node.test, node.orelse))
        self.proposals.append(("swapped_branches", node, f"{orelse} if {test} else {body}"))

    def visit_Call(self, node: cst.Call) -> None:
        plain = [arg for arg in node.args if arg.keyword is None and not arg.star]
        if len(plain) >= 2 and len({self.code_of(arg.value) for arg in plain[:2]}) == 2:
            one, two = plain[0].value, plain[1].value
            self.proposals += [("swapped_arguments", node, _swapped(node, one, two, self.code_of))]

    def visit_Return(self, node: cst.Return) -> None:
        if node.value is not None:
            self.proposals.append(("removed_return", node.value, "None"))

    def visit_Expr(self, node: cst.Expr) -> None:
        if isinstance(node.value, cst.Call):
            self.proposals.append(("removed_call", node, "pass"))

    def visit_Break(self, node: cst.Break) -> None:
        self.proposals.append(("loop_exit", node, "continue"))

    def visit_Continue(self, node: cst.Continue) -> None:
        self.proposals.append(("loop_exit", node, "break"))


def _swapped(call: cst.Call, one: cst.BaseExpression, two: cst.BaseExpression, code_of: Callable[..., str]) -> str:
    first, second = call.args[0], call.args[1]
    if first.value is not one or second.value is not two:
        return code_of(call)  # a keyword or star stands between: no change, dropped as a no-op
    args = [first.with_changes(value=two), second.with_changes(value=one), *call.args[2:]]
    return code_of(call.with_changes(args=args))


def find_mutations(source: str) -> list[Mutation]:
    """Every mutation of every function of `source`, in file order.

    Raises SyntaxError for a broken module, and for one with line ends that Python counts and git does not.
    """
    if "\r" in source.replace("\r\n", ""):
        raise SyntaxError("carriage returns end lines")
    functions = find_functions(source)
    try:
        wrapper = MetadataWrapper(cst.parse_module(source), unsafe_skip_copy=True)
    except cst.ParserSyntaxError as error:
        raise SyntaxError(str(error)) from error
    finder = _Finder(wrapper.module.code_for_node)
    wrapper.visit(finder)
    positions = wrapper.resolve(PositionProvider)
    starts = [0]
    for line in source.split("\n"):  # what else `str.splitlines` takes for a line's end is none to Python
        starts.append(starts[-1] + len(line) + 1)
    return list(_placed(source, finder.proposals, positions, starts, functions))


def _placed(
    source: str, proposals: list[Proposal], positions: object, starts: list[int], functions: list[Function]
) -> Iterator[Mutation]:
    seen: set[tuple[int, int, str]] = set()
    for kind, node, new in proposals:
        where = positions[node]  # type: ignore[index]
        start = starts[where.start.line - 1] + where.start.column
        end = starts[where.end.line - 1] + where.end.column
        old = source[start:end]
        while old[:1].isspace():  # operators own the whitespace around them
            old, start = old[1:], start + 1
        old, line = old.rstrip(), source.count("\n", 0, start) + 1
        end = start + len(old)
        function = next((f for f in functions if f.holds(line)), None)
        if function is None or line == function.def_line or not old or old == new or (start, end, new) in seen:
            continue
        seen.add((start, end, new))
        yield Mutation(kind, start, end, line, old, new, function)


def is_one_token(mutation: Mutation) -> bool:
    """Whether bug and fix each are a word or an operator on one line, with nothing else beside them."""
    return all("\n" not in text and len(text.split()) <= 2 and len(text) <= 12 for text in (mutation.old, mutation.new))


def sample_mutations(source: str, rng: random.Random, per_function: int) -> list[Mutation]:
    """At most `per_function` mutations of each function, of different kinds first, in file order."""
    by_function: dict[str, list[Mutation]] = {}
    for mutation in find_mutations(source):
        by_function.setdefault(mutation.function.qualname, []).append(mutation)
    chosen: list[Mutation] = []
    for group in by_function.values():
        rng.shuffle(group)
        rank: dict[str, int] = {}
        keyed = []
        for mutation in group:
            rank[mutation.kind] = rank.get(mutation.kind, 0) + 1
            keyed.append((rank[mutation.kind], mutation))
        keyed.sort(key=lambda pair: pair[0])
        chosen += [mutation for _, mutation in keyed[:per_function]]
    return sorted(chosen, key=lambda m: (m.start, m.end, m.new))
