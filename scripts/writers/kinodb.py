"""Writes KinoDB files (docs/formats/kinodb.md) of every kind that KinoDB's writer makes, and the older image layout.

    with KinoWriter("demo.kdb") as writer:
        writer.add_episode(state, action, images=({"front": pixels} for pixels in film), task="pick up the block")

Episodes are written as they come and frames as the iterable gives them, so a file may be larger than memory. A frame
that is the same object as the one before is written again without being encoded again.
"""

from __future__ import annotations

import io
import itertools
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from types import TracebackType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

HEADER_SIZE = 64
BUFFER = 1 << 20
SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG")


@dataclass(frozen=True)
class Stored:
    """Image data to be written unchanged, with the fields to be written before them.

    ``format`` None: 1 where the data begin like a JPEG or a PNG, as KinoDB's writer decides it, else 0.
    """

    data: bytes
    width: int
    height: int
    channels: int = 3
    format: int | None = None


Name = str | bytes
EncodedImage = npt.NDArray[np.uint8] | Stored
Frame = Mapping[str, EncodedImage] | Mapping[bytes, EncodedImage] | Sequence[tuple[Name, EncodedImage]] | None
"""The cameras of one frame: uint8 [H, W] or [H, W, C]. As a sequence of pairs a camera may occur twice."""


class Entry(NamedTuple):
    """An index entry; offsets and lengths in bytes."""

    episode_id: int
    num_frames: int
    action_dim: int
    state_dim: int
    actions_offset: int
    actions_length: int
    images_offset: int
    images_length: int
    meta_offset: int
    meta_length: int


class KinoWriter:
    """Writes the file at ``path``; the header, and with it the magic, comes last, in ``finish``.

    ``quality`` (1 to 100) makes RGB frames JPEG. ``is_legacy`` leaves the format byte of images away, as KinoDB did
    before 2026-03-31. ``created`` is in seconds since 1970. After an exception the file stays unfinished, as KinoDB's.
    """

    def __init__(
        self, path: str | PathLike[str], quality: int | None = None, is_legacy: bool = False,
        created: int | None = None,
    ) -> None:
        self.entries: list[Entry] = []
        self._file = open(path, "wb", buffering=BUFFER)  # noqa: SIM115
        self._file.write(bytes(HEADER_SIZE))
        self._end = HEADER_SIZE
        self._quality = quality
        self._is_legacy = is_legacy
        self._created = int(time.time()) if created is None else created

    def __enter__(self) -> KinoWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        if kind is None:
            self.finish()
        else:
            self._file.close()

    def add_episode(
        self,
        state: npt.ArrayLike,
        action: npt.ArrayLike,
        reward: npt.ArrayLike | None = None,
        is_terminal: npt.ArrayLike | None = None,
        *,
        images: Iterable[Frame] = (),
        embodiment: Name = "",
        task: Name = "",
        fps: float = 10.0,
        success: bool | None = None,
        total_reward: float | None = None,
    ) -> Entry:
        """Write an episode of T frames: ``state`` [T, S], ``action`` [T, A], ``reward`` [T], ``is_terminal`` [T].

        Without ``reward`` it is 0, without ``is_terminal`` the last frame is. ``images`` gives T frames or fewer; the
        missing ones have no cameras.
        """
        meta_offset = self._end
        meta_length = self._write(_metadata(embodiment, task, fps, success, total_reward))
        states, actions = np.asarray(state, "<f4"), np.asarray(action, "<f4")
        actions_offset = self._end
        actions_length = self._write(_records(states, actions, reward, is_terminal))
        images_offset = self._end
        self._write_images(len(states), images)
        entry = Entry(
            len(self.entries), len(states), actions.shape[1], states.shape[1], actions_offset, actions_length,
            images_offset, self._end - images_offset, meta_offset, meta_length,
        )
        self.entries.append(entry)
        return entry

    def write_hole(self, size: int) -> None:
        """Write bytes that belong to no episode, as a rejected episode leaves them."""
        self._write(b"\xaa" * size)

    def finish(self) -> None:
        """Write the index and the header, and close the file."""
        index = b"".join(struct.pack("<QIHHQQQQQQ", *entry) for entry in self.entries)
        offset = self._end
        self._write(index)
        frames = sum(entry.num_frames for entry in self.entries)
        self._file.seek(0)
        self._file.write(struct.pack(
            "<4sHHQQQQQ16x", b"KINO", 0, 1, len(self.entries), frames, offset, len(index), self._created,
        ))
        self._file.close()

    def _write(self, data: bytes) -> int:
        self._file.write(data)
        self._end += len(data)
        return len(data)

    def _write_images(self, count: int, images: Iterable[Frame]) -> None:
        frames = iter(images)
        last: Frame = None
        encoded = self._frame(None)
        written = 0
        for frame in itertools.islice(frames, count):
            if frame is not last:
                last, encoded = frame, self._frame(frame)
            self._write(encoded)
            written += 1
        if written < count:
            self._write(self._frame(None) * (count - written))
        elif next(frames, None) is not None:
            raise ValueError(f"more than {count} frames of images")

    def _frame(self, frame: Frame) -> bytes:
        cameras: list[tuple[Name, EncodedImage]] = [*(frame.items() if isinstance(frame, Mapping) else frame or ())]
        parts = [struct.pack("<H", len(cameras))]
        for name, picture in cameras:
            stored = self._stored(picture)
            parts += (_text(name), struct.pack("<IIB", stored.width, stored.height, stored.channels))
            if not self._is_legacy:
                parts.append(bytes((stored.data.startswith(SIGNATURES) if stored.format is None else stored.format,)))
            parts += (struct.pack("<I", len(stored.data)), stored.data)
        return b"".join(parts)

    def _stored(self, picture: EncodedImage) -> Stored:
        if isinstance(picture, Stored):
            return picture
        height, width = picture.shape[:2]
        channels = picture.shape[2] if picture.ndim == 3 else 1
        raw = picture.astype(np.uint8, copy=False).tobytes()
        # Like the real writer: what begins like a compressed picture is never compressed.
        if self._quality is not None and channels == 3 and raw and not raw.startswith(SIGNATURES):
            return Stored(jpeg(picture, self._quality), width, height, channels)
        return Stored(raw, width, height, channels)


def jpeg(pixels: npt.NDArray[np.uint8], quality: int = 85) -> bytes:
    """Encode uint8 [H, W, 3] or [H, W] as JPEG."""
    return _encoded(pixels, "JPEG", quality=quality)


def png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Encode uint8 [H, W], [H, W, 3] or [H, W, 4] as PNG."""
    return _encoded(pixels, "PNG")


def _encoded(pixels: npt.NDArray[np.uint8], kind: str, **options: int) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def _metadata(
    embodiment: Name, task: Name, fps: float, success: bool | None, total_reward: float | None,
) -> bytes:
    code = 0 if success is None else 1 + success
    blob = _text(embodiment) + _text(task) + struct.pack("<fBB", fps, code, total_reward is not None)
    return blob if total_reward is None else blob + struct.pack("<f", total_reward)


def _text(text: Name) -> bytes:
    """Return a string with its length, which wraps at 65536 as in KinoDB's writer."""
    stored = text.encode() if isinstance(text, str) else text
    return struct.pack("<H", len(stored) & 0xFFFF) + stored


def _records(
    state: npt.NDArray[np.float32], action: npt.NDArray[np.float32],
    reward: npt.ArrayLike | None, is_terminal: npt.ArrayLike | None,
) -> bytes:
    count = len(state)
    records = np.zeros(count, np.dtype([
        ("state", "<f4", (state.shape[1],)), ("action", "<f4", (action.shape[1],)), ("reward", "<f4"),
        ("is_terminal", "u1"),
    ]))
    records["state"], records["action"] = state, action
    if reward is not None:
        records["reward"] = reward
    if is_terminal is not None:
        records["is_terminal"] = is_terminal
    elif count:
        records["is_terminal"][-1] = 1
    return records.tobytes()
