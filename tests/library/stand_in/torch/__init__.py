"""As much of PyTorch as docs/examples/torch_dataset.py needs, for where it is not installed: tensors are arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

Tensor = np.ndarray


def tensor(values: Any) -> np.ndarray:
    return np.array(values)


def from_numpy(values: np.ndarray) -> np.ndarray:
    assert values.flags.writeable, "PyTorch warns of arrays that cannot be written to"
    return values
