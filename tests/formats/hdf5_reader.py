"""Read HDF5 files with h5py, in a process of its own that forks for each: h5py may crash or hang on mutants.

Each line of the input is a path. The answer is a JSON object: dtype, shape and hash of each numeric dataset, None for
one that h5py cannot read. If the name of a dataset and another path follow, after tabs, its values are saved there.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from typing import Any

import h5py
import numpy as np

SECONDS = 20
LARGEST = 50_000_000


def described(values: Any) -> list[Any]:
    """Return what two readers have to agree on."""
    values = np.asarray(values)
    if values.dtype == np.bool_:  # h5py leaves bytes other than 0 and 1 in it
        values = values.view("u1") != 0
    little = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    return [values.dtype.str[1:], list(values.shape), hashlib.md5(little.tobytes()).hexdigest()]


def read(path: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def add(group: Any, above: str, depth: int) -> None:
        for name in group:
            try:
                if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                    continue
                item = group[name]
                if isinstance(item, h5py.Group) and depth < 4:
                    add(item, f"{above}{name}/", depth + 1)
                is_numeric = isinstance(item, h5py.Dataset) and item.shape is not None and item.dtype.kind in "iufbc"
                if is_numeric and item.nbytes <= LARGEST:
                    found[above + name] = None
                    found[above + name] = described(item[()])
            except Exception:
                continue

    with h5py.File(path) as file:
        add(file, "", 0)
    return found


def save(path: str, name: str, target: str) -> None:
    with h5py.File(path) as file:
        np.save(target, file[name][()])


def main() -> None:
    for line in sys.stdin:
        path, *more = line.rstrip("\n").split("\t")
        reading, writing = os.pipe()
        process = os.fork()
        if not process:
            signal.alarm(SECONDS)
            try:
                answer = json.dumps(save(path, *more) or {} if more else read(path))
            except Exception:
                answer = "{}"
            with open(writing, "w") as file:
                file.write(answer)
            os._exit(0)
        os.close(writing)
        with open(reading) as file:
            print(file.read() or "{}", flush=True)
        os.waitpid(process, 0)


if __name__ == "__main__":
    main()
