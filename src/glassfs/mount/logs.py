"""Where the log goes, and what a line of it looks like.

A record is one line of printable text, whatever names and sentences of strangers it is made of; a traceback follows on
lines of its own, indented, so that none of them can pass for a record. Handlers never raise: a line that cannot be
written is lost, and the mount goes on.
"""

from __future__ import annotations

import logging
import os
import sys
from types import TracebackType

from glassfs.arguments import harmless
from glassfs.mount import service
from glassfs.terminal import printable

SYSLOG = "/dev/log"
_INDENT = "    "
_LEVELS = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_ErrorInfo = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
)


class LineFormatter(logging.Formatter):
    """One printable line a record, and indented ones for a traceback; nothing that is secret in what was typed."""

    def format(self, record: logging.LogRecord) -> str:
        return harmless(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is logging's
        return printable(super().formatMessage(record))

    def formatException(self, ei: _ErrorInfo) -> str:  # noqa: N802
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        return _indented(super().formatStack(stack_info))


class JournalFormatter(LineFormatter):
    """Lines with the level in front, as the journal reads it (sd-daemon(3)); it knows time and process itself."""

    def format(self, record: logging.LogRecord) -> str:
        level = next((number for least, number in _LEVELS if record.levelno >= least), 7)
        return "\n".join(f"<{level}>{line}" for line in super().format(record).split("\n"))


def configure(log_file: str | None, is_daemon: bool) -> None:
    """To a file, else to stderr in the foreground (the journal under systemd), else to syslog. Raises OSError."""
    handler: logging.Handler
    formatter: logging.Formatter = LineFormatter("%(asctime)s %(levelname)s %(message)s")
    if log_file is not None:
        handler = logging.FileHandler(log_file, encoding="utf-8", errors="backslashreplace")
    elif is_daemon:
        handler, formatter = _syslog(), LineFormatter("glassfs[%(process)d]: %(message)s")
    else:
        handler = _own_stderr()
        if service.is_journal(2):
            formatter = JournalFormatter()
    handler.setFormatter(formatter)
    logging.raiseExceptions = False  # else logging writes its own troubles, a full disk say, to stderr
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)


def _own_stderr() -> logging.Handler:
    """To the stderr of this moment, whatever descriptor 2 is later: libfuse's messages are caught there for a while."""
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    return logging.StreamHandler(open(os.dup(2), "w", 1, encoding, "backslashreplace"))


def _syslog() -> logging.Handler:
    from logging.handlers import SysLogHandler

    try:
        return SysLogHandler(SYSLOG)
    except OSError:  # there is none, or nobody listens
        return logging.NullHandler()


def _indented(text: str) -> str:
    return "\n".join(_INDENT + printable(line) for line in text.split("\n"))
