"""Sizes in bytes and other numbers as users write them."""

from __future__ import annotations

import re

PIECE = 1 << 20
"""Bytes that are read, decoded or written at a time where no measurement asks for another number."""
_SHIFTS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def parse_size(text: str) -> int:
    """Parse a size: ``64M`` → 67108864. Raises ValueError."""
    match = re.fullmatch(r"(\d+)([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError(f"{text!r} is not a size such as 512M")
    return int(match[1]) << _SHIFTS[match[2].upper()]


def human_size(size: int) -> str:
    """Format a size as ``ls -h`` does: 1536 → ``1.5K``."""
    value = float(size)
    for unit in _SHIFTS:
        if value < 1024 or unit == "T":
            break
        value /= 1024
    if not unit:
        return str(size)
    return f"{value:.1f}{unit}" if value < 10 else f"{value:.0f}{unit}"


def counted(number: int, what: str) -> str:
    """Format a number of things: ``1 file``, ``2,000 files``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
