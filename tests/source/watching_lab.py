"""Helpers for tests of watched folders; the fixtures are in ``conftest``."""

from __future__ import annotations

import os
import threading

from glassfs.source import Path, Store
from tests.waiting import wait_until


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "glassfs-watching"]


def no_threads() -> None:
    wait_until(lambda: not threads())


def instances() -> int:
    """Return how many descriptors of this process belong to watching."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            link = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        found += "inotify" in link or link.endswith("/mountinfo") or "eventfd" in link
    return found


class Listener:
    """Records notifications."""

    def __init__(self) -> None:
        self.heard: list[tuple[Path, str]] = []

    def __call__(self, path: Path, name: str) -> None:
        self.heard.append((path, name))

    def hears(self, path: Path, name: str) -> None:
        """Wait for a notification, and forget all so far."""
        wait_until(lambda: (path, name) in self.heard)
        self.heard = []

    def count(self, path: Path, name: str) -> int:
        return self.heard.count((path, name))


def watches_again(store: Store, path: Path, listener: Listener) -> None:
    wait_until(lambda: store.watch(path, listener))
