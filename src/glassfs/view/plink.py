"""Genotypes as binary files of PLINK 1.9: ``plink/NAME.bed``, ``.bim`` and ``.fam``. All sizes are formulas.

The first allele of the content is A2, the second one A1, as of a VCF whose allele order PLINK keeps. Genotypes have the
bits of ``.bed`` already. Blocks of sites are made when they are read, and the next one ahead of a sequential reader.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import TypeAlias

from glassfs.cache import BlockCache
from glassfs.content import Blocked, Concatenated, Data, Group, Member, Memory, Omitted, Part, Regular, Rendered
from glassfs.content.model import Genotypes, Request
from glassfs.errors import NotInstalled
from glassfs.sizes import PIECE
from glassfs.view.contract import Key, Shown, View

MAGIC = b"\x6c\x1b\x01"
"""Of a file with all individuals of a site together."""
Form: TypeAlias = "tuple[re.Pattern[bytes], bytes, int, int]"
"""A line of the content, a line of the file, how often it has all of the first one, and its further characters."""
FAM: Form = re.compile(rb"(.*)\n"), rb"\1 \1 0 0 0 -9\n", 2, 9
"""Family and individual, both parents, sex and phenotype."""
BIM: Form = re.compile(rb"(.*)\t(.*)\t(.*)\t(.*)\n"), rb"1\t\1\t0\t\2\t\4\t\3\n", 1, 4
"""Chromosome, number of the site, centimorgans, position, A1 and A2."""


def show(content: Genotypes, cache: BlockCache, key: Key) -> Iterator[Shown]:
    """Yield the directory. Raises NotInstalled."""
    if lacks := content.lacks():
        raise NotInstalled(lacks)
    yield Shown(Group(content.key, partial(_files, content, cache, key)), name=b"plink")


def _files(content: Genotypes, cache: BlockCache, key: Key) -> Iterator[Member]:
    facts = content.facts()
    for reason in facts.omitted:
        yield Member((b"",), Omitted(b"", reason))
    if not facts.individuals:
        return
    site, step = -(-facts.individuals // 4), facts.step
    at_once = max(1, min(step, PIECE // site))

    def blocked(suffix: bytes, bounds: Sequence[int], make: Callable[[int, int], bytes | bytearray]) -> Data:
        def block(number: int) -> Rendered:
            size = bounds[number + 1] - bounds[number]
            return Rendered(cache, (*key, suffix, number), partial(make, number, size), size, 4 * size)

        return Blocked(cache, lambda: bounds, block, is_sized=True)

    def lines(suffix: bytes, form: Form, count: int, sizes: Sequence[int], request: Request) -> Data:
        pattern, line, times, more = form
        shown = (times * size + more * min(step, count - step * number) for number, size in enumerate(sizes))

        def make(number: int, _: int) -> bytes:
            return pattern.sub(line, request(step * number, step, sizes[number]))

        return blocked(suffix, [*accumulate(shown, initial=0)], make)

    def genotypes(number: int, size: int) -> bytes | bytearray:
        return content.packed(number * at_once, size // site, size)

    bed = blocked(b".bed", Regular(at_once * site, facts.sites * site), genotypes)
    for suffix, data in (
        (b".bed", Concatenated([Memory(MAGIC), bed])),
        (b".bim", lines(b".bim", BIM, facts.sites, facts.texts, content.texts)),
        (b".fam", lines(b".fam", FAM, facts.individuals, facts.names, content.names)),
    ):
        yield Member((content.key + suffix,), Part(content.key + suffix, data))


VIEW = View("plink", "genotypes of tree sequences, for PLINK 1.9 and others that read .bed", (Genotypes,), show)
