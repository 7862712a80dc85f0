"""Secrets in the arguments of this process: URLs that are signed or contain a password.

All users can read the arguments of a process while it runs (``/proc/PID/cmdline``, ``ps``). A program calls ``hide``
first, while it has one thread; ``harmless`` may be called from any thread.
"""

from __future__ import annotations

import re
import sys

from glassfs.names import raw

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_secrets: dict[str, str] = {}
"""Replacements by secret, the longest secret first."""


def hide() -> None:
    """Remember the secrets in the arguments, and overwrite them in the memory that the kernel shows (Linux)."""
    secret = {argument: _shown(argument) for argument in sys.argv[1:] if "://" in argument}
    secret = {typed: visible for typed, visible in secret.items() if typed != visible}
    if not secret:
        return
    found = dict(secret)
    for typed in secret:
        query = typed.partition("?")[2]
        if query:
            found[query] = "…"
    # The longest first, as a query may be a part of a URL that is a secret as a whole.
    _secrets.update(sorted(found.items(), key=lambda pair: -len(pair[0])))
    if sys.platform == "linux":
        _overwrite({raw(typed): raw(visible) for typed, visible in secret.items()})


def harmless(sentence: str) -> str:
    """Return the sentence with the secrets of the arguments replaced."""
    for typed, visible in _secrets.items():
        sentence = sentence.replace(typed, visible)
    return sentence


def _shown(argument: str) -> str:
    """Return an argument, or the URL in an option, without secrets."""
    from glassfs.source.remote.url import shown  # rarely needed

    found = _URL.search(argument)
    return argument if found is None else argument[: found.start()] + shown(argument[found.start() :])


def _overwrite(secret: dict[bytes, bytes]) -> None:
    """Overwrite the arguments in memory; each keeps its offset and is padded with spaces."""
    import ctypes

    try:
        with open("/proc/self/stat", "rb") as file:
            # The name of the program is in parentheses, and may contain parentheses and spaces.
            fields = file.read().rpartition(b")")[2].split()
        start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end, fields 48 and 49 (proc(5))
        with open("/proc/self/cmdline", "rb") as file:
            arguments = file.read()
    except (OSError, ValueError, IndexError):
        return
    # The kernel may know other arguments than Python, after prctl(2) for example; nothing is overwritten then.
    if not 0 < start < end or len(arguments) != end - start:
        return
    address = start
    for argument in arguments.split(b"\0"):
        visible = secret.get(argument)
        if visible is not None:
            ctypes.memmove(address, visible.ljust(len(argument)), len(argument))
        address += len(argument) + 1
