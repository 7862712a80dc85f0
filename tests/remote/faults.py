"""Faults of single answers, which ``HttpServer`` carries out; ``HttpServer.faults`` chooses the fault of a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tests.remote.requests import Request


@dataclass(frozen=True)
class Cut:
    """The connection ends properly, but after this many bytes of a longer body."""

    after: int


@dataclass(frozen=True)
class Reset:
    """The connection is reset: before the answer, or after this many bytes of its body."""

    after: int | None = None


@dataclass(frozen=True)
class Stall:
    """The server is silent from before the answer on, or from after this many bytes of its body."""

    after: int | None = None


@dataclass(frozen=True)
class Drip:
    """The body is sent very slowly: a byte after each pause."""

    pause: float


@dataclass(frozen=True)
class Status:
    """An answer of the server's own: 503, 429, 403, 500 …"""

    code: int
    body: bytes = b""


@dataclass(frozen=True)
class Redirect:
    """The client is redirected."""

    to: str
    code: int = 307


@dataclass(frozen=True)
class Headers:
    """Headers are replaced, or removed if the value is None."""

    changes: Mapping[str, str | None]


@dataclass(frozen=True)
class Whole:
    """A request for a range is answered with 200 and the whole object."""


@dataclass(frozen=True)
class Length:
    """The body is this much longer (bytes of the letter X) or shorter than it should be.

    ``framed``: by a Content-Length that fits the wrong body, in chunks, or by the right Content-Length that does not
    fit (what is too long then stands before the next answer, what is too short ends with the connection).
    """

    by: int
    framed: Literal["length", "chunks", "lie"] = "length"


@dataclass(frozen=True)
class Garbage:
    """Bytes that are not HTTP are sent, and the connection ends."""


Fault: TypeAlias = Cut | Reset | Stall | Drip | Status | Redirect | Headers | Whole | Length | Garbage
Faults: TypeAlias = Callable[[Request], Fault | None]


def first(times: int, fault: Fault, where: Callable[[Request], bool] = lambda request: True) -> Faults:
    """Return a rule: the first ``times`` requests that match get the fault."""
    left = times

    def chosen(request: Request) -> Fault | None:
        nonlocal left
        if left == 0 or not where(request):
            return None
        left -= 1
        return fault

    return chosen


def for_each(fault: Fault, where: Callable[[Request], bool] = lambda request: True) -> Faults:
    """Return a rule: every request that matches gets the fault."""
    return lambda request: fault if where(request) else None
