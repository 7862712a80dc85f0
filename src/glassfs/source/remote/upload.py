"""Write objects to buckets of S3, Google Cloud Storage and Azure, through obstore.

An object appears when all its bytes have arrived. One thread; Ctrl-C takes effect between two pieces.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from decimal import Decimal
from typing import Any

from glassfs.errors import GlassfsError
from glassfs.settings import settings
from glassfs.source.contract import Path
from glassfs.source.remote.objects import ObjectServer
from glassfs.source.remote.server import SECOND

SCHEMES = ("s3", "gs", "az")
MTIME = "mtime"
"""The metadata with an object's time, in seconds since 1970, as rclone writes and reads it."""
PART = 8 << 20
"""Objects up to this size take one request, larger ones are sent in parts of at least this size."""


class NotUploaded(GlassfsError):
    """Why a server cannot be written to."""


class UploadServer(ObjectServer):
    """A bucket that is written to. All methods raise NotUploaded."""

    @staticmethod
    def options(timeout: float) -> dict[str, Any]:
        found = ObjectServer.options(timeout)
        found["client_options"] |= {"timeout": timedelta(seconds=max(settings.upload_part, timeout))}
        found["retry_config"] = {"max_retries": 8, "retry_timeout": timedelta(seconds=settings.upload_part)}
        return found

    def put(self, path: Path, size: int, mtime_ns: int, pieces: Iterable[memoryview]) -> None:
        """Write an object of ``size`` bytes. What ``pieces`` raises passes through, and no object appears."""
        seconds, rest = divmod(mtime_ns, SECOND)
        failed: list[BaseException] = []

        def data() -> Iterable[bytes]:
            try:
                for piece in pieces:
                    yield bytes(piece)  # a copy: it is sent while the next one is made
            except BaseException as error:
                failed.append(error)
                raise

        # obstore pulls the pieces. What making one raises would come back as an error of its own, without the cause,
        # and so is kept.
        is_small = size <= PART
        try:
            # S3 allows an object 10,000 parts.
            self._library.put(
                self._store, "/".join(path), b"".join(data()) if is_small else data(),
                attributes={MTIME: f"{seconds}.{rest:09}"}, use_multipart=not is_small,
                chunk_size=max(PART, -(-size // 10_000)), max_concurrency=4,
            )
        except Exception as error:
            if failed:
                raise failed[0] from None
            raise self._failed(path, error) from None

    def uploaded(self, path: Path) -> tuple[int, int | None] | None:
        """Return size and time (ns since 1970, None if it has none of its own) of an object, None if there is none."""
        try:
            found = self._library.get(self._store, "/".join(path), options={"head": True})
        except FileNotFoundError:
            return None
        except Exception as error:
            raise self._failed(path, error) from None
        try:
            return found.meta["size"], int(Decimal(found.attributes.get(MTIME, "")[:40]) * SECOND)
        except (ArithmeticError, ValueError):  # no number, or an infinite one
            return found.meta["size"], None

    def has_below(self, path: Path) -> bool:
        """Return whether there are objects below a path; () is the whole bucket."""
        try:
            listed = self._library.list(self._store, "/".join(path) or None, chunk_size=1)
            return next((True for some in listed if some), False)
        except Exception as error:
            raise self._failed(path, error) from None

    def _failed(self, path: Path, error: Exception) -> NotUploaded:
        return NotUploaded(self.failure(error).reason, self.shown(path))
