"""What the file systems of strangers say, believed as far as it can be: facts of objects, and errors as ours."""

from __future__ import annotations

import errno
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from hashlib import sha256
from typing import Any
from urllib.parse import quote

from glassfs.errors import Changed, DeviceFailed, GlassfsError, NotAllowed, NotFound, Unavailable
from glassfs.source.remote.server import Facts
from glassfs.source.remote.url import shown as shown_url
from glassfs.terminal import printable

LARGEST = 1 << 62
LONGEST_SENTENCE = 200
_LONGEST_ETAG = 256

# What tells one version of an object from others, best first.
_VERSIONS = (
    "ETag", "etag", "e_tag", "generation", "version_id", "VersionId", "blob_id", "xet_hash", "sha", "oid", "md5Hash",
    "checksum",
)
_NO_VERSIONS = ("", "null", "None", "none")
_TIMES = (
    "mtime", "LastModified", "last_modified", "Last-Modified", "modified", "updated", "modificationTime", "modify",
    "created",
)
_MILLISECONDS = 1e11
"""From here on, a number is taken for milliseconds since 1970."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]+")
_GONE = (404, 410)
_REFUSED = (401, 403, 407)
_FTP_CODE = re.compile(r"(\d{3})[ -]")
_FTP_REFUSED = ("331", "332", "530", "532", "534")


class Unbelievable(DeviceFailed):
    """What is said of an object cannot be, and will be no better if it is said again."""


def facts(told: Any) -> Facts | None:
    """What a dictionary says of an object; None for a folder. Raises Unbelievable if it cannot be one of either."""
    if not isinstance(told, Mapping):
        raise Unbelievable("does not say what it is")
    kind = told.get("type")
    if kind == "directory":
        return None
    if kind not in ("file", None):
        raise Unbelievable("is neither a file nor a folder")
    size = told.get("size")
    if type(size) is not int or not 0 <= size <= LARGEST:
        raise Unbelievable("has no size that can be believed")
    return Facts(size, _etag(told), _mtime_ns(told))


def are_same(seen: Facts, meant: Facts) -> bool:
    """Whether two answers are about the same bytes, as far as they say."""
    if seen.size != meant.size or seen.etag != meant.etag:
        return False
    return bool(seen.etag) or seen.mtime_ns == meant.mtime_ns


def _etag(told: Mapping[Any, Any]) -> str:
    for name in _VERSIONS:
        value = told.get(name)
        if type(value) in (str, int) and (text := str(value).strip()) not in _NO_VERSIONS:
            break
    else:
        return ""
    return text if len(text) <= _LONGEST_ETAG else sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _mtime_ns(told: Mapping[Any, Any]) -> int:
    for name in _TIMES:
        if (seconds := _seconds(told.get(name))) is not None:
            # A float has no more than microseconds of today's time.
            return round(seconds * 10**6) * 1000
    return 0


def _seconds(value: Any) -> float | None:
    """The time since 1970 that a value stands for, if it can be one after that."""
    if isinstance(value, str):
        value = _parsed_time(value)
    if isinstance(value, datetime):
        try:
            value = (value if value.tzinfo else value.replace(tzinfo=timezone.utc)).timestamp()
        except (OverflowError, ValueError):
            return None
    if type(value) not in (int, float) or not 0 < value < 1e15 or not math.isfinite(value):
        return None
    seconds = float(value) / 1000 if value >= _MILLISECONDS else float(value)
    return seconds if seconds < _MILLISECONDS else None


def _parsed_time(text: str) -> datetime | None:
    """A time as ISO 8601, as in HTTP, or as in FTP's listings (digits without anything between, UTC)."""
    text = text.strip()[:64]
    if re.fullmatch(r"\d{14}(\.\d+)?", text):
        text = f"{text[:4]}-{text[4:6]}-{text[6:8]}T{text[8:10]}:{text[10:12]}:{text[12:14]}"
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            return parse(re.sub(r"Z$", "+00:00", text))
        except (ValueError, TypeError, IndexError, OverflowError):
            continue
    return None


class Secrets:
    """What no sentence may have in it: everything that was said beside the name of a server."""

    def __init__(self, values: Iterable[Any]) -> None:
        texts = {text for value in values for text in _texts(value) if text}
        found = sorted(texts | {quote(text, safe="") for text in texts}, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, found))) if found else None

    def cut(self, text: str) -> str:
        text = _URL.sub(lambda found: shown_url(found[0]), text)
        return text if self._pattern is None else self._pattern.sub("…", text)


def _texts(value: Any) -> Iterator[str]:
    """The texts in an option, however it is nested."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, bytes):
        yield value.decode("utf-8", "replace")
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _texts(inner)


def sentence(error: BaseException, secrets: Secrets) -> str:
    """One line about an exception of somebody else's, without secrets and not long."""
    try:
        text = " ".join(secrets.cut(str(error)).split())
    except Exception:  # it is a stranger's, too
        text = ""
    text = printable(f"{type(error).__name__}: {text}" if text else type(error).__name__)
    return text if len(text) <= LONGEST_SENTENCE else text[: LONGEST_SENTENCE - 1] + "…"


def fault(error: BaseException, shown: str, secrets: Secrets) -> GlassfsError:
    """The error of ours that an exception of a file system stands for."""
    if isinstance(error, GlassfsError):
        return error if error.source else error.at(shown)
    status = _status(error)
    code = _ftp_code(error)
    reason = sentence(error, secrets)
    if isinstance(error, FileNotFoundError) or status in _GONE or code == "550":
        return NotFound("does not exist", shown)
    if isinstance(error, (IsADirectoryError, NotADirectoryError)):
        return NotFound("is not what it was taken for, a file or a folder", shown)
    if isinstance(error, PermissionError) or status in _REFUSED or code in _FTP_REFUSED or _is_login(error):
        return NotAllowed(f"may not be read: {reason}", shown)
    if status == 412:
        return Changed("was changed", shown)
    if isinstance(error, MemoryError) or getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        return Unavailable(f"no descriptors or no memory left: {reason}", shown)
    return DeviceFailed(reason, shown)


def is_passing(error: BaseException) -> bool:
    """Whether the same question may well be answered if it is asked once more, on a new connection."""
    if isinstance(error, GlassfsError):
        return isinstance(error, DeviceFailed) and not isinstance(error, Unbelievable)
    if isinstance(error, (TypeError, ValueError, LookupError, AttributeError, NotImplementedError, MemoryError)):
        return False
    return isinstance(error, Exception) and isinstance(fault(error, "", Secrets(())), DeviceFailed)


def _status(error: BaseException) -> int | None:
    """The status of HTTP that an exception is about, wherever its library has it."""
    for holder in (error, getattr(error, "response", None)):
        for name in ("status", "status_code", "code"):
            status = getattr(holder, name, None)
            if type(status) is int:
                return status
    return None


def _ftp_code(error: BaseException) -> str:
    if type(error).__module__ != "ftplib":
        return ""
    found = _FTP_CODE.match(str(error))
    return found[1] if found else ""


def _is_login(error: BaseException) -> bool:
    """Whether a server and its user could not agree on who they are (paramiko's own exceptions)."""
    names = {kind.__name__ for kind in type(error).__mro__ if kind.__module__.partition(".")[0] == "paramiko"}
    if "AuthenticationException" in names:
        return True
    return "SSHException" in names and str(error).startswith("No authentication methods")
