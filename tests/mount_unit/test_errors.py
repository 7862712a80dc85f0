"""From exceptions to errno, in one place, and a log that does not flood."""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor

import pytest

from glassfs import errors
from glassfs.mount.errors import Answer, Failures

EXPECTED = [
    (errors.NotFound("/x"), errno.ENOENT), (errors.NotADirectory("/x"), errno.ENOTDIR),
    (errors.IsADirectory("/x"), errno.EISDIR), (errors.Damaged("bad"), errno.EIO),
    (errors.Changed("new"), errno.ESTALE), (errors.TooLarge("big"), errno.EFBIG),
    (errors.NotAllowed("x"), errno.EACCES), (errors.Unavailable("x"), errno.EAGAIN),
    (errors.Refused("f", "why"), errno.EIO),
    (errors.Unrecognised("f", "why"), errno.EIO), (KeyError("x"), errno.EIO), (ValueError("x"), errno.EIO),
    (errors.NoSpool("full"), errno.ENOSPC), (OSError(errno.ENOSPC, "full"), errno.EIO), (MemoryError(), errno.EAGAIN),
    (OSError(errno.EMFILE, "x"), errno.EAGAIN), (errors.NotInstalled("x"), errno.EOPNOTSUPP),
    (RecursionError(), errno.EIO),
    (Answer(errno.EROFS), errno.EROFS), (FileNotFoundError(2, "x"), errno.EIO),
]
LOGGED_NEVER = (errors.NotFound, errors.NotADirectory, errors.IsADirectory, Answer)


@pytest.mark.parametrize(("error", "number"), EXPECTED, ids=lambda value: repr(value))
def test_every_exception_has_its_errno(error: BaseException, number: int, caplog: pytest.LogCaptureFixture) -> None:
    """An unknown one is EIO with a traceback in the log, never EINVAL; a missing file is nothing to log."""
    failures = Failures()
    assert failures.errno_of(error) == number
    is_expected = isinstance(error, (errors.GlassfsError, Answer)) or number == errno.EAGAIN
    assert len(caplog.records) == (not isinstance(error, LOGGED_NEVER))
    for record in caplog.records:
        assert bool(record.exc_info) is not is_expected
        assert str(error) in record.getMessage()


def test_errors_are_built_in_exceptions_too() -> None:
    for kind, built_in in {
        errors.NotFound: FileNotFoundError, errors.NotADirectory: NotADirectoryError,
        errors.IsADirectory: IsADirectoryError, errors.Damaged: OSError, errors.Changed: OSError,
        errors.TooLarge: OSError, errors.Refused: ValueError, errors.Unrecognised: errors.Refused,
    }.items():
        assert issubclass(kind, built_in)
        assert issubclass(kind, errors.GlassfsError)


def test_every_error_is_counted() -> None:
    failures = Failures()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: failures.errno_of(errors.Damaged("f: block 7: bad")), range(5000)))
    failures.errno_of(errors.Damaged("f: block 8: bad"))
    assert failures.count == 5001
