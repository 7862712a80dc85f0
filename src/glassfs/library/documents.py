"""Files as texts and JSON values, and as bytes in one piece. Any thread."""

from __future__ import annotations

import io
import json
from typing import Any

from glassfs.content import Null, Scalar
from glassfs.errors import Damaged, Unavailable
from glassfs.tree import File

SMALL = 64 << 10


def bytes_of(file: File) -> bytes:
    """All bytes, with no second copy of a large file."""
    size = file.size
    if size <= SMALL:
        return file.read(0, size)
    try:
        whole = io.BytesIO()
        whole.seek(size - 1)
        whole.write(b"\0")
    except (MemoryError, OverflowError) as error:
        raise Unavailable(f"there is not enough memory for {size} bytes") from error
    with whole.getbuffer() as buffer:
        file.read_into(buffer, 0)
    return whole.getvalue()


def value_of(file: File) -> Any:
    """What JSON says; of lines, a list of what each says. Raises Damaged for what is not JSON."""
    content = file.content
    if isinstance(content, Null):
        return None
    if isinstance(content, Scalar):
        return content.value
    try:
        if file.name.endswith(".jsonl"):
            return [json.loads(line) for line in bytes_of(file).splitlines()]
        return json.loads(bytes_of(file))
    except RecursionError as error:
        raise Damaged("is JSON that is nested too deep") from error
    except ValueError as error:
        raise Damaged(f"is not valid JSON: {error}") from error
