"""HDF5 (``.h5``, ``.hdf5``): groups and datasets, and the episodes that robots' demonstrations keep in them.

h5py reads the metadata in a sandbox (``glassfs.sandbox``), which needs the extra ``hdf5``. ``description`` checks its
answers, ``group`` makes contents of objects, ``dataset`` those of datasets, ``chunks``, ``stored`` and ``filters`` read
chunked ones here, ``elements`` what only the library decodes.

Metadata that libhdf5 cannot read, or that make it crash, raise Damaged where they are needed. Any thread.

Facts: docs/formats/hdf5.md; § in this package cites its sections.
"""

from __future__ import annotations

from glassfs.formats.hdf5.file import NAMED, is_slow, open_hdf5, recognises
from glassfs.formats.registry import JOINED, Format

FORMAT = Format("hdf5", recognises, open_hdf5, suffixes=NAMED, joined=JOINED["hdf5"], is_slow=is_slow)
