"""Open container files and parse them, whatever their formats raise. Any thread; nothing is remembered here."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from glassfs.content import Container
from glassfs.errors import GlassfsError, Private, Refused, Unavailable, is_lack
from glassfs.formats.registry import Opening, open_container
from glassfs.source import Path, Source
from glassfs.tree.nodes import Access

log = logging.getLogger(__name__)

Parts = Sequence[tuple[Path, Source]]
"""The further files that a container is made of."""


def parse(opening: Opening) -> Container:
    """Return the container. Raises Refused if the file is not one, or if its format fails, and Postponed.

    Refused is Private if further files were opened that grant less than the container's own.
    """
    try:
        container = open_container(opening)
        allowance, beside = opening.allowance, container.held
        container.held = lambda: allowance.size - allowance.left + beside()
        if not container.is_generic:
            return container
        from glassfs.layouts.episodes import interpreted  # most formats know what their episodes are
        from glassfs.layouts.known import chosen

        return interpreted(container, [known.layout for known in chosen(opening.layout)], opening)
    except Refused as error:
        read = [opening.source.entry, *(found.entry for _, found in opening.asked if isinstance(found, Source))]
        if Access.of(read).permissions != Access.of(read[:1]).permissions:
            raise Private(error.reason, error.source, error.part) from error
        raise
    except GlassfsError:
        raise
    except Exception as error:
        raise failure(error, opening.source.name) from error


def parse_or_close(opening: Opening) -> tuple[Container, Parts]:
    """Return the container and its further files; close the file where ``parse`` raises."""
    try:
        container = parse(opening)
    except BaseException:
        opening.source.close()
        raise
    return container, used_parts(opening, container)


def used_parts(opening: Opening, container: Container) -> Parts:
    """Return the further files that a container uses, in its order, and close those that its format only tried."""
    if not opening.asked:
        return ()
    used = {id(source.entry): number for number, source in enumerate(container.sources)}
    parts = []
    for path, source in opening.asked:
        if isinstance(source, Source) and id(source.entry) in used:
            parts.append((path, source))
        elif isinstance(source, Source):
            source.close()
    return sorted(parts, key=lambda part: used[id(part[1].entry)])


def absent_from(opening: Opening) -> Sequence[tuple[Path, str]]:
    """Return the files that a format asked for and that could not be opened, with their stamps, "" if missing."""
    return [(path, stamp) for path, stamp in opening.asked if isinstance(stamp, str)]


def failure(error: Exception, name: str) -> BaseException:
    """Return what to raise for an unexpected error of a format: Refused, after a record in the log.

    So it costs one container and not its folder. It is Unavailable if memory or descriptors lack.
    """
    if isinstance(error.__cause__, KeyboardInterrupt):  # Python 3.11 and older: it came while a class was made
        interruption, error.__cause__ = error.__cause__, None
        return interruption
    if is_lack(error):
        return Unavailable(f"cannot be opened now: {str(error) or 'there is not enough memory'}", name)
    log.exception("%s", GlassfsError("cannot be opened, due to an error in its format", name))
    return Refused(f"cannot be opened: {type(error).__name__}: {error}", name)
