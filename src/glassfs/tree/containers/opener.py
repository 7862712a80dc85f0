"""Open container files and parse them, whatever their formats raise. Any thread; nothing is remembered here."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from glassfs.cache import BlockCache
from glassfs.cache.findings import Findings
from glassfs.content import Container
from glassfs.errors import Changed, GlassfsError, Refused, Unavailable, is_lack
from glassfs.formats.registry import Opening, open_container
from glassfs.source import Path, Source, Version
from glassfs.tree.containers.lease import Location

log = logging.getLogger(__name__)

Parts = Sequence[tuple[Path, Source]]
"""The further files that a container is made of."""


def open_version(
    location: Location, version: Version, cache: BlockCache, source: Source | None = None,
    findings: Findings | None = None, may_wait: bool = False, layout: str = "",
) -> Opening:
    """Open the file at a location, unless ``source`` is that, for parsing. Raises Changed if it is not that version."""
    if source is None:
        source = location.store.open(location.path)
    if source.version != version:
        source.close()
        raise Changed("has been replaced by another file", source.name)
    return Opening(
        source, cache, location.store, location.path, findings=findings, may_wait=may_wait, layout=layout,
    )


def parse(opening: Opening) -> Container:
    """Return the container. Raises Refused if the file is not one, or if its format fails, and Postponed."""
    with format_errors(opening.source.name):
        container = open_container(opening)
        if not container.is_generic:
            return container
        from glassfs.layouts.episodes import interpreted  # most formats know what their episodes are
        from glassfs.layouts.known import chosen

        layouts = [known.layout for known in chosen(opening.layout)]
        return interpreted(container, layouts, opening)


def parse_or_close(opening: Opening) -> tuple[Container, Parts]:
    """Return the container and its further files; close the file where ``parse`` raises."""
    try:
        container = parse(opening)
    except BaseException:
        opening.source.close()
        raise
    return container, used_parts(opening, container)


def used_parts(opening: Opening, container: Container) -> Parts:
    """Return the further files that a container uses, and close those that its format only tried."""
    if not opening.asked:
        return ()
    used = {id(source.entry) for source in container.sources[1:]}
    parts = []
    for path, source in opening.asked:
        if source is not None and id(source.entry) in used:
            parts.append((path, source))
        elif source is not None:
            source.close()
    return parts


@contextmanager
def format_errors(name: str) -> Iterator[None]:
    """Log unexpected exceptions of a format and turn them into Refused: they cost one container and not its folder."""
    try:
        yield
    except GlassfsError:
        raise
    except Exception as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # Python 3.11 and older: it came while a class was made
            raise error.__cause__ from None
        if is_lack(error):
            reason = f"cannot be opened now: {str(error) or 'there is not enough memory'}"
            raise Unavailable(reason, name) from error
        log.exception("%s", GlassfsError("cannot be opened, due to an error in its format", name))
        raise Refused(f"cannot be opened: {type(error).__name__}: {error}", name) from error
