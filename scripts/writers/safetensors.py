"""Writes safetensors files, also those that the safetensors package does not write: any header, any bytes after it.

    write_safetensors("model.safetensors", {"layer.weight": numpy.zeros((4, 4))}, {"format": "np"})
    write_sharded("folder", [{"embed.weight": numpy.zeros((4, 4))}, {"head.weight": numpy.zeros(4)}])
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

TYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL", "complex64": "C64",
    "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
}
ALIGNMENT = 8


def packed(header: Mapping[str, Any] | bytes, data: bytes = b"", size: int | None = None) -> bytes:
    """Return a file of a header, as values or as it is stored, and data. ``size`` is the header's declared length."""
    stored = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(stored) if size is None else size) + stored + data


def described(type_name: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": type_name, "shape": shape, "data_offsets": [begin, end]}


def write_safetensors(path: Path | str, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> None:
    """Write arrays, also those of ml_dtypes, in their order."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    parts = []
    reached = 0
    for name, values in tensors.items():
        array = np.asarray(values)
        begin, reached = reached, reached + array.nbytes
        header[name] = described(TYPES[array.dtype.name], list(array.shape), begin, reached)
        parts.append(array.tobytes())
    stored = json.dumps(header, separators=(",", ":")).encode()
    Path(path).write_bytes(packed(stored + b" " * (-len(stored) % ALIGNMENT), b"".join(parts)))


def write_sharded(folder: Path | str, shards: Sequence[Mapping[str, Any]], name: str = "model") -> Path:
    """Write a model in so many files and their index, as the libraries of Hugging Face do; return the index."""
    files = [f"{name}-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    for file, tensors in zip(files, shards, strict=True):
        write_safetensors(Path(folder, file), tensors, {"format": "pt"})
    size = sum(np.asarray(values).nbytes for tensors in shards for values in tensors.values())
    weights = {tensor: file for file, tensors in zip(files, shards, strict=True) for tensor in tensors}
    index = Path(folder, f"{name}.safetensors.index.json")
    index.write_text(json.dumps({"metadata": {"total_size": size}, "weight_map": weights}, indent=2) + "\n")
    return index
