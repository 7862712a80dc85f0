"""Selections: some episodes of some sources, as a TOML file says it, or options (docs/manual/selecting.md).

Read and checked whole; ``selecting`` finds the episodes. Pure functions, but for reading the file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from fractions import Fraction
from typing import Any, NamedTuple

import xxhash

from glassfs.content.selected import ALL, Steps
from glassfs.errors import GlassfsError, NotFound
from glassfs.names import raw
from glassfs.source import is_url

SUFFIX = ".toml"
"""Of the file of a selection."""
LARGEST = 64 << 20
"""Bytes of a file that may be a selection."""
_KEYS = (
    "sources", "where", "episodes", "exclude", "sample", "trim", "every", "rename", "drop", "splits",
)
_SLICE = re.compile(r"\s*(-?\d{1,18})?\s*:\s*(-?\d{1,18})?\s*")
_SHARES = re.compile(r"\s*(\d{1,18}(?:\.\d{1,18})?%?)?\s*:\s*(\d{1,18}(?:\.\d{1,18})?%?)?\s*")


class SelectionError(GlassfsError, ValueError):
    """A selection that cannot be used, with the file, the line and the reason."""


class _Wrong(ValueError):
    """What is wrong with the value of a key."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(reason)
        self.key = key


class Sample(NamedTuple):
    """``number`` episodes chosen by chance, the same ones for the same seed."""

    number: int
    seed: int

    def of(self, names: Sequence[str]) -> set[int]:
        """Return the places of those chosen. Others that come or go change nothing else, but for the last ones."""
        ranks = {place: xxhash.xxh64_intdigest(raw(name), self.seed) for place, name in enumerate(names)}
        return set(sorted(ranks, key=ranks.__getitem__)[: self.number])


@dataclass(frozen=True)
class Asked:
    """What is selected of ``sources``. ``text`` is what people read of it, ``file`` the file that says it."""

    sources: tuple[str, ...]
    where: str = ""
    episodes: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    sample: Sample | None = None
    steps: Steps = ALL
    renamed: Mapping[str, str] = field(default_factory=dict)
    dropped: frozenset[str] = frozenset()
    splits: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    file: str = ""

    def splits_of(self, count: int) -> Callable[[int], Sequence[str] | None]:
        """Return what returns the splits of an episode, given its place in all ``count``; None for those it has."""
        ranges = {name: split_of(shares, count) for name, shares in self.splits.items()}
        return lambda place: [name for name, places in ranges.items() if place in places] if ranges else None


class Words(NamedTuple):
    """A selection in options: a condition, a slice of the steps, and of how many steps one is kept."""

    where: str = ""
    trim: str = ""
    every: int = 1

    @classmethod
    def of(cls, where: str, trim: str, every: int) -> Words | None:
        """Return the selection, None if everything is selected."""
        return None if (where, trim, every) == ("", "", 1) else cls(where, trim, every)


def is_selection(name: str) -> bool:
    """Return whether what a user named is the file of a selection."""
    return name.endswith(SUFFIX) and not is_url(name)


def asked(names: Sequence[str], words: Words | None) -> Asked:
    """Return what a file selects, or ``words`` of what was named. Raises SelectionError, and NotFound."""
    file = next(filter(is_selection, names), "")
    if not file and words is not None:
        keys = {"where": words.where, "trim": words.trim, "every": words.every}
        given = {key: value for key, value in keys.items() if value not in ("", 1)}
        text = "\n".join(f"{key} = {value!r}" for key, value in given.items())
        try:
            return _checked({**given, "sources": [*names]}, "", text)
        except _Wrong as error:
            raise SelectionError(f"{error.key}: {error}") from None
    if len(names) > 1:
        raise SelectionError("a selection must be the only source: it names its sources itself", file)
    if words is not None:
        raise SelectionError("is a selection: where, trim and every belong into it", file)
    return read(file)


def read(file: str) -> Asked:
    """Return the selection in a file. Raises SelectionError, and NotFound."""
    try:
        with open(file, "rb") as opened:
            data = opened.read(LARGEST + 1)
    except FileNotFoundError as error:
        raise NotFound("No such file or directory", file) from error
    except OSError as error:
        raise SelectionError(f"cannot be read: {error.strerror}", file) from error
    if len(data) > LARGEST:
        raise SelectionError(f"is larger than {LARGEST >> 20} MiB, and no selection", file)
    from glassfs.layouts.form import at_line, key_in, load_toml  # most sources are shown whole

    try:
        text = data.decode()
        found = load_toml(text)
    except (ValueError, RecursionError) as error:
        raise SelectionError(f"is no TOML: {error}", file) from error
    try:
        return _checked(found, file, text)
    except _Wrong as error:
        raise SelectionError(str(error), at_line(file, text, key_in(error.key))) from None


def _checked(found: Mapping[str, Any], file: str, text: str) -> Asked:
    """Return a selection, whose sources are relative to its file. Raises _Wrong."""
    for key in found:
        if key not in _KEYS:
            close = get_close_matches(key, _KEYS, 1)
            known = f"did you mean {close[0]}?" if close else f"known are {', '.join(_KEYS)}"
            raise _Wrong(key, f"unknown key {key!r}; {known}")
    sources = _texts(found, "sources")
    if not sources:
        raise _Wrong("sources", 'needs the folders or containers to select from, such as sources = ["datasets"]')
    if "\0" in "".join(sources):
        raise _Wrong("sources", "no name has a NUL")
    if nested := next((one for one in sources if one.endswith(SUFFIX)), None):
        raise _Wrong("sources", f"{nested} is a selection itself; name the sources of that one")
    where = _value(found, "where", "", str)
    if where:
        from glassfs.datasets.where import WrongCondition, condition

        try:
            condition(where)
        except WrongCondition as error:
            raise _Wrong("where", error.reason) from None
    every = _value(found, "every", 1, int)
    if every < 1:
        raise _Wrong("every", "must be at least 1: each so many-th step is kept")
    ends = _SLICE.fullmatch(_value(found, "trim", ":", str))
    if ends is None:
        raise _Wrong("trim", "must be a slice of steps, such as '10:-5'")
    start, stop = (None if end is None else int(end) for end in ends.groups())
    splits = _table(found, "splits")
    for name, shares in splits.items():
        if _SHARES.fullmatch(shares) is None:
            raise _Wrong(name, f"split {name}: must be a range of the episodes, such as '0:90%' or '500:'")
    return Asked(
        tuple(one if is_url(one) else os.path.join(os.path.dirname(file), one) for one in sources), where,
        _texts(found, "episodes") if "episodes" in found else None, _texts(found, "exclude"), _sample(found),
        Steps(start, stop, every), _table(found, "rename"), frozenset(_texts(found, "drop")), splits, text, file,
    )


def split_of(shares: str, count: int) -> range:
    """Return the places, of ``count`` episodes, that a split has."""
    found = _SHARES.fullmatch(shares)
    ends = found.groups() if found else (None, None)
    first, last = (
        None if end is None else int(Fraction(end[:-1]) * count / 100) if end.endswith("%") else int(Fraction(end))
        for end in ends
    )
    return range(count)[first:last]


def _value(found: Mapping[str, Any], key: str, default: Any, kind: type) -> Any:
    value = found.get(key, default)
    if type(value) is not kind:
        raise _Wrong(key, f"must be a {'text' if kind is str else 'number'}, not {value!r:.60}")
    return value


def _texts(found: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = found.get(key, [])
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise _Wrong(key, f"{key} must be a list of texts, not {value!r:.60}")
    return tuple(value)


def _table(found: Mapping[str, Any], key: str) -> Mapping[str, str]:
    value = found.get(key, {})
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
        raise _Wrong(key, f"{key} must be a table of texts, not {value!r:.60}")
    return value


def _sample(found: Mapping[str, Any]) -> Sample | None:
    value = found.get("sample")
    if value is None:
        return None
    is_sample = isinstance(value, dict) and "count" in value and value.keys() <= {"count", "seed"}
    if not is_sample or not all(type(one) is int and 0 <= one < 1 << 63 for one in value.values()):
        raise _Wrong("sample", "must be a number of episodes and a seed, such as { count = 500, seed = 1 }")
    return Sample(value["count"], value.get("seed", 0))
