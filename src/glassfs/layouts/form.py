"""Layouts as TOML files say them (docs/manual/layouts.md), read and checked whole. Pure functions.

A layout says which parts of a generic container are episodes, and what their parts mean.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import translate
from functools import partial
from typing import Any, NamedTuple

import xxhash

from glassfs.content.summary import RECORD_COLUMNS
from glassfs.errors import GlassfsError
from glassfs.layouts.expressions import Expression, parse

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

load_toml = tomllib.loads

LARGEST = 1 << 20
"""Bytes of a file that may be a layout."""
NUMBER = "{number}"
EACH, WHOLE, ENDS, LAST, FIRST = "each", "whole", "ends", "last", "first"
_KINDS = (EACH, WHOLE, ENDS, LAST, FIRST)
_SECTIONS: Mapping[str, tuple[str, ...]] = {
    "episodes": (*_KINDS, "omit"), "steps": ("count", "base", "align"), "roles": ("action", "state", "reward"),
    "columns": tuple(name for name, _ in RECORD_COLUMNS), "cameras": ("images", "names"),
}
"""The keys of each section."""
_PLAIN = ("name", "formats", "match")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


class Pattern:
    """A path with wildcards (``*``, ``?``, ``[…]``) in its components."""

    def __init__(self, text: str) -> None:
        """Raises ValueError if it cannot match any path."""
        self.text = text
        self.parts = tuple(text.split("/"))
        if any(part in ("", ".", "..") for part in self.parts):
            raise ValueError(f"{text!r} cannot be a path: it has a component that is empty, '.' or '..'")
        self._parts = [re.compile(translate(part)).match for part in self.parts]

    @property
    def is_literal(self) -> bool:
        return not set(self.text) & set("*?[")

    def fits(self, path: Sequence[str]) -> bool:
        """Return whether a path matches."""
        return len(path) == len(self._parts) and self.covers(path)

    def covers(self, path: Sequence[str]) -> bool:
        """Return whether a path matches, or one above it does."""
        if len(path) < len(self._parts):
            return False
        return all(match(part) for match, part in zip(self._parts, path, strict=False))


class Choice(NamedTuple):
    """One way to find the value of a column, used if ``when`` is true."""

    value: Expression
    when: Expression | None = None


@dataclass(frozen=True)
class Layout:
    """A layout. ``kind`` says how episodes are found, by the paths ``places``: none for a container that is one.

    That of ``each`` is the path of the groups that are episodes, with NUMBER in its last component. Roles have
    alternatives, each of which is patterns whose arrays are joined. ``cameras`` is None if everything is a camera that
    may be a video. ``base`` is the path of the times of the steps, if arrays have times of their own: of each, the row
    that is nearest to a step belongs to it, or the previous one. ``digest`` is that of the text.
    """

    name: str
    formats: tuple[str, ...]
    match: tuple[Pattern, ...]
    kind: str
    places: tuple[str, ...]
    omit: tuple[Pattern, ...] = ()
    count: tuple[str, ...] = ()
    roles: Mapping[str, tuple[tuple[Pattern, ...], ...]] = field(default_factory=dict)
    columns: Mapping[str, tuple[Choice, ...]] = field(default_factory=dict)
    cameras: tuple[Pattern, ...] | None = None
    names: tuple[tuple[re.Pattern[str], str], ...] = ()
    base: str = ""
    is_nearest: bool = False
    digest: bytes = b""

    def camera_name(self, path: str) -> str:
        """Return the name of a camera for LeRobot, empty if it is that of the path."""
        for pattern, template in self.names:
            found = pattern.fullmatch(path)
            if found is not None:
                return found.expand(template)
        return ""


class LayoutError(GlassfsError, ValueError):
    """A layout that cannot be used, with the file, the line and the reason."""


class _WrongKey(ValueError):
    """What is wrong with the value of a key."""

    def __init__(self, section: str, key: str, reason: str) -> None:
        super().__init__(reason)
        self.section, self.key, self.reason = section, key, reason


def read(text: bytes, file: str) -> Layout:
    """Return the layout in the text of a file. Raises LayoutError."""
    if len(text) > LARGEST:
        raise LayoutError(f"is larger than {LARGEST} bytes, and no layout", file)
    try:
        decoded = text.decode()
        found = load_toml(decoded)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and TOMLDecodeError, which names the line
        raise LayoutError(f"is no TOML: {error}", file) from error
    try:
        return replace(_layout(found), digest=xxhash.xxh128_digest(text))
    except _WrongKey as error:
        raise LayoutError(error.reason, at_line(file, decoded, key_in(error.key or error.section))) from error


def _layout(found: Mapping[str, Any]) -> Layout:
    sections = {name: _section(found, name) for name in _SECTIONS}
    for key in found:
        if key not in _PLAIN and key not in _SECTIONS:
            raise _WrongKey("", key, _unknown(key, (*_PLAIN, *_SECTIONS)))
    name = found.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _WrongKey("", "name", "needs a name of lower-case letters, digits, '.', '_' and '-'")
    episodes, steps, columns, cameras = (sections[key] for key in ("episodes", "steps", "columns", "cameras"))
    kinds = [kind for kind in _KINDS if kind in episodes]
    if len(kinds) != 1:
        raise _WrongKey("episodes", kinds[1] if kinds else "", f"[episodes] needs exactly one of {', '.join(_KINDS)}")
    match = _checked(found, "", "match", _patterns)
    if not match:
        raise _WrongKey("", "match", "needs paths to match, such as match = ['data/demo_*/actions']")
    base = _checked(steps, "steps", "base", _literals)
    if len(base) > 1 or (base and "count" in steps):
        raise _WrongKey("steps", "base", "base: must be one path, without count")
    return Layout(
        name, _checked(found, "", "formats", _texts), match, kinds[0],
        _checked(episodes, "episodes", kinds[0], partial(_places, kinds[0])),
        _checked(episodes, "episodes", "omit", _patterns),
        _checked(steps, "steps", "count", _literals) or base,
        {role: _checked(sections["roles"], "roles", role, _alternatives) for role in sections["roles"]},
        {name: _checked(columns, "columns", name, _choices) for name in columns},
        _checked(cameras, "cameras", "images", _patterns) if "images" in cameras else None,
        _checked(cameras, "cameras", "names", _renamings),
        "".join(base), _checked(steps, "steps", "align", _alignment),
    )


def _section(found: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = found.get(name, {})
    if not isinstance(section, dict):
        raise _WrongKey("", name, f"[{name}] must be a table")
    for key in section:
        if key not in _SECTIONS[name]:
            raise _WrongKey(name, key, _unknown(key, _SECTIONS[name]))
    return section


def _unknown(key: str, known: Sequence[str]) -> str:
    return f"unknown key {key!r}; known here are {', '.join(known)}"


def _checked(section: Mapping[str, Any], name: str, key: str, make: Callable[[Any], Any]) -> Any:
    """Return what ``make`` makes of a value, of an empty list if there is none."""
    try:
        return make(section.get(key, []))
    except (ValueError, re.error) as error:
        raise _WrongKey(name, key, f"{key}: {error}") from error


def _texts(value: Any) -> tuple[str, ...]:
    value = [value] if isinstance(value, str) else value
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ValueError("must be a text or a list of texts")
    return tuple(value)


def _patterns(value: Any) -> tuple[Pattern, ...]:
    return tuple(map(Pattern, _texts(value)))


def _literals(value: Any) -> tuple[str, ...]:
    for one in map(Pattern, _texts(value)):
        if not one.is_literal:
            raise ValueError(f"{one.text!r} must be a path without wildcards")
    return _texts(value)


def _alignment(value: Any) -> bool:
    if value not in ([], "previous", "nearest"):
        raise ValueError("must be 'previous' or 'nearest'")
    return bool(value == "nearest")


def _places(kind: str, value: Any) -> tuple[str, ...]:
    if kind == WHOLE:
        if value is not True:
            raise ValueError("can only be true")
        return ()
    found = _literals(value)
    if kind == EACH:
        last = found[0].rpartition("/")[2] if len(found) == 1 else ""
        if last.count(NUMBER) != 1 or found[0].count("{") != 1:
            raise ValueError(f"must be one path with {NUMBER} in its last component")
    elif not found or (kind == ENDS and len(found) != 1):
        raise ValueError("must be the path of an array")
    return found


def _alternatives(value: Any) -> tuple[tuple[Pattern, ...], ...]:
    value = [value] if isinstance(value, str) else value
    if not isinstance(value, list) or not value:
        raise ValueError("must be a path, or a list of paths and lists of paths")
    return tuple(map(_patterns, value))


def _choices(value: Any) -> tuple[Choice, ...]:
    return tuple(map(_choice, value if isinstance(value, list) else [value]))


def _choice(value: Any) -> Choice:
    if isinstance(value, dict):
        if set(value) != {"when", "value"} or not all(isinstance(one, str) for one in value.values()):
            raise ValueError("a condition has the texts 'when' and 'value'")
        return Choice(parse(value["value"]), parse(value["when"]))
    if isinstance(value, (bool, int, float)):
        return Choice(parse(str(value).lower()))
    if not isinstance(value, str):
        raise ValueError("must be a value, or a list of values")
    return Choice(parse(value))


def _renamings(value: Any) -> tuple[tuple[re.Pattern[str], str], ...]:
    if not value:
        return ()
    if not isinstance(value, dict) or not all(isinstance(template, str) for template in value.values()):
        raise ValueError("must be a table of patterns and names")
    found = []
    for pattern, template in value.items():
        compiled = re.compile(pattern)
        if any(not 1 <= int(number) <= compiled.groups for number in re.findall(r"\{(\d)\}", template)):
            raise ValueError(f"{template!r} refers to a group that {pattern!r} does not have")
        found.append((compiled, re.sub(r"\{(\d)\}", r"\\g<\1>", template.replace("\\", r"\\"))))
    return tuple(found)


def at_line(file: str, text: str, pattern: str) -> str:
    """Return the name of a file with the number of the first line of its text that begins with a pattern."""
    lines = enumerate(text.splitlines(), 1)
    line = next((number for number, line in lines if re.match(pattern, line)), 0)
    return f"{file}:{line}" if line else file


def key_in(key: str) -> str:
    """Return the pattern of a line that sets a key, or begins a section."""
    return rf"\s*\[?\s*[\"']?{re.escape(key)}[\"']?\s*[\]=]"
