"""Configure the log: where it goes and how a line looks.

A warning or error is logged once in ten minutes, whichever part of glassfs reports it: what a listing warns of is the
reason why a read fails a moment later. A program that reads a damaged block in a loop must not fill the log.

A record is one line of printable text, even if it contains names from untrusted containers. A traceback follows on
indented lines, so that none of them can pass for a record. Handlers never raise: a line that cannot be written is lost.
"""

from __future__ import annotations

import errno
import logging
import os
from contextlib import suppress
from io import TextIOWrapper

from glassfs import outputs
from glassfs.arguments import harmless
from glassfs.lru import LRU
from glassfs.settings import settings
from glassfs.terminal import printable

SYSLOG = "/dev/log"


class Once(logging.Filter):
    """Passes a warning or error unless one with the same text was logged a short while ago."""

    def __init__(self) -> None:
        super().__init__()
        self._logged: LRU[str, float] = LRU(1000)

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        text = record.getMessage()
        before = self._logged.peek(text)
        if before is not None and record.created - before < settings.log_again:
            return False
        self._logged.put(text, record.created)
        return True


class LineFormatter(logging.Formatter):
    """Formats a record as one printable line, a traceback as indented lines, and hides secrets of the command line."""

    def format(self, record: logging.LogRecord) -> str:
        first, *traceback = super().format(record).split("\n")
        return harmless("\n".join([first, *("    " + printable(line) for line in traceback)]))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is logging's
        return printable(super().formatMessage(record))


def configure(log_file: str | None, is_daemon: bool) -> None:
    """Log to a file if given, else in the foreground to stderr, else to syslog. Raises OSError."""
    handler: logging.Handler
    formatter: logging.Formatter = LineFormatter("%(asctime)s %(levelname)s %(message)s")
    if log_file == os.devnull:  # no file that others could put there
        handler = logging.NullHandler()
    elif log_file is not None:
        handler = LogFile(log_file)
    elif is_daemon:
        handler, formatter = _syslog(), LineFormatter("glassfs[%(process)d]: %(message)s")
    else:
        handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    handler.addFilter(Once())
    logging.raiseExceptions = False  # else logging reports its own errors, such as a full disk, to stderr
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)


class LogFile(logging.FileHandler):
    """Appends to the file at an absolute path; to a new one after that was renamed or removed, as by logrotate.

    The folder is opened once, so that no link leads to another one later. While something else has the name, records go
    on into the old file. Raises OSError if the file cannot be opened, or has bytes that no text has.
    """

    def __init__(self, path: str) -> None:
        folder, self._file_name = os.path.split(path)
        try:
            self._folder = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            super().__init__(path)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None

    def emit(self, record: logging.LogRecord) -> None:
        before = self.stream
        with suppress(OSError):
            if before is not None and not outputs.is_at(before.fileno(), self._file_name, self._folder):
                self.setStream(self._open())
                before.close()
        super().emit(record)

    def _open(self) -> TextIOWrapper:
        descriptor = outputs.opened(self._file_name, folder=self._folder)
        # All formats have a number with zeros at the start.
        if b"\0" in os.pread(descriptor, 4096, 0):
            os.close(descriptor)
            raise FileExistsError(errno.EEXIST, "is not a log, as it is not text; name another file")
        return open(descriptor, "a", 1, "utf-8", "backslashreplace")


def _syslog() -> logging.Handler:
    from logging.handlers import SysLogHandler

    try:
        return SysLogHandler(SYSLOG)
    except OSError:  # there is none, or no process listens
        return logging.NullHandler()
