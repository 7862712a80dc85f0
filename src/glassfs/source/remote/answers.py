"""Check what fsspec file systems report: facts of objects, and exceptions.

Messages name exceptions and their codes and never quote their texts, in which a server may repeat what it was sent.
"""

from __future__ import annotations

import errno
import math
import os
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from hashlib import sha256
from socket import gaierror
from typing import Any

from glassfs.errors import Changed, DeviceFailed, GlassfsError, NotAllowed, NotFound, Unavailable
from glassfs.source.remote.server import NO_HOST, Facts

# Keys of ``info`` that distinguish versions, best first.
_VERSIONS = (
    "ETag", "etag", "e_tag", "generation", "version_id", "VersionId", "blob_id", "xet_hash", "sha", "oid", "md5Hash",
    "checksum",
)
_NO_VERSIONS = ("", "null", "None", "none")
_TIMES = (
    "mtime", "LastModified", "last_modified", "Last-Modified", "modified", "updated", "modificationTime", "modify",
    "created",
)
_LEAST_MILLISECONDS = 1e11
"""Numbers from here on are milliseconds since 1970, smaller ones seconds."""

_MISSING = (404, 410)
_DENIED = (401, 403, 407)
_FTP_CODE = re.compile(r"(\d{3})[ -]")
_FTP_DENIED = ("331", "332", "530", "532", "534")


class Unbelievable(DeviceFailed):
    """A file system reports something impossible; asking again does not help."""


def facts(info: Any) -> Facts | None:
    """Return the facts in an ``info`` dictionary; None for a folder. Raises Unbelievable."""
    if not isinstance(info, Mapping):
        raise Unbelievable("its file system does not report what it is")
    kind = info.get("type")
    if kind == "directory":
        return None
    if kind not in ("file", None):
        raise Unbelievable("is neither a file nor a folder")
    size = info.get("size")
    found = Facts(size, _etag(info), _mtime_ns(info)) if type(size) is int else None
    if found is None or not found.is_possible:
        raise Unbelievable("its file system reports no valid size")
    return found


def _etag(info: Mapping[Any, Any]) -> str:
    for name in _VERSIONS:
        value = info.get(name)
        if type(value) in (str, int) and (text := str(value).strip()) not in _NO_VERSIONS:
            return text if len(text) <= 256 else sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return ""


def _mtime_ns(info: Mapping[Any, Any]) -> int:
    for name in _TIMES:
        if (seconds := _seconds(info.get(name))) is not None:
            # A float has no more than microseconds of today's time.
            return round(seconds * 10**6) * 1000
    return 0


def _seconds(value: Any) -> float | None:
    """Return a value as seconds since 1970; None if it is no time after that."""
    if isinstance(value, str):
        value = _parsed_time(value)
    if isinstance(value, datetime):
        try:
            value = (value if value.tzinfo else value.replace(tzinfo=timezone.utc)).timestamp()
        except (OverflowError, ValueError):
            return None
    if type(value) not in (int, float) or not 0 < value < 1e15 or not math.isfinite(value):
        return None
    seconds = float(value) / 1000 if value >= _LEAST_MILLISECONDS else float(value)
    return seconds if seconds < _LEAST_MILLISECONDS else None


def _parsed_time(text: str) -> datetime | None:
    """Parse ISO 8601, or the format of FTP's listings (digits only, UTC)."""
    text = text.strip()[:64]
    if re.fullmatch(r"\d{14}(\.\d+)?", text):
        text = f"{text[:4]}-{text[4:6]}-{text[6:8]}T{text[8:10]}:{text[10:12]}:{text[12:14]}"
    try:
        return datetime.fromisoformat(re.sub(r"Z$", "+00:00", text))
    except ValueError:
        return None


def translated(error: BaseException, shown: str) -> GlassfsError:
    """Return the GlassfsError for an exception of a file system; messages call the object ``shown``."""
    if isinstance(error, GlassfsError):
        return error if error.source else error.at(shown)
    status = _http_status(error)
    code = _ftp_code(error)
    number = getattr(error, "errno", None)
    detail = f"HTTP {status}" if status else code
    if isinstance(number, int) and number in errno.errorcode:
        detail = os.strerror(number)
    text = f"{type(error).__name__}: {detail}" if detail else type(error).__name__
    if isinstance(error, FileNotFoundError) or status in _MISSING or code == "550":
        return NotFound("does not exist", shown)
    if isinstance(error, (IsADirectoryError, NotADirectoryError)):
        return NotFound("is a folder where a file is expected, or a file where a folder is", shown)
    if isinstance(error, PermissionError) or status in _DENIED or code in _FTP_DENIED:
        return NotAllowed(f"access denied: {text}", shown)
    if status == 412:
        return Changed("has been replaced by another object", shown)
    if isinstance(error, gaierror):
        return DeviceFailed(NO_HOST, shown)
    if isinstance(error, MemoryError) or number in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        return Unavailable(f"no descriptors or no memory left: {text}", shown)
    return DeviceFailed(text, shown)


def is_retryable(error: BaseException) -> bool:
    """Return whether another attempt on a new connection may succeed."""
    if isinstance(error, GlassfsError):
        return isinstance(error, DeviceFailed) and not isinstance(error, Unbelievable)
    if isinstance(error, (TypeError, ValueError, LookupError, AttributeError, NotImplementedError, MemoryError)):
        return False
    return isinstance(error, Exception) and isinstance(translated(error, ""), DeviceFailed)


def _http_status(error: BaseException) -> int | None:
    """Return the HTTP status that an exception reports, under any of the names that libraries use."""
    for holder in (error, getattr(error, "response", None)):
        for name in ("status", "status_code", "code"):
            status = getattr(holder, name, None)
            if type(status) is int:
                return status
    return None


def _ftp_code(error: BaseException) -> str:
    found = _FTP_CODE.match(str(error)) if type(error).__module__ == "ftplib" else None
    return found[1] if found else ""
