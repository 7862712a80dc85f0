"""Values of HDF5 files, against those that libhdf5 reads: chunks, types, and what is not shown."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glassfs
from tests.formats.hdf5_files import FILTERS, h5py, values

DONT_FILTER_PARTIAL_CHUNKS = 2


def create_with_raw_edges(file: Any, name: str, *arguments: Any, **options: Any) -> Any:
    """Create a dataset whose partial chunks at the edges are stored without filters."""
    made = file.create_dataset("template", *arguments, **options)
    properties, kind, space = made.id.get_create_plist(), made.id.get_type(), made.id.get_space()
    del file["template"]
    library = ctypes.CDLL(h5py.h5d.__file__)
    library.H5Pset_chunk_opts.argtypes = ctypes.c_int64, ctypes.c_uint
    assert library.H5Pset_chunk_opts(properties.id, DONT_FILTER_PARTIAL_CHUNKS) == 0
    return h5py.Dataset(h5py.h5d.create(file.id, name.encode(), kind, space, properties))


@pytest.mark.parametrize("limits", [(10, 10), (None, 10), (10, None), (None, None)])
def test_edge_chunks_stored_without_filters_are_read(tmp_path: Path, limits: tuple[int | None, ...]) -> None:
    whole = values((10, 10))
    with h5py.File(tmp_path / "made.h5", "w", libver="latest") as file:
        for name, options in FILTERS.items():
            for chunks in ((4, 4), (5, 3), (5, 5), (16, 16)):
                fits = [length if limit else 7 for length, limit in zip(whole.shape, limits, strict=True)]
                chunks = tuple(min(step, limit or step) for step, limit in zip(chunks, limits, strict=True))
                made = create_with_raw_edges(
                    file, f"{name} {chunks}", fits, "<i4", chunks=chunks, maxshape=limits, **options,
                )
                made[...] = whole[: fits[0], : fits[1]]
                if None in limits:
                    made.resize(whole.shape)
                    made[...] = whole
    with glassfs.open(tmp_path / "made.h5") as opened:
        assert len(opened) == 4 * len(FILTERS)
        for name in opened:
            assert np.array_equal(opened[name].numpy(), whole), name
