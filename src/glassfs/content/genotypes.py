"""Genotypes of diploid individuals at sites with two alleles, without a file of their own: views show them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from glassfs.content.model import Content


class GenotypeFacts(NamedTuple):
    """Numbers of individuals and sites, and what is left out of them, as reasons for ``Omitted``.

    ``names`` and ``texts`` are the sizes in bytes of the lines of ``step`` individuals, or sites, at a time.
    """

    individuals: int
    names: Sequence[int]
    sites: int
    texts: Sequence[int]
    step: int
    omitted: Sequence[str]


Request: TypeAlias = "Callable[[int, int, int], bytes | bytearray]"
"""Called with the first one, how many are wanted at most, and the bytes that are expected for them."""


@dataclass
class Genotypes(Content):
    """Individuals, sites and genotypes. The functions are called when needed, and may raise Damaged or Unavailable.

    ``names`` returns a line for each individual, its name. ``texts`` returns a line for each site: its number, its
    position, the first and the second allele, separated by tabs. ``packed`` returns the genotypes of sites: two bits
    for each individual, the first one in the lowest bits, and whole bytes for each site. 3 is the first allele twice, 2
    both alleles, 0 the second allele twice, and 1 a genotype that is missing.

    ``lacks`` returns what to install before anything can be read, empty if nothing is missing.
    """

    facts: Callable[[], GenotypeFacts]
    names: Request
    texts: Request
    packed: Request
    lacks: Callable[[], str] = lambda: ""
