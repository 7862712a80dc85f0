"""Untrusted text (names, link targets, messages that quote them) made safe for terminals and logs. Any thread."""

from __future__ import annotations

from glassfs import names


def printable(text: str | bytes) -> str:
    """Return the text on one line, with everything escaped that a terminal or a log would act on.

    Escapes, as ``\\n``, ``\\x9b`` or ``\\u202e``, what ``str.isprintable`` rejects: control characters, line and
    paragraph separators, marks of the writing direction, and bytes that are not UTF-8.
    """
    if isinstance(text, bytes):
        text = names.text(text)
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _escaped(character) for character in text)


def _escaped(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # a byte that is not UTF-8, which os.fsdecode maps to a surrogate
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")
