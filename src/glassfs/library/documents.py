"""Read files as bytes and as JSON values. Any thread."""

from __future__ import annotations

import io
import json
from typing import Any

from glassfs.content import Null, Scalar
from glassfs.errors import Damaged, Unavailable
from glassfs.tree import File

SMALL = 64 << 10


def bytes_of(file: File, start: int = 0, stop: int | None = None) -> bytes:
    """Return the bytes from ``start`` to before ``stop``; large ones are not copied again."""
    size = max(0, (file.size if stop is None else min(stop, file.size)) - start)
    if size <= SMALL:
        return file.read(start, size)
    try:
        whole = io.BytesIO()
        whole.seek(size - 1)
        whole.write(b"\0")
    except (MemoryError, OverflowError) as error:
        raise Unavailable(f"there is not enough memory for {size} bytes") from error
    with whole.getbuffer() as buffer:
        file.read_into(buffer, start)
    return whole.getvalue()


def value_of(file: File) -> Any:
    """Return the value of a JSON file; of JSON lines, the list of their values. Raises Damaged if it is not JSON."""
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
