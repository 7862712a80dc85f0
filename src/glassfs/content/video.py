"""Arrays that are videos: as a series of images, one for each frame, and as a video to play.

A video is uint8 [T, H, W, C] with 1, 3 or 4 channels, or an array that metadata call an image: uint8 [T, 3, H, W] and
[T, H, W], for depth also uint16 [T, H, W].
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from glassfs.content.data import Slice
from glassfs.content.model import Array, Content, Image, Series, Video

DIGITS = 6
"""Of the numbers of frames in names of files."""
CHANNELS = (1, 3, 4)


class _Layout(NamedTuple):
    """The shape of the frames in an array."""

    length: int
    height: int
    width: int
    channels: int
    bits: int
    is_planar: bool


def frames(array: Array) -> Series | None:
    """Return the frames of a video, or None if the array is not one."""
    layout = _layout_of(array)
    if layout is None:
        return None
    return Series(array.key, range(layout.length), partial(_frame, array, layout), DIGITS, is_uniform=True)


def video_of(content: Content) -> Video | None:
    """Return a video, or an array as a video to play; None if a content is neither."""
    if not isinstance(content, Array):
        return content if isinstance(content, Video) else None
    layout = _layout_of(content)
    if layout is None:
        return None
    frame = partial(_frame, content, layout)
    return Video(
        content.key, layout.length, content.fps, layout.width, layout.height, frame, title=content.title,
    )


def _frame(array: Array, layout: _Layout, number: int) -> Image:
    _, height, width, channels, bits, is_planar = layout
    size = height * width * channels * bits // 8
    return Image(array.key, Slice(array.data, number * size, size), width, height, channels, bits, is_planar)


def _layout_of(array: Array) -> _Layout | None:
    shape = array.known_shape or ()
    is_byte, is_image = array.dtype == "|u1", array.modality in ("rgb", "depth")
    # Channels at the end win: an array of three rows is more often an image than one of three planes.
    if is_byte and len(shape) == 4 and shape[3] in CHANNELS:
        layout = _Layout(*shape, 8, is_planar=False)
    elif is_byte and len(shape) == 4 and shape[1] == 3 and is_image:
        layout = _Layout(shape[0], shape[2], shape[3], 3, 8, is_planar=True)
    elif len(shape) == 3 and ((array.dtype == "<u2" and array.modality == "depth") or (is_byte and is_image)):
        layout = _Layout(*shape, 1, 8 if is_byte else 16, is_planar=False)
    else:
        return None
    is_possible = 0 not in shape and max(layout.height, layout.width) < 1 << 31  # PNG has no larger images
    return layout if is_possible else None
