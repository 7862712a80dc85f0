"""The contents of tests/data/*.expected.json as files of the mounted tree. See tests/data/README.md.

``expected_files`` yields the paths in a container, each with a check of the bytes there. Written from the contract of
the mounted tree, without glassfs. Names that need escaping are left to the tests of names.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

Check = Callable[[bytes], None]
Expected = dict[str, Any]

PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*")
KASTORE = {
    "int8": "|i1", "uint8": "|u1", "int16": "<i2", "uint16": "<u2", "int32": "<i4", "uint32": "<u4", "int64": "<i8",
    "uint64": "<u8", "float32": "<f4", "float64": "<f8",
}
WSHARD = {
    "f64": "<f8", "f32": "<f4", "f16": "<f2", "i64": "<i8", "i32": "<i4", "i16": "<i2", "i8": "|i1", "u64": "<u8",
    "u32": "<u4", "u16": "<u2", "u8": "|u1",
}
IDV = {
    "SByte": "|i1", "Byte": "|u1", "Int16": "<i2", "UInt16": "<u2", "Int32": "<i4", "UInt32": "<u4", "Int64": "<i8",
    "UInt64": "<u8", "Single": "<f4", "Double": "<f8", "Boolean": "|b1",
}
IKV = {2: "<i8", 3: "<f8", 4: "|b1"}
DENSE_SLOTS = 65_536
MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}


def expected_of(container: Path) -> Expected:
    found: Expected = json.loads(container.with_name(f"{container.name}.expected.json").read_bytes())
    return found


def is_refused(expected: Expected) -> bool:
    """Return whether such a container is shown as a plain file."""
    return expected.get("decision") == "reject" or (expected.get("kind") == "partial" and "blocks" not in expected)


def expected_files(container: Path) -> Iterator[tuple[str, Check]]:
    """Yield the paths that are certain, and a check of the bytes there."""
    expected = expected_of(container)
    maker = {
        ".kdb": _kinodb, ".kas": _kastore, ".trees": _kastore, ".ikv": _ikv, ".idv": _idv, ".wshard": _wshard,
        ".safetensors": _safetensors,
    }[Path(container.name.removesuffix(".partial")).suffix]
    seen: Counter[str] = Counter()
    for path, check in maker(container, expected):
        seen[path] += 1
        if PLAIN.fullmatch(path) and len(max(path.split("/"), key=len)) < 200 and seen[path] == 1:
            yield path, check


# Checks


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def is_npy(dtype: str | None, shape: list[int] | None, digest: str, data: bytes) -> None:
    array = np.load(io.BytesIO(data), allow_pickle=False)
    assert dtype in (None, array.dtype.str)
    assert shape is None or list(array.shape) == shape
    assert sha256(array.tobytes()) == digest


def is_stored(digest: str, data: bytes) -> None:
    assert sha256(data) == digest


def is_array(expected: np.ndarray[Any, Any], data: bytes) -> None:
    array = np.load(io.BytesIO(data), allow_pickle=False)
    assert (array.dtype, array.shape, array.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())


def is_image(width: int, height: int, mode: str, pixels: bytes, data: bytes) -> None:
    with Image.open(io.BytesIO(data)) as picture:
        assert (picture.format, picture.size, picture.mode) == ("PNG", (width, height), mode)
        assert picture.tobytes() == pixels


def has_members(expected: Expected, data: bytes) -> None:
    found = json.loads(data)
    assert {key: found.get(key) for key in expected} == expected


# Formats


def _kinodb(container: Path, expected: Expected) -> Iterator[tuple[str, Check]]:
    header, stored = expected["header"], container.read_bytes()
    yield "meta/file.json", partial(has_members, {
        "version": f"{header['version_major']}.{header['version_minor']}", "num_episodes": header["num_episodes"],
        "num_frames": header["num_frames"], "created": header["created_timestamp"],
    })
    for episode in expected["episodes"]:
        place = f"episodes/{episode['position']}"
        for name, field in (("state", "states"), ("action", "actions"), ("reward", "rewards")):
            yield f"{place}/{name}.npy", partial(is_npy, "<f4", episode[field]["shape"], episode[field]["sha256"])
        terminal = np.zeros(episode["num_frames"], bool)
        terminal[episode["is_terminal"]["true_at"]] = True
        yield f"{place}/is_terminal.npy", partial(is_array, terminal)
        yield f"{place}/meta/episode.json", partial(has_members, {
            "episode_id": episode["index"]["episode_id"], "embodiment": episode["meta"]["embodiment"],
            "language_instruction": episode["meta"]["task"], "success": episode["meta"]["success"],
        })
        for frame in episode["frames"] if isinstance(episode["frames"], list) else []:
            times: Counter[str] = Counter()
            for image in frame["images"]:
                times[image["camera"]] += 1
                number = f"~{times[image['camera']]}" if times[image["camera"]] > 1 else ""
                extension, check = _kinodb_image(image, stored)
                if not number:
                    yield f"{place}/images/{image['camera']}/{frame['t']:06d}{extension}", check


def _kinodb_image(image: Expected, stored: bytes) -> tuple[str, Check]:
    data = stored[image["data_offset"] : image["data_offset"] + image["data_len"]]
    is_raw_sized = len(data) == image["width"] * image["height"] * image["channels"]
    if image["format"] and not (is_raw_sized and not image["decoded"]["ok"]):
        for signature, extension in ((b"\xff\xd8\xff", ".jpg"), (b"\x89PNG", ".png")):
            if data.startswith(signature):
                return extension, partial(is_stored, image["data_sha256"])
    if is_raw_sized and data and image["channels"] in MODES:
        return ".png", partial(is_image, image["width"], image["height"], MODES[image["channels"]], data)
    return ".bin", partial(is_stored, image["data_sha256"])


def _safetensors(container: Path, expected: Expected) -> Iterator[tuple[str, Check]]:
    tensors = expected["tensors"]
    yield "meta/file.json", partial(has_members, {"tensors": len(tensors), "__metadata__": expected["metadata"]})
    for name, tensor in tensors.items():
        if "/" in name:
            continue
        if "dtype" in tensor:
            yield f"tensors/{name}.npy", partial(is_npy, tensor["dtype"], tensor["shape"], tensor["sha256"])
        else:
            yield f"tensors/{name}.bin", partial(is_stored, tensor["stored_sha256"])


def _wshard(container: Path, expected: Expected) -> Iterator[tuple[str, Check]]:
    for block in expected["blocks"]:
        name, digest = block["name"], block.get("sha256_true") or block["sha256_raw"]
        if block["dtype"] == "json":
            yield f"{name}.json", partial(is_stored, digest)
        elif block["dtype"] == "bits":
            bits = block["residual"]
            yield f"{name}.npy", partial(_are_signs, bits["unpacked_shape"], bits["unpacked_sha256"])
        elif block["dtype"] == "bf16":
            yield f"{name}.npy", partial(_is_widened, digest)
        elif block["dtype"] in WSHARD and block["shape"] is not None:
            yield f"{name}.npy", partial(is_npy, WSHARD[block["dtype"]], block["shape"], digest)
        elif block["dtype"] != "bool" or block["shape"] is None:
            yield f"{name}.bin", partial(is_stored, digest)
    joined = container.with_name("JOINED.expected.json")
    if "meta/manifest" in expected.get("metadata", {}) and joined.exists():
        for name, digest in json.loads(joined.read_bytes())["joined_sha256"].items():
            yield f"{name}.npy", partial(is_npy, None, None, digest)


def _are_signs(shape: list[int], digest: str, data: bytes) -> None:
    bits = np.load(io.BytesIO(data), allow_pickle=False)
    assert (bits.dtype, list(bits.shape)) == (np.dtype(bool), shape)
    assert sha256(np.where(bits, 1, -1).astype("i1").tobytes()) == digest


def _is_widened(digest: str, data: bytes) -> None:
    halves = np.load(io.BytesIO(data), allow_pickle=False).astype("<f4").reshape(-1, 1).view("<u2")
    assert not halves[:, 0].any() and sha256(halves[:, 1].tobytes()) == digest


def _kastore(container: Path, expected: Expected) -> Iterator[tuple[str, Check]]:
    for number, store in enumerate([expected, *expected.get("stores", [])[1:]]):
        place = f"appended/{number}/" if number else ""
        by_hex = store.get("keys_by_hex", {})
        keys = {bytes.fromhex(key).decode("latin-1"): array for key, array in by_hex.items()} or store["keys"]
        for key, array in keys.items():
            yield f"{place}{key}.npy", partial(is_npy, KASTORE[array["dtype"]], array["shape"], array["sha256"])


def _ikv(container: Path, expected: Expected) -> Iterator[tuple[str, Check]]:
    if "tree" not in expected:
        return
    yield "document.json", partial(_is_document, expected["tree"])
    for pointer, array in expected["arrays"].items():
        value = _at(expected["tree"], pointer)
        if value is None:
            continue
        if array["element_type"] in IKV and isinstance(value, list) and not any(isinstance(v, str) for v in value):
            yield f"root{pointer}.npy", partial(is_array, np.array(value, IKV[array["element_type"]]))
    for name, value in expected["tree"].items() if isinstance(expected["tree"], dict) else ():
        if isinstance(value, str) and not value.startswith("@") and "/" not in name:
            yield f"root/{name}.txt", partial(is_stored, sha256(value.encode()))


def _at(value: Any, pointer: str) -> Any:
    """Return the value there, or None if it is inside an array, which is one file."""
    for part in pointer.split("/")[1:]:
        if not isinstance(value, dict):
            return None
        value = value[part.replace("~1", "/").replace("~0", "~")]
    return value


def _is_document(expected: Any, data: bytes) -> None:
    found = json.loads(data)
    assert _comparable(found, found) == _comparable(expected, found)


def _comparable(value: Any, like: Any) -> Any:
    """Return a value of an expected.json without its tags, floats as bytes, and ``like`` for digests."""
    if isinstance(value, dict):
        others = {_text(name): item for name, item in like.items()} if isinstance(like, dict) else {}
        return {_text(name): _comparable(item, others.get(_text(name))) for name, item in value.items()}
    if isinstance(value, list):
        others_ = like if isinstance(like, list) and len(like) == len(value) else [None] * len(value)
        return [_comparable(item, other) for item, other in zip(value, others_, strict=True)]
    if isinstance(value, float):
        return struct.pack("<d", value)
    if not isinstance(value, str):
        return value
    tag, _, rest = value[1:].partition(":") if value.startswith("@") else ("", "", "")
    if tag == "int":
        return int(rest)
    if tag == "f64":
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[rest.partition(":")[2]]
    if tag in ("f64array", "i64array"):
        return _comparable(like, like)
    return _text(value)


def _text(value: str) -> str:
    tag, _, rest = value[1:].partition(":") if value.startswith("@") else ("", "", "")
    text = bytes.fromhex(rest).decode("utf-8", "replace") if tag == "bytes" else rest if tag == "str" else value
    return re.sub("\ufffd+", "\ufffd", text)


def _idv(container: Path, expected: Expected) -> Iterator[tuple[str, Check]]:
    rows = expected["header"]["row_count"]
    yield "meta/schema.json", partial(_is_schema, [column["name"] for column in expected["columns"]])
    for column in expected["columns"]:
        digest, dimensions = column.get("digest"), column.get("dimensions") or []
        if not digest or column["hidden"] or not column["readable"] or "/" in column["name"]:
            continue
        place = f"columns/{column['name']}"
        inner = re.sub(r"^Vector<(.*?)(, [\d*]+)*>$", r"\1", column["type"])
        item = re.sub(r"^Key<(\w+), .*>$", r"\1", inner)
        if item == "String":
            yield f"{place}.jsonl", partial(_are_texts, rows, digest["sha256"])
        elif item not in IDV:
            continue
        elif 0 in dimensions:
            yield f"{place}/values.npy", partial(is_npy, IDV[item], [digest["total_elements"]], digest["sha256"])
        elif math.prod(dimensions) > DENSE_SLOTS:
            stored = [digest["stored_elements"]]
            yield f"{place}/data.npy", partial(is_npy, IDV[item], stored, digest["csr_data_sha256"])
            yield f"{place}/indices.npy", partial(is_npy, "<i4", stored, digest["csr_indices_i4_sha256"])
        else:
            yield f"{place}.npy", partial(is_npy, IDV[item], [rows, *dimensions], digest["sha256"])


def _is_schema(names: list[str], data: bytes) -> None:
    schema = json.loads(data)
    assert len(schema["columns"]) == len(names)


def _are_texts(rows: int, digest: str, data: bytes) -> None:
    lines = [json.loads(line) for line in data.split(b"\n")[:-1]]
    assert len(lines) == rows
    texts = [re.sub("[\ud800-\udfff]", "\ufffd", text or "").encode() for line in lines for text in _flat(line)]
    assert sha256(b"".join(struct.pack("<I", len(text)) + text for text in texts)) == digest


def _flat(value: Any) -> list[Any]:
    return [item for part in value for item in _flat(part)] if isinstance(value, list) else [value]
