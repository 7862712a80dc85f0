"""A file that is there when it is whole: until then it stands beside it, under its name and ``.part``.

Who writes holds a lock on it. After an interruption the part can stay, and be gone on with. One thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import BinaryIO

from glassfs.batch.locking import is_locked
from glassfs.errors import GlassfsError

SUFFIX = ".part"


class WholeFile:
    """The file at ``name``, open as ``file``. What is there when it ends early stays if it ``is_kept``.

    Raises GlassfsError where it cannot be written.
    """

    def __init__(self, name: str, is_kept: bool) -> None:
        self._name, self._part = name, name + SUFFIX
        self._is_kept = is_kept
        self._is_over = False
        if os.path.isdir(name):
            raise GlassfsError("is a folder", name)
        self.file: BinaryIO = self._opened(self._part)

    def __enter__(self) -> WholeFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self._is_over and not self._is_kept:
            with suppress(OSError):
                os.unlink(self._part)
        try:
            self.file.close()
        except OSError:  # of what could not be written has been told
            if kind is None:
                raise

    @contextmanager
    def writing(self) -> Iterator[None]:
        """What the system refuses in here is told with the name of the file."""
        try:
            yield
        except OSError as error:
            if isinstance(error, GlassfsError):
                raise
            raise GlassfsError(f"cannot be written: {error.strerror or error}", self._name) from error

    def begin(self, head: bytes) -> None:
        """Nothing of before counts."""
        with self.writing():
            self.file.truncate(0)
            self.file.write(head)
            self.file.flush()

    def go_on(self, kept: Callable[[BinaryIO], Iterable[bytes]]) -> None:
        """Goes on with what is ``kept`` of a part, or of the whole file, which stays until another one is whole.

        Raises GlassfsError if there is neither, and what ``kept`` does, with the name; then all is as it was.
        """
        before, name = self.file, self._part
        if not os.path.getsize(self._part):
            try:
                before, name = open(self._name, "rb"), self._name  # noqa: SIM115
            except FileNotFoundError:
                with suppress(OSError):
                    os.unlink(self._part)
                raise GlassfsError("neither it nor a part of it is there to go on with", self._name) from None
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
        """It is whole."""
        with self.writing():
            self.file.flush()
            os.rename(self._part, self._name)
        self._is_over = True

    def _opened(self, name: str) -> BinaryIO:
        try:
            number = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise GlassfsError(f"cannot be written: {error.strerror}", name) from error
        file = open(number, "r+b")  # noqa: SIM115
        if is_locked(file):
            file.close()
            raise GlassfsError("another program is writing it", name)
        return file
