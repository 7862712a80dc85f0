"""A file system for fsspec that lies, fails, hangs and changes on demand."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

from fsspec import AbstractFileSystem

FAULTS = (
    "", "short", "nothing", "long", "text", "none", "error", "end", "odd error", "exit", "change", "change size",
    "larger size", "smaller size", "wrong size", "no facts", "a folder", "gone", "not allowed", "same etag, no size",
)


class Hostile(AbstractFileSystem):
    """One object, ``x``, in versions; ``faults`` are what happens at the next questions, one each, "" for nothing."""

    protocol = "hostile"
    cachable = False
    versions: ClassVar[list[bytes]] = []
    faults: ClassVar[Iterator[str]] = iter(())
    listing: ClassVar[Any] = []
    hangs: ClassVar[threading.Event | None] = None
    connections: ClassVar[list[dict[str, Any]]] = []
    asked: ClassVar[list[str]] = []

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.connections.append(options)

    @classmethod
    def reset(cls, data: bytes = b"0123456789" * 10) -> None:
        cls.versions = [data]
        cls.faults = iter(())
        cls.listing = []
        cls.hangs = None
        cls.connections.clear()
        cls.asked.clear()

    def meets(self, question: str) -> str:
        """Carry out the next fault: raise it, or return its name."""
        self.asked.append(question)
        if self.hangs is not None:
            self.hangs.wait(60)
        fault = next(self.faults, "")
        current = self.versions[-1]
        if fault == "change":
            self.versions.append(random.Random(len(self.versions)).randbytes(len(current)))
        elif fault == "change size":
            self.versions.append(random.Random(len(self.versions)).randbytes(len(current) * 2 + 1))
        elif fault == "error":
            raise OSError("reset by somebody")
        elif fault == "end":
            raise EOFError
        elif fault == "odd error":
            raise Oddity
        elif fault == "exit":
            raise SystemExit(3)
        elif fault == "gone":
            raise FileNotFoundError("x")
        elif fault == "not allowed":
            raise PermissionError("x")
        return fault

    def info(self, path: str, **options: Any) -> Any:
        fault = self.meets("info")
        size = len(self.versions[-1])
        told: dict[str, Any] = {
            "name": path, "type": "file", "size": size, "ETag": f"version {len(self.versions) - 1}",
        }
        return {
            "larger size": {**told, "size": size + 5}, "smaller size": {**told, "size": size // 2},
            "wrong size": {**told, "size": "7"}, "same etag, no size": {**told, "size": None},
            "no facts": None, "a folder": {**told, "type": "directory"},
        }.get(fault, told)

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        self.meets("ls")
        return self.listing

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        self.meets("open")
        return HostileFile(self)


class Oddity(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


class HostileFile:
    def __init__(self, system: Hostile) -> None:
        self._system = system
        self._at = 0

    def seek(self, offset: int) -> None:
        self._at = offset

    def read(self, size: int) -> Any:
        fault = self._system.meets("read")
        data = self._system.versions[-1][self._at : self._at + size]
        return {
            "short": data[: len(data) // 2], "nothing": b"", "long": data + b"!", "text": "?" * size, "none": None,
        }.get(fault, data)

    def close(self) -> None:
        raise OSError("even that fails")
