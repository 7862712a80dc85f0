"""Conditions on rows of the table of episodes, such as ``not success and task ~ 'drawer'``.

The grammar is that of Python's expressions, of which only columns, constants, comparisons, ``in``, ``and``, ``or`` and
``not`` are allowed, plus SQL's spellings ``=``, ``<>``, ``null``, and ``~`` (contains, in any case). As in SQL, a
comparison with an unknown value is unknown, and unknown rows are not selected. Nothing is executed. The time for a row
is proportional to the lengths of the condition and of the row's texts. Any thread.
"""

from __future__ import annotations

import ast
import operator
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

from glassfs.content.episodes import TEXT, TEXTS
from glassfs.content.summary import COLUMNS, CONTAINER, RECORD_COLUMNS
from glassfs.errors import GlassfsError

LONGEST = 4096
"""Characters of a condition."""
DEEPEST = 50
"""Conditions inside each other."""
ALIASES = {"task": "language_instruction"}
BOOL, NUMBER, UNKNOWN = "true or false", "a number", "null"
_NAMES = {TEXT: "text", TEXTS: "a list"}
_DTYPES = {"|b1": BOOL, TEXT: TEXT, TEXTS: TEXTS}
# A text, or what Python spells differently. ``@`` binds as tightly as ``~`` shall.
_TEXT = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|"""
_SPELLED = re.compile(_TEXT + r"[<>=!]=|<>|=|~|\w+|\s", re.DOTALL)
_WORD = re.compile(_TEXT + r"[<>=!]=|<>|[\w.]+|\S", re.DOTALL)
_PYTHON = {"<>": "!=", "=": "==", "~": "@", "null": "None", "true": "True", "false": "False"} | {
    word: word for word in ("and", "or", "not", "in", "is")
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.Is: operator.eq, ast.NotEq: operator.ne, ast.IsNot: operator.ne,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}
_CONSTANTS = {bool: BOOL, int: NUMBER, float: NUMBER, str: TEXT, type(None): UNKNOWN}

Row = Mapping[str, Any]


class WrongCondition(GlassfsError, ValueError):
    """A condition that has no meaning."""


class _Wrong(Exception):
    """What is wrong with a node."""

    def __init__(self, node: ast.expr, reason: str) -> None:
        super().__init__(reason)
        self.node = node


class _Value(NamedTuple):
    """A column, a constant or a condition: its type, and a function that returns it for a row, None if unknown."""

    type: str
    of: Callable[[Row], Any]
    node: ast.expr


def condition(text: str) -> Callable[[Row], bool]:
    """Return a function that says whether a row, by names of columns, satisfies a condition.

    Raises WrongCondition, which names the part that is wrong.
    """
    if len(text) > LONGEST:
        raise WrongCondition(f"is longer than {LONGEST:,} characters")
    python = _SPELLED.sub(_as_python, text).strip()
    example = "is no condition such as: not success and task ~ 'drawer'"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about unknown escapes in texts
            tree = ast.parse(python, mode="eval")
        found = _condition(tree.body, DEEPEST)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise WrongCondition(example) from None
    except _Wrong as wrong:
        part = (ast.get_source_segment(python, wrong.node) or "").replace("@", "~")
        raise WrongCondition(f"{part[:60]}: {wrong}") from None
    return lambda row: found(row) is True


def why_none(text: str, known: Mapping[str, int]) -> str:
    """Return which columns of a condition have no value in any row, "" for none. ``known`` counts rows with values."""
    words = dict.fromkeys(ALIASES.get(found[0], found[0]) for found in _WORD.finditer(text))
    unknown, rows = [word for word in words if word in COLUMNS and not known.get(word)], known.get(CONTAINER, 0)
    if not unknown or not rows:
        return ""
    which = "the only episode" if rows == 1 else f"all {rows:,} episodes"
    others = ", ".join(name for name, _ in RECORD_COLUMNS if known.get(name)) or "nothing"
    return f"{' and '.join(unknown)} {'is' if len(unknown) == 1 else 'are'} unknown for {which}; known: {others}"


def _as_python(found: re.Match[str]) -> str:
    return " " if found[0].isspace() else _PYTHON.get(found[0].lower(), found[0])


def _condition(node: ast.expr, depth: int) -> Callable[[Row], Any]:
    value = _value(node, depth)
    if value.type != BOOL:
        raise _Wrong(node, "a condition is needed here, such as: success, or fps > 10")
    return value.of


def _value(node: ast.expr, depth: int) -> _Value:
    if not depth:
        raise _Wrong(node, f"there are more than {DEEPEST} conditions inside each other")
    match node:
        case ast.Name(name):
            return _column(name, node)
        case ast.Constant(value) if type(value) in _CONSTANTS:
            return _Value(_CONSTANTS[type(value)], lambda row: value, node)
        case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as number)):
            return _Value(NUMBER, lambda row: -number, node)
        case ast.UnaryOp(ast.Not(), inner):
            found = _not(_condition(inner, depth - 1))
        case ast.BoolOp(connective, inner):
            found = _joined([_condition(one, depth - 1) for one in inner], isinstance(connective, ast.Or))
        case ast.BinOp(left, ast.MatMult(), right):
            found = _contains(_value(left, depth - 1), _value(right, depth - 1))
        case ast.Compare(left, signs, rights):
            # A chain such as ``1 < fps < 30`` compares neighbors, as in Python.
            pairs = zip([left, *rights], signs, rights, strict=False)
            found = _joined([_compared(*pair, depth - 1) for pair in pairs], False)
        case _:
            raise _Wrong(node, "a condition may not contain this")
    return _Value(BOOL, found, node)


def _column(typed: str, node: ast.expr) -> _Value:
    name = ALIASES.get(typed, typed)
    if name not in COLUMNS:
        known = [*COLUMNS, *ALIASES]
        close = get_close_matches(typed, known, 1)
        hint = f"did you mean {close[0]}?" if close else f"the columns are {', '.join(known)}; text needs quotes"
        raise _Wrong(node, f"unknown column; {hint}")
    return _Value(_DTYPES.get(COLUMNS[name], NUMBER), operator.itemgetter(name), node)


def _compared(left: ast.expr, sign: ast.cmpop, right: ast.expr, depth: int) -> Callable[[Row], Any]:
    one = _value(left, depth)
    if isinstance(sign, (ast.In, ast.NotIn)):
        several = right.elts if isinstance(right, (ast.Tuple, ast.List)) else [right]
        found = _joined([_equal_or_in(one, _value(each, depth)) for each in several], True)
        return found if isinstance(sign, ast.In) else _not(found)
    other = _value(right, depth)
    compare = _COMPARISONS[type(sign)]
    is_order = isinstance(sign, (ast.Lt, ast.LtE, ast.Gt, ast.GtE))
    if other.type == UNKNOWN and not is_order:  # also spelled ``is null``
        return lambda row: compare(one.of(row), None)
    _demand_alike(one, other)
    if is_order and one.type not in (NUMBER, TEXT):
        raise _Wrong(left, f"{_NAMES.get(one.type, one.type)} has no order")
    return _known(one, other, compare)


def _equal_or_in(one: _Value, other: _Value) -> Callable[[Row], Any]:
    if (one.type, other.type) == (TEXT, TEXTS):
        return _known(one, other, lambda text, texts: text in texts)
    _demand_alike(one, other)
    return _known(one, other, operator.eq)


def _contains(whole: _Value, part: _Value) -> Callable[[Row], Any]:
    if whole.type not in (TEXT, TEXTS) or part.type != TEXT:
        raise _Wrong((part if whole.type in (TEXT, TEXTS) else whole).node, "what ~ compares is not text")

    def contains(whole: str | list[str], part: str) -> bool:
        part = part.casefold()
        return any(part in text.casefold() for text in ([whole] if isinstance(whole, str) else whole))

    return _known(whole, part, contains)


def _demand_alike(one: _Value, other: _Value) -> None:
    if one.type != other.type:
        types = [_NAMES.get(value.type, value.type) for value in (one, other)]
        raise _Wrong(other.node, f"{types[0]} is compared with {types[1]}")


def _known(one: _Value, other: _Value, compare: Callable[[Any, Any], bool]) -> Callable[[Row], Any]:
    """Return a comparison that is unknown if one of the values is."""

    def answer(row: Row) -> Any:
        left, right = one.of(row), other.of(row)
        return None if left is None or right is None else compare(left, right)

    return answer


def _joined(conditions: Sequence[Callable[[Row], Any]], decisive: bool) -> Callable[[Row], Any]:
    """Return ``or`` if True is ``decisive``, else ``and``: one such answer decides, else an unknown one does."""

    def answer(row: Row) -> Any:
        found: Any = not decisive
        for one in conditions:
            each = one(row)
            if each is decisive:
                return decisive
            found = None if each is None else found
        return found

    return answer


def _not(inner: Callable[[Row], Any]) -> Callable[[Row], Any]:
    return lambda row: None if (found := inner(row)) is None else not found
