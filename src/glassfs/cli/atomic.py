"""Write a file that gets its name when it is complete; until then its name has the suffix ``.part``.

The writer holds a lock on the part. After an interruption, the part can stay and be continued. One thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import BinaryIO

from glassfs import outputs
from glassfs.errors import GlassfsError

SUFFIX = ".part"


class AtomicFile:
    """The file at ``name``, open as ``file`` in a ``with``. If it ``is_kept``, an incomplete part stays.

    Entering raises GlassfsError if the file cannot be written.
    """

    file: BinaryIO

    def __init__(self, name: str, is_kept: bool) -> None:
        self._name, self._part = name, name + SUFFIX
        self._is_kept = is_kept
        self._is_over = False

    def __enter__(self) -> AtomicFile:
        if os.path.isdir(self._name):
            raise GlassfsError("is a folder", self._name)
        self.file = self._opened(self._part)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self._is_over and not self._is_kept:
            with suppress(OSError):
                os.unlink(self._part)
        try:
            self.file.close()
        except OSError:  # reported already if an error is under way
            if kind is None:
                raise

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Turn errors of the system into GlassfsError with the name of the file."""
        try:
            yield
        except OSError as error:
            if isinstance(error, GlassfsError):
                raise
            raise GlassfsError(f"cannot be written: {error.strerror or error}", self._name) from error

    def begin(self, head: bytes, mark: bytes) -> None:
        """Start over with ``head``. Raises GlassfsError if there is a part that does not begin with ``mark``."""
        with self.writing():
            # An empty part, or one with the beginning of our own head, was interrupted early and has nothing to lose.
            if not mark.startswith(os.pread(self.file.fileno(), len(mark), 0)):
                self._is_over = True
                raise GlassfsError("exists and is not from this command; move it away first", self._part)
            self.file.truncate(0)
            self.file.write(head)
            self.file.flush()

    def resume(self, kept: Callable[[BinaryIO], Iterable[bytes]]) -> None:
        """Continue with the lines that ``kept`` yields from the part, or from the complete file if there is no part.

        The complete file stays until the new one is complete. Raises GlassfsError if neither exists; what ``kept``
        raises passes through with the file's name, and both files are then unchanged.
        """
        before, name = self.file, self._part
        if not os.path.getsize(self._part):
            try:
                before, name = open(self._name, "rb"), self._name  # noqa: SIM115
            except FileNotFoundError:
                with suppress(OSError):
                    os.unlink(self._part)
                raise GlassfsError("nothing to resume: neither it nor its .part file exists", self._name) from None
        # The rows that are kept are written to a third file, so that an interruption leaves the part or the complete
        # file as it was.
        new = f"{self._part}-{os.urandom(8).hex()}"
        file = self._opened(new)
        try:
            with self.writing():
                for line in kept(before):
                    file.write(line)
                file.flush()
                os.rename(new, self._part)
        except BaseException as error:
            with suppress(OSError):
                file.close()
            os.unlink(new)
            if name == self._name:
                os.unlink(self._part)
            if isinstance(error, GlassfsError):
                raise error.at(name) from None
            raise
        finally:
            if before is not self.file:
                before.close()
        self.file.close()
        self.file = file

    def end(self) -> None:
        """Give the complete file its name."""
        with self.writing():
            self.file.flush()
            os.rename(self._part, self._name)
        self._is_over = True

    def _opened(self, name: str) -> BinaryIO:
        """Open and lock a file, created if missing; a signal leaves no new file."""
        is_new = not os.path.lexists(name)
        try:
            number = outputs.opened(name, is_shared=True)
            file = open(number, "r+b")  # noqa: SIM115
        except OSError as error:
            raise GlassfsError(f"cannot be written: {error.strerror}", name) from error
        except BaseException:
            if is_new:
                with suppress(OSError):
                    os.unlink(name)
            raise
        if outputs.is_locked(number):
            file.close()
            raise GlassfsError("another program is writing to it", name)
        return file
