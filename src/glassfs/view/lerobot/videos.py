"""The videos of a dataset: MP4 files of consecutive episodes of one camera, whose sizes follow from the features."""

from __future__ import annotations

from dataclasses import replace

from glassfs.cache import BlockCache
from glassfs.codec import h264
from glassfs.content import Parted, Table
from glassfs.content.allowance import OBJECT
from glassfs.content.features import decoded
from glassfs.content.video import video_of
from glassfs.errors import Changed
from glassfs.view import mp4
from glassfs.view.contract import Key
from glassfs.view.known import Known
from glassfs.view.lerobot.dataset import EpisodeSet
from glassfs.view.lerobot.plan import Film


class VideoFile(Parted):
    """The frames of a file's episodes, one after another.

    A container is opened at the first read of its episode, and a recording in use is kept. An error costs the ranges of
    its episode.
    """

    def __init__(self, table: Table, dataset: EpisodeSet, film: Film, cache: BlockCache, key: Key, number: int) -> None:
        camera, episodes = film.camera, dataset.videos.episodes(number)
        self._first, end = dataset.starts[episodes.start], dataset.starts[episodes.stop]
        self._head = camera.width, camera.height, dataset.fps, end - self._first
        self._frame = h264.size_of(camera.width, camera.height)
        self._table = table
        self._dataset = dataset
        self._film = film
        self._cache = cache
        self._key = key
        # An open video, and for each frame where its image is, which formats may keep.
        self._known = Known(cache, self._opened, lambda frames: OBJECT * (32 + len(frames.bounds) - 1))

    @property
    def size(self) -> int:
        return mp4.size_of(*self._head)

    def part_at(self, offset: int) -> tuple[int, int, int]:
        """Return the episode whose frames have the byte, -1 for the head, and where they begin and end."""
        head = len(mp4.head(*self._head))
        if offset < head:
            return -1, 0, head
        episode = self._dataset.episode_at(self._first + (offset - head) // self._frame)
        start = head + (self._dataset.starts[episode] - self._first) * self._frame
        return episode, start, start + self._dataset.length(episode) * self._frame

    def read_part(self, number: int, buffer: memoryview, offset: int) -> None:
        # The size and the head follow from the features alone. A container is opened only for frames.
        if number < 0:
            buffer[:] = mp4.head(*self._head)[offset : offset + len(buffer)]
            return
        # A shared mount must not show what was closed to others since, even from a recording that is open.
        self._table.demand_readable(self._dataset.place(number).container)
        self._known.get(number).read_into(buffer, offset)

    def _opened(self, episode: int) -> mp4.EncodedFrames:
        """Return the frames of an episode. Raises Changed if its video is not what its container said."""
        camera, place = self._film.camera, self._dataset.place(episode)
        with self._table.recordings(place.container, is_kept=True) as recording_of:
            for name, content in recording_of(place.number).cameras():
                if decoded(b"/".join(name)) != camera.name:
                    continue
                video = video_of(content)
                if video is not None and video.count == self._dataset.length(episode):
                    shown = replace(video, width=camera.width, height=camera.height, fps=self._dataset.fps)
                    first = self._dataset.starts[episode] - self._first
                    return mp4.EncodedFrames(shown, first, self._cache, (*self._key, episode))
        raise Changed("has other cameras than when its episodes were listed", place.container, camera.name)
