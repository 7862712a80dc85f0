"""``glassfs serve``"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from functools import partial

import click

from glassfs.cache import BlockCache
from glassfs.cli import Stopped, leave, stoppable
from glassfs.cli.completion import misuse, sources_argument
from glassfs.cli.mount import DESCRIBED, mount_options
from glassfs.datasets.selecting import open_sources
from glassfs.errors import GlassfsError, NotInstalled
from glassfs.library.finding import LibraryPaths
from glassfs.mount import logs, process
from glassfs.mount.daemon import check_source
from glassfs.mount.options import MountOptions
from glassfs.serve.site import Site
from glassfs.source.remote.url import shown
from glassfs.terminal import printable
from glassfs.tree import ContainerSettings


@click.command(epilog=DESCRIBED)
@sources_argument
@click.option("--host", metavar="ADDRESS", default="127.0.0.1", help="Listen there (127.0.0.1: this machine only).")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, help="Listen there (8000); 0 is a free one.")
@click.option("--password-file", metavar="FILE", help="Ask for the password in the first line of FILE.")
@click.option("--public", is_flag=True, help="Let others than this machine read without a password.")
@click.option("--cert", metavar="FILE", help="Certificate for HTTPS, with --key.")
@click.option("--key", metavar="FILE", help="Private key of the certificate.")
@mount_options
def command(
    sources: tuple[str, ...], host: str, port: int, password_file: str | None, public: bool, cert: str | None,
    key: str | None, asked: MountOptions,
) -> int:
    """Browsers get pages of episodes, pictures, videos and downloads; Finder, Explorer, davfs2 and rclone can mount the
    address (WebDAV). Everything is read-only. Ctrl-C ends the server.

    Others than this machine can read only with --host 0.0.0.0 (or another address), and a password or --public.
    """
    try:
        from glassfs.serve.server import Server, is_loopback
    except ModuleNotFoundError as error:
        raise NotInstalled(f"serving needs {error.name}: install glassfs[serve]") from None
    if (cert is None) != (key is None):
        raise misuse("--cert and --key belong together")
    if not (is_loopback(host) or password_file or public):
        raise misuse(f"{host} can be reached by others: add --password-file FILE, or --public")
    password = _password(password_file) if password_file else b""
    for source in sources:
        check_source(source)
    logs.configure(asked.log_file, is_daemon=False)
    process.raise_descriptor_limit()
    process.tune_allocator()
    title = os.path.basename(shown(sources[0]).rstrip("/")) if len(sources) == 1 else f"{len(sources)} sources"
    site = Site(opened_paths(sources, asked), title)
    try:
        server = Server(site, host, port, password, (cert, key) if cert and key else None)
    except OSError as error:
        raise GlassfsError(f"{cert}, {key}: cannot be used: {error.strerror or error}") from None
    try:
        server.prepare()
    except OSError as error:
        reason = error.strerror or str(error).rpartition("] ")[2].rstrip(")") or str(error)
        raise GlassfsError(f"cannot listen at {host}, port {port}: {reason}") from None
    at = f"[{host}]" if ":" in host else host
    click.echo(f"{'https' if cert else 'http'}://{at}:{server.bind_addr[1]}/")
    click.echo(f"serving {printable(', '.join(map(shown, sources)))}, until Ctrl-C", err=True)
    try:
        with stoppable():
            server.serve()
    except Stopped:
        leave(0)  # threads may be waiting for clients
    return 0


def opened_paths(sources: Sequence[str], asked: MountOptions) -> LibraryPaths:
    """Open sources as a mount with these options would."""
    cache = BlockCache(asked.cache_size, asked.spool, asked.spool_size)
    settings = ContainerSettings(
        cache, asked.max_open, views=asked.views, has_catalogue=asked.catalogue, layout=asked.layout,
    )
    opened = partial(
        open_sources, sources, settings, connection=asked.connection(), words=asked.words,
        follows="follow_links" in asked.flags,
    )
    return LibraryPaths(lambda on_drop: opened(on_drop=on_drop), max(1, asked.cache_size // 8))


def _password(path: str) -> bytes:
    """Return the first line of a file that only its owner may read. Raises GlassfsError and OSError."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise GlassfsError(f"{path}: others may read or change it; 'chmod 600 {path}' first")
        password = file.readline(1024).strip()
    if not password:
        raise GlassfsError(f"{path}: has no password in its first line")
    return password
