"""Types of array items, as NumPy's descriptions: ``<f4``, ``|b1``, ``<M8[100ns]``. Any thread.

A structured type is the text of NumPy's list: ``[('x', '<f4'), ('y', '<f4')]``. Views of numbers and times do not match
such a text, and so leave arrays of structures out.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from glassfs.errors import Damaged
from glassfs.lru import cached_if_short

if TYPE_CHECKING:
    import numpy as np

STRUCTURED = "["
"""The first character of a structured type's description."""
NOT_A_TYPE = (TypeError, ValueError, SyntaxError, OverflowError, MemoryError, RecursionError)
"""What NumPy and the parser of Python raise for descriptions that they do not accept."""


@cached_if_short(64)
def parsed(description: str) -> np.dtype[Any]:
    """Return the dtype that a description stands for. Raises Damaged if there is none."""
    import numpy as np

    try:
        literal: Any = ast.literal_eval(description) if description.startswith(STRUCTURED) else description
        return np.lib.format.descr_to_dtype(literal)
    except NOT_A_TYPE as error:
        raise Damaged(f"its items have a type that NumPy does not know: {description:.80}") from error


def description_of(dtype: np.dtype[Any]) -> str:
    """Return the description of a dtype. Raises ValueError for one whose fields overlap."""
    return dtype.str if dtype.names is None else repr(dtype.descr)


@cached_if_short(256)
def little_endian(description: str) -> str:
    """Return the description of the same type with all its numbers little-endian. Raises Damaged."""
    if ">" not in description:
        return description
    return description_of(parsed(description).newbyteorder("<"))
