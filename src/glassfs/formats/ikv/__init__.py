"""iKv documents (``.ikv``): a named tree of values, in the binary forms iKv1 and iKv2 or as text.

``file`` opens a document. ``nodes`` checks nodes, ``values`` decodes them, ``contents`` makes contents of them and
reads the root of iKv2 through its index. ``text`` converts the text form to the binary one, so all other modules handle
only that. Any thread may use this package.

Documents in iKv1 or text are checked whole on opening and refused if anything is wrong. Of iKv2, only header and index
are checked; an entry with a bad payload is shown as a Blob and left out of the whole document. Each object is a group,
listed on demand; each array is one content. Of members with equal keys the last one counts.

Facts: docs/formats/ikv.md; § in this package cites its sections.
"""

from __future__ import annotations

from glassfs.formats.ikv.file import hint, open_ikv, recognises
from glassfs.formats.registry import BUILT_IN, Format

FORMAT = Format("ikv", recognises, open_ikv, hint, BUILT_IN["ikv"])
