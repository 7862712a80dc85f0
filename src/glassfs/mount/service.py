"""Run under systemd: notify it that the mount is ready (sd_notify(3)), recognize its journal (sd-daemon(3))."""

from __future__ import annotations

import logging
import os


def notify(*assignments: str) -> None:
    """Send ``READY=1``, ``STOPPING=1``, ``STATUS=…`` to the service manager, if one asks for it."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    import socket

    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        try:
            channel.sendto("\n".join(assignments).encode(), address)
        except OSError as error:
            logging.getLogger(__name__).warning("cannot notify the service manager: %s", error)


def is_journal(descriptor: int) -> bool:
    """Return whether this descriptor is the stream to the journal that systemd opened."""
    device, _, inode = os.environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        status = os.fstat(descriptor)
    except OSError:
        return False
    return (device, inode) == (str(status.st_dev), str(status.st_ino))
