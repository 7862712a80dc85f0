"""Ports of loopback for servers that cannot choose one themselves, or that shall come back to theirs."""

from __future__ import annotations

import random
import socket

LOCALHOST = "127.0.0.1"
PORTS = range(20_000, 32_000)
"""Below those that the system gives to connections that go out."""


def free_port() -> int:
    """A port on which nobody listens now."""
    while True:
        port = random.SystemRandom().choice(PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOCALHOST, port))
            except OSError:
                continue
        return port
