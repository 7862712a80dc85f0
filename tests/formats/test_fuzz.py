"""All formats: sound containers have no faults, and however edited they raise only errors of glassfs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from writers.idv import IdvWriter, Sparse, key, old_key, vector
from writers.ikv import OBJECT, Typed, ikv1, ikv2
from writers.safetensors import described, packed
from writers.wshard import WShardWriter, pack_residual, write_streamed

from tests.formats.exercise import EDITS, Edit, edited, exercise, peak_memory
from tests.formats.idv_files import EPOCH
from tests.formats.kinodb_files import three_episodes
from tests.formats.npz_files import arrays, episode, saved
from tests.formats.npz_files import streamed as piped
from tests.formats.test_kastore import store
from tests.formats.test_tskit import tables
from tests.formats.wshard_files import made
from tests.helpers import open_bytes

ROWS = 5
ARRAY = (np.arange(16 * 40) % 7).astype("<f4").reshape(16, 40)
VALUE = {
    "a": {"b": [1, "x", None, {"c": 2.5}], "d": np.arange(40), "e": np.arange(3.0)}, "t": ["s"] * 20, "f": "text" * 20,
    "g": {"h": {"i": None}}, "j": np.array([True]), "k": Typed(OBJECT, [{"l": 1}, {}]), "z": None,
}


def idv(folder: Path) -> bytes:
    with IdvWriter(folder / "made.idv", rows_per_block=3) as view:
        view.add("Number", np.arange(ROWS), compression="none", metadata={"Note": "x", "F": 1.5})
        view.add("Bits", np.arange(ROWS) % 2 == 0)
        view.add("Old", [0, 1, 2, 0, 1], "DvBool", compression="none")
        view.add("Time", np.array([EPOCH] * ROWS), "DvDateTime")
        view.add("Zone", [(EPOCH, 60)] * ROWS, "DateTimeOffset", compression="none")
        view.add("Text", ["a", None, "é", "\U0001f600", ""], compression="none")
        view.add("Vector", [[1.0, 2.0], *[Sparse(2, [1], [3.0])] * 4], vector("Single", 2), compression="none",
                 metadata={"SlotNames": ["a", "b"]})
        view.add("Ragged", [[1.0], [], Sparse(4, [0, 3], [1.0, 2.0]), [], [2.0]], vector("Double"), compression="none")
        view.add("Wide", [Sparse(70_000, [5, 9], [1, 2])] * ROWS, vector(key("UInt32", 3), 70_000), compression="none")
        view.add("Words", [["a"], [], ["b", "é"], [], []], vector("TextSpan"), compression="none")
        view.add("Key", np.arange(ROWS) % 3, old_key("Byte", 2), metadata={"KeyValues": ["a", "b"]})
        view.add("Key", np.arange(ROWS) % 3, key("UInt32", 3), metadata={"KeyValues": ["a", "b", "c"]})
    return (folder / "made.idv").read_bytes()


def kastore(folder: Path) -> bytes:
    return store({"a/b": np.arange(3, dtype="u1"), "c": np.arange(2.0), "d": np.array([], "i2")}, folder).read_bytes()


def trees(folder: Path) -> bytes:
    tables().dump(folder / "made.trees")
    return (folder / "made.trees").read_bytes()


def safetensors(folder: Path) -> bytes:
    header = {
        "__metadata__": {"format": "np", "note": "é"}, "a.b": described("F32", [16, 40], 0, 2560),
        "c/d": described("BF16", [4, 3], 2560, 2584), "e": described("F8_E5M2", [2], 2584, 2586),
        "f": described("F16", [0, 2], 2586, 2586), "g": described("F4", [3, 2], 2586, 2589),
        "h": described("BOOL", [], 2589, 2590),
    }
    return packed(header, ARRAY.tobytes() + bytes(range(30)))


def fill(writer: WShardWriter) -> None:
    writer.add_channel("x", ARRAY)
    writer.add_channel("rgb", np.zeros((16, 6, 5, 3), "u1"), modality="rgb")
    writer.add("reward", np.arange(16, dtype="<f4"))
    writer.add("residual/x/sign2nddiff", pack_residual(ARRAY % 2 == 0))


def streamed(folder: Path) -> bytes:
    write_streamed(folder / "s.wshard", {"signal/x": ARRAY, "action/x": ARRAY[:, :2]}, flush=5)
    return (folder / "s.wshard").read_bytes()


SOUND: dict[str, Callable[[Path], bytes]] = {
    "idv": idv, "ikv1": lambda folder: ikv1(VALUE), "ikv2": lambda folder: ikv2(VALUE), "kastore": kastore,
    "appended": lambda folder: kastore(folder) * 2, "trees": trees,
    "kinodb": lambda folder: bytes(three_episodes(folder)),
    **{f"wshard {codec}": lambda folder, codec=codec: made(fill, codec=codec) for codec in ("none", "zstd", "lz4")},
    "streamed": streamed, "safetensors": safetensors,
    "npz": lambda folder: saved(arrays()), "npz episode": lambda folder: saved(episode(), True),
    "npz with descriptors": lambda folder: piped(arrays()),
}


@cache
def sound(name: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return SOUND[name](Path(folder))


@pytest.mark.parametrize("name", SOUND)
def test_sound_containers_have_no_faults(name: str) -> None:
    exercise(sound(name))
    assert list(open_bytes(sound(name)).check()) == []


@pytest.mark.parametrize("name", SOUND)
@settings(max_examples=200)
@given(edits=EDITS)
def test_edited_containers_raise_only_known_errors(name: str, edits: list[Edit]) -> None:
    """Edits anywhere, and at the beginning of a cut file, where headers and indexes of most formats are."""
    data = sound(name)
    exercise(edited(data, edits))
    exercise(edited(data[:500], edits) + data[500 : -len(edits)])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["idv", "ikv", "kastore", "kinodb", "wshard"])
def test_malformed_samples_take_little_memory(samples: Path, name: str) -> None:
    paths = [path for path in (samples / name / "malformed").iterdir() if path.suffix != ".json"]
    assert len(paths) > 10
    for path in paths:
        assert peak_memory(lambda path=path: exercise(path)) < 96 << 20, path.name
