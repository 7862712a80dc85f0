"""Recipes for containers on a slow server. They count its requests and the bytes that it sends."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.contents import dataset_names, samples
from benchmarks.counting import REQUESTS, Results
from benchmarks.data import GLASSFS
from benchmarks.recipes import AGAIN, FIRST, READERS, Recipe, child, command
from benchmarks.server import LIST, SENT, Server
from benchmarks.sides import SIDES, Place, RemoteMount

OBJECT_READS = 100
SHARE, OTHERS = "share", "others"


def server_of(place: Place) -> Server:
    assert place.server is not None
    return place.server


def from_mount(place: Place, seconds: float) -> Results:
    """Add the time of mounting to ``seconds``; return it with the counts of all requests."""
    return {"seconds": place.mount_seconds + seconds, **results_of(server_of(place).counts())}


def results_of(counts: Counter[str]) -> Results:
    sent = counts.pop(SENT)
    return {REQUESTS: counts.total(), LIST: counts[LIST], OTHERS: counts.total() - counts[LIST], SENT: sent}


def list_root(place: Place) -> Results:
    return from_mount(place, command("ls", "-l", place.root))


def list_below(path: str) -> Recipe:
    return lambda place: from_mount(place, command("ls", "-l", place.root / path))


def first_picture(place: Place) -> Results:
    return from_mount(place, command("cat", place.root / "episodes/0/images/front/000000.png"))


def cat(path: str) -> Recipe:
    """Read all of a file whose name was looked up before; return the seconds per MB."""

    def recipe(place: Place) -> Results:
        size = (place.root / path).stat().st_size
        server_of(place).reset()
        seconds = command("cat", place.root / path)
        counted = results_of(server_of(place).counts())
        return {"seconds": seconds * 1e6 / size, SHARE: round(counted[SENT] / size, 3), **counted}

    return recipe


def stream(place: Place) -> Results:
    """Download the whole object in one response."""
    size = place.root.stat().st_size
    seconds = command("curl", "--silent", "--fail", "--output", os.devnull, server_of(place).web_url)
    counted = results_of(server_of(place).counts())
    return {"seconds": seconds * 1e6 / size, SHARE: round(counted[SENT] / size, 3), **counted}


def random_parts(path: str) -> Recipe:
    """Read random pages of a file whose name was looked up before, one after another."""

    def recipe(place: Place) -> Results:
        os.stat(place.root / path)
        server_of(place).reset()
        results = child("random_readers", path=place.root / path, readers=1, count=OBJECT_READS)
        return results | results_of(server_of(place).counts())

    return recipe


def cat_twice(path: str) -> Recipe:
    """Read all of a file through two mounts with one disk cache; return the seconds per MB."""

    def recipe(place: Place) -> Results:
        side, server = SIDES["remote glassfs"], server_of(place)
        assert isinstance(side, RemoteMount)
        results: Results = {}
        with tempfile.TemporaryDirectory(prefix="glassfs-benchmark-") as folder:
            for key in (FIRST, AGAIN):
                server.reset()
                with side.beside(place.dataset, server, "-o", f"disk_cache={folder}") as mount:
                    size = (mount.root / path).stat().st_size
                    results[key] = command("cat", mount.root / path) * 1e6 / size
                    counted = results_of(server.counts())
                results |= {f"{key}: {REQUESTS}": counted[REQUESTS], f"{key}: {SENT}": counted[SENT]}
        return results

    return recipe


def list_by_command(place: Place) -> Results:
    server = server_of(place)
    seconds = command(GLASSFS, "ls", server.url, environment=server.environment)
    return {"seconds": seconds, **results_of(server.counts())}


def list_here(place: Place) -> Results:
    return {"seconds": command(GLASSFS, "ls", place.dataset.container)}


def train(place: Place) -> Results:
    """Read four samples of each container."""
    names = dataset_names(place.dataset.size)
    chosen = samples(names, 4 * len(names))
    results = child("train", root=place.root, samples=chosen, processes=READERS, keys=[FIRST], status=None)
    counted = results_of(server_of(place).counts())
    size = sum(path.stat().st_size for path in Path(place.dataset.container).rglob("*.kdb"))
    return results | counted | {
        SHARE: round(counted[SENT] / size, 3), "each": round(counted[REQUESTS] / len(names), 2),
    }
