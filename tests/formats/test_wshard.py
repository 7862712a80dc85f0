"""WShard: what sound files show. Expected values come from the arrays that were written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from writers.wshard import WShardWriter, pack_residual, write_streamed

from glassfs.content import Array, Blob, Json
from glassfs.errors import Damaged
from tests.formats.wshard_files import (
    blocks_of,
    channels_of,
    entry_of,
    faults_of,
    made,
    opened,
    raw_of,
    state,
    with_entry,
    with_flipped,
    with_header,
)
from tests.helpers import (
    array_of,
    contents_of,
    only,
    open_bytes,
    open_path,
    read_in_parts,
    values_of,
)

RNG = np.random.default_rng(7)
STEPS = 20


def ramp(dtype: str, *shape: int) -> np.ndarray[Any, Any]:
    return (np.arange(STEPS * int(np.prod(shape)), dtype="i8") % 100).astype(dtype).reshape(STEPS, *shape)


def test_bfloat16_is_widened_and_any_nonzero_byte_is_true() -> None:
    halves = RNG.integers(0, 1 << 16, (STEPS, 5), dtype="u2")
    flags = ramp("u1")

    def fill(writer: WShardWriter) -> None:
        writer.add_channel("half", halves, dtype="bf16")
        writer.add_channel("flag", flags, dtype="bool")

    container = opened(fill)
    content = only(container, "signal/half")
    assert isinstance(content, Array) and content.dtype == "<f4"
    expected = (halves.astype("u4") << 16).tobytes()
    assert content.data.whole() == expected
    assert content.data.read(3, 90) == expected[3:93]
    assert np.array_equal(array_of(container, "signal/flag"), flags != 0)


def test_the_size_gives_the_steps_not_length_t() -> None:
    container = opened(lambda writer: writer.add_channel("x", ramp("f4", 3)), episode={"length_T": 7})
    assert array_of(container, "signal/x").shape == (STEPS, 3)
    assert faults_of(container) == {"signal/x": f"has {STEPS} steps, but the episode has 7"}


def channels(*described: dict[str, Any]) -> dict[str, Any]:
    return {"channels": list(described)}


@pytest.mark.parametrize(("block", "described"), [
    ("signal/a", channels({"id": "a", "dtype": "f32", "shape": [2]})),
    ("signal/a", channels({"id": "x", "dtype": "Float32", "shape": [2], "signal_block": "signal/a"})),
    ("signal/a", {"signal/a": {"dtype": "float32", "shape": [2]}, "action/b": {"dtype": "f32"}}),
    ("omen/a/m", channels({"id": "omen/a/m", "dtype": "f32", "shape": [2], "signal_block": "omen/a/m"})),
    ("action/a", channels({"id": "a", "dtype": "f32", "shape": [2], "signal_block": "signal/a"})),
    ("action/a", {"action_spaces": [{"name": "action/a", "dtype": "f32", "shape": [2]}]}),
    ("signal/a", channels({"id": "a", "dtype": "u8", "shape": [3]}, {"id": "a", "dtype": "f32", "shape": [2]})),
])
def test_all_ways_to_describe_a_channel(block: str, described: dict[str, Any]) -> None:
    array = ramp("f4", 2)
    metadata = "meta/episode" if "action_spaces" in described else "meta/channels"
    assert np.array_equal(array_of(opened(blocks_of({block: array, metadata: described})), block), array)


SIGNAL = channels({"id": "arm/pos", "dtype": "f32", "shape": [2], "modality": "proprioception"})


def test_a_declared_prediction_is_what_it_declares() -> None:
    own = {"id": "omen/arm/pos/m", "dtype": "i16", "shape": [4], "signal_block": "omen/arm/pos/m"}
    array = ramp("i2", 4)
    described = {"channels": [*SIGNAL["channels"], own]}
    blocks = {"signal/arm/pos": ramp("f4", 2), "omen/arm/pos/m": array, "meta/channels": described}
    assert np.array_equal(array_of(opened(blocks_of(blocks)), "omen/arm/pos/m"), array)
    own["dtype"] = "i99"
    unknown = only(opened(blocks_of(blocks)), "omen/arm/pos/m")
    assert isinstance(unknown, Blob) and unknown.data.whole() == array.tobytes()


def test_borrowed_descriptions_must_agree_with_the_length() -> None:
    # As u8 [2] the actions would be four times the steps.
    content = only(opened(channels_of({"arm": ramp("u1", 2)}, **{"action/arm": ramp("f4", 2)})), "action/arm")
    assert isinstance(content, Blob) and content.data.whole() == ramp("f4", 2).tobytes()


@pytest.mark.parametrize(
    "described",
    [{"dtype": "qint4"}, {"dtype": ""}, {"dtype": 5}, {"dtype": "f32", "shape": [7]}, {"dtype": "f32", "shape": "2"},
     {"dtype": "f32", "shape": [-2]}, {"dtype": "f32", "shape": [2.0]}, {"dtype": "f32", "shape": [0]},
     {"dtype": "f32", "shape": [1 << 31, 1 << 31, 1 << 31]}, {"dtype": "f32", "shape": [True]},
     {"dtype": "f32", "shape": [1] * 40}],
)
def test_bytes_that_do_not_fit_their_description_stay_bytes(described: dict[str, Any]) -> None:
    container = opened(blocks_of({"signal/x": ramp("f4", 2), "meta/channels": channels({"id": "x", **described})}))
    content = only(container, "signal/x")
    assert isinstance(content, Blob) and content.data.whole() == ramp("f4", 2).tobytes()
    assert "signal/x" in faults_of(container)


@pytest.mark.parametrize("channel", [None, 5, [1], "x"])
def test_metadata_of_wrong_types_leave_the_others_alone(channel: Any) -> None:
    described = {"channels": [channel, {"id": "x", "dtype": "f32", "shape": [2]}]}
    blocks = blocks_of({"signal/x": ramp("f4", 2), "meta/channels": described})
    container = opened(blocks, episode={"length_T": "many", "episode_id": 3})
    assert np.array_equal(array_of(container, "signal/x"), ramp("f4", 2))
    assert set(faults_of(container)) == {"meta/channels", "meta/episode"}


def test_metadata_keep_their_bytes() -> None:
    stored = '{"a" :  "ü", "n": NaN}\n'.encode()
    container = opened(blocks_of({"meta/extra": stored, "meta/wshard": b"\xff no json"}))
    assert isinstance(only(container, "meta/extra"), Json)
    assert raw_of(container, "meta/extra") == stored
    assert raw_of(container, "meta/wshard") == b"\xff no json"
    assert set(faults_of(container)) == {"meta/extra", "meta/wshard"}


def test_images_are_marked_by_their_modality_only() -> None:
    def fill(writer: WShardWriter) -> None:
        for modality in ("rgb", "depth", "audio", None):
            writer.add_channel(str(modality), ramp("u1", 4, 4), modality=modality)

    found = contents_of(opened(fill).root)
    modalities = {name: contents[0].modality for name, contents in found.items() if name.startswith(b"signal/")}
    assert modalities == {b"signal/rgb": "rgb", b"signal/depth": "depth", b"signal/audio": None, b"signal/None": None}


@pytest.mark.parametrize("columns", [1, 3, 10])
@pytest.mark.parametrize("is_prefixed", [False, True])
@pytest.mark.parametrize("is_described", [True, False])
def test_residual_bits_are_unpacked_row_by_row(columns: int, is_prefixed: bool, is_described: bool) -> None:
    steps = 45
    bits = RNG.integers(0, 2, (steps, columns)).astype(bool)

    described = {"q": np.zeros((steps, columns), "<f4")} if is_described else {}
    fill = channels_of(described, **{"residual/q/sign2nddiff": pack_residual(bits, is_prefixed)})
    container = opened(fill, episode={"length_T": steps})
    content = only(container, "residual/q/sign2nddiff")
    assert isinstance(content, Array) and (content.dtype, content.type_name) == ("|b1", "bits")
    assert np.array_equal(values_of(content), bits[:, 0] if columns == 1 else bits)
    assert read_in_parts(content.data, 7) == bits.tobytes()


def test_residuals_of_one_column_and_of_no_layout() -> None:
    container = opened(channels_of({"q": ramp("f4", 3)}, **{
        "residual/q/sign2nddiff": pack_residual(ramp("u1") % 2 == 1),
        "residual/r/sign2nddiff": bytes(20),  # neither columns of 3 bytes nor of 4 + 3
    }))
    assert np.array_equal(array_of(container, "residual/q/sign2nddiff"), ramp("u1") % 2 == 1)
    assert isinstance(only(container, "residual/r/sign2nddiff"), Blob)


def test_a_residual_whose_column_lengths_are_wrong_is_damaged() -> None:
    stored = bytearray(pack_residual(np.ones((STEPS, 2), bool), is_prefixed=True))
    stored[7] = 9

    container = opened(channels_of({"q": ramp("f4", 2)}, **{"residual/q/sign2nddiff": bytes(stored)}))
    with pytest.raises(Damaged):
        raw_of(container, "residual/q/sign2nddiff")


@pytest.mark.parametrize("checksum", ["raw", "disk", "none"])
@pytest.mark.parametrize("codec", ["none", "zstd", "lz4"])
def test_checksums_over_raw_or_stored_bytes_or_none(codec: str, checksum: str) -> None:
    array = ramp("f4", 8)
    data = made(lambda writer: writer.add_channel("x", array), codec=codec, checksum=checksum)
    content = only(open_bytes(data), "signal/x")
    assert np.array_equal(values_of(content), array)
    assert ("checksum" in content.attributes()) == (checksum != "none")
    flipped = with_flipped(data, "signal/x", 30)
    if checksum != "none":
        with pytest.raises(Damaged, match=r"/made: signal/x: "):
            array_of(open_bytes(flipped), "signal/x")
    elif codec == "none":  # undetectable
        assert not np.array_equal(array_of(open_bytes(flipped), "signal/x"), array)


@pytest.mark.parametrize(("changed", "is_sound"), [({"flags": 3}, True), ({"original": 7}, False)])
def test_uncompressed_blocks_are_read_by_their_stored_size(changed: dict[str, int], is_sound: bool) -> None:
    """Flags of a block with equal sizes, and the raw size of an uncompressed one, are ignored."""
    data = made(lambda writer: writer.add_channel("x", ramp("f4", 2)))
    container = open_bytes(with_entry(data, "signal/x", **changed))
    assert np.array_equal(array_of(container, "signal/x"), ramp("f4", 2))
    assert ("signal/x" not in faults_of(container)) == is_sound


def test_an_unknown_codec_is_damage_of_that_block() -> None:
    data = made(lambda writer: writer.add_channel("x", ramp("f4", 8)), codec="zstd", names_codec=False)
    container = open_bytes(with_header(data, compression=9))
    content = only(container, "signal/x")
    assert isinstance(content, Array) and content.data.size == STEPS * 32
    with pytest.raises(Damaged, match="unknown codec"):
        content.data.whole()


def test_two_blocks_of_one_name_come_in_the_order_of_the_index() -> None:
    container = opened(lambda writer: [writer.add("x", b"first"), writer.add("x", b"second")])
    found = contents_of(container.root)[b"x"]
    assert [content.data.whole() for content in found if isinstance(content, Blob)] == [b"first", b"second"]
    assert faults_of(container) == {"x": "is the name of several blocks"}


STREAMED = {"signal/pos": RNG.random((150, 7), "<f4"), "signal/cam/rgb": RNG.integers(0, 255, (150, 6, 5, 3), "u1"),
            "action/pos": RNG.integers(0, 9, (150, 2), "<i8")}


@pytest.mark.parametrize("flush", [1, 7, 50, 64, 149, 150, 1000])
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_streamed_files_show_what_was_recorded(tmp_path: Path, flush: int, codec: str) -> None:
    path = tmp_path / "s.wshard"
    write_streamed(path, STREAMED, flush=flush, codec=codec)
    container = open_path(path)
    for name, array in STREAMED.items():
        content = only(container, name)
        assert np.array_equal(values_of(content), array)
        assert read_in_parts(content.data, 1000) == array.tobytes()
    ticks = np.arange(150)
    assert np.array_equal(array_of(container, "time/ticks"), ticks)
    assert np.array_equal(array_of(container, "done"), ticks % 7 == 6)
    assert faults_of(container) == {}  # the fault of its writer is mended, not one of the recording
    assert container.facts.get("repaired", False) == (flush < 150)


def test_interleaved_blocks_without_proof_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.wshard"
    write_streamed(path, STREAMED, flush=64)
    data = with_flipped(path.read_bytes(), "meta/channels")  # no description, so nothing proves the sizes
    found = state(open_bytes(data))
    assert {name for name, value in found.items() if value == "damaged" and not name.startswith(b"meta/")} == {
        b"signal/pos", b"signal/cam/rgb", b"action/pos", b"reward", b"done", b"time/ticks",
    }
    assert json.loads(found[b"meta/episode"])["length_T"] == 150
    with pytest.raises(Damaged, match="checksum"):
        array_of(open_bytes(with_flipped(path.read_bytes(), "signal/cam/rgb", 5000)), "signal/pos")


@pytest.mark.parametrize(("is_streamed", "lost"), [(False, {b"signal/a"}), (True, {b"signal/a", b"signal/b"})])
def test_one_wrong_size_costs_one_block_unless_streamed(is_streamed: bool, lost: set[bytes]) -> None:
    data = made(blocks_of({f"signal/{name}": ramp("f4", 8) for name in "abc"} | {
        "meta/channels": channels(*({"id": name, "dtype": "f32", "shape": [8]} for name in "abc")),
        "meta/wshard": {"streaming": is_streamed},
    }))
    fields = entry_of(data, "signal/a")[1]
    container = open_bytes(with_entry(data, "signal/a", stored=fields["stored"] + 320, original=fields["stored"] + 320))
    assert {name for name, value in state(container).items() if value == "damaged"} == lost
    assert np.array_equal(array_of(container, "signal/c"), ramp("f4", 8))
    assert {"signal/a", "signal/b"} <= set(faults_of(container))


def test_two_blocks_in_the_same_bytes_are_both_readable() -> None:
    data = made(channels_of({"a": ramp("f4", 8), "b": ramp("f4", 8)}))
    container = open_bytes(with_entry(data, "signal/b", offset=entry_of(data, "signal/a")[1]["offset"]))
    assert np.array_equal(array_of(container, "signal/b"), ramp("f4", 8))
    assert "signal/b" in faults_of(container)
