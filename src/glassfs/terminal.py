"""Text of strangers for terminals, logs and the journal: names, link targets, sentences with either in them."""

from __future__ import annotations


def printable(text: str | bytes) -> str:
    """The text on one line, with nothing in it that a terminal or a log would act on.

    What does not print (control characters of either set, line and paragraph separators, marks that turn the direction
    of writing, bytes that are not UTF-8) is written as ``\\n``, ``\\x9b``, ``\\u202e``; all else stays as it is.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogateescape")
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _escaped(character) for character in text)


def _escaped(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # a byte that is not UTF-8, as the system's own names carry it
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")
