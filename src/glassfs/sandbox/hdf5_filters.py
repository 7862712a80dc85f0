"""The filters of HDF5 that the user has installed. They are loaded before workers are forked, which can open no files.

Facts: H5PLextern.h and H5Zpublic.h of HDF5. Only workers and their server import this module.
"""

from __future__ import annotations

import ctypes
import glob
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from h5py import h5d, h5pl, h5z


class _Class(ctypes.Structure):
    """The beginning of ``H5Z_class2_t``."""

    _fields_ = (("version", ctypes.c_int), ("id", ctypes.c_int))


def load() -> None:
    """Load the package hdf5plugin, and the plugins in the folders where the library looks (``HDF5_PLUGIN_PATH``)."""
    with suppress(Exception):
        import hdf5plugin  # noqa: F401
    for number in range(h5pl.size()):
        folder = glob.escape(os.fsdecode(h5pl.get(number)))
        for path in sorted(glob.glob(f"{folder}/lib*.so*")):
            with suppress(OSError, AttributeError, ValueError):  # no plugin, or one for another machine
                plugin = ctypes.CDLL(path, os.RTLD_LAZY)
                if plugin.H5PLget_plugin_type() == 0:  # a filter
                    plugin.H5PLget_plugin_info.restype = ctypes.POINTER(_Class)
                    h5z.filter_avail(plugin.H5PLget_plugin_info().contents.id)  # the library loads it and keeps it


@contextmanager
def demanded_of(opened: Callable[[], Any]) -> Iterator[None]:
    """Turn an error of the library into ImportError if it lacks a filter of the dataset that was opened last."""
    try:
        yield
    except OSError as error:
        found = opened()
        if isinstance(found, h5d.DatasetID):
            properties = found.get_create_plist()
            for number in range(properties.get_nfilters()):
                code, _, _, name = properties.get_filter(number)
                if not h5z.filter_avail(code):
                    text = name.decode("latin-1")[:60]
                    raise ImportError(f"lacks filter {code} ({text}): install hdf5plugin") from error
        raise
