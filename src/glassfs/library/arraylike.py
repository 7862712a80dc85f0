"""What entries have in common with arrays of NumPy, h5py and zarr. Any thread."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from math import prod
from operator import index as integer
from typing import Any

from glassfs import content as contents
from glassfs.errors import Error, GlassfsError, Unsuited
from glassfs.lazy import NDArray, np
from glassfs.library import arrays
from glassfs.library.stream import bytes_of
from glassfs.terminal import printable
from glassfs.tree import File
from glassfs.tree.nodes import FIRST_EXTENSION

VIDEO = ".mp4"
ARRAYS = (contents.Array, contents.Image, contents.EncodedImage, contents.Scalar, contents.Video)
"""Contents that ``numpy`` returns as an array."""


class ArrayLike(ABC):
    """An entry that may be an array. Subclasses find its file."""

    @property
    @abstractmethod
    def path(self) -> str: ...

    @abstractmethod
    def _of_array(self) -> File:
        """Return the file of the array or video."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of ``numpy()``. For some columns this and ``dtype`` need a pass over the data."""
        return self._type()[0]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of ``numpy()``."""
        return self._type()[1]

    @property
    def ndim(self) -> int:
        """The number of axes of ``numpy()``."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of items of ``numpy()``. The bytes of a file are its ``file_size``."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of ``numpy()``."""
        return self.size * self.dtype.itemsize

    def numpy(self, *, copy: bool = False) -> NDArray[Any]:
        """Return an array, a scalar, or the pixels of an image: (height, width, channels), or (height, width) if gray.
        For a directory of frames, return the array of the whole video.

        The result is read-only. Arrays of 128 KiB and more that a local container stores uncompressed are mapped from
        its file: they change if another process writes to the container, and if it truncates it, reading them ends
        this process (SIGBUS). With ``copy`` the values are always in memory of their own, and writable.

        Times keep the unit of the container, which other libraries may not know (``<M8[100ns]``); convert them with
        ``.astype("M8[us]")``.
        """
        file = self._of_array()
        with PartInErrors(self):
            content = canonical(file)
            # Plain files are not mapped: other programs write them anew in place.
            values = None if content is None else arrays.array_of(content, copy or file.content is None)
            if is_plain_image(file):
                values = arrays.of_pixels(arrays.image_in(bytes_of(file)))
        if values is None:
            raise self._error(Unsuited, "is not an array")
        if not copy:
            values.flags.writeable = False
        return values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        values = self.numpy(copy=bool(copy) and dtype is None)
        return values if dtype is None else values.astype(dtype, copy=bool(copy))

    def _type(self) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Return shape and dtype of ``numpy()``, without its values if possible."""
        with PartInErrors(self):
            content = canonical(self._of_array())
            found: Any = arrays.rows_of(content)
            if found is None:
                image = arrays.type_of(content)
                if image is not None:
                    return image
                found = self.numpy()
        return found.shape, found.dtype

    def _selected(self, key: Any) -> Any:
        """Return what an index selects of the array, read into memory of its own."""
        with PartInErrors(self):
            content = canonical(self._of_array())
            if isinstance(content, contents.Video) and arrays.is_integer(key):
                return arrays.frame_of(content, integer(key))  # without the first one, which gives the shape
            rows = arrays.rows_of(content)
            return self.numpy(copy=True)[key] if rows is None else arrays.select(rows, key)

    def _iterated(self) -> Iterator[Any]:
        rows = arrays.rows_of(canonical(self._of_array()))
        if not self.shape:
            raise self._error(Unsuited, "is a single value and cannot be iterated")
        return iter(self.numpy()) if rows is None else arrays.iterated(rows)

    def _error(self, kind: type[Error], reason: str) -> Error:
        return kind(reason, part=printable(self.path))

    def _has_array(self, file: File) -> bool:
        """Return whether ``numpy`` of a file returns an array."""
        with PartInErrors(self):
            return is_plain_image(file) or isinstance(canonical(file), ARRAYS)


class PartInErrors:
    """Add the path of an entry to errors that do not name a part themselves. A context manager.

    Not a generator, as entering one takes as long as finding an array.
    """

    def __init__(self, entry: ArrayLike) -> None:
        self._entry = entry

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, GlassfsError):
            error.part = error.part or printable(self._entry.path)


def canonical(file: File) -> contents.Content | None:
    """Return the content of a file, unless the file shows an array in another form; of a plain ``.npy`` file, or one
    that an archive has, its array. Raises Damaged and Unsuited for that.
    """
    content = file.content
    if (content is None or isinstance(content, contents.Part)) and file.name.endswith(FIRST_EXTENSION):
        return arrays.array_in(file)
    if isinstance(content, contents.Array) and not file.name.endswith((FIRST_EXTENSION, VIDEO)):
        return None
    return content


def is_plain_image(file: File) -> bool:
    """Return whether a file beside the containers is an image: its suffix says so, as in a folder without glassfs."""
    return file.content is None and file.name.lower().endswith(arrays.IMAGE_SUFFIXES)
