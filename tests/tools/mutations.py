"""The mutations that :mod:`tests.tools.mutants` makes, one at a time, in the syntax tree of a module.

Code is not mutated if no test can notice the change: docstrings, annotations, decorators, type aliases, the names of
type variables, the texts of errors and of f-strings, and ``assert_never``, which is never reached.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import attrs

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_NEGATED_BY_SWAP = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
}
_TWINS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_SKIPPED_FIELDS = {"annotation", "returns", "decorator_list", "type_params", "pattern"}
_SKIPPED_NODES = (ast.Import, ast.ImportFrom, ast.JoinedStr, ast.Assert)
_DELETABLE = (ast.Expr, ast.AugAssign, ast.Raise, ast.Delete, ast.Continue, ast.Break)


@attrs.frozen
class Mutation:
    """A change at one place of a tree."""

    line: int
    before: str
    after: str
    _parent: ast.AST
    _field: str
    _index: int | None
    _old: ast.AST
    _new: ast.AST

    def source(self, tree: ast.Module) -> str:
        """Return the source of ``tree`` with this change. The tree itself is restored."""
        self._put(self._new)
        try:
            return ast.unparse(tree)
        finally:
            self._put(self._old)

    def _put(self, node: ast.AST) -> None:
        if self._index is None:
            setattr(self._parent, self._field, node)
        else:
            getattr(self._parent, self._field)[self._index] = node


def mutations(tree: ast.Module) -> list[Mutation]:
    """Return all changes to make in a module, in the order of its lines."""
    found = [
        Mutation(_line(old, parent), _text(old), _text(new), parent, field, index, old, new)
        for parent, field, index, old in _places(tree)
        for new in _replacements(parent, field, old)
    ]
    return sorted(found, key=lambda mutation: mutation.line)


def _places(parent: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    for field, value in ast.iter_fields(parent):
        if field in _SKIPPED_FIELDS:
            continue
        for index, child in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(child, ast.AST) and not _left_alone(parent, child):
                yield parent, field, index if isinstance(value, list) else None, child
                yield from _places(child)


def _left_alone(parent: ast.AST, node: ast.AST) -> bool:
    if isinstance(node, _SKIPPED_NODES):
        return True
    if isinstance(node, ast.If) and _text(node.test) == "TYPE_CHECKING":
        return True
    if isinstance(node, ast.Expr) and (isinstance(node.value, ast.Constant) or "assert_never" in _text(node)):
        return True
    if isinstance(parent, ast.Call) and isinstance(node, ast.Constant):
        called = _text(parent.func)
        return "Error" in called or called == "TypeVar"
    if isinstance(parent, ast.Module) and isinstance(node, ast.Assign | ast.AnnAssign):
        return "__all__" in _text(node) or node.value is None or isinstance(node.value, ast.Subscript | ast.BinOp)
    return False


def _replacements(parent: ast.AST, field: str, node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.stmt):
        yield from _of_statement(node)
        return
    if field == "test" and not (isinstance(node, ast.Compare) and isinstance(node.ops[0], _NEGATED_BY_SWAP)):
        assert isinstance(node, ast.expr)
        yield ast.UnaryOp(ast.Not(), node)
    if field in ("ifs", "guard"):
        yield ast.Constant(value=True)
    match node:
        case ast.Compare(left, [op, *ops], comparators):
            yield ast.Compare(left, [_COMPARISONS[type(op)](), *ops], comparators)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(ast.And() if isinstance(op, ast.Or) else ast.Or(), values)
        case ast.UnaryOp(ast.Not(), operand):
            yield operand
        case ast.BinOp(left, ast.BitOr(), right):
            yield from (left, right)
        case ast.BinOp(left, operator, right):
            if type(operator) in _ARITHMETIC:
                yield ast.BinOp(left, _ARITHMETIC[type(operator)](), right)
        case ast.Name(name) if name in _TWINS and field == "func":
            yield ast.Name(_TWINS[name])
        case ast.Constant():
            yield from _of_constant(node)
        case _:
            pass


def _of_constant(node: ast.Constant) -> Iterator[ast.Constant]:
    match node.value:
        case bool():
            yield ast.Constant(value=not node.value)
        case int():
            yield ast.Constant(value=node.value + 1)
        case float():
            yield ast.Constant(value=node.value * 2 or 1.0)
        case str():
            yield ast.Constant(value="" if node.value else "x")
        case bytes():
            yield ast.Constant(value=b"" if node.value else b"x")
        case _:
            pass


def _of_statement(node: ast.stmt) -> Iterator[ast.stmt]:
    match node:
        case ast.Return(ast.expr() as value) if _text(value) != "None":
            yield ast.Return(ast.Constant(value=None))
        case (
            ast.Assign(targets=[ast.Attribute() | ast.Subscript()])
            | ast.AnnAssign(target=ast.Attribute(), value=ast.expr())
        ):
            yield ast.Pass()
        case _ if isinstance(node, _DELETABLE):
            yield ast.Pass()
        case _:
            pass


def _line(node: ast.AST, parent: ast.AST) -> int:
    line = getattr(node, "lineno", getattr(parent, "lineno", 0))
    assert isinstance(line, int)
    return line


def _text(node: ast.AST) -> str:
    return " ".join(ast.unparse(ast.fix_missing_locations(node)).split())
