"""What tests of watched folders share: patience, and somebody who listens. The fixtures are in ``conftest``."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from glassfs.source import Path, Store

PATIENCE = 10.0


def until(is_so: Callable[[], object]) -> bool:
    end = time.monotonic() + PATIENCE
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "glassfs-watching"]


def instances() -> int:
    """How many descriptors this process has of what watching takes."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            link = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        found += "inotify" in link or link.endswith("/mountinfo") or "eventfd" in link
    return found


class Listener:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.heard: list[tuple[Path, str]] = []

    def __call__(self, path: Path, name: str) -> None:
        self.heard.append((path, name))

    def hears(self, path: Path, name: str) -> bool:
        """Waits until that has been told, and forgets everything."""
        has_heard = until(lambda: (path, name) in self.heard)
        self.heard = []
        return has_heard

    def count(self, path: Path, name: str) -> int:
        return self.heard.count((path, name))


def watches_again(store: Store, path: Path, listener: Listener) -> bool:
    """What is in the way of it is told within moments."""
    return until(lambda: store.watch(path, listener))
