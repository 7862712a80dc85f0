"""iKv documents (``.ikv``): a named tree of values, in the binary forms iKv1 and iKv2 or as text.

``file`` opens a document, ``indexed`` has the root of iKv2, which is read through an index. ``nodes`` checks nodes,
``values`` decodes them, ``contents`` makes contents of them. ``text`` turns the text form into the binary one, so that
everything else knows only that. Any thread.

A document of iKv1 or text is checked whole when it is opened, and refused if anything in it is wrong. Of iKv2 only
header and index are; an entry whose payload is bad costs itself: it is shown as a Blob, and left out of the document
as a whole. Every object is a group, listed when somebody looks inside; every array is one content. Of members with the
same key the last one counts.

Facts: docs/formats/ikv.md, whose sections are meant by § in this package.
"""

from __future__ import annotations

from glassfs.formats.ikv.file import hint, open_ikv, recognises
from glassfs.formats.registry import BUILT_IN, Format

FORMAT = Format("ikv", recognises, open_ikv, hint, BUILT_IN["ikv"])
