"""NumPy, loaded when one of its names is first used: that takes 0.1 s, and most commands need none. Any thread."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    NDArray = Any

    class _Lazy:
        def __getattr__(self, name: str) -> Any:
            found = self.__dict__[name] = getattr(import_module("numpy"), name)
            return found

    np = _Lazy()

__all__ = ["NDArray", "np"]
