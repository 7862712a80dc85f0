"""Remote KinoDB, where each read is a request: locations of raw images are predicted from the first frame."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glassfs.cache import BlockCache
from glassfs.content import Container
from glassfs.errors import Damaged
from glassfs.formats.kinodb import scan
from glassfs.formats.registry import Opening, open_container
from tests.formats.kinodb_files import image_group, images_of, with_images
from tests.memory_store import MemoryStore

SIDE = 64
FRAMES = 40


def raw(number: int) -> np.ndarray[Any, Any]:
    return np.full((SIDE, SIDE, 3), number, np.uint8)


@pytest.fixture(autouse=True)
def every_section(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predict even in short sections, which are scanned otherwise."""
    monkeypatch.setattr(scan, "PREDICT_FROM_BYTES", 0)


@pytest.fixture
def regular(tmp_path: Path) -> bytearray:
    return with_images(tmp_path, [{"front": raw(t), "wrist": raw(t + 100)} for t in range(FRAMES)])


def opened(data: bytes | bytearray, is_remote: bool) -> tuple[MemoryStore, Container]:
    store = MemoryStore({"run.kdb": bytes(data)}, is_remote=is_remote)
    source = store.open(("run.kdb",))
    return store, open_container(Opening(source, BlockCache(), store, ("run.kdb",)))


def shown(data: bytes | bytearray, is_remote: bool) -> dict[bytes, bytes]:
    found = images_of(image_group(opened(data, is_remote)[1]))
    return {b"/".join(name): content.data.whole() for name, content in found}


@pytest.mark.parametrize(("is_remote", "is_small"), [(True, False), (False, False), (True, True)])
def test_only_large_remote_sections_are_predicted(
    regular: bytearray, is_remote: bool, is_small: bool, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scan, "PREDICT_FROM_BYTES", len(regular) if is_small else 0)
    store, container = opened(regular, is_remote)
    before = store.reads
    images_of(image_group(container))
    reads = store.reads - before
    assert reads > FRAMES if is_small or not is_remote else reads <= 6


def test_a_frame_that_differs_costs_itself(regular: bytearray) -> None:
    middle = regular.index(raw(7).tobytes())
    regular[middle - 6] ^= 1  # the channels of the image in frame 7
    damaged = []
    for name, content in images_of(image_group(opened(regular, True)[1])):
        data = content.data
        try:
            assert data.read(0, data.size) == bytes([data.read(0, 1)[0]]) * data.size
            data.read_into(memoryview(bytearray(5)), 3)
        except Damaged as error:
            assert "where one was expected" in error.reason
            damaged.append(b"/".join(name))
    assert damaged == [b"front/000007"]
    assert list(opened(regular, True)[1].check()) == list(opened(regular, False)[1].check()) != []


def test_images_in_another_order_are_found(tmp_path: Path) -> None:
    """In frames that are as long as the others, but have their images in another order."""
    shots: list[Any] = [{"front": raw(t), "wrist": raw(t + 100)} for t in range(FRAMES)]
    for frame in (7, FRAMES - 1):
        shots[frame] = {"wrist": raw(frame + 100), "front": raw(frame)}
    data = with_images(tmp_path, shots)
    expected = shown(data, False)
    for _ in range(2):
        assert shown(data, True) == expected


@pytest.mark.parametrize("first", [
    [{"front": raw(0), "wrist": raw(0)}, {"front": raw(1)}], [{"front": raw(0), "wrist": raw(0)}, None],
    [{"front": raw(0), "wrist": raw(0)}, {"wrist": raw(1), "front": raw(1)}], [{"front": raw(0)}, None],
])
def test_a_different_second_frame_prevents_prediction(tmp_path: Path, first: list[Any]) -> None:
    data = with_images(tmp_path, [*first, *(dict.fromkeys(first[0], raw(t)) for t in range(2, FRAMES))])
    assert shown(data, True) == shown(data, False)
