"""What of a URL's query says which object is meant, and what only says that whoever asks may have it. Pure functions.

A link that is signed anew every hour is still to the same object; another number in a query is another object.
"""

from __future__ import annotations

from hashlib import blake2b
from urllib.parse import parse_qsl, urlencode

_AZURE = (
    "sig", "sv", "se", "st", "sp", "sr", "spr", "sip", "ss", "srt", "si", "ses", "sdd", "scid", "saoid", "suoid",
    "skoid", "sktid", "skt", "ske", "sks", "skv",
)
_SIMPLE = (
    "signature", "expires", "policy", "key-pair-id", "awsaccesskeyid", "googleaccessid", "x-amz-security-token",
)
_SIGNED: tuple[tuple[tuple[str, ...], tuple[str, ...], str], ...] = (
    (("x-amz-signature",), (), "x-amz-"), (("x-goog-signature",), (), "x-goog-"), (("sig", "sv"), _AZURE, ""),
    (("signature",), _SIMPLE, ""),
)
"""By which parameters a way of signing is known; and which it has: by name, or by how their names begin."""


def meant(query: str) -> str:
    """A word for what a query asks for beside the path, whoever signed it; none where it does not.

    It tells nothing of what is secret in it. Names that sign count as such only beside those that they come with, as
    elsewhere they may mean anything.
    """
    pairs = parse_qsl(query, keep_blank_values=True, errors="surrogateescape")
    names = {name.lower() for name, _ in pairs}
    for marks, known, start in _SIGNED:
        if names.issuperset(marks):
            pairs = [(name, value) for name, value in pairs if not _is_of(name.lower(), known, start)]
    if not pairs:
        return ""
    return blake2b(urlencode(pairs, errors="surrogateescape").encode(), digest_size=16).hexdigest()


def _is_of(name: str, known: tuple[str, ...], start: str) -> bool:
    return name in known or (bool(start) and name.startswith(start))
