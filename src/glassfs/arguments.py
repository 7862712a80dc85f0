"""What was typed to start this process, as far as it is secret: URLs that are signed, or have a password in them.

The arguments of a process can be read by everybody for as long as it runs (``/proc/PID/cmdline``, ``ps``). ``hide`` is
for the first thing that a program does, while it has one thread; ``harmless`` may be called from any.
"""

from __future__ import annotations

import re
import sys

from glassfs.names import raw

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_secrets: dict[str, str] = {}
"""What must not be seen, and what stands for it; longer ones first."""


def hide() -> None:
    """Notes what is secret in the arguments, and blanks it out of the memory where the system shows them (Linux)."""
    secret = {argument: _shown(argument) for argument in sys.argv[1:] if "://" in argument}
    secret = {typed: visible for typed, visible in secret.items() if typed != visible}
    if not secret:
        return
    found = dict(secret)
    for typed in secret:
        _, mark, query = typed.partition("?")
        if mark and query:
            found[query] = "…"
    _secrets.update(sorted(found.items(), key=lambda pair: -len(pair[0])))
    if sys.platform == "linux":
        _blank({raw(typed): raw(visible)
                for typed, visible in secret.items()})


def harmless(sentence: str) -> str:
    """A sentence with nothing in it of what is secret in the arguments."""
    for typed, visible in _secrets.items():
        sentence = sentence.replace(typed, visible)
    return sentence


def _shown(argument: str) -> str:
    """An argument that is a URL, or an option with one in it, without secrets."""
    from glassfs.source.remote.url import shown  # hardly ever needed

    found = _URL.search(argument)
    return argument if found is None else argument[: found.start()] + shown(argument[found.start() :])


def _blank(secret: dict[bytes, bytes]) -> None:
    """Writes over the arguments; what can be seen of them keeps its place, and blanks follow."""
    import ctypes

    try:
        with open("/proc/self/stat", "rb") as file:
            # The name of the program is in brackets, and may have brackets and blanks in it.
            fields = file.read().rpartition(b")")[2].split()
        start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end, fields 48 and 49 (proc(5))
        with open("/proc/self/cmdline", "rb") as file:
            arguments = file.read()
    except (OSError, ValueError, IndexError):
        return
    if not 0 < start < end or len(arguments) != end - start:
        return
    place = start
    for argument in arguments.split(b"\0"):
        visible = secret.get(argument)
        if visible is not None:
            ctypes.memmove(place, visible.ljust(len(argument)), len(argument))
        place += len(argument) + 1
