"""Make damaged copies of sound containers."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from make_samples import write_all
from writers.safetensors import write_sharded

ROOT = Path(__file__).parent.parent
DATA = ROOT / "tests/data"
SAMPLES = Path(os.environ.get("GLASSFS_SHARED", ROOT.parent / "shared")) / "samples"
LARGEST = 256 << 10
EDGES = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63 - 1, 2**63, 2**64 - 1)
SUFFIXES = {
    ".kdb", ".wshard", ".kas", ".trees", ".ikv", ".idv", ".npz", ".safetensors", ".h5", ".hdf5", ".mcap", ".partial",
    ".shard",
}
INDEX = ".safetensors.index.json"


class Seed(NamedTuple):
    """A container to damage, under the name of the sound one; ``beside`` has the further files that it needs."""

    name: str
    data: bytes
    beside: tuple[tuple[str, bytes], ...] = ()


def seeds(places: Iterable[Path] = (), wanted: str = "") -> list[Seed]:
    """Return the containers of the demo and those at ``places``, up to LARGEST bytes, with ``wanted`` in the name."""
    with tempfile.TemporaryDirectory() as folder:
        write_all(Path(folder))
        paths = [*Path(folder).iterdir(), write_model_in_shards(Path(folder))]
        for place in places:
            paths += [path for path in place.rglob("*") if _is_sound(path)] if place.is_dir() else [place]
        chosen = [path for path in sorted(paths) if wanted in path.name and path.name.endswith((*SUFFIXES, INDEX))]
        return [
            Seed(path.name, path.read_bytes(), _family(path)) for path in chosen if path.stat().st_size <= LARGEST
        ]


def write_model_in_shards(folder: Path) -> Path:
    (folder / "shards").mkdir()
    return write_sharded(folder / "shards", [{"a": np.zeros((4, 3), "f4"), "b": np.ones(2)}, {"c.w": np.arange(5)}])


def real_places() -> list[Path]:
    """Return a folder of real containers: the large collection if it is beside this checkout, else tests/data."""
    return [SAMPLES if SAMPLES.is_dir() else DATA]


def _is_sound(path: Path) -> bool:
    """Return whether a container is undamaged; more damage to damaged ones shows little."""
    return path.is_file() and "malformed" not in path.parts


def _family(path: Path) -> tuple[tuple[str, bytes], ...]:
    """Return the other files of a manifest and its parts, or the shards of an index."""
    if not path.parent.name.endswith("_chunked") and not path.name.endswith(INDEX):
        return ()
    suffix = ".safetensors" if path.name.endswith(INDEX) else ".wshard"
    others = (other for other in sorted(path.parent.iterdir()) if other.suffix == suffix and other != path)
    return tuple((other.name, other.read_bytes()) for other in others)


def damaged(data: bytes, others: list[Seed], chance: random.Random) -> bytes:
    """Return a copy with one to eight changes, most of them near the beginning or the end, where indexes are."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 5, 8))):
        if not changed:
            break
        spread = chance.choice((64, 512, 4096, len(changed)))
        place = chance.randrange(min(spread, len(changed)))
        if chance.random() < 0.3:
            place = len(changed) - 1 - place
        chance.choice(_CHANGES)(changed, place, others, chance)
    return bytes(changed)


def _flip(data: bytearray, place: int, others: list[Seed], chance: random.Random) -> None:
    data[place] ^= 1 << chance.randrange(8)


def _edge(data: bytearray, place: int, others: list[Seed], chance: random.Random) -> None:
    size = chance.choice((1, 2, 4, 8))
    data[place : place + size] = (chance.choice(EDGES) & (1 << 8 * size) - 1).to_bytes(size, "little")


def _digit(data: bytearray, place: int, others: list[Seed], chance: random.Random) -> None:
    """Replace the next digit of a text, so that the text is still well-formed."""
    for at in range(place, min(place + 256, len(data))):
        if chr(data[at]).isdecimal():
            data[at] = chance.randrange(ord("0"), ord("9") + 1)
            break


def _cut(data: bytearray, place: int, others: list[Seed], chance: random.Random) -> None:
    del data[place : place + chance.choice((1, 4, 64, len(data)))]


def _repeat(data: bytearray, place: int, others: list[Seed], chance: random.Random) -> None:
    size = chance.choice((1, 8, 64, 1024))
    data[place:place] = data[place : place + size] * chance.choice((1, 2, 100))


def _foreign(data: bytearray, place: int, others: list[Seed], chance: random.Random) -> None:
    other = chance.choice(others).data
    start = chance.randrange(len(other) or 1)
    size = chance.choice((4, 48, 512))
    data[place : place + size] = other[start : start + size]


_CHANGES: tuple[Callable[[bytearray, int, list[Seed], random.Random], None], ...] = (
    _flip, _edge, _edge, _digit, _cut, _repeat, _foreign,
)
