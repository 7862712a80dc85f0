"""The videos of a dataset: one MP4 file for each episode and camera, whose size follows from the features."""

from __future__ import annotations

from dataclasses import replace

from glassfs.cache import BlockCache
from glassfs.content import Array, Data, Table, Video
from glassfs.content.data import SizedData
from glassfs.content.features import decoded
from glassfs.content.video import video_of
from glassfs.errors import Changed
from glassfs.view import mp4
from glassfs.view.contract import Key
from glassfs.view.known import Known
from glassfs.view.lerobot.dataset import Dataset
from glassfs.view.lerobot.plan import Film

VIDEO_COST, FRAME_COST = 4 << 10, 96
"""The memory in bytes that an open video takes, and each of its frames: formats may keep where its images are."""


class VideoFile(SizedData):
    """The film of one episode. The container is opened at the first read, and a recording in use is kept."""

    def __init__(
        self, table: Table, dataset: Dataset, episode: int, film: Film, cache: BlockCache, key: Key,
    ) -> None:
        self._place = dataset.place(episode)
        self._count = dataset.length(episode)
        self._fps = dataset.fps
        super().__init__(mp4.size_of(film.camera.width, film.camera.height, self._fps, self._count))
        self._table = table
        self._film = film
        self._cache = cache
        self._key = key
        cost = VIDEO_COST + FRAME_COST * self._count
        self._made = Known(cache, self._make, lambda data: cost)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self._table.demand_readable(self._place.container)
        self._made.get().read_into(buffer, offset)

    def video(self) -> Video:
        """Return the video. Raises Changed if it is not what its container said."""
        camera = self._film.camera
        with self._table.recordings(self._place.container, is_kept=True) as recording_of:
            for name, content in recording_of(self._place.number).cameras():
                if decoded(b"/".join(name)) != camera.name:
                    continue
                video = video_of(content) if isinstance(content, Array) else content
                if isinstance(video, Video) and video.count == self._count:
                    return replace(video, width=camera.width, height=camera.height, fps=self._fps)
        raise Changed("has other cameras than when its episodes were listed", self._place.container, camera.name)

    def _make(self) -> Data:
        return mp4.made(self.video(), self._cache, self._key)
