"""Expressions in layouts: a language for the value of a column, without loops and names of its own. Pure functions.

    value      = operand [("=" | "!=" | "<" | "<=" | ">" | ">=") constant]
    operand    = constant | function "(" value ")" | reference
    reference  = ("" | "../" … | "/") (path | "@" attribute [":" key {"." key}])
    constant   = number | "true" | "false" | "'" text "'"

A path begins at the episode, ``../`` at the group around it, ``/`` at the root of the container. Keys lead into text
that is JSON.
"""

from __future__ import annotations

import json
import operator
import re
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from glassfs.lazy import NDArray, np

ROOT = -1
"""The level of a reference that begins at the root; others are the number of groups to go up from the episode."""
CONSTANT, REFERENCE, FUNCTION, COMPARISON = "constant", "reference", "function", "comparison"
_TOKEN = re.compile(r"\s*(?:('[^']*')|(!=|<=|>=|[=<>])|([()])|([^\s()<>=!']+))")
_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}


class Scope(Protocol):
    """The episode in which an expression is evaluated. What does not exist, or cannot be read, is None."""

    def attribute(self, level: int, name: str, keys: tuple[str, ...]) -> Any:
        """Return what keys lead to in an attribute of the group at a level, a JSON value (``within``)."""

    def content(self, level: int, path: str) -> NDArray[Any] | str | list[Any] | None:
        """Return the items of an array, or the text or texts of a content."""

    def lists(self, pattern: str) -> list[str] | None:
        """Return the names of the lists of names, of those that match a pattern from the root, that have the episode.
        """


class Expression(NamedTuple):
    """What is evaluated in a scope: to a JSON value, an array, or None if it is unknown.

    ``own`` is the attribute of the episode that it needs, empty if it needs none.
    """

    kind: str
    value: Callable[[Scope], Any]
    own: str = ""


def parse(text: str) -> Expression:
    """Return the expression that a text says. Raises ValueError with the reason."""
    tokens = deque[str]()
    position = 0
    while text[position:].strip():
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"{text!r}: {text[position:].strip()[0]!r} is not expected")
        tokens.append(match[0].strip())
        position = match.end()
    found = _value(tokens, text)
    if tokens:
        raise ValueError(f"{text!r}: {tokens[0]!r} is not expected")
    return found


def _value(tokens: deque[str], text: str) -> Expression:
    """Return the value at the beginning of the tokens, which it removes from them."""
    left = _operand(tokens, text)
    if not tokens or tokens[0] not in _COMPARISONS:
        return left
    compare, right = _COMPARISONS[tokens.popleft()], _operand(tokens, text)
    if right.kind != CONSTANT:
        raise ValueError(f"{text!r}: compares with something that is no constant")

    def compared(scope: Scope) -> Any:
        value = left.value(scope)
        with suppress(TypeError):  # a text and a number, for example
            return None if value is None else compare(value, right.value(scope))
        return None

    return Expression(COMPARISON, compared, left.own)


def _operand(tokens: deque[str], text: str) -> Expression:
    if not tokens or tokens[0] in _COMPARISONS or tokens[0] in "()":
        raise ValueError(f"{text!r}: a value is missing")
    word = tokens.popleft()
    if not tokens or tokens[0] != "(":
        return _single(word, text)
    tokens.popleft()
    if word not in FUNCTIONS and word != KEYS:
        raise ValueError(f"{text!r}: there is no function {word!r} ({', '.join((*FUNCTIONS, KEYS))})")
    first = tokens[0] if tokens else ""
    argument = _value(tokens, text)
    if not tokens or tokens.popleft() != ")":
        raise ValueError(f"{text!r}: a parenthesis is not closed")
    if word == KEYS:
        if argument.kind != CONSTANT or not first.startswith("'"):
            raise ValueError(f"{text!r}: {KEYS}() takes a pattern in quotes")
        return Expression(FUNCTION, lambda scope: scope.lists(first[1:-1]))
    if argument.kind in (CONSTANT, FUNCTION):
        raise ValueError(f"{text!r}: {word}() takes a path, an attribute, or a comparison")

    def called(scope: Scope) -> Any:
        value = argument.value(scope)
        return None if value is None else _called(word, value)

    return Expression(FUNCTION, called, argument.own)


def _single(word: str, text: str) -> Expression:
    constant: Any = None
    if word.startswith("'"):
        constant = word[1:-1]
    else:
        with suppress(ValueError, RecursionError):
            constant = json.loads(word)
    if isinstance(constant, (str, bool, int, float)):
        return Expression(CONSTANT, lambda scope: constant)
    level, path = 0, word
    if path.startswith("/"):
        level, path = ROOT, path[1:]
    while path.startswith("../") and level != ROOT:
        level, path = level + 1, path[3:]
    name, _, keys = path[1:].partition(":") if path.startswith("@") else ("", "", "")
    if name:
        found = tuple(keys.split(".")) if keys else ()
        return Expression(REFERENCE, lambda scope: scope.attribute(level, name, found), "" if level else name)
    if path.startswith("@") or not all(part not in ("", ".", "..") for part in path.split("/")):
        raise ValueError(f"{text!r}: {word!r} is neither a path nor an attribute")
    return Expression(REFERENCE, lambda scope: scope.content(level, path))


def _called(function: str, argument: Any) -> Any:
    items = np.atleast_1d(np.asarray(argument))
    if items.dtype.kind not in "biuf" and function not in ("len", "first", "last"):
        return None
    if not len(items) and function in ("first", "last"):
        return None
    found = FUNCTIONS[function](items)
    return found.tolist() if isinstance(found, (np.ndarray, np.generic)) else found


def within(value: Any, keys: tuple[str, ...]) -> Any:
    """Return what keys lead to in JSON text, or in a value that is none any more."""
    for key in keys:
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                return None
        value = value.get(key) if isinstance(value, dict) else None
    return value


KEYS = "keys"
FUNCTIONS: Mapping[str, Callable[[NDArray[Any]], Any]] = {
    "first": lambda items: items[0],
    "last": lambda items: items[-1],
    "any": lambda items: bool(items.any()),
    "all": lambda items: bool(items.all()),
    "sum": lambda items: items.sum(dtype="f8"),
    "len": len,
}
