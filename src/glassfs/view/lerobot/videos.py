"""The videos of a dataset: MP4 files of consecutive episodes of one camera, whose sizes follow from the features."""

from __future__ import annotations

from dataclasses import replace

from glassfs.cache import BlockCache
from glassfs.codec import h264
from glassfs.content import Data, Table, Video
from glassfs.content.data import SizedData
from glassfs.content.features import decoded
from glassfs.content.video import video_of
from glassfs.errors import Changed
from glassfs.view import mp4
from glassfs.view.contract import Key
from glassfs.view.known import KnownParts
from glassfs.view.lerobot.dataset import EpisodeSet
from glassfs.view.lerobot.plan import Film

VIDEO_COST, FRAME_COST = 4 << 10, 96
"""The memory in bytes that an open video takes, and each of its frames: formats may keep where its images are."""


class VideoFile(SizedData):
    """The frames of a file's episodes, one after another.

    A container is opened at the first read of its episode, and a recording in use is kept. An error costs the ranges of
    its episode.
    """

    def __init__(self, table: Table, dataset: EpisodeSet, number: int, film: Film, cache: BlockCache, key: Key) -> None:
        camera, episodes = film.camera, dataset.videos.episodes(number)
        self._first, end = dataset.starts[episodes.start], dataset.starts[episodes.stop]
        self._head = camera.width, camera.height, dataset.fps, end - self._first
        self._frame = h264.size_of(camera.width, camera.height)
        super().__init__(mp4.size_of(*self._head))
        self._table = table
        self._dataset = dataset
        self._film = film
        self._cache = cache
        self._key = key
        self._known = KnownParts(cache, key, self._opened, self._cost)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        head = mp4.head(*self._head)
        done = len(part := head[offset : offset + len(buffer)])
        buffer[:done] = part
        starts = self._dataset.starts
        while done < len(buffer):
            at = offset + done - len(head)
            episode = self._dataset.episode_at(self._first + at // self._frame)
            inside = at - (starts[episode] - self._first) * self._frame
            count = min(len(buffer) - done, self._dataset.length(episode) * self._frame - inside)
            self._table.demand_readable(self._dataset.place(episode).container)
            self._known.get(episode).read_into(buffer[done : done + count], inside)
            done += count

    def _cost(self, episode: int) -> int:
        return VIDEO_COST + FRAME_COST * self._dataset.length(episode)

    def _opened(self, episode: int) -> Data:
        first = self._dataset.starts[episode] - self._first
        return mp4.frames(self._video(episode), self._cache, (*self._key, episode), first)

    def _video(self, episode: int) -> Video:
        """Return the video of an episode. Raises Changed if it is not what its container said."""
        camera, place = self._film.camera, self._dataset.place(episode)
        with self._table.recordings(place.container, is_kept=True) as recording_of:
            for name, content in recording_of(place.number).cameras():
                if decoded(b"/".join(name)) != camera.name:
                    continue
                video = video_of(content)
                if video is not None and video.count == self._dataset.length(episode):
                    return replace(video, width=camera.width, height=camera.height, fps=self._dataset.fps)
        raise Changed("has other cameras than when its episodes were listed", place.container, camera.name)
