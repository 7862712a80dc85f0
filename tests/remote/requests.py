"""Requests to the servers of the tests, and their replies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import parse_qs, unquote

Body: TypeAlias = bytes | Iterable[bytes]


@dataclass
class Request:
    """One request as it was received, and its outcome. The server writes to it while it answers."""

    method: str
    target: str
    """Path and query as they were sent."""
    lines: list[tuple[str, str]]
    """The headers as they were sent."""
    body: bytes = b""
    status: int = 0
    """Of the answer, 0 as long as there is none."""
    sent: int = 0
    """Bytes of the answer's body that were handed to the system."""
    fault: object = None
    is_done: bool = False
    """Whether the whole announced body was sent."""
    headers: dict[str, str] = field(init=False)
    """By lower-case names."""

    def __post_init__(self) -> None:
        self.headers = {}
        for name, value in self.lines:
            name = name.lower()
            self.headers[name] = f"{self.headers[name]}, {value}" if name in self.headers else value

    def without(self, *names: str) -> Request:
        """Return the same request without these headers."""
        lines = [line for line in self.lines if line[0].lower() not in names]
        return Request(self.method, self.target, lines, self.body)

    @property
    def path(self) -> str:
        """Decoded; bytes that are no UTF-8 as surrogates."""
        return unquote(self.target.partition("?")[0], errors="surrogateescape")

    @property
    def query(self) -> dict[str, str]:
        """The last value of each parameter."""
        parsed = parse_qs(self.target.partition("?")[2], keep_blank_values=True, errors="surrogateescape")
        return {name: values[-1] for name, values in parsed.items()}

    @property
    def range(self) -> str | None:
        return self.headers.get("range")

    @property
    def is_listing(self) -> bool:
        """Whether it asks an S3 server for a page of a bucket's names."""
        return self.method == "GET" and self.query.get("list-type") == "2"

    @property
    def span(self) -> tuple[int, int] | None:
        """Of ``Range: bytes=FIRST-LAST``: first and end."""
        text = (self.range or "").removeprefix("bytes=")
        start, _, last = text.partition("-")
        return (int(start), int(last) + 1) if start.isdigit() and last.isdigit() else None


@dataclass
class Reply:
    """A reply. A body that is not bytes has a size, or is sent in chunks (and may be endless)."""

    status: int = 200
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: Body = b""
    size: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.body, bytes) and self.size is None:
            self.size = len(self.body)

    def change(self, name: str, value: str | None) -> None:
        """Replace a header, or remove it."""
        self.headers = [line for line in self.headers if line[0].lower() != name.lower()]
        if value is not None:
            self.headers.append((name, value))
