"""safetensors: tensors of a model under labels, described by JSON in front of them (docs/formats/safetensors.md, as §).

``header`` parses and checks the header of a file, ``index`` opens a model in several files. Tensors are ranges of a
file. Any thread may call any function. Damage is raised on opening.
"""

from __future__ import annotations

from glassfs.content import Container
from glassfs.formats.registry import Format, Opening
from glassfs.formats.safetensors.header import TensorHeader, hint, is_safetensors, model
from glassfs.formats.safetensors.index import is_index, open_index


def _open(opening: Opening) -> Container:
    if opening.source.read(0, min(8, opening.source.size))[4:] != bytes(4):  # no length of a header
        return open_index(opening)
    header = TensorHeader(opening.source, opening.allowance, {})
    return model([opening.source], [header], header.metadata_cost, header.facts(), header.members, {})


FORMAT = Format("safetensors", lambda head: is_safetensors(head) or is_index(head), _open, hint)
